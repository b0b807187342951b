"""What uniformly random play scores: measured before every run, by legal actions, and without changing it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import agilerl
from agilerl.algorithms.dqn import DQN
from agilerl.algorithms.ppo import PPO
from agilerl.core.options import LoopOptions
from agilerl.envs.vector import make_vect_envs
from agilerl.telemetry.evaluation import Baseline, Evaluation
from agilerl.training.manifest import build
from agilerl.training.random_play import random_play
from tests.unit.team_games import Meeting

LENGTH = 50
SMALL = {"population": 2, "steps": 256, "num_envs": 4, "evo_steps": 128, "eval_episodes": 2, "confirm_episodes": 2}


class Sum(gym.Env[Any, Any]):
    """The reward is the sum of the action; with `legal` a mask, and an error for any other action."""

    def __init__(self, actions: spaces.Space[Any], legal: list[int] | None = None, length: int = LENGTH) -> None:
        self.observation_space, self.action_space = spaces.Box(-1, 1, (2,)), actions
        self.legal, self.length = legal, length

    def _info(self) -> dict[str, Any]:
        return {} if self.legal is None else {"action_mask": np.array(self.legal, np.int8)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(2, np.float32), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        if self.legal is not None and isinstance(self.action_space, spaces.Discrete):
            assert self.legal[int(action) - int(self.action_space.start)], "an illegal action was taken"
        self.count += 1
        return np.zeros(2, np.float32), float(np.sum(action)), self.count >= self.length, False, self._info()


def score_of(
    actions: spaces.Space[Any], legal: list[int] | None = None, algo: Any = PPO, max_steps: int = 100_000
) -> Evaluation:
    """Of random play before a run of two members of so many steps each."""
    env = make_vect_envs(num_envs=4, make_env=lambda: Sum(actions, legal))
    agent = algo(spaces.Box(-1, 1, (2,)), actions)
    try:
        found = random_play(env, agent, LoopOptions(max_steps=max_steps, evo_steps=max_steps), 2, seed=3)
    finally:
        env.close()
    assert found.score is not None
    return found.score


@pytest.mark.parametrize(
    ("actions", "mean", "variance"),
    [
        (spaces.Discrete(4), 1.5, 1.25),  # of one action: the mean and the variance of {0, 1, 2, 3}
        (spaces.Discrete(4, start=5), 6.5, 1.25),
        (spaces.MultiDiscrete([2, 3]), 1.5, 0.25 + 2 / 3),
        (spaces.MultiBinary(3), 1.5, 0.75),
        (spaces.Box(0, 10, (1,)), 5.0, 100 / 12),
        (spaces.Box(np.float32([0, -3]), np.float32([10, 1])), 4.0, 116 / 12),
    ],
    ids=str,
)
def test_actions_are_uniform_over_the_space(actions: spaces.Space[Any], mean: float, variance: float) -> None:
    score = score_of(actions)
    assert len(score.returns) == 20
    error = np.sqrt(variance * LENGTH / 20)  # of the mean of 20 returns, each a sum of independent actions
    assert abs(score.mean - mean * LENGTH) < 4 * error
    assert 0.4 * np.sqrt(variance * LENGTH) < score.std < 1.9 * np.sqrt(variance * LENGTH)


@pytest.mark.parametrize("algo", [PPO, DQN])
def test_only_legal_actions_are_taken(algo: Any) -> None:
    assert set(score_of(spaces.Discrete(4), [0, 0, 1, 0], algo).returns) == {2.0 * LENGTH}
    two = score_of(spaces.Discrete(4), [1, 0, 1, 0], algo)
    assert abs(two.mean - LENGTH) < 4 * np.sqrt(LENGTH / 20)


def test_a_long_episode_of_a_short_run_costs_five_episodes() -> None:
    assert len(score_of(spaces.Discrete(2), max_steps=10_000).returns) == 20, "of 50 steps: 5 % of 2 x 10,000"
    assert len(score_of(spaces.Discrete(2), max_steps=9_999).returns) == 5


def result(monkeypatch: pytest.MonkeyPatch, env: Any, algo: str, with_play: bool, **more: Any) -> Any:
    with monkeypatch.context() as patch:
        if not with_play:
            patch.setattr(build, "random_play", lambda *_: Baseline(skipped="for this test"))
        return agilerl.train(env, algo, out=None, verbose=False, seed=5, **SMALL | more)


@pytest.mark.parametrize(
    ("env", "algo", "more"),
    [
        ("CartPole-v1", "DQN", {}),
        ("Pendulum-v1", "PPO", {"learn_step": 32}),
        pytest.param("mpe2.simple_spread_v3", "MADDPG", {"batch_size": 32}, marks=pytest.mark.thorough),
        pytest.param("MaskedCartPole-v1", "PPO", {"learn_step": 32}, marks=pytest.mark.thorough),
    ],
)
def test_the_run_is_what_it_is_without(monkeypatch: pytest.MonkeyPatch, env: str, algo: str, more: Any) -> None:
    if env.startswith("mpe2"):
        pytest.importorskip("mpe2")
    one, other = (result(monkeypatch, env, algo, with_play, **more) for with_play in (True, False))
    assert one.random_play.score is not None
    assert one.history == other.history
    a, b = one.best.policy_state(), other.best.policy_state()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert {k: v for k, v in one.result.items() if "seconds" not in k} == {
        k: v for k, v in other.result.items() if "seconds" not in k
    }


def test_it_stands_in_the_plan_the_record_the_report_and_the_closing_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = agilerl.train("CartPole-v1", "DQN", out=tmp_path, seed=5, **SMALL)
    assert str(run.random_play) in capsys.readouterr().out.splitlines()
    facts = json.loads((run.path / "run.json").read_text())
    assert facts["random_play"] == run.random_play.as_dict()
    assert 10 < facts["random_play"]["mean"] < 40, "CartPole falls after about 22 steps"
    assert "random play" in (run.path / "report.html").read_text()
    assert "(random play " in run.in_words()
    assert agilerl.load(run.path).random_play == run.random_play

    def again(*_: Any) -> None:
        raise AssertionError("a run that goes on knows it already")

    monkeypatch.setattr(build, "random_play", again)
    resumed = agilerl.resume(run.path, steps=512, verbose=False)
    assert resumed.random_play == run.random_play
    assert json.loads((run.path / "run.json").read_text())["random_play"] == facts["random_play"]


def test_an_environment_that_was_handed_over_is_not_stepped_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    run = agilerl.train(Sum(spaces.Discrete(2)), "PPO", out=None, learn_step=32, **{**SMALL, "num_envs": 1})
    assert run.random_play.score is None
    assert "random play: not measured (the environment was handed over as an object" in capsys.readouterr().out
    assert "random play" not in run.in_words()


class Duel(Meeting):
    """Two callers of one kind; what one gains the other one loses, or both gain."""

    possible_agents = ["player_0", "player_1"]  # noqa: RUF012

    def __init__(self, sign: float) -> None:
        self.sign, self.agents = sign, []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1, 1, (2,))

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.age, self.agents = 0, list(self.possible_agents)
        return {agent: np.zeros(2, np.float32) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        self.age += 1
        gain, over = float(actions["player_0"]) - float(actions["player_1"]), self.age >= 6
        seen = {agent: np.zeros(2, np.float32) for agent in self.agents}
        rewards, ends = {"player_0": gain, "player_1": self.sign * gain}, dict.fromkeys(self.agents, over)
        infos, cuts = {agent: {} for agent in self.agents}, dict.fromkeys(self.agents, False)
        self.agents = [] if over else self.agents
        return seen, rewards, ends, cuts, infos

    def close(self) -> None:
        """Nothing is held."""


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_game_of_two_whose_returns_sum_to_zero_is_told_of_self_play(sign: float) -> None:
    run = agilerl.train(lambda: Duel(sign), "IPPO", out=None, verbose=False, seed=1, learn_step=32, **SMALL)
    assert run.random_play.is_zero_sum == (sign < 0)
    assert ("--opponents self" in run.in_words()) == (sign < 0)
    if sign > 0:
        return
    assert set(run.random_play.score.returns) == {0.0}
    against = agilerl.train(
        lambda: Duel(sign), "IPPO", out=None, verbose=False, seed=1, learn_step=32, opponents="self", **SMALL
    )
    assert against.random_play == Baseline(skipped="fitness is the return against the population's past")
    assert "first generation" not in against.in_words()
