"""A table that is redrawn in place: one row per member, the progress above it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from agilerl.telemetry.fanout import BaseSink
from agilerl.telemetry.record import Birth, GenerationRecord, MemberRecord, RunPlan
from agilerl.telemetry.text import ASCII_BLOCKS, BLOCKS, headline, number, pace, sparkline

REDRAW_SECONDS = 0.2
BAR_WIDTH = 20


class LiveSink(BaseSink):
    """Draws on a terminal. No thread: it redraws when it is told something, at most every 0.2 s."""

    def __init__(self, stream: TextIO | None = None, path: str | None = None, console: Console | None = None) -> None:
        self._console = console or Console(file=stream, highlight=False)
        self._path = path
        self._live: Live | None = None
        self._plan: RunPlan | None = None
        self._record: GenerationRecord | None = None
        self._trend: dict[int, list[float]] = {}
        self._steps, self._seconds, self._drawn = 0, 0.0, -math.inf

    def start(self, plan: RunPlan, founders: Sequence[Birth]) -> None:
        """Print the headline and open the live region."""
        self._plan = plan
        self._console.print(Text(headline(plan, self._path), style="bold"))
        for note in plan.notes:
            self._console.print(Text(note, style="dim"))
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._live.start()

    def progress(self, env_steps: int, seconds: float) -> None:
        """Move the bar."""
        self._steps, self._seconds = env_steps, seconds
        if time.monotonic() - self._drawn >= REDRAW_SECONDS:
            self._draw()

    def generation(self, record: GenerationRecord) -> None:
        """Replace the table. A member's trend continues that of its parent."""
        self._trend = {m.id: [*self._past(m), m.fitness] for m in record.members}
        self._record, self._steps, self._seconds = record, record.env_steps, record.seconds
        self._draw()

    def message(self, text: str) -> None:
        """Print a line above the table."""
        self._console.print(Text(text))

    def close(self) -> None:
        """Draw the last state and leave the terminal as it was."""
        if self._live is not None:
            self._draw()
            self._live.stop()
            self._live = None

    def _past(self, member: MemberRecord) -> list[float]:
        known = self._trend.get(member.id)
        if known is None and member.parent is not None:
            known = self._trend.get(member.parent)
        return known or []

    def _draw(self) -> None:
        if self._live is None or self._plan is None:
            return
        parts = [self._progress_line(self._plan)]
        if self._record is not None:
            self._live.update(Group(*parts, self._table(self._record)), refresh=True)
        else:
            self._live.update(Group(*parts), refresh=True)
        self._drawn = time.monotonic()

    def _progress_line(self, plan: RunPlan) -> Text:
        share = min(self._steps / plan.max_env_steps, 1.0) if plan.max_env_steps else 1.0
        filled = round(share * BAR_WIDTH)
        done = self._record
        generation = f"gen {done.generation:>2}/{done.generations}   " if done else ""
        text = Text(generation)
        text.append("#" * filled, style="green").append("." * (BAR_WIDTH - filled), style="dim")
        steps = min(self._steps, plan.max_env_steps)
        return text.append(f"  {share:4.0%}   {pace(steps, plan.max_env_steps, plan.population, self._seconds)}")

    def _table(self, record: GenerationRecord) -> Table:
        blocks = BLOCKS if "utf" in self._console.encoding.lower() else ASCII_BLOCKS
        finite = [f for trend in self._trend.values() for f in trend if math.isfinite(f)]
        low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name, side in (("#", "right"), ("parent", "right"), ("fitness", "right"), ("trend", "left")):
            table.add_column(name, justify=side, no_wrap=True)  # type: ignore[arg-type]
        for name in ("lr", "batch", "net", "last mutation", ""):
            table.add_column(name, no_wrap=True)
        for member in sorted(record.members, key=_rank):
            best = member.id == record.best.id
            table.add_row(
                str(member.id),
                "-" if member.parent is None else str(member.parent),
                f"{member.fitness:.1f}",
                sparkline(self._trend[member.id], low, high, blocks),
                number(member.hyperparameters.get("lr")),
                number(member.hyperparameters.get("batch_size")),
                Text(member.network),
                Text(member.mutation),
                "* best" if best else "",
                style="bold" if best else None,
            )
        return table


def _rank(member: MemberRecord) -> float:
    return -member.fitness if math.isfinite(member.fitness) else math.inf
