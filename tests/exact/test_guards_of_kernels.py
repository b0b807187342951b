"""Choices that are none never reach C, which would read beyond its memory: one too high, one below 0, NaN."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from agilerl.algorithms import MADDPG
from agilerl.engine.learner import Learner
from agilerl.engine.rows.native import _has_choices
from tests.differential import policy_case, team_case
from tests.differential.native_case import BOTH, FOUND
from tests.exact.test_members_that_differ import CASES, batches, members

pytestmark = pytest.mark.skipif(FOUND is None, reason="no kernels were built for this machine")


def spoiled(action: Tensor, value: float) -> Tensor:
    """The actions with one of another value, the first component of the last row."""
    action = action.clone()
    action.view(-1, action.shape[-1])[-1, 0] = value
    return action


@pytest.mark.parametrize("value", [4, -1])
@pytest.mark.parametrize("name", ["DQN", "CQN", "SAC, discrete"])
def test_choices_of_replay(name: str, value: int) -> None:
    case = CASES[name]
    agents = members(case)
    given = batches(case, agents)
    given = replace(given, fields={**given.fields, "discount": torch.ones_like(given.fields["done"])})
    (group,) = Learner(agents, kernels=BOTH).groups
    assert group.learn_whole(given, None) is not None
    action = spoiled(given.fields["action"].unsqueeze(-1), value).squeeze(-1)
    assert group.learn_whole(replace(given, fields={**given.fields, "action": action}), None) is None


@pytest.mark.parametrize("value", [3, -1])
def test_choices_of_rollouts(value: int) -> None:
    space, masked, options = policy_case.CASES["several masked choices"]
    of, (plan,) = policy_case.rollout(space, torch.float64, masked), policy_case.plans(1)
    learner = Learner(policy_case.members(space, **options), kernels=BOTH)
    assert learner.learn_epoch(0, of, plan) is not None
    assert learner.learn_epoch(0, replace(of, action=spoiled(of.action, value)), plan) is None


@pytest.mark.parametrize("value", [2, -1, -0.5, math.nan])
def test_choices_of_teams(value: float) -> None:
    """Stored as numbers: of Box actions any, of choices from 0 to one less than their count."""
    agents, given = (
        team_case.members(MADDPG, "unequal groups"),
        team_case.batches(MADDPG, "unequal groups", 2, 5, torch.float64),
    )
    (group,) = Learner(agents, kernels=BOTH).groups
    assert group.learn_whole(given, None) is not None
    action = given.fields["action"]
    boxes = spoiled(action, -99.0)  # the first agent's
    choices = torch.cat((action[..., :2], spoiled(action[..., 2:], value)), -1)
    for changed, is_taken in ((boxes, True), (choices, False)):
        result = group.learn_whole(replace(given, fields={**given.fields, "action": changed}), None)
        assert (result is not None) == is_taken


@pytest.mark.parametrize(
    ("action", "sizes", "width", "fits"),
    [
        ([[0, 0], [2, 1]], (3, 2), 5, True),
        ([[0, 0], [3, 1]], (3, 2), 5, False),
        ([[0, 0], [2, 2]], (3, 2), 5, False),
        ([[0, -1], [2, 1]], (3, 2), 5, False),
        ([[0, 0], [2, 1]], (3, 2), 4, False),
        ([[0, 0], [2, 1]], (3, 2, 2), 7, False),
    ],
)
def test_bounds_of_each_component(action: Any, sizes: tuple[int, ...], width: int, fits: bool) -> None:
    numbers, masks = torch.tensor(action), torch.ones(2, width, dtype=torch.bool)
    assert _has_choices(numbers, sizes, None, masks) == fits
    assert not _has_choices(numbers.double(), sizes, None)
    assert _has_choices(torch.zeros(2, 3), (), None)
