"""Subclasses of shipped algorithms whose constructors pass arguments on: hyperparameters, presets, files, runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import pytest

import agilerl
from agilerl.algorithms import DQN, IPPO, find_algorithm, register
from agilerl.algorithms.base.declared import check_arguments, hp, hyperparameters
from agilerl.config import preset_for
from agilerl.errors import AgileRLWarning, AlgorithmError, ConfigError
from agilerl.ranges import Fraction
from agilerl.utils.utils import create_population

OBS, CHOICE = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)


class Forwarding(DQN):
    """All arguments go to the base class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


class WithExtra(DQN):
    """Spaces, and an argument of its own."""

    def __init__(
        self, observation_space: Any, action_space: Any, extra: Annotated[Fraction, hp()] = 0.5, **kwargs: Any
    ) -> None:
        super().__init__(observation_space, action_space, **kwargs)
        self.extra = extra


class WithDefault(DQN):
    """Another default of an argument that it repeats without a range."""

    def __init__(self, *args: Any, lr: float = 5e-4, **kwargs: Any) -> None:
        super().__init__(*args, lr=lr, **kwargs)


class Doubled(DQN):
    """An argument of the base class is set here."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, double=True, **kwargs)


class Closed(DQN):
    """Spaces alone."""

    def __init__(self, observation_space: Any, action_space: Any, index: int = 0, seed: Any = None) -> None:
        super().__init__(observation_space, action_space, index, seed=seed)


class Team(IPPO):
    """A team that passes all arguments on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)


OWN = (Forwarding, WithExtra, WithDefault, Doubled, Closed, Team)


@pytest.fixture(autouse=True)
def registered() -> None:
    for cls in OWN:
        register(cls)


def test_a_constructor_that_passes_arguments_on_has_the_hyperparameters_of_its_base() -> None:
    assert dict(hyperparameters(Forwarding)) == dict(hyperparameters(DQN))
    assert list(hyperparameters(WithExtra)) == ["extra", *hyperparameters(DQN)]
    assert not hyperparameters(Closed)
    lr = hyperparameters(WithDefault)["lr"]
    assert (lr.published, lr.manifest, lr.values) == (5e-4, 5e-4, hyperparameters(DQN)["lr"].values)
    with pytest.raises(AlgorithmError, match="Forwarding: lr must be above 0"):
        check_arguments(Forwarding, (), {"lr": -1})


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1", "Unknown-v0"])
def test_presets_of_a_subclass_are_those_of_its_base(env_id: str) -> None:
    preset, own = preset_for(env_id, "DQN").as_dict(), preset_for(env_id, "Forwarding").as_dict()
    assert own == {**preset, "algorithm": {**preset["algorithm"], "name": "Forwarding"}}
    extra = preset_for(env_id, "WithExtra").as_dict()
    assert extra == {**preset, "algorithm": {**preset["algorithm"], "name": "WithExtra", "extra": 0.5}}
    assert preset_for(env_id, "Closed").algorithm.hyperparameters == {}


def test_presets_of_a_team_are_those_of_its_base() -> None:
    for env_id in ("mpe2.simple_spread_v3", "Unknown"):
        preset = preset_for(env_id, "IPPO").as_dict()
        assert preset_for(env_id, "Team").as_dict() == {
            **preset, "algorithm": {**preset["algorithm"], "name": "Team"},
        }  # fmt: skip


def test_types_that_exist_for_type_checkers_alone_hide_no_other_declaration() -> None:
    class Checked(DQN):
        def __init__(self, observation_space: Any, extra: Annotated[Fraction, hp()] = 0.5, **kwargs: Any) -> None: ...

    Checked.__init__.__annotations__ |= {"observation_space": "gym_of_checkers.Space"}
    assert list(hyperparameters(Checked)) == ["extra", *hyperparameters(DQN)]


def test_a_population_reads_its_hyperparameters() -> None:
    init = {"LR": 3e-3, "BATCH_SIZE": 16, "EXTRA": 0.25}
    (agent,) = create_population("WithExtra", None, init, OBS, CHOICE, algo_kwargs={"gamma": 0.5})
    assert (agent.lr, agent.batch_size, agent.extra, agent.gamma) == (3e-3, 16, 0.25, 0.5)


@pytest.mark.parametrize("algo", ["Forwarding", "WithExtra"])
def test_options_reach_the_agents_and_runs_are_resumed_and_loaded(tmp_path: Path, algo: str) -> None:
    short: dict[str, Any] = {"population": 2, "steps": 96, "evo_steps": 32, "num_envs": 2, "eval_episodes": 1}
    more = {"algorithm.lr": 3e-3, "batch_size": 16, "learning_delay": 16, "confirm_episodes": 0, "eval_steps": 8}
    run = agilerl.train("CartPole-v1", algo, seed=1, out=tmp_path, verbose=False, evolution=False, **short, **more)
    cls = find_algorithm(algo)
    assert [(type(agent), agent.lr, agent.batch_size) for agent in run.population] == [(cls, 3e-3, 16)] * 2
    assert run.manifest.algorithm.hyperparameters["lr"] == 3e-3
    loaded = agilerl.load(run.path)
    assert (type(loaded.best), loaded.best.lr, loaded.best.batch_size, loaded.best.double) == (cls, 3e-3, 16, True)
    assert [agent.lr for agent in agilerl.resume(run.path, steps=128, verbose=False).population] == [3e-3, 3e-3]
    twin = run.best.clone()
    assert (type(twin), twin.lr, twin.double) == (cls, 3e-3, True)
    run.best.save_checkpoint(tmp_path / "agent.pt")
    assert cls.load(tmp_path / "agent.pt").lr == 3e-3


def test_an_argument_that_the_constructor_sets_itself_holds() -> None:
    (agent,) = Doubled.population(1, OBS, CHOICE, double=True, lr=3e-3)
    assert (agent.double, agent.lr) == (True, 3e-3)
    with pytest.warns(AgileRLWarning, match=r"Doubled sets double in its constructor, so that double=False is ignored"):
        (agent,) = Doubled.population(1, OBS, CHOICE, double=False)
    assert agent.double is True


def test_an_undeclared_argument_is_named_with_what_the_algorithm_takes() -> None:
    with pytest.raises(ConfigError) as caught:
        agilerl.train("CartPole-v1", "WithExtra", beta=1, out=None)
    assert str(caught.value) == (
        "train(): beta is not a known key; WithExtra takes extra, batch_size, lr, learn_step, gamma, tau, double. "
        "fix: one of these, or declare it in the constructor of WithExtra: beta: Annotated[float, hp()] = 0.1."
    )
    with pytest.raises(ConfigError, match=r"algorithm.beta is not a known key; WithExtra takes extra, "):
        agilerl.train("CartPole-v1", "WithExtra", out=None, **{"algorithm.beta": 1})
    with pytest.raises(ConfigError, match="Did you mean 'extra'"):
        agilerl.train("CartPole-v1", "WithExtra", extr=1, out=None)
    with pytest.raises(ConfigError, match=r"beta is not a known key; DQN takes batch_size, .* fix: one of these"):
        agilerl.train("CartPole-v1", "DQN", beta=1, out=None)
