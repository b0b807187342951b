"""Is the environment there? Asked before anything is written, answered with what to install or to type."""

from __future__ import annotations

import importlib
import re
from typing import Any

from agilerl.errors import EnvError, warn_once

_LIST = "fix: `agilerl list envs` prints the known ids."
_EXTRAS = {"gymnasium.envs.box2d": "box2d", "gymnasium.envs.mujoco": "mujoco"}


def resolve_env_id(env_id: str) -> str:
    """The id that Gymnasium can make; a version that it has retired becomes the newest one, with a warning.

    Raises:
        EnvError: unknown, or a package is missing. Gymnasium's own explanation is kept.
    """
    refuse_code(env_id)
    import gymnasium  # kept out of the import of `agilerl.config`, which must stay fast

    try:
        if env_id.startswith("ALE/"):
            gymnasium.register_envs(importlib.import_module("ale_py"))
        importlib.import_module("agilerl.envs.masked").register_shipped(env_id)
        spec = gymnasium.spec(env_id)
    except gymnasium.error.DeprecatedEnv as error:
        newest = _newest(env_id, list(gymnasium.registry))
        if newest is None:
            raise EnvError(f"{env_id}: {_plain(error)} {_LIST}") from None
        warn_once(f"env:{env_id}", f"{env_id} is retired in Gymnasium; {newest} is used.", stacklevel=4)
        return resolve_env_id(newest)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        if env_id.startswith("ALE/"):
            raise EnvError(f'{env_id}: Atari is not installed. fix: pip install "agilerl[atari]"') from None
        raise EnvError(f"{env_id}: {_plain(error)} {_LIST}") from None
    _check_packages(env_id, spec.entry_point, gymnasium.error.Error)
    return env_id


def refuse_code(env_id: str) -> None:
    """Raise EnvError for an id that names a module to import, as "package.module:Name-v0" does."""
    if ":" in env_id:
        module = env_id.partition(":")[0]
        raise EnvError(
            f"{env_id!r} would import {module!r}, and importing runs code. "
            "fix: agilerl train --allow-code, or import the module yourself and leave its name out."
        )


def import_environment(env_id: str) -> str:
    """Import the module that an id names and give the id without it; any other id as it is.

    Only for a user who has asked for it: importing runs code.
    """
    module, separator, name = env_id.rpartition(":")
    if not separator:
        return env_id
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise EnvError(f"{env_id}: {module!r} cannot be imported ({_plain(error)}). fix: check PYTHONPATH.") from None
    return name


def takes_box_actions(env: Any) -> bool:
    """Whether an environment, given as an object, a function or an id, takes Box actions; False where it is unknown."""
    import gymnasium

    made = None
    if isinstance(env, str):
        made = env = gymnasium.make(resolve_env_id(env), disable_env_checker=True)
    elif callable(env) and not hasattr(env, "action_space"):
        made = env = env()
    space = getattr(env, "single_action_space", None) or getattr(env, "action_space", None)
    if made is not None and callable(getattr(made, "close", None)):
        made.close()
    return isinstance(space, gymnasium.spaces.Box)


def _check_packages(env_id: str, entry_point: Any, error_type: type[Exception]) -> None:
    """Import the environment's module: that is where a missing simulator shows."""
    module = entry_point.partition(":")[0] if isinstance(entry_point, str) else None
    if not module:
        return
    try:
        importlib.import_module(module)
    except (ImportError, error_type) as error:
        extra = next((e for start, e in _EXTRAS.items() if module.startswith(start)), None)
        if extra is None:
            raise EnvError(f"{env_id}: {_plain(error)} fix: install what it names.") from None
        raise EnvError(f'{env_id}: {extra} is not installed. fix: pip install "agilerl[{extra}]"') from None


def _newest(env_id: str, known: list[str]) -> str | None:
    base = re.sub(r"-v\d+$", "", env_id)
    versions = [int(m[1]) for k in known if (m := re.fullmatch(re.escape(base) + r"-v(\d+)", k))]
    return f"{base}-v{max(versions)}" if versions else None


def _plain(error: Exception) -> str:
    return " ".join(str(error).replace("`", "'").split())
