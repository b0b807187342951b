"""Odd input that used to pass without a word, or as an error of another library, is answered."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from agilerl.algorithms.dqn import DQN
from agilerl.envs.lanes import SyncLanes
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import EnvError
from agilerl.wrappers.agent import RSNorm

OBS, ACTIONS = spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(2)


@pytest.mark.parametrize("make", [
    lambda env: make_vect_envs(make_env=lambda: env, num_envs=2),
    lambda env: make_vect_envs(make_env=lambda: gym.wrappers.TimeLimit(env, 9), num_envs=1).replicate(2),  # type: ignore[attr-defined]
    lambda env: SyncLanes([lambda: env] * 2),
])  # fmt: skip
def test_lanes_need_distinct_environments(make: Any) -> None:
    with pytest.raises(EnvError, match=r"the same object for several lanes.* fix: a function that constructs one"):
        make(gym.make("CartPole-v1"))


class Scored(DQN):
    """An agent with a `test` of its own, which scores the mean observation of a reset."""

    def test(self, env: Any, swap_channels: bool = False, max_steps: int | None = None, loop: int = 1) -> Any:
        return float(np.mean(env.reset(seed=1)[0])) if loop == 1 else super().test(env, max_steps=max_steps, loop=loop)


@pytest.mark.parametrize("make", [gym.make, make_vect_envs])
def test_a_wrapper_calls_the_test_of_the_agents_class_with_its_observations(make: Any) -> None:
    env, agent = make("CartPole-v1"), RSNorm(Scored(OBS, ACTIONS, seed=1))
    agent.obs_rms.update(np.array([[6.0] * 4, [8.0] * 4]))  # mean 7, standard deviation 1
    assert agent.test(env) == pytest.approx(-7, abs=0.1)
    assert agent.test(env, loop=2, max_steps=5) == 5.0
