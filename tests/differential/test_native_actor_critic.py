"""Updates of DDPG and TD3 in C against those in torch, in float64; equal bits where nothing may make a difference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import native_case
import numpy as np
import pytest
import torch
from native_case import BOTH, FOUND, OBS, assert_close, assert_equal, cut, in_c, in_torch

from agilerl.algorithms import DDPG, TD3, TD3BC
from agilerl.engine.learner import Learner
from agilerl.engine.protocol import TransitionBatches
from agilerl.engine.recipes import ActorCriticRecipe, recipe_of
from agilerl.native.library import ACTIVATIONS, Library

ACTIONS = gym.spaces.Box(np.float32([-2, 0]), np.float32([3, 1]))
pytestmark = pytest.mark.skipif(FOUND is None, reason="no kernels were built for this machine")


def members(kind: Any, dtype: torch.dtype = torch.float64, **more: Any) -> list[Any]:
    return native_case.members(kind, ACTIONS, dtype, **more)


def batches(kind: Any, updates: int, rows: int, dtype: torch.dtype, number: int = 1) -> TransitionBatches:
    """Random transitions; the last rows of the second member have weight 0."""
    shape = updates, 3, rows
    _, normal, uniform = native_case.random_fields(shape, dtype)
    weight = torch.full(shape, 1 / rows, dtype=dtype)
    weight[:, 1, rows // 2 :] = 0
    fields = {
        "obs": normal(5), "next_obs": normal(5), "action": normal(2).clamp(-1, 1), "reward": normal(),
        "done": torch.zeros(shape, dtype=dtype),
        "discount": 0.99 * (uniform() < 0.9).to(dtype),
    }  # fmt: skip
    noise = {"smoothing": normal(2)} if kind is TD3 else {}
    return TransitionBatches(fields, weight, noise, updates, number, True)


@pytest.mark.parametrize("equal", [True, False], ids=["equal", "different"])
@pytest.mark.parametrize(("kind", "interval"), [(TD3, 2), (TD3, 1), (DDPG, 1), (DDPG, 3)])
def test_sixty_updates_are_those_of_torch(kind: Any, interval: int, equal: bool) -> None:
    given, made = batches(kind, 60, 37, torch.float64), {"policy_freq": interval, "equal": equal}
    assert_close(in_c(members(kind, **made), [given]), in_torch(members(kind, **made), given))


@pytest.mark.parametrize("equal", [True, False], ids=["equal", "different"])
@pytest.mark.parametrize(("kind", "interval"), [(TD3, 2), (DDPG, 1)])
def test_critics_that_read_features_of_the_policy_learn_as_in_torch(kind: Any, interval: int, equal: bool) -> None:
    given = batches(kind, 60, 37, torch.float64)
    made = {"policy_freq": interval, "equal": equal, "share_encoders": True}
    assert_close(in_c(members(kind, **made), [given]), in_torch(members(kind, **made), given))


def test_much_smoothing_is_held_and_stays_within_the_bounds() -> None:
    given, made = batches(TD3, 50, 37, torch.float64), {"policy_noise": 2.0, "noise_clip": 0.9}
    assert_close(in_c(members(TD3, **made), [given]), in_torch(members(TD3, **made), given))


@pytest.mark.parametrize("kind", [TD3, DDPG])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_are_those_of_torch(activation: str, norm: bool, kind: Any) -> None:
    given, made = batches(kind, 20, 21, torch.float64), {"activation": activation, "norm": norm}
    assert_close(in_c(members(kind, **made), [given]), in_torch(members(kind, **made), given))


@pytest.mark.parametrize("kind", [TD3, DDPG])
def test_members_that_are_not_live_do_not_move(kind: Any) -> None:
    given, live = batches(kind, 20, 21, torch.float64), [True, False, True]
    mine, theirs = in_c(members(kind), [given], live), in_torch(members(kind), given, live)
    assert_close(mine[:-2], theirs[:-2])
    assert_close([x[..., [0, 2]] for x in mine[-2:-1]], [x[..., [0, 2]] for x in theirs[-2:-1]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [TD3, DDPG])
def test_many_updates_in_one_call_are_one_by_one_to_the_bit(kind: Any, dtype: torch.dtype) -> None:
    given = batches(kind, 12, 37, dtype, number=4)
    each = [cut(given, k, k + 1) for k in range(12)]
    assert_equal(in_c(members(kind, dtype), [given]), in_c(members(kind, dtype), each))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [TD3, DDPG])
def test_members_together_are_members_alone_to_the_bit(kind: Any, dtype: torch.dtype) -> None:
    given = batches(kind, 12, 37, dtype)
    together = in_c(members(kind, dtype, equal=True), [given])
    for index in range(3):
        alone = in_c([members(kind, dtype, equal=True)[index]], [cut(given, 0, 12, index)])
        for one, all_members in zip(alone[:10], together[:10], strict=True):
            assert torch.equal(one, all_members[index::3])
        assert_equal([alone[-2][..., 0], alone[-1][:, 0]], [together[-2][..., index], together[-1][:, index]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, 16, 37])
@pytest.mark.parametrize("kind", [TD3, DDPG])
def test_vectors_of_every_width_give_the_same_bits(kind: Any, rows: int, dtype: torch.dtype) -> None:
    assert FOUND is not None
    if FOUND.vector != 512:
        pytest.skip("this processor has one width of vectors")
    given = [batches(kind, 6, rows, dtype)]
    for share in (False, True):
        made = {"activation": "GELU", "norm": True, "share_encoders": share}
        narrow = in_c(members(kind, dtype, **made), given, library=Library(FOUND.path, 256))
        assert_equal(in_c(members(kind, dtype, **made), given), narrow)


@pytest.mark.parametrize("kind", [TD3, DDPG])
@pytest.mark.parametrize("network", ["actor", "critic"])
def test_a_nan_stays_in_its_member_and_shows(kind: Any, network: str) -> None:
    given, agents = batches(kind, 3, 21, torch.float32), members(kind, torch.float32, equal=True)
    name = "critic_2" if network == "critic" and kind is TD3 else network
    target = {"actor": "actor_target", "critic": "critic_target", "critic_2": "critic_target_2"}[name]
    with torch.no_grad():
        next(getattr(agents[1], name).parameters())[0, 0] = torch.nan
        next(getattr(agents[1], target).parameters())[0, 0] = torch.nan
    spoiled, clean = in_c(agents, [given]), in_c(members(kind, torch.float32, equal=True), [given])
    assert spoiled[-2][:, 0, 1].isnan().all()
    assert spoiled[-1][:, 1].isnan().all()
    for row in (0, 2):
        assert_equal([x[row::3] for x in spoiled[:-2]], [x[row::3] for x in clean[:-2]])
        assert_equal([spoiled[-2][..., row]], [clean[-2][..., row]])


@pytest.mark.parametrize("kind", [TD3, DDPG])
def test_what_c_has_no_kernel_for_is_left_to_torch(kind: Any) -> None:
    given = batches(kind, 2, 21, torch.float64)
    narrow = given.fields["action"][..., :1]
    for some in (
        replace(given, fields={**given.fields, "action": narrow}),
        replace(given, fields={**given.fields, "next_obs": given.fields["next_obs"][..., :4]}),
        replace(given, noise={"other": torch.zeros(2, 3, 21, 2)}) if kind is DDPG else replace(given, noise={}),
    ):
        assert Learner(members(kind), kernels=BOTH).groups[0].learn_whole(some, None) is None


def test_td3bc_has_an_update_of_its_own() -> None:
    assert isinstance(recipe_of(TD3(OBS, ACTIONS)), ActorCriticRecipe)
    assert recipe_of(TD3BC(OBS, ACTIONS)) is None
