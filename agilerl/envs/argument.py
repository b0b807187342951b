"""Classification of the user's environment argument: an id, an environment, a vector, or a factory."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from agilerl.core import foreign
from agilerl.core.env_ids import check_lookup
from agilerl.envs.bandit import BanditEnv, is_bandit, rounds_of
from agilerl.envs.generators import isolated
from agilerl.envs.returned import short
from agilerl.envs.team import name_of, team_of
from agilerl.envs.team_ids import maker
from agilerl.envs.team_vector import PettingZooVecEnv
from agilerl.envs.vector import HealingVectEnv
from agilerl.errors import AgileRLError, EnvError

UNNAMED = "lambda"  # name of an anonymous factory until its environment is known
_UNINFORMATIVE = ("<lambda>", "par_fn", "parallel_env", "env", "raw_env")  # the last four: every PettingZoo game
_FIX = "fix: gymnasium.make('CartPole-v1'), its id, a function that makes it, or a ParallelEnv of PettingZoo."


class Factory:
    """A function or class that creates single-agent or multi-agent environments.

    Args:
        make: creates one environment. has_several_agents: whether it has PettingZoo's parallel interface.

    Attributes:
        calls: environments requested in this process. makes: name of the environment, for messages.
    """

    def __init__(self, make: Callable[..., Any], has_several_agents: bool = False) -> None:
        self.make, self.has_several_agents, self.calls = make, has_several_agents, 0
        name = foreign.name_of_function(make, UNNAMED)  # partial functions have no name
        self.__name__ = UNNAMED if name in _UNINFORMATIVE else str(name)
        self.makes = self.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Create one environment.

        Raises:
            EnvError: the function raises (the message counts the environments created before), or returns something
                else.
        """
        self.calls += 1
        try:
            env = self.make(*args, **kwargs)
        except (AgileRLError, gymnasium.error.Error, ImportError):
            raise  # reported by the caller
        except Exception as error:
            if kwargs and isinstance(error, TypeError):
                raise
            text = " ".join(str(error).split())
            raise EnvError(
                f"{self.__name__}() raised {type(error).__name__}{f': {text[:300]}' if text else ''}, at its call "
                f"number {self.calls} of this run. A run makes one environment for every lane, in training and in "
                "evaluation. fix: pass one environment instead of the factory; it is then the only one."
            ) from error
        check_lookup(env)
        if not _is_environment(env):
            raise EnvError(f"{self.__name__}() returned {short(env)}; expected an environment. {_FIX}")
        return env


def environment_argument(env: foreign.EnvLike) -> Any:
    """Normalise `env` for a run: an id (text), None, an environment, a vector, or a `Factory`.

    A Gymnasium specification and a PettingZoo module become their id, or a factory; a bandit becomes its rounds. A
    function is called once to detect the number of agents; a vector environment that it creates is used directly.

    Raises:
        EnvError: a list, a path, or anything else that is not an environment; turn-based multi-agent environments.
    """
    if env is None:
        return None
    if isinstance(env, str):
        return _checked_id(env)
    if isinstance(env, EnvSpec):
        return _of_spec(env)
    if isinstance(env, ModuleType):
        env_id, make = maker(env)
        return env_id if env_id is not None else Factory(make, has_several_agents=True)
    if isinstance(env, Factory):
        return env
    check_lookup(env)
    if is_bandit(env):
        return _of_bandit(env)
    if isinstance(env, list | tuple | set):
        raise EnvError(
            f"the environment is a {type(env).__name__} of {len(env)}; expected an environment or a factory. "
            f"fix: a function that makes one of them, with num_envs={max(1, len(env))}."
        )
    if isinstance(env, type) or (callable(env) and not _is_environment(env)):
        return _of_maker(env)
    if not _is_environment(env):
        raise EnvError(f"the environment is {short(env)}; expected an environment or a factory. {_FIX}")
    if hasattr(env, "agent_iter"):
        team_of(env)  # its error names the conversion
    return env


def inner_name(env: foreign.Env) -> str:
    """Return the name of an environment; for a vector, of the environments in it."""
    if isinstance(env, PettingZooVecEnv | HealingVectEnv):
        return str(env.env_id or env.name)
    return name_of(foreign.single(env))


def is_vector(env: foreign.EnvLike) -> bool:
    """Whether it is a vector environment of Gymnasium, of this package, or multi-agent."""
    return isinstance(env, VectorEnv | PettingZooVecEnv)


def _checked_id(env_id: str) -> str:
    if env_id.endswith(".py") or os.path.isfile(env_id):
        raise EnvError(
            f"{env_id!r} is a file, not the id of an environment. "
            f"fix: agilerl train ENV_ID --import {env_id}, or import the class from it and pass that."
        )
    if not env_id.strip():
        raise EnvError("the id of the environment is empty. fix: one of `agilerl list envs`.")
    return env_id


def _of_spec(spec: EnvSpec) -> Any:
    if gymnasium.registry.get(spec.id) == spec:
        return spec.id

    def make(**kwargs: Any) -> Any:
        return gymnasium.make(spec, disable_env_checker=True, **kwargs)

    make.__name__ = spec.id
    return Factory(make)


def _of_bandit(bandit: object) -> Any:
    """Return a factory of rounds of a `BanditEnv`; for another bandit, its rounds as one environment."""
    if not isinstance(bandit, BanditEnv):
        return rounds_of(bandit)
    make = partial(rounds_of, bandit)
    factory = Factory(make)
    factory.__name__ = factory.makes = type(bandit).__name__
    return factory


def _of_maker(make: Any) -> Any:
    """Return the factory, or the vector that it creates; a Gymnasium class is recognised without being called."""
    factory = Factory(make)
    if isinstance(make, type) and issubclass(make, gymnasium.Env):
        return factory
    with isolated():
        created_env = factory()
    if _is_vector_like(created_env) or _is_gym_of_texts(created_env):
        return created_env
    try:
        if hasattr(created_env, "agent_iter"):
            team_of(created_env)
        factory.has_several_agents = foreign.possible_agents(created_env) is not None and not isinstance(
            created_env, gymnasium.Env
        )
        factory.makes = name_of(created_env) if factory.__name__ == UNNAMED else factory.__name__
    finally:
        foreign.close(created_env)
    factory.calls = 0  # count only those of the run
    return factory


def _is_environment(env: foreign.EnvLike) -> bool:
    has_both = foreign.has_methods(env, "reset", "step")
    return (has_both or _is_gym_of_texts(env)) and not isinstance(env, type)


def _is_gym_of_texts(env: foreign.EnvLike) -> bool:
    """Whether it is a language environment: a gym of `agilerl.llm_envs`, or a multi-turn game."""
    return foreign.has_methods(env, "split", "batch") or foreign.has_methods(env, "episodes")


def _is_vector_like(env: foreign.Env) -> bool:
    return is_vector(env) or (hasattr(env, "num_envs") and not isinstance(env, gymnasium.Env))
