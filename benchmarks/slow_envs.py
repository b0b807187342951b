"""Stand-ins for slow simulators: CartPole-v1 and Pendulum-v1 whose step computes for 0, 1, 10 or 50 ms.

    PYTHONPATH=benchmarks agilerl train CartPole10ms-v0 --import slow_envs

Importing registers `CartPole{0,1,10,50}ms-v0` and `Pendulum{0,1,10,50}ms-v0`, with the time limits and thresholds of
the originals. A step uses the cost as CPU time of its thread, the dynamics included; a reset costs nothing extra.
Dynamics and random numbers are those of the originals, so at equal seeds and actions all costs give equal episodes.

The referee of `slow.py` is here too: greedy episodes on the dynamics without cost, the same seeds for every library.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.envs.classic_control.pendulum import PendulumEnv

COSTS_MS = (0, 1, 10, 50)
FIRST_REFEREE_SEED = 1_000_000
FINAL_EPISODES = 100


@dataclass(frozen=True)
class Family:
    """One stand-in at all costs.

    Attributes:
        prefix: of the ids. original: the registered id with the same dynamics. target: mean return of the referee that
            counts as reached. episodes: of the referee.
    """

    prefix: str
    original: str
    target: float
    episodes: int

    def env_id(self, cost_ms: int) -> str:
        return f"{self.prefix}{cost_ms}ms-v0"

    def referee(self, act: Callable[[np.ndarray], np.ndarray]) -> float:
        """Mean return of greedy episodes without step cost; `act` maps observations [E, ...] to actions [E, ...]."""
        return float(np.mean(greedy_returns(act, self.env_id(0), referee_seeds(self.episodes))))


FAMILIES = {
    "cartpole": Family("CartPole", "CartPole-v1", 475.0, 20),  # the threshold of its registration
    "pendulum": Family("Pendulum", "Pendulum-v1", -150.0, 50),  # it has none; returns differ more by initial state
}


class ComputingStep(gymnasium.Env[Any, Any]):
    """Mixin before an environment: a step uses `cost_ms` of CPU time."""

    def __init__(self, cost_ms: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cost_s = cost_ms / 1000

    def step(self, action: Any) -> Any:
        ends = time.thread_time() + self.cost_s
        result = super().step(action)
        while time.thread_time() < ends:
            pass
        return result


class SlowCartPole(ComputingStep, CartPoleEnv):
    """CartPole-v1 with a computing step."""


class SlowPendulum(ComputingStep, PendulumEnv):
    """Pendulum-v1 with a computing step."""


class SleepingStep(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose step sleeps, as one that waits for a simulator elsewhere does."""

    def __init__(self, env: gymnasium.Env[Any, Any], seconds: float) -> None:
        super().__init__(env)
        self.seconds = seconds

    def step(self, action: Any) -> Any:
        time.sleep(self.seconds)
        return super().step(action)


def sleeping(env_id: str, step_ms: float) -> str:
    """Register `env_id` with steps that sleep for `step_ms`, and return the id; a second call changes nothing."""
    name, original = f"Sleeping{step_ms:g}ms/{env_id}", gymnasium.spec(env_id)
    if name not in gymnasium.registry:
        gymnasium.register(
            name,
            entry_point=lambda: SleepingStep(gymnasium.make(env_id).unwrapped, step_ms / 1000),
            max_episode_steps=original.max_episode_steps,
            reward_threshold=original.reward_threshold,
        )
    return name


def referee_seeds(episodes: int) -> list[int]:
    return list(range(FIRST_REFEREE_SEED, FIRST_REFEREE_SEED + episodes))


def returns_in_turn(act: Callable[[np.ndarray], np.ndarray], env_id: str, seeds: Sequence[int]) -> list[float]:
    """As `greedy_returns`, one episode after another in one environment: for simulators that are large."""
    env, returns = gymnasium.make(env_id), []
    for seed in seeds:
        observation, total, is_over = env.reset(seed=seed)[0], 0.0, False
        while not is_over:
            observation, reward, terminated, truncated, _ = env.step(act(np.asarray(observation)[None])[0])
            total, is_over = total + float(reward), terminated or truncated
        returns.append(total)
    env.close()
    return returns


def greedy_returns(act: Callable[[np.ndarray], np.ndarray], env_id: str, seeds: Sequence[int]) -> list[float]:
    """Undiscounted return of one episode per seed, all side by side. Episodes that have ended leave the batch."""
    envs = [gymnasium.make(env_id) for _ in seeds]
    observations = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)]
    returns, playing = [0.0] * len(envs), list(range(len(envs)))
    while playing:
        actions = act(np.stack([observations[i] for i in playing]))
        continuing = []
        for i, action in zip(playing, actions, strict=True):
            observations[i], reward, terminated, truncated, _ = envs[i].step(action)
            returns[i] += float(reward)
            if not (terminated or truncated):
                continuing.append(i)
        playing = continuing
    for env in envs:
        env.close()
    return returns


def register() -> None:
    """Register the ids of all families and costs; a second call changes nothing."""
    for family, kind in ((FAMILIES["cartpole"], SlowCartPole), (FAMILIES["pendulum"], SlowPendulum)):
        original = gymnasium.spec(family.original)
        for cost_ms in COSTS_MS:
            if family.env_id(cost_ms) not in gymnasium.registry:
                gymnasium.register(
                    family.env_id(cost_ms),
                    entry_point=f"{__name__}:{kind.__name__}",
                    max_episode_steps=original.max_episode_steps,
                    reward_threshold=original.reward_threshold,
                    kwargs={"cost_ms": float(cost_ms)},
                )


register()
