"""Every kind of `env` argument of `agilerl.train`, without an algorithm, with a right one and with a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import agilerl
import agilerl.api
from agilerl.envs.argument import Factory, environment_argument
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import AgileRLError, AlgorithmError, ConfigError, EnvError
from agilerl.utils.utils import make_multi_agent_vect_envs
from agilerl.vector import SyncPettingZooVecEnv

OBS, ACTIONS = spaces.Box(0, 100, (1,), np.float32), spaces.Discrete(2)
SHORT: dict[str, Any] = {
    "population": 1, "steps": 16, "out": None, "verbose": False, "preset": False, "training.evo_steps": 16,
    "training.eval_episodes": 1, "confirm_episodes": 0, "learn_step": 8, "batch_size": 8,
}  # fmt: skip


class Clock(gym.Env[Any, Any]):
    """Five steps of one agent."""

    observation_space, action_space = OBS, ACTIONS

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        return np.full(1, self.time, np.float32), 1.0, self.time >= 5, False, {}


class BareClock:
    """The same, of no class of Gymnasium."""

    observation_space, action_space = OBS, ACTIONS
    reset, step = Clock.reset, Clock.step


class Squad:
    """Five steps of two agents, as PettingZoo's parallel interface has them; agents are known once it is made."""

    metadata: dict[str, Any] = {"name": "squad_v0"}  # noqa: RUF012
    render_mode = None

    def __init__(self) -> None:
        self.possible_agents = ["a_0", "a_1"]

    def observation_space(self, agent: str) -> Any:
        return OBS

    def action_space(self, agent: str) -> Any:
        return ACTIONS

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.time, self.agents = 0, list(self.possible_agents)
        return {agent: np.zeros(1, np.float32) for agent in self.agents}, {}

    def step(self, actions: Any) -> Any:
        self.time += 1
        ids, over = self.possible_agents, self.time >= 5
        self.agents = [] if over else list(ids)
        seen = {agent: np.full(1, self.time, np.float32) for agent in ids}
        return seen, dict.fromkeys(ids, 1.0), dict.fromkeys(ids, over), dict.fromkeys(ids, False), {}

    def close(self) -> None:
        pass


class Known(Squad):
    """Its agents are an attribute of the class."""

    possible_agents = ["a_0", "a_1"]  # noqa: RUF012

    def __init__(self) -> None:
        pass


class InTurns(Squad):
    """As PettingZoo's AEC interface."""

    def agent_iter(self, max_iter: int = 2**63) -> Any:
        raise NotImplementedError


def make_clock() -> Any:
    return Clock()


def make_squad() -> Any:
    return Squad()


def module_of(name: str, **members: Any) -> ModuleType:
    made = ModuleType(name)
    made.__dict__.update(members)
    return made


def vector() -> Any:
    return gym.vector.SyncVectorEnv([Clock] * 2)


def registered() -> str:
    gym.registry.pop("Clock-v0", None)
    gym.register("Clock-v0", entry_point=Clock)
    return "Clock-v0"


def changed_spec() -> Any:
    return gym.envs.registration.EnvSpec(registered(), entry_point=Clock, max_episode_steps=3)


