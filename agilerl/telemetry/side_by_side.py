"""A live table of runs that train side by side, one row each; lines on other outputs."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live
from rich.table import Table

from agilerl.core import foreign
from agilerl.core.texts import count, number
from agilerl.telemetry.console import HEARTBEAT_SECONDS, REDRAW_SECONDS, clock
from agilerl.telemetry.record import GenerationRecord, RunPlan

LINES_LEFT = 4  # of the terminal, besides the rows


@dataclass
class _Row:
    """What is shown of one run.

    Attributes:
        status: waits, trains, tests, or how it ended. env_steps, max_env_steps: of one member.
        time_limit: `seconds` at which its minutes are up.
        generation: number of finished ones. best: fitness of the last one's fittest member.
    """

    status: str = "waits"
    env_steps: int = 0
    max_env_steps: int = 0
    time_limit: float = math.inf
    generation: int = 0
    best: float | None = None
    mean: float | None = None
    seconds: float = 0.0

    def cells(self) -> tuple[str, ...]:
        steps_made, seconds = self.env_steps, self.seconds
        remaining = (
            seconds * (self.max_env_steps - steps_made) / steps_made
            if steps_made and self.status == "trains"
            else math.nan
        )
        remaining = min(remaining, self.time_limit - seconds)  # NaN stays
        return (
            self.status,
            f"{count(steps_made)}/{count(self.max_env_steps)}" if self.max_env_steps else "-",
            str(self.generation or "-"),
            number(self.best),
            number(self.mean),
            clock(seconds) if seconds else "-",
            clock(remaining) if math.isfinite(remaining) else "-",
        )


COLUMNS = ("status", "steps of a member", "generation", "best fitness", "test mean", "elapsed", "left at most")


class SideBySide:
    """Shows runs by seed: a table that is redrawn on a terminal; elsewhere a line for each start and end.

    Args:
        verbose: False shows nothing. stream: standard output by default. unit: what the keys of the runs name.
    """

    def __init__(self, verbose: bool = True, stream: TextIO | None = None, unit: str = "seed") -> None:
        self._unit = unit
        self._stream = sys.stdout if stream is None else stream
        self._is_shown = verbose
        self._console = Console(file=self._stream, highlight=False)
        self._is_live = verbose and bool(foreign.is_terminal(self._stream))
        self._rows: dict[int | str, _Row] = {}
        self._live: Live | None = None
        self._drawn = -math.inf
        self._spoke = time.monotonic()

    def start(self, paths: Mapping[Any, Path], processes: int) -> None:
        """Show which runs are to train in how many processes."""
        self._rows = {seed: _Row() for seed in paths}
        if not self._is_shown or not paths:
            return
        where = os.path.commonpath([path.parent for path in paths.values()])
        many = f"{len(paths)} {self._unit if len(paths) == 1 else f'{self._unit}s'}"
        self._say(f"{many} in {processes} {'process' if processes == 1 else 'processes'}   {where}")
        if self._is_live:
            self._live = Live(self._table(), console=self._console, auto_refresh=False)
            self._live.start()

    def message(self, seed: int | str, message: tuple[Any, ...]) -> None:
        """Take over what a run has sent: ("start", plan), ("progress", env_steps, seconds), ("generation", record)."""
        row, (kind, *content) = self._rows[seed], message
        if kind == "start":
            plan: RunPlan = content[0]
            row.status, row.max_env_steps = "trains", plan.max_env_steps
            row.time_limit = math.inf if plan.time_limit is None else plan.time_limit
            self._line(seed, f"begins   {plan.algo} on {plan.env_id}, {plan.device}")
        elif kind == "progress":
            row.env_steps, row.seconds = content
        elif kind == "generation":
            record: GenerationRecord = content[0]
            row.env_steps, row.max_env_steps, row.seconds = record.env_steps, record.max_env_steps, record.seconds
            row.generation, row.best = record.generation + 1, record.best.fitness
        elif kind == "testing":
            row.status = "tests"

    def ended(self, seed: int | str, end: Any) -> None:
        """Show how a run has ended: `workers.processes.Ended` of `training.seeds.train_seed`."""
        row = self._rows[seed]
        if end.error:
            row.status = "interrupted" if end.error == "interrupted" else "failed"
            self._line(
                seed, f"{row.status}   {end.error.partition(' fix: ')[0]}" if row.status == "failed" else row.status
            )
            return
        row.status, row.mean = str(end.value["stopped"]), end.value["mean"]
        mean = "" if row.mean is None else f"   test mean {number(row.mean)}"
        again = f"   after {end.losses} lost {'process' if end.losses == 1 else 'processes'}" if end.losses else ""
        self._line(seed, f"{row.status}   {count(row.env_steps)} steps of a member   {clock(row.seconds)}{mean}{again}")

    def draw(self) -> None:
        """Redraw the table if it is time; elsewhere a line if nothing has been printed for long."""
        now = time.monotonic()
        if self._live is not None and now - self._drawn >= REDRAW_SECONDS:
            self._drawn = now
            self._live.update(self._table(), refresh=True)
        elif self._live is None and self._is_shown and now - self._spoke >= HEARTBEAT_SECONDS:
            finished = sum(row.status not in ("waits", "trains", "tests") for row in self._rows.values())
            steps = sum(row.env_steps for row in self._rows.values())
            self._say(f"...   {finished} of {len(self._rows)} ended, {count(steps)} steps of a member in all")

    def close(self) -> None:
        """Draw the table a last time."""
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
            self._live.stop()
            self._live = None

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in (self._unit, *COLUMNS):
            table.add_column(name, no_wrap=True)
        rows = list(self._rows.items())
        room = max(1, self._console.height - LINES_LEFT)
        if len(rows) > room:  # those that train first
            order = {"trains": 0, "tests": 0, "waits": 2}
            rows = sorted(rows, key=lambda entry: order.get(entry[1].status, 1))[:room]
        for seed, row in rows:
            table.add_row(str(seed), *row.cells())
        return table

    def _line(self, seed: int | str, text: str) -> None:
        if self._is_shown and self._live is None:
            self._say(f"{self._unit} {seed}   {text}")

    def _say(self, text: str) -> None:
        self._spoke = time.monotonic()
        print(text, file=self._stream, flush=True)
