"""Evaluation: common seeds, resting lanes, waves, and the published meaning of agent.test."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from agilerl.envs.step import SyncLanes, as_lanes
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import ConfigError, ShapeError
from agilerl.rollouts.evaluate import evaluate, test_agent
from tests.probe.environments import MaskedActionEnv

SEEDS = np.array([11, 22, 33, 44, 55])


class Controllers:
    """Member n pushes the cart by its own rule: n = 0 always left, others balance with gain n."""

    def __init__(self, gains: list[float]) -> None:
        self.gains = np.array(gains)[:, None]
        self.calls = 0

    def act_greedy(self, obs: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        self.calls += 1
        assert mask is None
        return (obs[..., 2] * self.gains + obs[..., 3] * self.gains > 0).astype(np.int64)


def one_by_one(gain: float, seed: int, limit: int | None = None) -> tuple[float, int]:
    """A ten-line reference: one member, one episode, one environment."""
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=int(seed))
    total, length, ended = 0.0, 0, False
    while not ended and (limit is None or length < limit):
        obs, reward, terminated, truncated, _ = env.step(int(obs[2] * gain + obs[3] * gain > 0))
        total, length, ended = total + float(reward), length + 1, terminated or truncated
    return total, length


@pytest.mark.parametrize("lanes_per_member", [1, 2, 5, 7])
@pytest.mark.parametrize("limit", [None, 20])
def test_the_same_episodes_whatever_the_number_of_lanes(lanes_per_member: int, limit: int | None) -> None:
    env = make_vect_envs("CartPole-v1", lanes_per_member)
    gains = [0.0, 1.0, -1.0]
    result = evaluate(Controllers(gains), env.replicate(3, reset_ended=False), 3, 5, SEEDS, limit)
    expected = np.array([[one_by_one(gain, seed, limit) for seed in SEEDS] for gain in gains])
    np.testing.assert_array_equal(result.returns, expected[..., 0])
    np.testing.assert_array_equal(result.lengths, expected[..., 1])
    assert result.env_steps == expected[..., 1].sum()


@pytest.mark.parametrize("reset_ended", [True, False])
def test_a_lane_is_stepped_for_its_episode_only(reset_ended: bool) -> None:
    class Counting(gymnasium.Wrapper[Any, Any, Any, Any]):
        steps = 0

        def step(self, action: Any) -> Any:
            Counting.steps += 1
            return self.env.step(action)

    lanes = SyncLanes([lambda: Counting(gymnasium.make("CartPole-v1"))] * 4, reset_ended=reset_ended)
    result = evaluate(Controllers([0.0, 1.0]), lanes, 2, 3, SEEDS[:3])
    assert Counting.steps == result.env_steps == result.lengths.sum()


def test_legal_actions_reach_the_actor_by_member_and_lane() -> None:
    class Last:
        def act_greedy(self, obs: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
            assert mask.shape == (2, 2, 3)
            return mask.shape[-1] - 1 - np.argmax(mask[..., ::-1], axis=-1)

    result = evaluate(Last(), SyncLanes([MaskedActionEnv] * 4), 2, 2, SEEDS[:2])
    np.testing.assert_array_equal(result.returns, np.full((2, 2), 2.0))


def test_evaluation_refuses_lanes_and_seeds_that_do_not_fit() -> None:
    lanes = SyncLanes([MaskedActionEnv] * 3)
    with pytest.raises(ConfigError, match=r"3 lanes cannot be divided among 2 members. fix: env.replicate\(2\)"):
        evaluate(Controllers([0.0]), lanes, 2, 1, SEEDS[:1])
    with pytest.raises(ShapeError, match=r"expected \(2,\), got \(1,\)"):
        evaluate(Controllers([0.0]), lanes, 1, 2, SEEDS[:1])
    with pytest.raises(ConfigError, match="must be an integer of at least 1"):
        evaluate(Controllers([0.0]), lanes, 1, 0, SEEDS[:0])


def left(obs: Any, mask: Any) -> np.ndarray:
    return np.zeros(len(obs), dtype=np.int64)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled", "single", "made"])
def test_agent_test_is_the_mean_of_first_episodes_in_every_kind_of_environment(mode: str) -> None:
    make = lambda: gymnasium.make("CartPole-v1")  # noqa: E731
    count = 1 if mode == "single" else 3
    env: Any = {"single": make, "made": lambda: make_vect_envs("CartPole-v1", 3)}.get(
        mode, lambda: gymnasium.vector.SyncVectorEnv([make] * 3, autoreset_mode=mode)
    )()
    seeds = np.arange(2 * count).reshape(2, count)
    expected = np.mean([one_by_one(0.0, seed)[0] for seed in seeds.flat])
    score = test_agent(left, env, loop=2, seeds=seeds)
    assert isinstance(score, float)
    assert score == pytest.approx(expected, abs=1e-12)
    assert test_agent(left, env, max_steps=4, seeds=seeds) == 4.0  # no episode ends within four steps


def test_agent_test_swaps_image_channels_and_only_those() -> None:
    class Images(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Dict(
            {"image": gymnasium.spaces.Box(0, 255, (4, 5, 3), np.uint8), "table": gymnasium.spaces.Box(0, 1, (4, 5))}
        )
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return {"image": np.zeros((4, 5, 3), np.uint8), "table": np.zeros((4, 5))}, {}

        def step(self, action: Any) -> Any:
            return *self.reset()[:1], 1.5, True, False, {}

    shapes = []

    def act(obs: Any, mask: Any) -> np.ndarray:
        shapes.append((obs["image"].shape, obs["table"].shape))
        return np.zeros(1, dtype=int)

    assert test_agent(act, Images(), swap_channels=True) == 1.5
    assert test_agent(act, Images()) == 1.5
    assert shapes == [((1, 3, 4, 5), (1, 4, 5)), ((1, 4, 5, 3), (1, 4, 5))]


def test_agent_test_plays_loose_environments_to_the_limit() -> None:
    class OnlyNumEnvs:
        num_envs = 2

        def reset(self) -> Any:
            return np.zeros((2, 3)), {}

        def step(self, action: Any) -> Any:
            return np.ones((2, 3)), np.array([1, 2]), np.array([0, 0]), np.array([0, 0]), {}

    class Lengths:
        def reset(self) -> Any:
            return np.zeros(3), {}

        def step(self, action: Any) -> Any:
            return np.ones(3), np.array([2.0]), np.array([1]), np.array([0]), {}

    assert test_agent(left, OnlyNumEnvs(), max_steps=10) == 15.0
    assert test_agent(left, Lengths(), max_steps=10, loop=3) == 2.0
    assert as_lanes(OnlyNumEnvs()).num_lanes == 2
    with pytest.raises(ConfigError, match="loop"):
        test_agent(left, Lengths(), loop=0)
