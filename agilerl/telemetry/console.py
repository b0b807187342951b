"""The terminal: a live table where one can be drawn, plain lines or a bar elsewhere, nothing when asked for silence."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from tqdm import tqdm

from agilerl.telemetry.record import BaseSink, Birth, GenerationRecord, RunPlan, Sink

REDRAW_SECONDS, BAR_WIDTH = 0.2, 20
BLOCKS, ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "._-=+*#@"


def count(number: float) -> str:
    """950, 5.9k, 280k, 1.2M."""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= limit * 0.9995:
            digits = 0 if abs(number) >= limit * 99.95 else 1
            return f"{number / limit:.{digits}f}".removesuffix(".0") + unit
    return f"{number:.0f}"


def clock(seconds: float) -> str:
    """MM:SS, or H:MM:SS from an hour on; "--:--" where it is not known."""
    if not math.isfinite(seconds):
        return "--:--"
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def number(value: float | None, digits: int = 4) -> str:
    """Significant digits without a needless exponent: 6.3e-4, 0.99, 128; "-" for None."""
    if value is None:
        return "-"
    if value and abs(value) < 1e-2:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    return f"{value:.{digits}g}"


def sparkline(values: Sequence[float], low: float, high: float, blocks: str = BLOCKS, width: int = 12) -> str:
    """The last `width` values as blocks between `low` and `high`; a value that is not finite is a blank."""
    span = high - low
    found = []
    for value in list(values)[-width:]:
        if not math.isfinite(value):
            found.append(" ")
            continue
        share = (value - low) / span if span > 0 else 0.5
        found.append(blocks[min(max(int(share * len(blocks)), 0), len(blocks) - 1)])
    return "".join(found)


def headline(plan: RunPlan, path: str | None) -> str:
    """The line that stands above everything: what runs, where, from which seed."""
    threads = f" ({plan.threads} thread{'s' if plan.threads != 1 else ''})" if plan.device == "cpu" else ""
    parts = [
        f"{plan.algo} on {plan.env_id}",
        f"{plan.population} members x {count(plan.max_env_steps)} env steps",
        f"seed {plan.seed}",
        plan.device + threads,
    ]
    return "   ".join([*parts, path] if path else parts)


def pace(env_steps: int, max_env_steps: int, population: int, seconds: float) -> str:
    """Steps so far (population and member), speed, time gone and time left. `env_steps` is per member."""
    rate = env_steps * population / seconds if seconds > 0 else 0.0
    left = seconds * (max_env_steps - env_steps) / env_steps if env_steps > 0 else math.inf
    return (
        f"{count(env_steps * population)}/{count(max_env_steps * population)} env steps "
        f"({count(env_steps)}/{count(max_env_steps)} per member)   {count(rate)} steps/s   "
        f"elapsed {clock(seconds)}   left {clock(left)}"
    )


def generation_line(record: GenerationRecord) -> str:
    """One generation in one line without colour."""
    best = record.best
    line = (
        f"gen {record.generation:>2}/{record.generations}   best {number(best.fitness)} (member {best.id})   "
        f"mean {number(record.mean_fitness)}   "
        + pace(record.env_steps, record.max_env_steps, len(record.members), record.seconds)
    )
    return line if record.confirmation is None else f"{line}   confirmed at {number(record.confirmation)}"


class PlainSink(BaseSink):
    """One line per generation, without escape codes: for pipes, logs and continuous integration."""

    def __init__(self, stream: TextIO | None = None, path: str | None = None) -> None:
        self._stream, self._path = sys.stdout if stream is None else stream, path

    def start(self, plan: RunPlan, founders: Sequence[Birth]) -> None:
        for line in (headline(plan, self._path), *plan.notes):
            self.message(line)

    def generation(self, record: GenerationRecord) -> None:
        self.message(generation_line(record))

    def message(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


class LiveSink(BaseSink):
    """Draws on a terminal. No thread: it redraws when it is told something, at most every 0.2 s."""

    def __init__(self, stream: TextIO | None = None, path: str | None = None, console: Console | None = None) -> None:
        self._console = console or Console(file=stream, highlight=False)
        self._path = path
        self._live: Live | None = None
        self._plan: RunPlan | None = None
        self._record: GenerationRecord | None = None
        self._trend: dict[int | None, list[float]] = {}
        self._steps, self._seconds, self._drawn = 0, 0.0, -math.inf

    def start(self, plan: RunPlan, founders: Sequence[Birth]) -> None:
        self._plan = plan
        self._console.print(Text(headline(plan, self._path), style="bold"))
        for note in plan.notes:
            self._console.print(Text(note, style="dim"))
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._live.start()

    def progress(self, env_steps: int, seconds: float) -> None:
        self._steps, self._seconds = env_steps, seconds
        if time.monotonic() - self._drawn >= REDRAW_SECONDS:
            self._draw()

    def generation(self, record: GenerationRecord) -> None:
        """Replace the table. A member's trend continues that of its parent."""
        past = self._trend
        self._trend = {m.id: [*past.get(m.id, past.get(m.parent, [])), m.fitness] for m in record.members}
        self._record, self._steps, self._seconds = record, record.env_steps, record.seconds
        self._draw()

    def message(self, text: str) -> None:
        self._console.print(Text(text))

    def close(self) -> None:
        """Draw the last state and leave the terminal as it was."""
        if self._live is not None:
            self._draw()
            self._live.stop()
            self._live = None

    def _draw(self) -> None:
        if self._live is None or self._plan is None:
            return
        below = [] if self._record is None else [self._table(self._record)]
        self._live.update(Group(self._progress_line(self._plan), *below), refresh=True)
        self._drawn = time.monotonic()

    def _progress_line(self, plan: RunPlan) -> Text:
        share = min(self._steps / plan.max_env_steps, 1.0) if plan.max_env_steps else 1.0
        filled = round(share * BAR_WIDTH)
        done = self._record
        text = Text(f"gen {done.generation:>2}/{done.generations}   " if done else "")
        text.append("#" * filled, style="green").append("." * (BAR_WIDTH - filled), style="dim")
        steps = min(self._steps, plan.max_env_steps)
        return text.append(f"  {share:4.0%}   {pace(steps, plan.max_env_steps, plan.population, self._seconds)}")

    def _table(self, record: GenerationRecord) -> Table:
        blocks = BLOCKS if "utf" in self._console.encoding.lower() else ASCII_BLOCKS
        finite = [f for trend in self._trend.values() for f in trend if math.isfinite(f)]
        low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("#", "parent", "fitness", "trend", "lr", "batch", "net", "last mutation", ""):
            table.add_column(name, justify="right" if name in ("#", "parent", "fitness") else "left", no_wrap=True)
        for member in sorted(record.members, key=lambda m: -m.fitness if math.isfinite(m.fitness) else math.inf):
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


