"""Resolution of environment ids before a run writes anything; errors name the package to install or the nearest id."""

from __future__ import annotations

import difflib
import importlib
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from agilerl.core import foreign
from agilerl.errors import EnvError, warn_once

_LIST = "fix: `agilerl list envs` prints the known ids."
IN_PYTHON = "agilerl.train(EnvClass, 'IPPO') in Python, for a class of several agents, which has no id"
_IMPORT = (
    "fix: --import MODULE, if a package or code of yours registers it; `agilerl list envs` prints the known ids; "
    f"{IN_PYTHON}."
)
# Packages that register their ids when imported by the user: prefixes of ids -> (module, package).
OTHERS = {
    ("highway-", "merge-", "roundabout-", "parking-", "intersection-", "racetrack-"): ("highway_env", "highway-env"),
    ("Panda",): ("panda_gym", "panda-gym"),
    ("Fetch", "HandReach", "HandManipulate", "AdroitHand", "FrankaKitchen", "PointMaze_", "AntMaze_"): (
        "gymnasium_robotics",
        "gymnasium-robotics",
    ),
}
_EXTRAS = {"gymnasium.envs.box2d": "box2d", "gymnasium.envs.mujoco": "mujoco"}


@dataclass(frozen=True)
class Family:
    """Environments of a package that registers them on import, recognised by the prefix of their ids.

    Attributes:
        starts: prefixes of the ids. module: to import. register: name of its registration function; empty if importing
            registers.
        extra: extra of this package that installs it. example: an id.
    """

    starts: tuple[str, ...]
    module: str
    register: str
    extra: str
    example: str


FAMILIES = (
    Family(("ALE/",), "ale_py", "", "atari", "ALE/Pong-v5"),
    Family(("MiniGrid-", "BabyAI-"), "minigrid", "", "minigrid", "MiniGrid-Empty-5x5-v0"),
    Family(("MinAtar/",), "minatar.gym", "register_envs", "minatar", "MinAtar/Breakout-v1"),
)


def family_of(env_id: str) -> Family | None:
    """Return the package with the id's prefix, or None."""
    return next((family for family in FAMILIES if env_id.startswith(family.starts)), None)


def _bring(family: Family, env_id: str) -> None:
    """Import the package that registers ids like this one, once; EnvError if it is missing."""
    import gymnasium

    if family.register and any(name.startswith(family.starts) for name in gymnasium.registry):
        return  # registering twice would warn
    try:
        with _quiet_logging():  # irrelevant warnings about its optional dependencies
            module = importlib.import_module(family.module)
    except ImportError as error:
        package = family.module.partition(".")[0]
        what = f"the package {package} is not installed" if error.name == package else f"{package}: {_plain(error)}."
        raise EnvError(f'{env_id}: {what}. fix: pip install "agilerl[{family.extra}]"'.replace("..", ".")) from error
    if family.register:
        getattr(module, family.register)()