# kind -> (makes the argument, name of the run, has several agents)
RIGHT: dict[str, tuple[Callable[[], Any], str, bool]] = {
    "id": (registered, "Clock-v0", False),
    "specification": (lambda: gym.spec(registered()), "Clock-v0", False),
    "specification that is not registered": (changed_spec, "Clock-v0", False),
    "class": (lambda: Clock, "Clock", False),
    "bare class": (lambda: BareClock, "BareClock", False),
    "function": (lambda: make_clock, "make_clock", False),
    "lambda": (lambda: lambda: Clock(), "Clock", False),
    "partial function": (lambda: partial(make_clock), "Clock", False),
    "environment": (Clock, "Clock", False),
    "bare environment": (BareClock, "BareClock", False),
    "vector": (vector, "Clock", False),
    "vector of make_vect_envs": (lambda: make_vect_envs(make_env=Clock, num_envs=2), "Clock", False),
    "function that makes a vector": (lambda: vector, "Clock", False),
    "lambda that makes a vector": (lambda: lambda: make_vect_envs(make_env=Clock, num_envs=2), "Clock", False),
    "team's class": (lambda: Squad, "Squad", True),
    "team's class with agents": (lambda: Known, "Known", True),
    "team's function": (lambda: make_squad, "make_squad", True),
    "team's lambda": (lambda: lambda: Squad(), "Squad", True),
    "team": (Squad, "Squad", True),
    "vector of teams": (lambda: SyncPettingZooVecEnv([Squad] * 2), "Squad", True),
    "vector of a function": (lambda: make_multi_agent_vect_envs(make_squad, 2), "Squad", True),
    "function that makes a vector of teams": (lambda: lambda: SyncPettingZooVecEnv([Squad] * 2), "Squad", True),
    "module of PettingZoo's form": (lambda: module_of("squads", parallel_env=Squad), "Squad", True),
}
TURNS = r"raw_env|InTurns has agents that take turns|squad_v0 has agents that take turns"
WRONG: dict[str, tuple[Callable[[], Any], type[AgileRLError], str]] = {
    "in turns": (InTurns, EnvError, TURNS),
    "class in turns": (lambda: InTurns, EnvError, TURNS),
    "function in turns": (lambda: lambda: InTurns(), EnvError, TURNS),
    "list": (lambda: [Clock(), Clock()], EnvError, r"is a list of 2; .*fix: a function .*num_envs=2\."),
    "list of classes": (lambda: (Clock, Clock), EnvError, r"is a tuple of 2; .*fix: a function"),
    "None": (lambda: None, ConfigError, r"no environment is named\. fix: "),
    "number": (lambda: 7, EnvError, r"the environment is int 7; expected an environment or a factory\. fix: gymn"),
    "file": (lambda: "envs/mine.py", EnvError, r"'envs/mine\.py' is a file.* --import envs/mine\.py"),
    "nothing": (lambda: " ", EnvError, r"the id of the environment is empty\. fix: one of `agilerl list envs`"),
    "mapping": (lambda: {"id": "CartPole-v1"}, EnvError, r"the environment is dict \{'id': 'CartPole-v1'\}; expected"),
    "space": (lambda: OBS, EnvError, r"the environment is Box Box\(0\.0, 100\.0"),
    "class of something else": (lambda: dict, EnvError, r"dict\(\) returned dict \{\}; expected an environment\. fix:"),
    "function that forgets to return": (lambda: lambda: None, EnvError, r"lambda\(\) returned None; expected an env"),
    "function that makes a class": (lambda: lambda: Clock, EnvError, r"lambda\(\) returned type <class .*; expected"),
}


NOT_FAST = ("specification", "bare environment", "partial function", "vector", "lambda that makes a vector",
            "team's class with agents", "vector of a function", "function that makes a vector of teams")  # fmt: skip
KINDS = [pytest.param(kind, marks=[pytest.mark.thorough] if kind in NOT_FAST else []) for kind in RIGHT]


@pytest.mark.parametrize("kind", KINDS)
def test_without_an_algorithm_the_environment_decides(kind: str) -> None:
    make, name, is_team = RIGHT[kind]
    run = agilerl.train(make(), **SHORT)
    assert type(run.best).__name__ == ("MADDPG" if is_team else "PPO")
    assert run.manifest.environment.name == name


@pytest.mark.parametrize("kind", RIGHT)
def test_an_algorithm_of_the_other_kind_is_named(kind: str) -> None:
    make, _, is_team = RIGHT[kind]
    algo, words = ("PPO", "has several agents, and") if is_team else ("MADDPG", r"several")
    with pytest.raises((EnvError, AlgorithmError), match=words) as caught:
        agilerl.train(make(), algo, **SHORT)
    assert "fix: " in str(caught.value)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", RIGHT)
def test_an_algorithm_of_the_right_kind_trains(kind: str) -> None:
    make, _, is_team = RIGHT[kind]
    run = agilerl.train(make(), "IPPO" if is_team else "DQN", **SHORT)
    assert type(run.best).__name__ == ("IPPO" if is_team else "DQN")


@pytest.mark.parametrize("algo", [None, "PPO", "MADDPG"])
@pytest.mark.parametrize("kind", WRONG)
def test_what_is_no_environment_is_named(kind: str, algo: str | None, tmp_path: Path) -> None:
    make, error, says = WRONG[kind]
    with pytest.raises(error, match=says):
        agilerl.train(make(), algo, **{**SHORT, "out": tmp_path})
    assert not list(tmp_path.iterdir())