class TqdmSink(BaseSink):
    """A bar over the environment steps of one member. It never runs past its total."""

    def __init__(self, stream: TextIO | None = None, table: bool = True) -> None:
        """`table=False` leaves out the line that is printed above the bar after each generation."""
        self._stream, self._table = stream, table
        self._bar: Any = None

    def start(self, plan: RunPlan, founders: Sequence[Birth]) -> None:
        """Print what is about to run (its seed above all) and any note on it; open the bar."""
        for line in (headline(plan, None), *plan.notes):
            tqdm.write(line, file=self._stream if self._stream is not None else sys.stderr)
        self._bar = tqdm(
            total=plan.max_env_steps,
            unit="step",
            unit_scale=True,
            file=self._stream,
            desc=f"{plan.algo} on {plan.env_id}, {plan.population} members, steps per member",
            dynamic_ncols=True,
        )

    def progress(self, env_steps: int, seconds: float) -> None:
        if self._bar is not None:
            self._bar.update(max(min(env_steps, self._bar.total) - self._bar.n, 0))

    def generation(self, record: GenerationRecord) -> None:
        """Move the bar, name the best fitness, print the generation's line above."""
        self.progress(record.env_steps, record.seconds)
        if self._bar is not None:
            self._bar.set_postfix_str(f"best {number(record.best.fitness)}", refresh=False)
            if self._table:
                self._bar.write(generation_line(record), file=self._stream)

    def message(self, text: str) -> None:
        if self._bar is not None:
            self._bar.write(text, file=self._stream)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def can_draw(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a live table suits the stream: a terminal, and neither NO_COLOR nor CI is set."""
    if environment.get("NO_COLOR") or environment.get("CI") or environment.get("TERM") == "dumb":
        return False
    return bool(getattr(stream, "isatty", lambda: False)())


def console_sink(verbose: bool = True, stream: TextIO | None = None, path: str | None = None) -> Sink:
    """The sink for this terminal.

    Args:
        verbose: False gives a sink that prints nothing.
        stream: default standard output.
        path: of the run directory, shown in the first line.
    """
    if not verbose:
        return BaseSink()
    target = stream if stream is not None else sys.stdout
    return LiveSink(target, path) if can_draw(target) else PlainSink(target, path)
