"""`--import`: code of the user's own that registers algorithms or environments before a command runs."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from agilerl.errors import ConfigError

Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import", metavar="FILE|MODULE", help="Run this code of yours first: it registers algorithms, environments."
    ),
]


def import_code(names: Iterable[str] | None) -> None:
    """Import modules, by name or as files; only for a user who has asked for it, because importing runs code.

    Raises:
        ConfigError: there is none, or it fails.
    """
    for name in names or ():
        path = Path(name)
        try:
            if name.endswith(".py"):
                _import_file(path)
            else:
                importlib.import_module(name)
        except (ImportError, FileNotFoundError) as error:
            raise ConfigError(f"--import {name}: cannot be imported ({error}). fix: check the path.") from error


def _import_file(path: Path) -> None:
    """A file as the module of its name; one that is imported already stays."""
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