@contextmanager
def _quiet_logging() -> Iterator[None]:
    """Suppress warnings of the root logger inside the block."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers  # `logging.warning` adds one


# Ids of this package -> (entry point, time limit); registered in Gymnasium on first use.
SHIPPED: dict[str, tuple[str, int | None]] = {
    "MaskedCartPole-v1": ("agilerl.envs.simulators.classic:masked_cartpole", 500),
    "MaskedPendulum-v1": ("agilerl.envs.simulators.classic:masked_pendulum", 200),
    "Wordle-v0": ("agilerl.envs.simulators.wordle:Wordle", None),  # for language policies
    **{f"bandit/{name}": (f"agilerl.envs.bandit:{name}", 100) for name in ("iris", "wine", "digits", "breast_cancer")},
}


TEAM_PACKAGES = ("mpe2", "pettingzoo")  # packages allowed in ids: importing others would run unknown code


def is_team_id(env_id: str) -> bool:
    """Whether an id names a module of a multi-agent environment: "mpe2.simple_spread_v3"."""
    return env_id.partition(".")[0] in TEAM_PACKAGES and "." in env_id


LANGUAGE_FAMILIES = ("reasoning", "arithmetic")  # part of an id before the slash


def is_language_id(env_id: str) -> bool:
    """Whether an id names questions for language models: "reasoning/chain_sum", "arithmetic/addition-2"."""
    family, slash, _ = env_id.partition("/")
    return bool(slash) and family in LANGUAGE_FAMILIES


def resolve_env_id(env_id: str) -> str:
    """Like `registered_id`, and raise EnvError if a required package is missing, with Gymnasium's message.

    Ids of multi-agent and language environments are returned unchanged: `envs.team_vector` and `llm_envs.by_id` resolve
    them."""
    if is_team_id(env_id) or is_language_id(env_id):
        return env_id
    import gymnasium  # kept out of imports that must stay fast

    resolved = registered_id(env_id, "{} is retired in Gymnasium; {} is used.", quote="'")
    entry_point = gymnasium.spec(resolved).entry_point
    module = entry_point.partition(":")[0] if isinstance(entry_point, str) else ""
    try:  # a missing simulator raises when the environment's module is imported
        if module:
            importlib.import_module(module)
    except (ImportError, gymnasium.error.Error) as error:
        extra = next((e for start, e in _EXTRAS.items() if module.startswith(start)), None)
        if extra is None:
            raise EnvError(f"{resolved}: {_plain(error)} fix: install that package.") from None
        raise EnvError(f'{resolved}: {extra} is not installed. fix: pip install "agilerl[{extra}]"') from None
    return resolved


def registered_id(env_id: str, message: str, quote: str = "`") -> str:
    """Return an id that Gymnasium can create; a retired version is replaced by the newest, with `message` once.

    `quote` replaces the backticks in Gymnasium's messages, which terminals show badly.

    Raises:
        EnvError: unknown id, with Gymnasium's message, which names the nearest ids and versions; or an id with a module
            to import, such as "package.module:Name-v0".
    """
    import gymnasium

    if ":" in env_id:
        module, _, name = env_id.rpartition(":")
        raise EnvError(
            f"{env_id!r} would import {module!r}, and importing runs code. "
            f"fix: --import {module} (or import it yourself) and the id {name}, if the module registers that one; "
            f"agilerl train also takes --allow-code; {IN_PYTHON}."
        )
    try:
        family = family_of(env_id)
        if family is not None and env_id not in gymnasium.registry:
            _bring(family, env_id)
        if env_id in SHIPPED and env_id not in gymnasium.registry:
            entry_point, limit = SHIPPED[env_id]
            gymnasium.register(env_id, entry_point=entry_point, max_episode_steps=limit)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "out of date" is reported below, once
            gymnasium.spec(env_id)
    except gymnasium.error.DeprecatedEnv as error:
        newest = _newest(env_id, list(gymnasium.registry))
        if newest is None:
            raise EnvError(f"{env_id}: {_plain(error, quote)} {_LIST}") from error
        warn_once(f"env:{env_id}", message.format(env_id, newest), stacklevel=5)
        return newest
    except gymnasium.error.Error as error:
        raise EnvError(_unknown(env_id, _plain(error, quote), [*gymnasium.registry, *SHIPPED])) from error
    return env_id


def _unknown(env_id: str, message: str, names: list[str]) -> str:
    """Message for an unregistered id: the nearest id, or the package that may provide it."""
    for starts, (module, package) in OTHERS.items():
        if env_id.startswith(starts):
            return f"{env_id}: {message.rstrip('.')}. fix: pip install {package}, then --import {module}."
    close = _closest(env_id, names)
    message = message.partition(" Did you mean")[0].rstrip(".")  # Gymnasium's suggestion lacks the version
    fix = _IMPORT if close is None else f"Did you mean {close!r}? fix: {close}, or another id of `agilerl list envs`."
    return f"{env_id or repr(env_id)}: {message}. {fix}"


def _closest(env_id: str, names: list[str]) -> str | None:
    """Return the newest version of the registered environment with the nearest name, ignoring case."""
    bases = {_base(name).lower(): _base(name) for name in reversed(names)}  # of equal names the first
    close = difflib.get_close_matches(_base(env_id).lower(), bases, 1, 0.75)
    return _newest(bases[close[0]], names) or bases[close[0]] if close else None


def import_environment(env_id: str) -> str:
    """Import the module in an id and return the id without it; other ids are unchanged.

    Only at the user's request: importing runs code.

    Raises:
        EnvError: the module is missing, or has something of this name that is not registered as an id.
    """
    module, separator, name = env_id.rpartition(":")
    if not separator:
        return env_id
    try:
        with working_directory():
            content = vars(importlib.import_module(module))
    except ImportError as error:
        fix = f"run in the folder of {module}.py, or set PYTHONPATH"
        raise EnvError(f"{env_id}: {module!r} cannot be imported ({_plain(error)}). fix: {fix}.") from None
    import gymnasium

    if callable(content.get(name)) and name not in gymnasium.registry:
        raise EnvError(
            f"{env_id}: {name} of {module} is not an id that Gymnasium knows, but a class or function. "
            f"fix: gymnasium.register({name + '-v0'!r}, entry_point={name}) in {module} and the id {name}-v0; or "
            f"{IN_PYTHON}."
        )
    return name


@contextmanager
def working_directory() -> Iterator[None]:
    """Import modules from the current directory too, as `python -m` does; it is missing from a command's path."""
    directory = os.getcwd()
    added = directory not in sys.path and "" not in sys.path
    if added:
        sys.path.append(directory)
    try:
        yield
    finally:
        if added and directory in sys.path:
            sys.path.remove(directory)


