"""Look-ups that need the configuration: names for completion and messages, and the imports of a run."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from agilerl.algorithms import DEFAULT_ALGORITHM, DEFAULT_FOR_LANGUAGE, DEFAULT_UNTUNED
from agilerl.config import Manifest, preset_names
from agilerl.config.keys import leaf_paths
from agilerl.errors import AgileRLError
from agilerl.runs.commands import imports_of
from agilerl.runs.directory import RunDirectory


def presets_like(incomplete: str) -> list[str]:
    """Ids of environments with a preset that begin with a text."""
    return [name for name in preset_names() if name.startswith(incomplete)]


@cache
def is_setting(key: str) -> bool:
    """Whether `--set` accepts a key, or the last name of one, for the default algorithms."""
    usual = (DEFAULT_ALGORITHM, DEFAULT_UNTUNED, DEFAULT_FOR_LANGUAGE)
    names = {path.rpartition(".")[2] for name in usual for path in leaf_paths(name)}
    return key in names or key.partition(".")[0] in Manifest.model_fields


def imports_in(run: Path) -> tuple[str, ...]:
    """Modules that a run was made with; none if its record cannot be read."""
    try:
        return tuple(imports_of(RunDirectory(run).facts()))
    except AgileRLError:
        return ()
