"""Updates of MADDPG and MATD3 in C and in torch, in float64; equal bits where nothing may make a difference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from native_case import BOTH, FOUND, assert_close, assert_equal, cut, in_c, in_torch
from team_case import BOX, TEAMS, batches, members

from agilerl.algorithms import MADDPG, MATD3
from agilerl.engine.learner import Learner
from agilerl.engine.recipes import TeamActorCriticRecipe, recipe_of
from agilerl.envs.protocol import AGENTS, JOINT, LAST_ACTION, PRESENT, WAITING
from agilerl.native.library import ACTIVATIONS, Library

OF_TEAMS = pytest.mark.parametrize("team", TEAMS)
KINDS = pytest.mark.parametrize("kind", [MADDPG, MATD3])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
pytestmark = pytest.mark.skipif(FOUND is None, reason="no kernels were built for this machine")


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
    beyond, below = given.fields["action"].clone(), given.fields["action"].clone()
    beyond[0, 0, 0, 0], below[1, 2, 3, 1] = 3, -1
    obs, following = given.fields["obs"], given.fields["next_obs"]
    apart = {key: x for key, x in obs.items() if key != JOINT}
    last = {LAST_ACTION: given.fields["action"], WAITING: ~following[PRESENT]}
    for fields in (
        {"action": beyond}, {"action": below}, {"action": given.fields["action"][..., :2]}, {"obs": apart},
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
