"""Observations of four axes and of bits in several axes in `agilerl.train`, and data without an offline algorithm."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from small_envs import Episodes

import agilerl
from agilerl.algorithms import find_algorithm
from agilerl.errors import ConfigError


class FirstBit(Episodes):
    """A reward of 1 for saying whether the first entry of the observation is above a half; ten steps."""

    length = 10

    def __init__(self, space: Any) -> None:
        self.observation_space = space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self.observation_space.seed(seed)
        return super().reset(seed=seed)

    def observe(self) -> Any:
        self.seen = self.observation_space.sample()
        return self.seen

    def reward(self, action: Any) -> float:
        return float(action == int(np.ravel(self.seen)[0] > 0.5))


def train(space: Any, algo: str | None = None, steps: int = 300, **more: Any) -> Any:
    return agilerl.train(
        lambda: FirstBit(space), algo, population=2, steps=steps, seed=0, verbose=False, out=None, **more
    )


@pytest.mark.thorough
def test_bits_in_two_axes_are_learned() -> None:
    """Random play has 5 of 10."""
    assert train(spaces.MultiBinary([5, 9]), "DQN", 4000).best.fitness[-1] > 9


SHAPES = [(2, 3, 8, 8), (2, 1, 1, 1), (3, 2, 4, 3)]


@pytest.mark.parametrize("algo", ["DQN", "PPO", None])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_fix_for_four_axes_works(shape: tuple[int, ...], algo: str | None) -> None:
    """PPO's general preset normalises observations, which was another error after the first."""
    space = spaces.Box(0, 1, shape, np.float32)
    with pytest.raises(ConfigError, match=r"no encoder reads Box\(.*\) by default\. fix: encoder=\{.*\}, or") as error:
        train(space, algo)
    encoder = ast.literal_eval(str(error.value).partition("encoder=")[2].partition(", or an environment")[0])
    assert train(space, algo, encoder=encoder).result["env_steps_member"] >= 300


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_fix_of_an_algorithm_for_four_axes_works(shape: tuple[int, ...]) -> None:
    space, kind = spaces.Box(0, 1, shape, np.float32), find_algorithm("DQN")
    with pytest.raises(ConfigError, match=r"fix: encoder_config=\{.*\}, or flatten the observations\.") as error:
        kind(space, spaces.Discrete(2))
    encoder = ast.literal_eval(str(error.value).partition("encoder_config=")[2].partition(", or flatten")[0])
    assert kind(space, spaces.Discrete(2), net_config={"encoder_config": encoder}).get_action(space.sample()[None]) >= 0


def test_five_axes_are_flattened() -> None:
    with pytest.raises(ConfigError, match=r"no encoder reads .* fix: an environment in gymnasium.*FlattenObservation"):
        train(spaces.Box(0, 1, (2, 2, 2, 2, 2), np.float32))


def test_convolutions_over_two_axes_drop_the_statistics_of_the_preset() -> None:
    encoder = {"block_type": "Conv1d", "channel_size": [4], "kernel_size": [3], "stride_size": [1]}
    run = train(spaces.Box(0, 1, (5, 9), np.float32), "PPO", encoder=encoder)
    assert not run.manifest.algorithm.hyperparameters["normalize_observations"]


DATA = {
    "observations": np.zeros((40, 4)),
    "actions": np.arange(40) % 2,
    "rewards": np.ones(40),
    "terminals": np.ones(40),
}


@pytest.mark.parametrize(
    ("algo", "fix"),
    [
        (None, r"to learn from data, algo='CQN' for Discrete actions; or leave .* out\."),
        ("DQN", r"to learn from data, algo='CQN' for Discrete actions; or leave .* out\."),
        ("TD3", r"to learn from data, algo='CQL' for Box actions; or leave .* out\."),
        ("PPO", r"to learn from data, algo='CQN' for Discrete actions or algo='CQL' for Box actions; or leave"),
        ("MADDPG", r"leave .* out\."),
    ],
)
def test_data_without_an_offline_algorithm_name_one(algo: str | None, fix: str) -> None:
    with pytest.raises(ConfigError, match=rf"training\.dataset: means nothing to \w+, which .*fix: {fix}"):
        agilerl.train("CartPole-v1", algo, dataset=DATA, out=None)
