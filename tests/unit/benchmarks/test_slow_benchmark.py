"""The stand-ins, the referee and the sums of `benchmarks/slow.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

Load = Callable[[str], ModuleType]


def episode(env: Any, seed: int) -> tuple[list[np.ndarray], list[float], bool, bool]:
    """Observations, rewards and the end of an episode of seeded random actions."""
    env.action_space.seed(seed)
    observations, rewards = [env.reset(seed=seed)[0]], []
    while True:
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        observations.append(observation)
        rewards.append(float(reward))
        if terminated or truncated:
            return observations, rewards, terminated, truncated


@pytest.mark.parametrize("family", ["cartpole", "pendulum"])
def test_a_stand_in_has_the_episodes_and_the_registration_of_its_original(benchmark_module: Load, family: str) -> None:
    envs = benchmark_module("slow_envs")
    here = envs.FAMILIES[family]
    original, own = gymnasium.spec(here.original), gymnasium.spec(here.env_id(0))
    assert (own.max_episode_steps, own.reward_threshold) == (original.max_episode_steps, original.reward_threshold)
    theirs, ours = (episode(gymnasium.make(name), 3) for name in (here.original, here.env_id(0)))
    np.testing.assert_array_equal(np.stack(ours[0]), np.stack(theirs[0]))
    assert ours[1:] == theirs[1:]


def test_a_step_computes_until_its_cost_is_used_up(benchmark_module: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    envs = benchmark_module("slow_envs")
    looks: list[float] = []

    def thread_time() -> float:
        looks.append(0.004 * len(looks))  # each look at the clock takes 4 ms
        return looks[-1]

    monkeypatch.setattr(envs.time, "thread_time", thread_time)
    env = gymnasium.make("CartPole10ms-v0")
    env.reset(seed=0)
    assert looks == []  # a reset costs nothing extra
    env.step(0)
    assert looks == pytest.approx([0.0, 0.004, 0.008, 0.012])


def test_the_referee_plays_whole_episodes_of_fixed_seeds(benchmark_module: Load) -> None:
    envs = benchmark_module("slow_envs")
    seeds = envs.referee_seeds(4)

    def act(obs: np.ndarray) -> np.ndarray:
        return (obs[:, 2] > 0).astype(np.int64)

    expected = []
    for seed in seeds:
        env, length, is_over = gymnasium.make("CartPole-v1"), 0, False
        obs, _ = env.reset(seed=seed)
        while not is_over:
            obs, _, terminated, truncated, _ = env.step(int(obs[2] > 0))
            length, is_over = length + 1, terminated or truncated
        expected.append(float(length))
    assert len(set(expected)) > 1
    assert envs.greedy_returns(act, "CartPole0ms-v0", seeds) == expected
    assert envs.returns_in_turn(act, "CartPole0ms-v0", seeds) == expected
    cartpole = replace(envs.FAMILIES["cartpole"], episodes=4)
    assert cartpole.referee(act) == pytest.approx(np.mean(expected))


def test_seconds_are_measured_at_the_cost_of_the_run_and_derived_from_a_run_without_one(benchmark_module: Load) -> None:
    slow = benchmark_module("slow")
    used = {"env_steps": 2000, "cpu_seconds": 7.5, "wall_seconds": 9.0}
    free, real = ({"key": {"cost_ms": cost}, "reached": used} for cost in (0, 10))
    assert slow.wall_seconds(free, 10) == 2000 * 0.010 + 7.5
    assert slow.wall_seconds(free, 50) == 2000 * 0.050 + 7.5
    assert slow.wall_seconds(real, 10) == 9.0
    assert slow.wall_seconds(real, 50) is None  # another cost is another run
    assert slow.wall_seconds({**free, "reached": None}, 10) is None


def watched(slow: ModuleType, monkeypatch: pytest.MonkeyPatch, target: float, **key: Any) -> Any:
    family = replace(slow.FAMILIES["cartpole"], target=target, episodes=2)
    monkeypatch.setitem(slow.FAMILIES, "cartpole", family)
    return slow.ToTarget({"who": "ours", "env": "cartpole", "cost_ms": 0, **key})


def record(training: int, evaluation: int) -> SimpleNamespace:
    return SimpleNamespace(population_env_steps=training, evaluation_env_steps=evaluation)


class Left:
    """Always chooses 0: about nine steps of CartPole."""

    def act(self, obs: np.ndarray) -> np.ndarray:
        return np.zeros(len(obs), dtype=np.int64)


def test_a_run_ends_where_a_new_best_agent_reaches_the_target(
    benchmark_module: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = watched(benchmark_module("slow"), monkeypatch, target=9.0, minutes=1.0)
    assert watch.on_generation(record(100, 20)) is None  # nobody to test
    assert watch.curve == []
    watch.on_best(Left())
    assert watch.on_generation(record(200, 50)) is False
    assert watch.reached is not None
    assert watch.reached["env_steps"] == 250
    assert watch.reached["score"] == watch.curve[0][1] >= 9.0


def test_a_best_agent_below_the_target_is_tested_once(benchmark_module: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = watched(benchmark_module("slow"), monkeypatch, target=475.0, minutes=1.0)
    watch.on_best(Left())
    assert watch.on_generation(record(100, 20)) is None
    assert watch.on_generation(record(200, 40)) is None
    assert [row[0] for row in watch.curve] == [120]
    assert watch.reached is None


def test_a_run_without_minutes_ends_with_its_cpu_seconds(
    benchmark_module: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = benchmark_module("slow")
    for key, expected in (({}, False), ({"minutes": 1.0}, None)):
        watch = watched(slow, monkeypatch, target=475.0, **key)
        watch.cpu -= slow.MAX_CPU_SECONDS
        assert watch.on_generation(record(100, 20)) is expected
