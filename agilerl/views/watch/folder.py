"""Runs in a folder, newest first; links are not followed."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from agilerl.errors import RunError
from agilerl.runs.names import METRICS, RUN, is_group, is_run
from agilerl.runs.records import RunRecords, finite_number
from agilerl.views.watch.machine import process_of

MAX_DEPTH = 4  # out/<env>/<group>/seed-<n>
MAX_RUNS = 2_000  # in the list
MAX_FOLDERS = 50_000  # subfolders searched; a root such as / has millions


@dataclass(frozen=True)
class RunEntry:
    """An entry of the list of runs.

    Attributes:
        key: path below the folder ("." for the folder itself), the run's name on the page.
        started: ISO time. modified: Unix seconds of its last record. score: of the final evaluation, or None.
        focus: whether the followed process trains it. group: key of its group of seeds, or None.
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
    group: str | None = None


def root_of(path: str | os.PathLike[str], may_be_missing: bool = False) -> Path:
    """Return the folder that is watched.

    Raises:
        RunError: missing, or not a folder.
    """
    root = Path(path)
    if not root.exists() and may_be_missing:
        return root
    if not root.is_dir():
        what = "is not a folder" if root.exists() else "does not exist"
        raise RunError(f"{root} {what}. fix: name a run, runs/<env>/<algo>-<nnnn>, or a folder of runs.")
    return root


class RunList:
    """The runs in a folder. Each call of `read` parses only the records that have changed.

    Args:
        pid: process whose run has the focus.

    Attributes:
        omitted: number of runs beyond `MAX_RUNS`, the least recently modified, at the last `read`.
    """

    def __init__(self, root: Path, pid: int | None = None) -> None:
        self._root, self._pid, self.omitted = root, pid, 0
        self._records: dict[Path, RunRecords] = {}

    def read(self) -> list[RunEntry]:
        """Return the runs, newest first."""
        folders = list(_folders(self._root, MAX_DEPTH))
        newest = heapq.nlargest(MAX_RUNS, folders, key=_modified) if len(folders) > MAX_RUNS else folders
        self.omitted = len(folders) - len(newest)
        self._records = {folder: self._records.get(folder) or RunRecords(folder) for folder in newest}
        entries = [_entry(self._root, run, self._pid) for run in self._records.values()]
        return sorted(entries, key=lambda entry: (entry.started, entry.modified, entry.key), reverse=True)


def runs_in(root: Path, pid: int | None = None) -> list[RunEntry]:
    """Return the runs in a folder, newest first; see `RunList`."""
    return RunList(root, pid).read()


def find_run(root: Path, key: str) -> Path | None:
    """Path of the run with a key; None for an unknown key.

    A key is looked up among the runs below the root and never joined to a path.
    """
    return next((folder for folder in _folders(root, MAX_DEPTH) if key_of(root, folder) == key), None)


def find_group(root: Path, key: str) -> Path | None:
    """Path of the group of seeds with a key; see `find_run`."""
    return next((folder.parent for folder in _folders(root, MAX_DEPTH) if _group(root, folder) == key), None)


def _group(root: Path, folder: Path) -> str | None:
    return key_of(root, folder.parent) if folder != root and is_group(folder.parent) else None


def _folders(root: Path, depth: int) -> Iterator[Path]:
    """Yield the run directories below a folder, except nested ones."""
    waiting, looked = [(root, depth)], 0
    while waiting and looked < MAX_FOLDERS:
        folder, below = waiting.pop()
        looked += 1
        if is_run(folder):
            yield folder
            continue
        if below == 0:
            continue
        try:
            inside = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
        except OSError:  # vanished, or not readable
            continue
        names = sorted(entry.name for entry in inside if not entry.name.startswith("."))
        waiting += [(folder / name, below - 1) for name in names]


def key_of(root: Path, folder: Path) -> str:
    """Path below the root; bytes that are not UTF-8, which URLs cannot have, as "\\udce9"."""
    return folder.relative_to(root).as_posix().encode("utf-8", "backslashreplace").decode("utf-8")


def _entry(root: Path, run: RunRecords, pid: int | None) -> RunEntry:
    run.read_facts()
    status, test = run.status if run.facts else "damaged", run.result.get("test")
    return RunEntry(
        key=key_of(root, run.path),
        path=run.path,
        env_id=run.env_id,
        algo=run.algo,
        seed=str(run.facts.get("seed", "?")),
        status=status,
        started=str(run.facts.get("started", "")),
        modified=_modified(run.path),
        score=finite_number(test.get("mean")) if isinstance(test, Mapping) else None,
        best_fitness=finite_number(run.result.get("best_fitness")),
        focus=pid is not None and status == "running" and process_of(run.path) == pid,
        group=_group(root, run.path),
    )


def _modified(folder: Path) -> float:
    times = [0.0]
    for name in (METRICS, RUN):
        try:
            times.append((folder / name).stat().st_mtime)
        except OSError:
            continue
    return max(times)
