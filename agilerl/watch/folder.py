"""The runs in a folder: found without following links, newest first."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agilerl.errors import AgileRLError, RunError
from agilerl.hostile import MIB, read_json
from agilerl.runs.lock import status_of
from agilerl.watch.machine import process_of

MAX_DEPTH = 4  # out/<env>/<group>/seed-<n>
MAX_RUNS = 2_000
RECORD = "run.json"


@dataclass(frozen=True)
class RunEntry:
    """A run as a line of the list.

    Attributes:
        key: its path below the folder, "." for the folder itself: how the page names it.
        started: ISO time. modified: Unix seconds of its last record. score: of the closing test, else None.
        focus: whether the followed process trains it.
    """

    key: str
    path: Path
    env_id: str
    algo: str
    seed: str
    status: str
    started: str
    modified: float
    score: float | None
    best_fitness: float | None
    focus: bool = False


def root_of(path: str | os.PathLike[str], may_be_missing: bool = False) -> Path:
    """Return the folder that is watched.

    Raises:
        RunError: it is missing or no folder.
    """
    root = Path(path)
    if not root.exists() and may_be_missing:
        return root
    if not root.is_dir():
        what = "is no folder" if root.exists() else "does not exist"
        raise RunError(f"{root} {what}. fix: name a run, runs/<env>/<algo>-<nnnn>, or a folder of runs.")
    return root


def runs_in(root: Path, pid: int | None = None) -> list[RunEntry]:
    """Runs in a folder, newest first; at most `MAX_RUNS`. `pid`: of the process whose run has the focus."""
    entries = [_entry(root, folder, pid) for folder in _folders(root, MAX_DEPTH)]
    return sorted(entries, key=lambda entry: (entry.started, entry.modified, entry.key), reverse=True)


def find_run(root: Path, key: str) -> Path | None:
    """Path of the run with a key; None for a key that the list does not show.

    A key is looked up among the runs below the root and never joined to a path.
    """
    for folder in _folders(root, MAX_DEPTH):
        if _key(root, folder) == key:
            return folder
    return None


def _folders(root: Path, depth: int) -> Iterator[Path]:
    left = MAX_RUNS
    waiting = [(root, depth)]
    while waiting and left:
        folder, below = waiting.pop()
        if (folder / RECORD).is_file():
            left -= 1
            yield folder
            continue
        if below == 0:
            continue
        try:
            inside = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
        except OSError:  # vanished, or without rights
            continue
        names = sorted(entry.name for entry in inside if not entry.name.startswith("."))
        waiting += [(folder / name, below - 1) for name in names]


def _key(root: Path, folder: Path) -> str:
    return folder.relative_to(root).as_posix()


def _entry(root: Path, folder: Path, pid: int | None) -> RunEntry:
    facts = _facts(folder)
    result = facts.get("result")
    result = result if isinstance(result, Mapping) else {}
    test = result.get("test")
    status = status_of(folder, facts) if facts else "damaged"
    return RunEntry(
        key=_key(root, folder),
        path=folder,
        env_id=str(facts.get("env_id", "?")),
        algo=str(facts.get("algo", "?")),
        seed=str(facts.get("seed", "?")),
        status=status,
        started=str(facts.get("started", "")),
        modified=_modified(folder),
        score=_real(test.get("mean")) if isinstance(test, Mapping) else None,
        best_fitness=_real(result.get("best_fitness")),
        focus=pid is not None and status == "running" and process_of(folder) == pid,
    )


def _facts(folder: Path) -> dict[str, Any]:
    try:
        content = read_json(folder / RECORD, 16 * MIB)
    except (AgileRLError, OSError):
        return {}
    return content if isinstance(content, dict) else {}


def _modified(folder: Path) -> float:
    times = [0.0]
    for name in ("metrics.csv", RECORD):
        try:
            times.append((folder / name).stat().st_mtime)
        except OSError:
            continue
    return max(times)


def _real(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