def takes_box_actions(env: foreign.EnvLike) -> bool:
    """Whether an environment (object, factory or id) takes Box actions; False if unknown."""
    import gymnasium

    if isinstance(env, str) and (is_team_id(env) or is_language_id(env)):
        return False
    created_env = None
    if isinstance(env, str):
        created_env = env = gymnasium.make(resolve_env_id(env), disable_env_checker=True)
    elif callable(env) and not hasattr(env, "action_space"):
        created_env = env = env()
    space = foreign.action_space(env, "single_") or foreign.action_space(env)
    if created_env is not None:
        foreign.close(created_env)
    return isinstance(space, gymnasium.spaces.Box)


def check_lookup(env: foreign.EnvLike) -> None:
    """Raise EnvError for an object whose `__getattr__` does not raise AttributeError for missing attributes."""
    try:
        hasattr(env, "agilerl_lookup")
    except Exception as error:
        kind = type(env).__name__
        raise EnvError(
            f"{kind}.__getattr__ raised {error!r} for an attribute that it does not have; "
            "hasattr() needs an AttributeError. fix: raise AttributeError(name) there."
        ) from error


def has_several_agents(env: foreign.EnvLike) -> bool:
    """Whether an environment (object, factory or id) has several agents; False if unknown."""
    if isinstance(env, str):
        return is_team_id(env)
    if foreign.possible_agents(env) is not None:
        return True
    if not callable(env) or (hasattr(env, "action_space") and not isinstance(env, type)):
        return False
    import gymnasium  # kept out of imports that must stay fast

    if isinstance(env, type) and issubclass(env, gymnasium.Env):
        return False
    created_env = env()
    is_team = foreign.possible_agents(created_env) is not None
    foreign.close(created_env)
    return is_team


def _base(env_id: str) -> str:
    """Return an id without its version."""
    return re.sub(r"-v\d+$", "", env_id)


def _newest(env_id: str, names: list[str]) -> str | None:
    base = _base(env_id)
    versions = [int(m[1]) for name in names if (m := re.fullmatch(re.escape(base) + r"-v(\d+)", name))]
    return f"{base}-v{max(versions)}" if versions else None


def _plain(error: Exception, quote: str = "'") -> str:
    return " ".join(str(error).replace("`", quote).split())


def reward_threshold(env: foreign.EnvLike) -> float | None:
    """Return the return at which an environment counts as solved by its registration; None if there is none."""
    if isinstance(env, str):
        if is_team_id(env) or is_language_id(env):
            return None
        import gymnasium

        try:
            spec: Any = gymnasium.spec(registered_id(env, "{} is retired in Gymnasium; {} is used.", quote="'"))
        except (EnvError, gymnasium.error.Error):
            return None  # reported when it is created
    else:
        spec = foreign.spec(env)
    return foreign.reward_threshold(spec)
