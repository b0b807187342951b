"""Factories of multi-agent environments from an id, a PettingZoo module, a class or a function."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from agilerl.core import foreign
from agilerl.core.env_ids import IN_PYTHON, TEAM_PACKAGES, check_lookup
from agilerl.envs.simulators.team_fast import FAST_TEAMS
from agilerl.envs.team import is_parallel, team_of
from agilerl.errors import EnvError, nearest


def maker(env: foreign.EnvLike) -> tuple[str | None, Callable[..., Any]]:
    """Return (id or None, factory of a parallel environment)."""
    if isinstance(env, str):
        env = team_module(env)
    check_lookup(env)
    if isinstance(env, ModuleType):
        package, _, name = env.__name__.partition(".")
        is_known = package in TEAM_PACKAGES and hasattr(env, "parallel_env")
        env_id = f"{package}.{name.rpartition('.')[2]}" if is_known else None
        return (env.__name__ if env.__name__ in FAST_TEAMS else env_id), maker_of(env)
    if is_parallel(env) and not isinstance(env, type):
        raise EnvError(
            f"make_multi_agent_vect_envs needs a factory, as there are several copies; got an "
            f"{type(env).__name__} object. fix: the function that made it, or lambda: {type(env).__name__}(...)."
        )
    if not callable(env) or hasattr(env, "agent_iter"):
        if hasattr(env, "agent_iter"):
            team_of(env)  # its error names the conversion
        raise EnvError(
            f"make_multi_agent_vect_envs needs an id, a module or a function that makes an environment; got "
            f"{type(env).__name__}. fix: 'mpe2.simple_speaker_listener_v4'."
        )
    return None, env


def maker_of(module: ModuleType) -> Callable[..., Any]:
    """Return the factory of a parallel environment in a PettingZoo module."""
    if hasattr(module, "parallel_env"):
        parallel: Callable[..., Any] = module.parallel_env
        return parallel
    if not hasattr(module, "env"):
        raise EnvError(f"{module.__name__} has neither parallel_env nor env. fix: a module as mpe2.simple_spread_v3.")
    return partial(_in_turns, module.env, module.__name__)


def _in_turns(make: Callable[..., Any], name: str, /, **kwargs: Any) -> Any:
    conversions = importlib.import_module("pettingzoo.utils.conversions")
    try:
        game = make(**kwargs)
    except ImportError as error:  # a game that imports what it needs when it is made, such as Hanabi
        missing = {str(part.name) for part in (error, error.__cause__) if isinstance(part, ImportError) and part.name}
        packages = " ".join(sorted({*re.findall(r"pip install (\w+)", str(error)), *missing}))
        fix = f"pip install {packages}" if packages else "install that package"
        raise EnvError(f"{name}: {' '.join(str(error).split())}. fix: {fix}.") from error
    return conversions.turn_based_aec_to_parallel(game)


def team_module(env_id: str) -> ModuleType:
    """Import the module of an id: "mpe2.simple_spread_v3", "pettingzoo.classic.connect_four_v3".

    Raises:
        EnvError: unsupported or missing package, or unknown module, with the nearest name.
    """
    package = env_id.partition(".")[0]
    if package not in TEAM_PACKAGES:
        raise EnvError(
            f"{env_id!r} is not the id of an environment of several agents: those begin with "
            f"{' or '.join(f'{name}.' for name in TEAM_PACKAGES)} fix: 'mpe2.simple_speaker_listener_v4', or "
            f"{IN_PYTHON}."
        )
    try:
        parent = importlib.import_module(env_id.rpartition(".")[0] or package)
    except ImportError as error:
        if package in str(error):
            raise EnvError(f'{env_id}: {package} is not installed. fix: pip install "agilerl[marl]"') from None
        raise EnvError(f"{env_id}: {error}. fix: install that package.") from None
    names = [
        f"{parent.__name__}.{module.name}"
        for module in pkgutil.iter_modules(foreign.search_path(parent))
        if re.search(r"_v\d+$", module.name)
    ]
    if env_id not in names:
        close = nearest(env_id, names, limit=3) or names[:3]
        raise EnvError(f"unknown environment {env_id!r}. fix: {', '.join(close) or 'mpe2.simple_spread_v3'}.")
    try:
        return importlib.import_module(env_id)
    except ImportError as error:
        raise EnvError(f"{env_id}: {' '.join(str(error).split())}. fix: install that package.") from None
