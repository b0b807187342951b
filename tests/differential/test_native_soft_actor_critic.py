"""Updates of SAC in C against those in torch, in float64; equal bits where nothing may make a difference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import native_case
import numpy as np
import pytest
import torch
from native_case import BOTH, FOUND, OBS, assert_close, assert_equal, cut, in_c, in_torch
from torch import Tensor

from agilerl.algorithms import CQL, SAC
from agilerl.engine.learner import Learner
from agilerl.engine.protocol import TransitionBatches
from agilerl.engine.recipes import SoftActorCriticRecipe, recipe_of
from agilerl.native.library import ACTIVATIONS, Library

BOX, CHOICE = gym.spaces.Box(np.float32([-2, 0]), np.float32([3, 1])), gym.spaces.Discrete(4)
SPACES = pytest.mark.parametrize("space", [BOX, CHOICE], ids=["box", "discrete"])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
OF_MEMBERS: dict[str, Any] = {"lr_alpha": (1e-3, 3e-3, 5e-3), "init_temperature": (0.2, 0.5, 0.8)}
pytestmark = pytest.mark.skipif(FOUND is None, reason="no kernels were built for this machine")


def members(space: gym.Space, dtype: torch.dtype = torch.float64, **more: Any) -> list[SAC]:
    entropies = (-1.0, -1.5, -2.0) if space is BOX else (0.5, 0.9, 1.2)
    return native_case.members(SAC, space, dtype, **{"target_entropy": entropies, **OF_MEMBERS, **more})


def batches(
    space: gym.Space, updates: int, rows: int, dtype: torch.dtype, *, masked: bool = False, scale: float = 1.0
) -> TransitionBatches:
    """Random transitions of unequal weights, discounts and, if `masked`, legal actions; the last rows of the second
    member have weight 0. scale: of observations."""
    shape = updates, 3, rows
    draws, normal, uniform = native_case.random_fields(shape, dtype)
    weight = (0.5 + uniform()) / rows
    weight[:, 1, rows // 2 :] = 0
    action = normal(2).tanh() if space is BOX else torch.randint(0, 4, shape, generator=draws)
    fields = {
        "obs": scale * normal(5), "next_obs": scale * normal(5), "action": action, "reward": normal(),
        "done": torch.zeros(shape, dtype=dtype), "discount": (0.9 + 0.1 * uniform()) * (uniform() < 0.9).to(dtype),
    }  # fmt: skip
    if masked:
        fields["next_mask"] = (uniform(4) < 0.5) | (torch.arange(4) == 2)
        fields["obs_mask"] = (uniform(4) < 0.5) | (torch.arange(4) == action.unsqueeze(-1))
    noise = {name: normal(2) for name in ("action", "next_action")} if space is BOX else {}
    return TransitionBatches(fields, weight, noise, updates, 1, True)


def temperatures(space: gym.Space) -> Tensor:
    """Their logarithms at first, [3, 1]."""
    return torch.stack([agent.temperature.bias.detach() for agent in members(space)])


@pytest.mark.parametrize("equal", [True, False], ids=["equal", "different"])
@pytest.mark.parametrize("share", [False, True], ids=["apart", "shared"])
@SPACES
def test_sixty_updates_are_those_of_torch(space: gym.Space, share: bool, equal: bool) -> None:
    given, made = batches(space, 60, 37, torch.float64), {"share_encoders": share, "equal": equal}
    mine = in_c(members(space, **made), [given])
    assert_close(mine, in_torch(members(space, **made), given))
    assert (mine[10] - temperatures(space)).abs().min() > 1e-2, "temperatures move"


@SPACES
def test_a_fixed_temperature_stays(space: gym.Space) -> None:
    given, made = batches(space, 50, 37, torch.float64), {"learn_temperature": False}
    mine = in_c(members(space, **made), [given])
    assert_close(mine, in_torch(members(space, **made), given))
    assert_equal(mine[10:11], [temperatures(space)])


@pytest.mark.parametrize("share", [False, True], ids=["apart", "shared"])
def test_masks_of_actions_are_those_of_torch(share: bool) -> None:
    given = batches(CHOICE, 60, 37, torch.float64, masked=True)
    mine = in_c(members(CHOICE, share_encoders=share), [given])
    assert_close(mine, in_torch(members(CHOICE, share_encoders=share), given))


def test_rows_without_a_legal_action_are_those_of_torch() -> None:
    given = batches(CHOICE, 20, 21, torch.float64, masked=True)
    for name in ("next_mask", "obs_mask"):
        given.fields[name][:, :, ::3] = False
    assert_close(in_c(members(CHOICE), [given]), in_torch(members(CHOICE), given))


@pytest.mark.parametrize("log_std", [9.0, -9.0, -30.0])
def test_limits_of_the_deviation_are_those_of_torch(log_std: float) -> None:
    """Beyond its upper limit, near it, and beyond the lower one, where the density is 4e8 times as steep."""

    def made() -> list[SAC]:
        agents = members(BOX)
        for agent in agents:
            last = list(agent.actor.parameters())[-2:]
            with torch.no_grad():
                last[0][:2] *= 1e-9 if log_std < -20 else 1  # means near 0, where few digits cancel
                last[1].copy_(torch.tensor([0.0, 0.0, log_std, log_std / 4]))
        return agents

    given = batches(BOX, 20, 37, torch.float64) if log_std > -20 else batches(BOX, 1, 37, torch.float64)
    assert_close(in_c(made(), [given]), in_torch(made(), given), 1e-10 if log_std > -20 else 1e-8)


def test_means_far_out_have_the_density_of_torch() -> None:
    """Where tanh is 1 to the last digit, and where softplus is a line."""
    given = batches(BOX, 20, 37, torch.float64, scale=40.0)
    assert_close(in_c(members(BOX), [given]), in_torch(members(BOX), given))


def test_critics_that_agree_have_half_of_the_gradient_each() -> None:
    def made() -> list[SAC]:
        agents = members(BOX)
        for agent in agents:
            agent.critic_2.load_state_dict(agent.critic_1.state_dict())
            agent.critic_target_2.load_state_dict(agent.critic_target_1.state_dict())
        return agents

    given = batches(BOX, 20, 37, torch.float64)
    mine = in_c(made(), [given])
    assert_close(mine, in_torch(made(), given))
    assert torch.equal(mine[5][:3], mine[5][3:]), "their losses are alike, so they stay alike"


@pytest.mark.parametrize(
    "optimizer", [(torch.optim.AdamW, {"weight_decay": 0.02}), (torch.optim.Adam, {"weight_decay": 0.01})]
)
@SPACES
def test_decay_of_weights_is_that_of_torch(space: gym.Space, optimizer: Any) -> None:
    given = batches(space, 30, 21, torch.float64)
    assert_close(
        in_c(members(space, optimizer=optimizer), [given]), in_torch(members(space, optimizer=optimizer), given)
    )


@SPACES
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_are_those_of_torch(activation: str, norm: bool, space: gym.Space) -> None:
    given, made = batches(space, 20, 21, torch.float64), {"activation": activation, "norm": norm}
    assert_close(in_c(members(space, **made), [given]), in_torch(members(space, **made), given))


@SPACES
def test_members_that_are_not_live_do_not_move(space: gym.Space) -> None:
    given, live = batches(space, 20, 21, torch.float64), [True, False, True]
    mine, theirs = in_c(members(space), [given], live), in_torch(members(space), given, live)
    assert_close(mine[:-2], theirs[:-2])
    assert_close([x[..., [0, 2]] for x in mine[-2:-1]], [x[..., [0, 2]] for x in theirs[-2:-1]])


@DTYPES
@SPACES
def test_many_updates_in_one_call_are_one_by_one_to_the_bit(space: gym.Space, dtype: torch.dtype) -> None:
    given = batches(space, 12, 37, dtype, masked=space is CHOICE)
    each = [cut(given, k, k + 1) for k in range(12)]
    assert_equal(in_c(members(space, dtype), [given]), in_c(members(space, dtype), each))


@DTYPES
@SPACES
def test_members_together_are_members_alone_to_the_bit(space: gym.Space, dtype: torch.dtype) -> None:
    given = batches(space, 12, 37, dtype, masked=space is CHOICE)
    together = in_c(members(space, dtype, equal=True), [given])
    for index in range(3):
        alone = in_c([members(space, dtype, equal=True)[index]], [cut(given, 0, 12, index)])
        for one, all_members in zip(alone[:-2], together[:-2], strict=True):
            assert torch.equal(one, all_members[index::3])
        assert_equal([alone[-2][..., 0], alone[-1][:, 0]], [together[-2][..., index], together[-1][:, index]])


@DTYPES
@pytest.mark.parametrize("rows", [1, 16, 37])
@SPACES
def test_vectors_of_every_width_give_the_same_bits(space: gym.Space, rows: int, dtype: torch.dtype) -> None:
    assert FOUND is not None
    if FOUND.vector != 512:
        pytest.skip("this processor has one width of vectors")
    given = [batches(space, 6, rows, dtype, masked=space is CHOICE)]
    for share in (False, True):
        made = {"activation": "GELU", "norm": True, "share_encoders": share}
        narrow = in_c(members(space, dtype, **made), given, library=Library(FOUND.path, 256))
        assert_equal(in_c(members(space, dtype, **made), given), narrow)


@SPACES
@pytest.mark.parametrize("network", ["actor", "critic_2", "temperature"])
def test_a_nan_stays_in_its_member_and_shows(space: gym.Space, network: str) -> None:
    given, agents = batches(space, 3, 21, torch.float32), members(space, torch.float32, equal=True)
    with torch.no_grad():
        for name in ("critic_2", "critic_target_2") if network == "critic_2" else (network,):
            next(p for p in getattr(agents[1], name).parameters() if p.numel()).view(-1)[0] = torch.nan
    spoiled, clean = in_c(agents, [given]), in_c(members(space, torch.float32, equal=True), [given])
    assert spoiled[-2][:, :, 1].isnan().all()
    assert spoiled[-1][:, 1].isnan().all()
    for row in (0, 2):
        assert_equal([x[row::3] for x in spoiled[:-2]], [x[row::3] for x in clean[:-2]])
        assert_equal([spoiled[-2][..., row]], [clean[-2][..., row]])


def test_what_c_has_no_kernel_for_is_left_to_torch() -> None:
    box, choice = batches(BOX, 2, 21, torch.float64), batches(CHOICE, 2, 21, torch.float64, masked=True)
    beyond = choice.fields["action"].clone()
    beyond[0, 0, 0] = 4
    for space, given in (
        (BOX, replace(box, fields={**box.fields, "action": box.fields["action"][..., :1]})),
        (BOX, replace(box, fields={**box.fields, "obs_mask": choice.fields["obs_mask"]})),
        (BOX, replace(box, noise={"action": box.noise["action"]})),
        (CHOICE, replace(choice, fields={**choice.fields, "action": beyond})),
        (CHOICE, replace(choice, fields={**choice.fields, "next_mask": choice.fields["next_mask"][..., :3]})),
        (CHOICE, replace(choice, noise=box.noise)),
    ):
        assert Learner(members(space), kernels=BOTH).groups[0].learn_whole(given, None) is None


def test_other_optimisers_are_left_to_torch() -> None:
    agents = members(BOX, optimizer=(torch.optim.SGD, {}))
    assert Learner(agents, kernels=BOTH).groups[0].learn_whole(batches(BOX, 2, 21, torch.float64), None) is None


def test_a_part_of_the_update_that_is_overridden_leaves_the_recipe() -> None:
    class Own(SAC):
        def _policy_loss(self, *inputs: Any) -> Any:
            return super()._policy_loss(*inputs)

    assert isinstance(recipe_of(SAC(OBS, BOX)), SoftActorCriticRecipe)
    assert recipe_of(Own(OBS, BOX)) is None
    assert recipe_of(CQL(OBS, BOX)) is None
