"""Odd input that used to pass without a word, or as an error of another library, is answered."""

from __future__ import annotations

import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import agilerl
from agilerl.algorithms.dqn import DQN
from agilerl.envs.lanes import SyncLanes
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import AgileRLWarning, ConfigError, EnvError
from agilerl.telemetry.callbacks import Callbacks
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


def short(**options: Any) -> Any:
    return agilerl.train(**{"steps": 64, "population": 1, "out": None, "verbose": False, **options})


@pytest.mark.parametrize(("options", "text"), [
    ({"env": "CartPole-v1", "env_id": "Acrobot-v1"}, "env='CartPole-v1' and env_id='Acrobot-v1' contradict"),
    ({"env": "CartPole-v1", "lr": 1e-3, "learning_rate": 1e-2}, "lr and learning_rate are both algorithm.lr. fix"),
    ({"config": {"algorithm": {"name": "DQN"}}}, "environment.name is missing. fix"),
    ({}, "no environment is named. fix"),
])  # fmt: skip
def test_settings_that_contradict_each_other_are_an_error(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        short(**options)


def test_a_configuration_alone_trains_in_its_environment() -> None:
    config = {"environment": {"name": "CartPole-v1"}, "algorithm": {"name": "DQN", "lr": 2e-3}}
    manifest = short(config=config, learning_rate=3e-3, **{"algorithm.lr": 3e-3}).manifest
    assert (manifest.environment.name, manifest.algorithm.lr) == ("CartPole-v1", 3e-3)


def test_a_misspelt_hook_of_a_callback_is_a_warning() -> None:
    class Log(agilerl.Callback):
        def on_generaton(self, record: Any) -> None: ...

        def on_episode(self, record: Any) -> None: ...

    with pytest.warns(AgileRLWarning, match=r"no run calls Log.on_generaton. fix: on_generation") as caught:
        Callbacks([Log()])
    assert len(caught) == 1