def test_a_converted_game_is_called_as_itself() -> None:
    """Not as PettingZoo's class that converts it, in the folder of the run either."""
    conversions = pytest.importorskip("pettingzoo.utils.conversions")
    classic = pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    assert agilerl.api.env_name(conversions.turn_based_aec_to_parallel(classic.env())) == "tictactoe_v3"
    assert agilerl.api.env_name(Squad()) == "Squad"


def test_none_takes_the_environment_of_the_configuration() -> None:
    settings = {"environment": {"name": registered()}, "algorithm": {"name": "DQN"}}
    run = agilerl.train(None, config=settings, **{key: value for key, value in SHORT.items() if key != "preset"})
    assert run.manifest.environment.name == "Clock-v0"


def test_a_function_of_teams_is_refused_by_vectors_of_one_agent() -> None:
    with pytest.raises(
        EnvError, match=r"^Squad has several agents, and this is for one\. fix: make_multi_agent_vect_env"
    ):
        make_vect_envs(make_env=make_squad)


# -- how many environments are made ------------------------------------------------------------------------------------


class OnlyOne:
    """Makes environments as long as none of its own is open; counts them."""

    def __init__(self, limit: int = 1) -> None:
        self.limit, self.open, self.made = limit, 0, 0

    def __call__(self) -> Any:
        if self.open >= self.limit:
            raise OSError("port 5000 is in use")
        owner = self

        class Ported(Clock):
            def close(self) -> None:
                owner.open -= 1

        self.open, self.made = self.open + 1, self.made + 1
        return Ported()


def test_a_factory_that_fails_says_how_many_it_had_made_and_how_to_need_one() -> None:
    maker = OnlyOne()
    with pytest.raises(EnvError) as caught:
        agilerl.train(maker, "DQN", num_envs=1, **SHORT)
    assert "raised OSError: port 5000 is in use, at its call number " in str(caught.value)
    assert "one environment for every lane, in training and in evaluation" in str(caught.value)
    assert "fix: pass one environment" in str(caught.value)


def test_an_environment_that_is_handed_over_is_the_only_one() -> None:
    maker = OnlyOne()
    run = agilerl.train(maker(), "DQN", **SHORT)
    assert run.history == [[5.0]]
    assert maker.made == 1


def test_errors_of_a_factory_are_counted_by_call() -> None:
    maker = environment_argument(OnlyOne(2))
    assert isinstance(maker, Factory)
    assert maker.calls == 0, "the one that was looked at has been closed"
    maker(), maker()
    with pytest.raises(
        EnvError, match=r"raised OSError: port 5000 is in use, at its call number 3 of this run\. A run"
    ):
        maker()


# -- spaces that are none ----------------------------------------------------------------------------------------------

NO_SPACES: dict[str, Any] = {
    "missing": None, "shape": (4,), "text": "Box", "number": 4, "array": np.zeros(3), "list": [OBS],
    "class": spaces.Box,
}  # fmt: skip


@pytest.mark.parametrize("value", NO_SPACES)
@pytest.mark.parametrize("which", ["observation_space", "action_space"])
@pytest.mark.parametrize("kind", ["class", "environment", "vector", "make_vect_envs", "team"])
def test_a_space_that_is_none_is_named(kind: str, which: str, value: str) -> None:
    one: Any = type("Odd", (Clock,), {which: NO_SPACES[value]})
    many: Any = type("OddVector", (gym.vector.SyncVectorEnv,), {})
    team: Any = type("OddTeam", (Squad,), {which: lambda self, agent: NO_SPACES[value]})
    if kind == "vector":
        many = many([Clock] * 2)
        setattr(many, f"single_{which}", NO_SPACES[value])
    makes: dict[str, Callable[[], Any]] = {
        "class": lambda: agilerl.train(one, "DQN", **SHORT),
        "environment": lambda: agilerl.train(one(), "DQN", **SHORT),
        "vector": lambda: agilerl.train(many, "DQN", **SHORT),
        "make_vect_envs": lambda: make_vect_envs(make_env=one),
        "team": lambda: agilerl.train(team, "IPPO", **SHORT),
    }
    name = {"vector": f"OddVector: single_{which}", "team": rf"OddTeam: {which}\('a_0'\)"}.get(kind, f"Odd: {which}")
    with pytest.raises(EnvError, match=rf"{name} is .*; expected a space of gymnasium\. fix: "):
        makes[kind]()
