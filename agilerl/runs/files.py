"""The append-only files of a run, lineage and metrics: how long they were at a checkpoint, and back to there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agilerl.checkpoint import write_atomic
from agilerl.telemetry.files import birth_line
from agilerl.telemetry.record import Birth
from agilerl.runs.checkpoints import set_aside

LINEAGE, METRICS = "evolution.jsonl", "metrics.csv"


class RunFiles:
    """Lineage and metrics in a run directory.

    Checksums are carried on from save to save: only what was appended is read again.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, tuple[int, Any]] = {}

    def lengths(self) -> dict[str, dict[str, Any]]:
        """Length and sha256 of each file that there is, flushed to disk."""
        found = {}
        for name in (LINEAGE, METRICS):
            path = self.folder / name
            if path.is_file():
                size, digest = self._digest(path)
                found[name] = {"bytes": size, "sha256": digest}
        return found

    def _digest(self, path: Path) -> tuple[int, str]:
        done, running = self._known.get(path.name, (0, hashlib.sha256()))
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            file.seek(done)
            added = file.read()
        running.update(added)
        self._known[path.name] = done + len(added), running
        return done + len(added), running.hexdigest()

    def begin(self) -> None:
        """A run without any checkpoint starts anew: what an earlier attempt wrote goes."""
        self._known.clear()
        for name in (LINEAGE, METRICS):
            (self.folder / name).unlink(missing_ok=True)

    def sweep(self) -> None:
        """Delete what a process that was killed while it replaced a file left behind."""
        for folder in (self.folder, self.folder / "best"):
            for path in folder.glob(".*.tmp"):
                path.unlink(missing_ok=True)

    def rewind(self, lengths: Mapping[str, Mapping[str, Any]], births: Sequence[Birth]) -> list[str]:
        """Back to the files of a checkpoint; the lineage can always be written anew, from `births`.

        Returns:
            What was found damaged.
        """
        self._known.clear()
        self.sweep()
        notes, path = [], self.folder / LINEAGE
        if LINEAGE in lengths and not (self._cut(LINEAGE, lengths[LINEAGE]) and lineage_is(path, births)):
            aside = f", the old one is {set_aside(path).name}" if path.exists() else ""
            write_atomic(path, "".join(birth_line(birth) for birth in births))
            notes.append(f"{LINEAGE} was damaged or missing; it was written anew from the checkpoint{aside}.")
        if METRICS in lengths and not self._cut(METRICS, lengths[METRICS]):
            path = self.folder / METRICS
            aside = f"; the old file is {set_aside(path).name}" if path.exists() else ""
            notes.append(f"{METRICS} was damaged or missing: its rows up to this checkpoint are lost{aside}.")
        return notes

    def _cut(self, name: str, facts: Mapping[str, Any]) -> bool:
        """Cut the file to its length at the checkpoint; False if it is not what it was."""
        path = self.folder / name
        if path.is_symlink() or not path.is_file():
            return False
        data = path.read_bytes()
        size = int(facts["bytes"])
        if hashlib.sha256(data[:size]).hexdigest() != facts["sha256"]:
            return False
        if len(data) > size:
            os.truncate(path, size)
        return True


def lineage_is(path: Path, births: Sequence[Birth]) -> bool:
    """Whether the file holds exactly these births."""
    try:
        return path.read_text(encoding="utf-8") == "".join(birth_line(birth) for birth in births)
    except (OSError, ValueError):
        return False
