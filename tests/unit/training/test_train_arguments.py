"""Arguments of `agilerl.train` of another kind: each named, with what to write, before anything runs."""

from pathlib import Path

import numpy as np
import pytest

import agilerl
from agilerl.algorithms import DQN
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import ConfigError

ROWS = 200


def arrays():
    rng = np.random.default_rng(0)
    return {
        "observations": rng.uniform(-1, 1, (ROWS, 4)).astype(np.float32),
        "actions": rng.integers(0, 2, ROWS),
        "rewards": np.ones(ROWS, np.float32),
        "terminals": np.arange(ROWS) % 10 == 9,
    }


def an_agent():
    env = make_vect_envs("CartPole-v1", num_envs=1)
    return DQN(env.single_observation_space, env.single_action_space)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"algo": 5}, "algo must be a name or a class; got an object of int"),
        ({"algo": an_agent}, "got an object of function"),
        ({"config": 5}, "config must be a YAML file, a mapping or a manifest; got an object of int"),
        ({"out": 3}, "out must be a folder or None; got an object of int"),
        ({"sinks": 3}, "sinks must be a list; got an object of int"),
        ({"callbacks": print}, "fix: callbacks="),
        (
            {"algo": "CQN", "dataset": 3},
            "a data set is a file .*a mapping of arrays.*; got int. fix: dataset='data.h5'",
        ),
        ({"algo": "CQN", "training.dataset": [3]}, "a data set is a file .*; got list"),
        ({"algo": "DQN", "dataset": arrays()}, "training.dataset: means nothing to DQN"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_a_wrong_kind_is_named(given, text):
    with pytest.raises(ConfigError, match=text) as error:
        agilerl.train("CartPole-v1", **given)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    ("argument", "setting"),
    [
        ("steps=10", {"max_steps": 20}),
        ("steps=10", {"training.total_timesteps": 20}),
        ("population=2", {"pop_size": 6}),
        ("seed=1", {"training.seed": 2}),
        ("minutes=1", {"max_steps": 500}),
    ],
)
def test_an_argument_and_a_setting_that_contradict_each_other_are_named(argument, setting):
    name, value = argument.split("=")
    ((key, other),) = setting.items()
    with pytest.raises(
        ConfigError, match=f"^{argument} and {key}={other} contradict each other. fix: one of the two.$"
    ):
        agilerl.train("CartPole-v1", **{name: int(value)}, **setting)


def test_an_agent_in_place_of_an_algorithm_is_pointed_to_agents():
    with pytest.raises(ConfigError, match=r"got an object of DQN\. fix: .*agents=\[agent\]"):
        agilerl.train("CartPole-v1", an_agent())


def test_a_path_object_names_a_data_set(tmp_path: Path):
    np.savez(tmp_path / "data.npz", **arrays())
    run = agilerl.train(
        "CartPole-v1", "CQN", dataset=tmp_path / "data.npz", steps=4, population=1, out=None, verbose=False
    )
    assert run.manifest.training.dataset == str(tmp_path / "data.npz")
