"""Import of a user's code, which registers environments and algorithms."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from agilerl.core.env_ids import working_directory
from agilerl.errors import ConfigError

# Environment packages whose modules have another name.
PACKAGES = {"highway_env": "highway-env", "gym_pybullet_drones": "gym-pybullet-drones", "panda_gym": "panda-gym"}


def import_code(names: Iterable[str] | None) -> None:
    """Import modules, by name or as files; only on request, because importing runs code.

    Raises:
        ConfigError: a missing module, or one that fails.
    """
    for name in names or ():
        if not name:
            raise ConfigError("--import names a module or a file; got ''. fix: --import my_module.")
        try:
            if name.endswith(".py"):
                _import_file(Path(name))
            else:
                with working_directory():
                    importlib.import_module(name)
        except (ImportError, FileNotFoundError) as error:
            raise ConfigError(f"--import {name}: cannot be imported ({error}). fix: {_fix_of(name, error)}") from error
        except Exception as error:
            what = f"--import {name}: it raised {type(error).__name__} ({error})"
            raise ConfigError(f"{what}. fix: correct it; --debug shows where.") from error


def _fix_of(name: str, error: Exception) -> str:
    """The fix for a failed import: the path of a file, or the installation of a package."""
    if name.endswith(".py") and not Path(name).is_file():
        return "check the path."
    if not name.endswith(".py") and Path(f"{name}.py").is_file():
        return f"--import {name}.py."
    missing = ((error.name if isinstance(error, ImportError) else None) or name).partition(".")[0]
    package = PACKAGES.get(missing, missing.replace("_", "-"))
    return f"pip install {package}, if that is the package, or the path of a file: --import FILE.py."


def _import_file(path: Path) -> None:
    """Import a file as the module of its name, unless it is imported already."""
    name = path.stem
    if name in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # annotations are looked up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
