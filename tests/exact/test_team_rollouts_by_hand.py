"""Rollouts of teams by hand: values in a running scale, advantages by group, ends, absence and missing decisions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from agilerl.components.rollout_store import RolloutStore
from agilerl.engine.team_rollouts import make_team_rollout
from agilerl.ranks import ONE

BOX, CHOICE = gym.spaces.Box(-9, 9, (1,), np.float64), gym.spaces.Discrete(2)
LIKE = torch.zeros((), dtype=torch.float64)
# One lane, two steps, three agents, of which the first two are a group. Outputs of the critic, and rewards.
OUTPUTS, LAST = np.array([[1.0, 2.0, 3.0], [0.0, 1.0, -1.0]]), np.array([1.0, 0.0, 2.0])
REWARD = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])


class Team:
    """A team whose values have one scale before its returns are known, and another one after."""

    gamma, gae_lambda, groups_of_agents = 0.5, 0.5, [[0, 1], [2]]

    def __init__(self) -> None:
        self.returns: tuple[np.ndarray, np.ndarray] | None = None

    def presence(self, obs: Any) -> np.ndarray:
        return np.asarray(obs)[..., 1:]

    def value_scale(self) -> tuple[np.ndarray, np.ndarray]:
        scales = ([10.0, 10, 5], [2.0, 2, 4]) if self.returns is None else ([12.0, 12, 6], [4.0, 4, 2])
        return np.array(scales[0]), np.array(scales[1])

    def see_returns(self, returns: np.ndarray, acted: np.ndarray) -> None:
        self.returns = returns, acted


def rollout(
    acted: Any = None, present: Any = None, terminated: Any = None, truncated: Any = None, final: Any = None
) -> tuple[Team, Any]:
    """The team and the rollout of both steps; observations hold a number and who is present, everybody by default."""
    team, buffer = Team(), RolloutStore(2, 1, BOX, CHOICE, agents=3)
    ones, nobody = np.ones((3, 3), bool), np.zeros((2, 3), bool)
    there = ones if present is None else np.array(present, bool)
    obs = np.concatenate([np.zeros((3, 1)), there], 1)
    for t in range(2):
        ends, cuts = (nobody[t] if x is None else np.array(x, bool)[t] for x in (terminated, truncated))
        decided = there[t] if acted is None else np.array(acted, bool)[t]
        buffer.add(
            obs[None, t], np.zeros((1, 3), np.int64), REWARD[None, t], ends[None], cuts[None], np.zeros((1, 3)),
            OUTPUTS[None, t], final_obs=obs[None, t], final_value=None if final is None else np.array([final]),
            valid=decided[None],
        )  # fmt: skip
    buffer.last_obs, buffer.last_value = obs[None, 2], LAST[None]
    learner = SimpleNamespace(groups=[SimpleNamespace(prepare=torch.as_tensor)], ranks=ONE)
    return team, make_team_rollout(learner, 0, [team], buffer, LIKE)  # type: ignore[arg-type]


def test_values_are_in_the_scale_of_before_and_goals_in_that_of_after() -> None:
    """Values 12, 14, 17 and 10, 12, 1, after the last step 12, 10, 13; γ = ½, so that γ λ is a quarter.

    Advantages 4 + 6 − 10, 5 + 5 − 12, 6 + 6.5 − 1; before them 1 + 5 − 12, 2 + 6 − 14 − 2/4, 3 + ½ − 17 + 11.5/4.
    """
    team, result = rollout()
    advantage = np.array([[-6, -6.5, -10.625], [0, -2, 11.5]])
    returns = advantage + np.array([[12, 14, 17], [10, 12, 1]])
    assert team.returns is not None
    np.testing.assert_allclose(team.returns[0], returns, rtol=1e-14)
    assert team.returns[1].all()
    numbers = result.numbers[0].numpy()  # log probability, output, advantage, goal
    np.testing.assert_array_equal(numbers[..., 1], OUTPUTS)
    np.testing.assert_allclose(numbers[..., 3], (returns - [12, 12, 6]) / [4, 4, 2], rtol=1e-14)
    for group in Team.groups_of_agents:
        part = advantage[:, group]
        scaled = (part - part.mean()) / (part.std() + 1e-8)
        np.testing.assert_allclose(numbers[:, group, 2], scaled, rtol=1e-12)
    assert result.acted is None
    assert [rows.tolist() for rows in result.samples] == [[0, 1]]


def test_ends_and_limits_are_those_of_an_agent() -> None:
    """The first agent ends in step 0: 1 − 12. The second is cut there, with a final value of 3 · 2 + 10: 2 + 8 − 14."""
    team, _ = rollout(terminated=[[1, 0, 0], [0, 0, 0]], truncated=[[0, 1, 0], [0, 0, 0]], final=[9.0, 3.0, 9.0])
    assert team.returns is not None
    np.testing.assert_allclose(team.returns[0] - [[12, 14, 17], [10, 12, 1]], [[-11, -4, -10.625], [0, -2, 11.5]])


def test_an_agent_that_is_away_or_does_not_decide_is_not_learned_from() -> None:
    """The first is away in step 1: its decision lasts until it is back, 1 + ½ (4 + ½ · 12) − 12. The third has not
    decided in step 1: its value stands for what follows, 3 + ½ · 1 − 17."""
    team, result = rollout(present=[[1, 1, 1], [0, 1, 1], [1, 1, 1]], acted=[[1, 1, 1], [0, 1, 0]])
    assert team.returns is not None
    returns, acted = team.returns
    assert acted.tolist() == [[True, True, True], [False, True, False]]
    np.testing.assert_allclose(returns[0] - [12, 14, 17], [-6, -6.5, -13.5])
    assert result.acted is not None
    assert result.acted[0].tolist() == acted.tolist()
    numbers = result.numbers[0].numpy()
    assert (numbers[1, [0, 2]] == 0).all()
    part = np.array([-6, -6.5, -2.0])  # of the first group
    np.testing.assert_allclose(numbers[0, 0, 2], (-6 - part.mean()) / (part.std() + 1e-8), rtol=1e-12)
    assert numbers[0, 2, 2] == 0, "alone in its group"
