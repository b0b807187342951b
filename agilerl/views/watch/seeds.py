"""A group of seeds for the page: a row and a curve for each run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from agilerl.views.report.compare import curve
from agilerl.views.watch.folder import RunList, key_of
from agilerl.views.watch.state import RUNNING, RunFollower
from agilerl.views.watch.wire import entry_facts, rounded

MAX_SEEDS = 50  # with a curve
MAX_POINTS = 200  # of a curve


class Seeds:
    """The runs of a group. Each call of `read` parses only what is new.

    Args:
        root: the folder that is watched, to which the keys of runs are relative. folder: of the group.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self._root, self._folder, self._list = root, folder, RunList(folder)
        self._followers: dict[Path, RunFollower] = {}

    def read(self) -> dict[str, Any]:
        """Return the content of the page: as for a list of runs, each with `progress` and `curve`."""
        entries = sorted(self._list.read(), key=lambda entry: (len(entry.seed), entry.seed))
        runs: list[dict[str, Any]] = []
        for entry, facts in zip(entries, entry_facts(entries), strict=True):
            if len(runs) == MAX_SEEDS:
                break
            follower = self._followers.setdefault(entry.path, RunFollower(entry.path))
            while follower.poll():
                pass
            progress = asdict(follower.progress())
            generation = progress["generation"] + 1 if entry.status == RUNNING else len(follower.generations)
            facts |= {"key": key_of(self._root, entry.path), "progress": {**progress, "generation": generation}}
            runs.append({**facts, "curve": curve_of(follower)})
        return {"root": str(self._folder), "exists": True, "runs": runs, "omitted": len(entries) - len(runs)}


def curve_of(run: RunFollower) -> tuple[list[int], list[float | None]]:
    """(steps of one member, best fitness) by generation, as `report.compare.curve`; at most about `MAX_POINTS`."""
    points = sorted(zip(*curve(run), strict=True))
    stride = -(-len(points) // MAX_POINTS) or 1
    chosen = [*points[:-1:stride], *points[-1:]]
    return [int(steps) for steps, _ in chosen], [rounded(value) for _, value in chosen]
