"""Names of the files in a run directory, and the command lines that users are shown for it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agilerl.core.hostile import read_json
from agilerl.errors import AgileRLError

RUN, CONFIG, LINEAGE, METRICS = "run.json", "config.yaml", "evolution.jsonl", "metrics.csv"
GROUP, REQUESTS = "group.json", "requests"


def is_run(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is a run directory."""
    return (Path(path) / RUN).is_file()


def is_group(path: str | os.PathLike[str]) -> bool:
    """Whether `path` is the folder of a group of seeds."""
    return (Path(path) / GROUP).is_file()


def command(verb: str, path: str | os.PathLike[str], *arguments: str, imports: Iterable[str] = ()) -> str:
    """`agilerl VERB PATH ...`, quoted for a shell, with `--import` for each of the imports."""
    words = [*verb.split(), str(path), *arguments]
    return shlex.join(["agilerl", *words, *(word for name in imports for word in ("--import", name))])


def run_command(verb: str, folder: str | os.PathLike[str], *arguments: str) -> str:
    """See `command`, with the recorded imports of the run in the folder; none if its record cannot be read."""
    try:
        imports = imports_of(read_json(Path(folder) / RUN))
    except (AgileRLError, OSError, ValueError, TypeError, AttributeError):
        imports = ()
    return command(verb, folder, *arguments, imports=imports)


def way_on(folder: str | os.PathLike[str], facts: Mapping[str, Any]) -> str:
    """How to resume the run of a run.json: a command, or a call if its environment was passed as an object."""
    if facts.get("env_given"):
        return f"agilerl.resume({os.fspath(folder)!r}, env=env)"
    return run_command("resume", folder)


def imports_of(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """The `--import` options of the run of a run.json; for runs of earlier versions taken from the command line."""
    recorded = facts.get("imports")
    if isinstance(recorded, list | tuple):
        return tuple(str(name) for name in recorded)
    argv = [str(word) for word in facts.get("argv") or ()]
    if not argv or Path(argv[0]).name not in ("agilerl", "__main__.py"):
        return ()
    pairs = zip(argv, [*argv[1:], ""], strict=True)
    names = [after if word == "--import" else word for word, after in pairs if word.startswith("--import")]
    return tuple(name.removeprefix("--import=") for name in names if name)
