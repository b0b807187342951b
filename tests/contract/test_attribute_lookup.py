"""Environments that look up their attributes themselves, and those that say they have no agents."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import agilerl
from agilerl.algorithms import DQN
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.envs.team_vector import make_multi_agent_vect_envs
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import EnvError
from agilerl.training.train_off_policy import train_off_policy

OBS, ACTIONS = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2)


class Plain(gym.Env[Any, Any]):
    observation_space, action_space = OBS, ACTIONS

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 1.0, True, False, {}


class NoAgents(Plain):
    possible_agents = None


class OwnTable(Plain):
    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


class Loose:
    """`OwnTable` without Gymnasium."""

    observation_space, action_space, metadata, spec, render_mode = OBS, ACTIONS, {}, None, None

    def __getattr__(self, name: str) -> Any:
        raise ValueError(name)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    step, close = Plain.step, Plain.close


def trained(env: Any) -> Any:
    agents = DQN.population(2, OBS, ACTIONS, seed=0, batch_size=8)
    budget: dict[str, Any] = {"max_steps": 40, "evo_steps": 20, "verbose": False}
    return train_off_policy(env, "mine", "DQN", agents, ReplayBuffer(max_size=200), **budget)


WAYS: dict[str, Any] = {
    "vector": lambda make, out: make_vect_envs(make_env=make, num_envs=2),
    "published": lambda make, out: trained(make()),
    "class": lambda make, out: agilerl.train(make, "DQN", population=2, steps=64, out=out, verbose=False),
    "object": lambda make, out: agilerl.train(make(), "DQN", population=2, steps=64, out=out, verbose=False),
    "test": lambda make, out: DQN(OBS, ACTIONS, seed=0).test(make()),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("make", "raised"), [(OwnTable, "KeyError"), (Loose, "ValueError")])
def test_a_lookup_that_raises_something_else_is_named(make: Any, raised: str, way: str, tmp_path: Any) -> None:
    with pytest.raises(
        EnvError, match=rf"{make.__name__}\.__getattr__ raised {raised}\('agilerl_lookup'\).*fix: raise"
    ):
        WAYS[way](make, tmp_path)


def test_a_team_that_looks_up_its_attributes_is_named() -> None:
    with pytest.raises(EnvError, match="__getattr__ raised KeyError"):
        make_multi_agent_vect_envs(OwnTable(), 2)


@pytest.mark.parametrize("way", WAYS)
def test_possible_agents_of_none_is_one_agent(way: str, tmp_path: Any) -> None:
    WAYS[way](NoAgents, tmp_path)
