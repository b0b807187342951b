"""Updates of MADDPG and MATD3 in C and in torch, in float64; equal bits where nothing may make a difference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from native_case import BOTH, FOUND, assert_close, assert_equal, cut, in_c, in_torch, network_config, rates
from torch import Tensor

from agilerl.algorithms import MADDPG, MATD3
from agilerl.engine.learner import Learner
from agilerl.engine.protocol import TransitionBatches
from agilerl.engine.recipes import TeamActorCriticRecipe, recipe_of
from agilerl.envs.teams import AGENTS, JOINT, LAST_ACTION, PRESENT, WAITING
from agilerl.native.library import ACTIVATIONS, Library

BOX = gym.spaces.Box(np.float32([-2, 0]), np.float32([3, 1]))
TWO, FEW = gym.spaces.MultiDiscrete([2, 3]), gym.spaces.Discrete(3)
# agent -> (numbers that it sees, its actions)
TEAMS: dict[str, dict[str, tuple[int, gym.Space]]] = {
    "one group": {"a_0": (4, FEW), "a_1": (4, FEW), "a_2": (4, FEW)},
    "two groups": {"speaker_0": (3, FEW), "listener_0": (5, BOX)},
    "unequal groups": {"mover_0": (3, BOX), "a_0": (4, TWO), "b_0": (2, FEW), "mover_1": (3, BOX), "a_1": (4, TWO)},
}
OF_TEAMS = pytest.mark.parametrize("team", TEAMS)
KINDS = pytest.mark.parametrize("kind", [MADDPG, MATD3])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
pytestmark = pytest.mark.skipif(FOUND is None, reason="no kernels were built for this machine")


def members(kind: Any, team: str, dtype: torch.dtype = torch.float64, *, equal: bool = False, **more: Any) -> list[Any]:
    """Three teams with rates of their own; of hidden widths of their own, unless `equal`."""
    observations = [gym.spaces.Box(-1, 1, (size,)) for size, _ in TEAMS[team].values()]
    actions = [space for _, space in TEAMS[team].values()]
    form = {name: more.pop(name) for name in ("activation", "norm") if name in more}
    made = []
    for index in range(3):
        config = network_config(index, equal=equal, **form)
        agent = kind(observations, actions, agent_ids=list(TEAMS[team]), index=index, seed=index, net_config=config,
                     **rates(index), **more)  # fmt: skip
        for name in agent.registry.all_registered():
            getattr(agent, name).to(dtype)
        made.append(agent)
    return made


def batches(
    kind: Any, team: str, updates: int, rows: int, dtype: torch.dtype, *, masked: bool = False, absent: bool = False
) -> TransitionBatches:
    """Random transitions of unequal weights; agents that are sometimes absent, if asked for; the last rows of the
    second member have weight 0."""
    draws = torch.Generator().manual_seed(7)
    shape, each = (updates, 3, rows), TEAMS[team]
    count = len(each)

    def normal(*size: int) -> Tensor:
        return torch.randn(*shape, *size, generator=draws, dtype=torch.float64).to(dtype)

    def uniform(*size: int) -> Tensor:
        return torch.rand(*shape, *size, generator=draws, dtype=torch.float64).to(dtype)

    weight = (0.5 + uniform()) / rows
    weight[:, 1, rows // 2 :] = 0
    stored, sizes, features = [], [], 0
    for _, space in each.values():
        if isinstance(space, gym.spaces.Box):
            stored.append(normal(2).tanh())
            features += 2
            continue
        choices = [int(space.n)] if isinstance(space, gym.spaces.Discrete) else [int(n) for n in space.nvec]
        stored.append(torch.stack([(uniform() * n).floor() for n in choices], -1))
        sizes += choices
        features += sum(choices)

    def observed() -> dict[str, Any]:
        seen = {name: normal(size) for name, (size, _) in each.items()}
        there = uniform(count) < (0.8 if absent else 2)
        there[..., 0] |= ~there.any(-1)
        joint = torch.cat([seen[name] for name in sorted(seen)], -1)
        return {AGENTS: seen, JOINT: joint, PRESENT: there}

    fields = {
        "obs": observed(), "next_obs": observed(), "action": torch.cat(stored, -1), "reward": normal(count),
        "done": torch.zeros(*shape, count, dtype=dtype),
        "discount": (0.9 + 0.1 * uniform(count)) * (uniform(count) < 0.9).to(dtype),
    }  # fmt: skip
    if masked:
        for name in ("obs_mask", "next_mask"):
            legal = [torch.cat([uniform(n - 1) < 0.6, torch.ones(*shape, 1, dtype=torch.bool)], -1) for n in sizes]
            fields[name] = torch.cat(legal, -1)
    noise = {"gumbel": -(-uniform(features).clamp_min(1e-6).log()).log()}
    if kind is MATD3:
        noise["smoothing"] = normal(features)
    return TransitionBatches(fields, weight, noise, updates, 1, True)


@pytest.mark.parametrize("equal", [True, False], ids=["equal", "different"])
@OF_TEAMS
@KINDS
def test_sixty_updates_are_those_of_torch(kind: Any, team: str, equal: bool) -> None:
    given = batches(kind, team, 60, 21, torch.float64)
    mine = in_c(members(kind, team, equal=equal), [given])
    assert_close(mine, in_torch(members(kind, team, equal=equal), given))


@OF_TEAMS
@KINDS
def test_masks_and_absent_agents_are_those_of_torch(kind: Any, team: str) -> None:
    given = batches(kind, team, 50, 21, torch.float64, masked=True, absent=True)
    assert_close(in_c(members(kind, team), [given]), in_torch(members(kind, team), given))


@pytest.mark.parametrize("made", [
    {"policy_freq": 1}, {"policy_freq": 3}, {"policy_noise": 2.0, "noise_clip": 0.9}, {"temperature": 0.4},
], ids=["every", "third", "noisy", "sharp"])  # fmt: skip
def test_options_are_those_of_torch(made: dict[str, Any]) -> None:
    given = batches(MATD3, "unequal groups", 30, 21, torch.float64)
    mine = in_c(members(MATD3, "unequal groups", **made), [given])
    assert_close(mine, in_torch(members(MATD3, "unequal groups", **made), given))


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_are_those_of_torch(activation: str, norm: bool) -> None:
    given, made = batches(MADDPG, "two groups", 20, 21, torch.float64), {"activation": activation, "norm": norm}
    assert_close(
        in_c(members(MADDPG, "two groups", **made), [given]), in_torch(members(MADDPG, "two groups", **made), given)
    )


def test_without_priorities_there_are_none() -> None:
    given = replace(batches(MADDPG, "one group", 2, 21, torch.float64), wants_priorities=False)
    some = Learner(members(MADDPG, "one group"), kernels=BOTH).groups[0].learn_whole(given, None)
    assert some is not None
    assert [result.priorities for result in some] == [None, None]


@KINDS
def test_members_that_are_not_live_do_not_move(kind: Any) -> None:
    given, live = batches(kind, "unequal groups", 10, 21, torch.float64), [True, False, True]
    mine = in_c(members(kind, "unequal groups"), [given], live)
    theirs = in_torch(members(kind, "unequal groups"), given, live)
    assert_close(mine[:-2], theirs[:-2])
    assert_close([x[..., [0, 2]] for x in mine[-2:-1]], [x[..., [0, 2]] for x in theirs[-2:-1]])


@DTYPES
@KINDS
def test_many_updates_in_one_call_are_one_by_one_to_the_bit(kind: Any, dtype: torch.dtype) -> None:
    given = batches(kind, "unequal groups", 8, 21, dtype, masked=True, absent=True)
    each = [cut(given, k, k + 1) for k in range(8)]
    assert_equal(
        in_c(members(kind, "unequal groups", dtype), [given]), in_c(members(kind, "unequal groups", dtype), each)
    )


@DTYPES
@KINDS
def test_members_together_are_members_alone_to_the_bit(kind: Any, dtype: torch.dtype) -> None:
    given = batches(kind, "unequal groups", 8, 21, dtype, masked=True, absent=True)
    together = in_c(members(kind, "unequal groups", dtype, equal=True), [given])
    for index in range(3):
        alone = in_c([members(kind, "unequal groups", dtype, equal=True)[index]], [cut(given, 0, 8, index)])
        for one, all_members in zip(alone[:-2], together[:-2], strict=True):
            assert torch.equal(one, all_members[index::3])
        assert_equal([alone[-2][..., 0], alone[-1][:, 0]], [together[-2][..., index], together[-1][:, index]])


@DTYPES
@pytest.mark.parametrize("rows", [1, 16, 21])
@KINDS
def test_vectors_of_every_width_give_the_same_bits(kind: Any, rows: int, dtype: torch.dtype) -> None:
    assert FOUND is not None
    if FOUND.vector != 512:
        pytest.skip("this processor has one width of vectors")
    given = [batches(kind, "unequal groups", 6, rows, dtype, masked=True)]
    made = {"activation": "GELU", "norm": True}
    narrow = in_c(members(kind, "unequal groups", dtype, **made), given, library=Library(FOUND.path, 256))
    assert_equal(in_c(members(kind, "unequal groups", dtype, **made), given), narrow)


@KINDS
def test_a_nan_stays_in_its_member_and_shows(kind: Any) -> None:
    given = batches(kind, "unequal groups", 4, 21, torch.float32)
    agents = members(kind, "unequal groups", torch.float32, equal=True)
    name = "critics.mover" if kind is MADDPG else "critics_2.mover"
    with torch.no_grad():
        for one in (name, name.replace("critics", "critic_targets")):
            next(getattr(agents[1], one).parameters()).view(-1)[0] = torch.nan
    spoiled = in_c(agents, [given])
    clean = in_c(members(kind, "unequal groups", torch.float32, equal=True), [given])
    assert spoiled[-2][:, 0, 1].isnan().all()
    assert spoiled[-1][:, 1].isnan().all()
    for row in (0, 2):
        assert_equal([x[row::3] for x in spoiled[:-2]], [x[row::3] for x in clean[:-2]])
        assert_equal([spoiled[-2][..., row]], [clean[-2][..., row]])


def test_what_c_has_no_kernel_for_is_left_to_torch() -> None:
    given = batches(MADDPG, "one group", 2, 21, torch.float64, masked=True)
    beyond = given.fields["action"].clone()
    beyond[0, 0, 0, 0] = 3
    obs, following = given.fields["obs"], given.fields["next_obs"]
    apart = {key: x for key, x in obs.items() if key != JOINT}
    last = {LAST_ACTION: given.fields["action"], WAITING: ~following[PRESENT]}
    for fields in (
        {"action": beyond}, {"action": given.fields["action"][..., :2]}, {"obs": apart},
        {"next_obs": {**following, **last}}, {"obs_mask": given.fields["obs_mask"][..., :3]},
        {"reward": given.fields["reward"][..., :2]},
        {"obs": {**obs, AGENTS: {**obs[AGENTS], "a_1": obs[AGENTS]["a_1"][..., :3]}}},
    ):  # fmt: skip
        some = replace(given, fields={**given.fields, **fields})
        assert Learner(members(MADDPG, "one group"), kernels=BOTH).groups[0].learn_whole(some, None) is None
    some = replace(given, noise={})
    assert Learner(members(MADDPG, "one group"), kernels=BOTH).groups[0].learn_whole(some, None) is None


def test_an_update_that_is_overridden_leaves_the_recipe() -> None:
    class Own(MATD3):
        def _smoothed(self, *inputs: Any) -> Any:
            return super()._smoothed(*inputs)

    spaces = [BOX, BOX], [BOX, BOX]
    assert isinstance(recipe_of(MATD3(*spaces, agent_ids=["a_0", "b_0"])), TeamActorCriticRecipe)
    assert recipe_of(Own(*spaces, agent_ids=["a_0", "b_0"])) is None
