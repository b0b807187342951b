"""Rows of games of turns are packed: every decision once, with all that belongs to it, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from agilerl.engine.rollouts import Rollout
from agilerl.engine.team_rollouts import packed
from agilerl.envs.protocol import AGENTS, PRESENT

TEAM = SimpleNamespace(
    agent_ids=["a_0", "a_1"],
    actions=SimpleNamespace(
        columns={"a_0": slice(0, 1), "a_1": slice(1, 2)}, masks={"a_0": slice(0, 2), "a_1": slice(2, 4)}
    ),
)


def rollout(acted: Any) -> Rollout:
    """Two members of four rows; what stands in row r of member n and agent k is 100·n + 10·k + r."""
    label = (
        100 * torch.arange(2.0).view(2, 1, 1) + 10 * torch.arange(2.0) + torch.arange(4.0).view(1, 4, 1)
    )  # [N, R, M]
    obs = {"a_0": label[..., :1].clone(), "a_1": label[..., 1:].clone()}
    legal = torch.stack([label, -label], -1).flatten(2)  # [N, R, 4]: both choices of the first agent, then the other's
    numbers = torch.stack([label + 0.1 * j for j in range(4)], -1)
    there = torch.ones(2, 4, 2, dtype=torch.int8)
    samples = [np.arange(4), np.arange(4)]
    return Rollout({AGENTS: obs, PRESENT: there}, label, numbers, legal, samples, acted=torch.tensor(acted))


def test_each_agents_decisions_stand_side_by_side_in_the_order_of_time() -> None:
    turns = [[[1, 0], [0, 1], [1, 0], [0, 1]], [[0, 0], [1, 0], [0, 1], [0, 0]]]
    found = packed(rollout(np.array(turns, bool)), TEAM)
    assert found.action[0].tolist() == [[0, 11], [2, 13]]
    assert found.action[1][0].tolist() == [101, 112]
    assert found.acted is not None
    assert found.acted.tolist() == [[[True, True]] * 2, [[True, True], [False, False]]]
    assert [own.tolist() for own in found.samples] == [[0, 1], [0]]
    assert found.obs[AGENTS]["a_0"][0].tolist() == [[0], [2]]
    assert found.obs[AGENTS]["a_1"][0].tolist() == [[11], [13]]
    assert found.obs[PRESENT].tolist() == found.acted.int().tolist()
    assert found.legal is not None
    assert found.legal[0].tolist() == [[0, 0, 11, -11], [2, -2, 13, -13]]
    torch.testing.assert_close(found.numbers[0, 1], torch.tensor([[2, 2.1, 2.2, 2.3], [13, 13.1, 13.2, 13.3]]))
    assert found.size == 2


def test_where_everyone_decides_as_often_there_is_no_mask_and_where_all_always_do_nothing_changes() -> None:
    even = [[[1, 0], [0, 1], [1, 0], [0, 1]], [[1, 1], [0, 0], [1, 1], [0, 0]]]
    assert packed(rollout(np.array(even, bool)), TEAM).acted is None
    whole = replace(rollout([True]), acted=None)
    assert packed(whole, TEAM) is whole
