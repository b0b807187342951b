"""`load`: an agent from a file of another library, for an environment."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from typing import Any

from agilerl.algorithms.imported import cleanrl, sb3
from agilerl.algorithms.imported.agents import Place
from agilerl.algorithms.imported.files import read_zip, shown
from agilerl.core import foreign
from agilerl.envs.argument import Factory, environment_argument
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import AgileRLWarning, ConfigError, EnvError, RunError, unknown_choice

READERS = {"sb3": sb3.read, "cleanrl": cleanrl.read}


def load(
    path: str | os.PathLike[str],
    env: foreign.EnvLike,
    *,
    library: str | None = None,
    activation: str | None = None,
    device: str = "cpu",
    seed: int | None = None,
    env_kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Return an agent whose greedy actions are those of the policy in a file of another library.

    Critics and target networks come along; optimisers start anew. Numbers that the file holds as such become
    hyperparameters, the others are the defaults of manifests. A warning names those that the file holds as pickles,
    which are never read.

    Args:
        path: a zip of Stable-Baselines3, or a `.cleanrl_model` of CleanRL.
        env: an id, an environment, a vector environment, or a function that makes one; for its spaces.
        library: "sb3" or "cleanrl"; None tells by the content.
        activation: between hidden layers, such as "Tanh"; None: the library's default for the algorithm.
        device, seed: of the agent. env_kwargs: of an environment that is made by its id.

    Raises:
        RunError: no such file, damaged, or an unknown layout, whose tensors are named.
        NotAvailableYetError: policies of images, with a memory or with state-dependent noise.
        ShapeError, AlgorithmError: the environment has other spaces. EnvError: it has several agents.
        ConfigError: unknown library or activation.
    """
    if library is not None and library not in READERS:
        raise ConfigError(unknown_choice("library of policies", library, READERS))
    env = environment_argument(env)
    observation_space, action_space = _spaces(env, dict(env_kwargs or {}))
    place = Place(observation_space, action_space, os.fspath(path), device, seed)
    agent, ignored = READERS[library or _library_of(path)](path, place, activation)
    if isinstance(env, str):
        agent.environment = {"id": env, "kwargs": dict(env_kwargs or {})}
    agent.origin = os.fspath(path)
    if ignored:
        warnings.warn(
            f"{path}: pickles are not read; the defaults of {agent.algo} hold for {shown(ignored)}. "
            "fix: set them for the run where they matter.",
            AgileRLWarning,
            stacklevel=3,
        )
    return agent


def _library_of(path: str | os.PathLike[str]) -> str:
    names = read_zip(path).namelist()
    if sb3.POLICY in names:
        return "sb3"
    if cleanrl.holds(names):
        return "cleanrl"
    raise RunError(
        f"{path} is neither a model of Stable-Baselines3 nor of CleanRL; it holds {shown(names)}. "
        "fix: the zip of model.save, or a .cleanrl_model."
    )


def _spaces(env: foreign.EnvLike, kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """Return (observation space, action space) of one environment; one that is created here is closed."""
    if isinstance(env, str):
        vector = make_vect_envs(env, num_envs=1, **kwargs)
        try:
            return vector.single_observation_space, vector.single_action_space
        finally:
            vector.close()
    instance = env() if isinstance(env, Factory) else env
    try:
        if foreign.possible_agents(instance) is not None:
            raise EnvError("policies of other libraries have one agent. fix: a single-agent environment.")
        spaces = tuple(ask(instance, "single_") or ask(instance) for _, ask in foreign.SPACES)
    finally:
        if instance is not env:
            foreign.close(instance)
    return spaces[0], spaces[1]
