"""Console output: a live table on terminals, plain lines or a progress bar elsewhere, nothing if not verbose."""

from __future__ import annotations

import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from tqdm import tqdm

from agilerl.core import foreign
from agilerl.core.texts import count, number
from agilerl.telemetry.record import BaseSink, Birth, GenerationRecord, RunPlan, Sink

REDRAW_SECONDS, BAR_WIDTH = 0.2, 20
HEARTBEAT_SECONDS = 30.0
MESSAGES = 20  # number of last messages reprinted after a resize
# Columns of the live table from left to right, and the order in which a narrow terminal drops them.
COLUMNS = ("#", "parent", "fitness", "trend", "lr", "batch", "net", "last mutation", "")
DROPPED = ("parent", "batch", "last mutation", "lr", "trend", "", "net")
BLOCKS, ASCII_BLOCKS = "▁▂▃▄▅▆▇█", "._-=+*#@"


def clock(seconds: float) -> str:
    """MM:SS, or H:MM:SS from an hour on; "--:--" if unknown."""
    if not math.isfinite(seconds):
        return "--:--"
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


ENDS = {
    "target": "ended at its target score", "budget": "spent its budget", "minutes": "ended when its time was up",
    "plateau": "ended on a plateau", "request": "ended on request", "interrupted": "was interrupted",
}  # fmt: skip


def how_it_ended(stopped: object) -> str:
    """Why a run ended, in words after its name; `stopped`: see `training.result.EvolveResult`, None if unknown."""
    return ENDS.get(str(stopped), f"was ended by {stopped}" if stopped else "has ended")


def score(value: float) -> str:
    """A return with its significant digits: 231.7, 0.74, 0.0123, "nan"."""
    return f"{value:.1f}" if not abs(value) < 10 or value == int(value) else f"{value:.3g}"


def mutation_label(birth: Birth) -> str:
    """The changed hyperparameter of a birth with its values; "" for other kinds, which have a name."""
    values = birth.before, birth.after
    if birth.kind != "rl_hp" or not all(isinstance(value, int | float) for value in values):
        return ""
    return f"{birth.path} {number(birth.before)} -> {number(birth.after)}"


def sparkline(values: Sequence[float], low: float, high: float, blocks: str = BLOCKS, width: int = 12) -> str:
    """The last `width` values as blocks between `low` and `high`; values that are not finite are blank."""
    span = high - low
    cells = []
    for value in list(values)[-width:]:
        if not math.isfinite(value):
            cells.append(" ")
            continue
        share = (value - low) / span if span > 0 else 0.5
        cells.append(blocks[min(max(int(share * len(blocks)), 0), len(blocks) - 1)])
    return "".join(cells)


def headline(plan: RunPlan, path: str | None) -> str:
    """The first line: algorithm, environment, budget, seed and device."""
    threads = f" ({plan.threads} thread{'s' if plan.threads != 1 else ''})" if plan.device == "cpu" else ""
    parts = [
        f"{plan.algo} on {plan.env_id}",
        f"{plan.population} members x {count(plan.max_env_steps)} {plan.steps}",
        f"seed {plan.seed}",
        plan.device + threads,
    ]
    return "   ".join([*parts, path] if path else parts)


def fitting(parts: Sequence[str], width: int, gap: str = "   ") -> str:
    """Join the parts to a line of at most `width` characters; the last ones are dropped if needed."""
    shown = list(parts)
    while len(shown) > 1 and len(gap.join(shown)) > width:
        shown.pop()
    return gap.join(shown)[:width]


def folded(parts: Sequence[str], width: int, gap: str = "   ") -> list[str]:
    """Join the parts to lines of at most `width` characters; a wider part gets a separate line."""
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(gap) + len(part) <= width:
            lines[-1] += gap + part
        else:
            lines.append(part)
    return lines


def pace(
    steps_made: int,
    env_steps: int,
    max_env_steps: int,
    members: int,
    seconds: float,
    name: str = "env steps",
    time_limit: float | None = None,
) -> str:
    """Steps so far (population and member), speed, elapsed and remaining time.

    Args:
        steps_made: steps of all members, including stopped ones. env_steps, max_env_steps: of one active member.
        members: number of active members. name: unit of a step.
        time_limit: `seconds` at which the run ends if its steps do not end it before.
    """
    total = steps_made + members * (max_env_steps - env_steps)
    rate = steps_made / seconds if seconds > 0 else 0.0
    remaining = seconds * (total - steps_made) / steps_made if steps_made > 0 else math.inf
    remaining = remaining if time_limit is None else min(remaining, time_limit - seconds)
    return (
        f"{count(steps_made)}/{count(total)} {name} ({count(env_steps)}/{count(max_env_steps)} per member)   "
        f"{count(rate)} {name.removeprefix('env ')}/s   elapsed {clock(seconds)}   left {clock(remaining)}"
    )


def _pace(plan: RunPlan, record: GenerationRecord | None, env_steps: int, seconds: float) -> str:
    """`pace` within a generation; `record`: of the last finished one."""
    if record is None:
        max_steps = plan.max_env_steps
        return pace(
            min(env_steps, max_steps) * plan.population,
            min(env_steps, max_steps),
            max_steps,
            plan.population,
            seconds,
            plan.steps,
            plan.time_limit,
        )
    steps, members = min(env_steps, record.max_env_steps), record.going_on
    total_steps = record.population_env_steps + (steps - record.env_steps) * members
    return pace(total_steps, steps, record.max_env_steps, members, seconds, plan.steps, plan.time_limit)


def generation_line(record: GenerationRecord, name: str = "env steps", time_limit: float | None = None) -> str:
    """One generation as one line without colour; `name`: unit of a step; `time_limit`: see `pace`."""
    best = record.best
    progress = pace(
        record.population_env_steps, record.env_steps, record.max_env_steps, record.going_on, record.seconds, name,
        time_limit,
    )  # fmt: skip
    line = (
        f"gen {record.generation + 1:>2}/{record.generations}   best {number(best.fitness)} (member {best.id})   "
        f"mean {number(record.mean_fitness)}   {progress}"
    )
    if record.confirmation is None:
        return line
    episodes = "" if record.confirmation_episodes is None else f" ({record.confirmation_episodes} episodes)"
    return f"{line}   held-out {number(record.confirmation)}{episodes}"


class PlainSink(BaseSink):
    """One line per generation, without escape codes: for pipes, logs and continuous integration.

    During long generations, a progress line is printed after 30 s without output.
    """

    def __init__(
        self, stream: TextIO | None = None, path: str | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream, self._path, self._now = sys.stdout if stream is None else stream, path, now
        self._plan: RunPlan | None = None
        self._record: GenerationRecord | None = None
        self._spoke = now()

    def progress(self, env_steps: int, seconds: float) -> None:
        """Print a progress line after `HEARTBEAT_SECONDS` without output."""
        if self._plan is not None and self._now() - self._spoke >= HEARTBEAT_SECONDS:
            self.message(f"...       {_pace(self._plan, self._record, env_steps, seconds)}")

    def start(self, plan: RunPlan, founders: Sequence[Birth]) -> None:
        self._plan = plan
        for line in (headline(plan, self._path), *plan.notes):
            self.message(line)

    def generation(self, record: GenerationRecord) -> None:
        self._record = record
        plan = self._plan
        self.message(generation_line(record, *((plan.steps, plan.time_limit) if plan else ())))

    def message(self, text: str) -> None:
        self._spoke = self._now()
        print(text, file=self._stream, flush=True)


class LiveSink(BaseSink):
    """Live table on a terminal. It uses no thread: it redraws on events, at most every 0.2 s.

    Narrower terminals wrap the drawn lines, which then cannot be replaced in place: after a resize the screen is
    cleared and everything is printed again, including the messages above the table.
    """

    def __init__(self, stream: TextIO | None = None, path: str | None = None, console: Console | None = None) -> None:
        self._console = console or Console(file=stream, highlight=False)
        self._path = path
        self._live: Live | None = None
        self._plan: RunPlan | None = None
        self._record: GenerationRecord | None = None
        self._trend: dict[int | None, list[float]] = {}
        self._labels: dict[int, str] = {}
        self._steps, self._seconds, self._drawn = 0, 0.0, -math.inf
        self._messages: deque[str] = deque(maxlen=MESSAGES)
        self._width = 0

    def start(self, plan: RunPlan, founders: Sequence[Birth]) -> None:
        self._plan = plan
        self._begin(plan)

    def _begin(self, plan: RunPlan) -> None:
        """Print the lines above the table and open the table."""
        self._width = self._console.width
        for line in folded(headline(plan, self._path).split("   "), self._width):
            self._console.print(Text(line, style="bold"))
        for note in plan.notes:
            self._console.print(Text(note, style="dim"))
        for text in self._messages:
            self._console.print(Text(text))
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._live.start()

    def progress(self, env_steps: int, seconds: float) -> None:
        self._steps, self._seconds = env_steps, seconds
        if time.monotonic() - self._drawn >= REDRAW_SECONDS:
            self._draw()

    def generation(self, record: GenerationRecord) -> None:
        """Replace the table. A member's trend continues that of its parent."""
        past = self._trend
        self._labels |= {b.id: mutation_label(b) for b in record.births if mutation_label(b)}
        self._trend = {m.id: [*past.get(m.id, past.get(m.parent, [])), m.fitness] for m in record.members}
        self._record, self._steps, self._seconds = record, record.env_steps, record.seconds
        self._draw()

    def message(self, text: str) -> None:
        self._messages.append(text)
        self._console.print(Text(text))

    def close(self) -> None:
        """Draw the last state and release the terminal."""
        if self._live is not None:
            self._draw()
            self._live.stop()
            self._live = None

    def _draw(self) -> None:
        if self._live is None or self._plan is None:
            return
        if self._console.width != self._width:
            self._live.stop()
            self._console.clear()
            self._begin(self._plan)
        below = [] if self._record is None else [self._table(self._record)]
        self._live.update(Group(self._progress_line(self._plan), *below), refresh=True)
        self._drawn = time.monotonic()

    def _progress_line(self, plan: RunPlan) -> Text:
        """Progress in the width of the terminal; the last parts are dropped first."""
        max_steps = plan.max_env_steps if self._record is None else self._record.max_env_steps
        share = self._steps / max_steps if max_steps else 1.0
        share = min(max(share, self._seconds / plan.time_limit if plan.time_limit else 0.0), 1.0)
        filled = round(share * BAR_WIDTH)
        done = self._record
        begin = f"gen {done.generation + 1:>2}/{done.generations}   " if done else ""
        total, rate, elapsed, remaining = _pace(plan, self._record, self._steps, self._seconds).split("   ")
        room = self._console.width - 1  # the last column stays free: some terminals wrap there
        bar = BAR_WIDTH if room >= len(begin) + BAR_WIDTH + 22 else 0
        used = len(begin) + (bar + 2 if bar else 0)
        text = Text(begin, no_wrap=True, overflow="crop")
        if bar:
            text.append("#" * filled, style="green").append("." * (BAR_WIDTH - filled), style="dim").append("  ")
        parts = [f"{share:4.0%}", remaining, elapsed, rate, total]  # by importance; shown in the order below
        fitted = fitting(parts, max(room - used, 4)).split("   ")
        shown = [part for part in (f"{share:4.0%}", total, rate, elapsed, remaining) if part in fitted]
        text.append("   ".join(shown)).truncate(max(room, 1))
        return text

    def _table(self, record: GenerationRecord) -> Table:
        """One row per member, fittest first; columns are dropped to fit the width of the terminal."""
        rows = self._rows(record)
        widths = {name: max(len(name), *(len(row[at]) for row, _ in rows)) for at, name in enumerate(COLUMNS)}
        columns = list(COLUMNS)
        for name in DROPPED:
            if sum(widths[column] + 2 for column in columns) <= self._console.width:
                break
            columns.remove(name)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for name in columns:
            side: Any = "right" if name in ("#", "parent", "fitness") else "left"
            table.add_column(name, justify=side, no_wrap=True, overflow="crop")
        for row, is_best in rows:
            cells = [Text(row[at]) for at, name in enumerate(COLUMNS) if name in columns]
            table.add_row(*cells, style="bold" if is_best else None)
        return table

    def _rows(self, record: GenerationRecord) -> list[tuple[tuple[str, ...], bool]]:
        """(cells in the order of `COLUMNS`, whether it is the best) of every member."""
        blocks = BLOCKS if "utf" in self._console.encoding.lower() else ASCII_BLOCKS
        finite = [f for trend in self._trend.values() for f in trend if math.isfinite(f)]
        low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
        rows: list[tuple[tuple[str, ...], bool]] = []
        for member in sorted(record.members, key=lambda m: -m.fitness if math.isfinite(m.fitness) else math.inf):
            is_best, values = member.id == record.best.id, member.hyperparameters
            cells = (
                str(member.id),
                "-" if member.parent is None else str(member.parent),
                score(member.fitness),
                sparkline(self._trend[member.id], low, high, blocks),
                number(values.get("lr", values.get("lr_actor"))),
                number(values.get("batch_size")),
                member.network,
                self._labels.get(member.id, "-" if member.mutation == "None" else member.mutation),
                "* best" if is_best else "",
            )
            rows.append((cells, is_best))
        return rows


class TqdmSink(BaseSink):
    """Progress bar over the environment steps of one member. It never exceeds its total."""

    def __init__(self, stream: TextIO | None = None, table: bool = True) -> None:
        """`table=False` omits the line printed above the bar after each generation."""
        self._stream, self._table = stream, table
        self._bar: Any = None
        self._plan: RunPlan | None = None

    def start(self, plan: RunPlan, founders: Sequence[Birth]) -> None:
        """Print the headline (with the seed) and the notes; open the bar."""
        stream = self._stream if self._stream is not None else sys.stderr
        self._plan = plan
        for line in (headline(plan, None), *plan.notes):
            tqdm.write(line, file=stream)
        on_terminal = bool(foreign.is_terminal(stream))
        self._bar = tqdm(
            total=plan.max_env_steps,
            mininterval=0.1 if on_terminal else HEARTBEAT_SECONDS,  # a file stores every state of the bar
            maxinterval=10.0 if on_terminal else 10 * HEARTBEAT_SECONDS,
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
        if self._bar is not None and record.max_env_steps != self._bar.total:
            self._bar.total = record.max_env_steps  # survivors inherit the steps of stopped members
        self.progress(record.env_steps, record.seconds)
        if self._bar is not None:
            self._bar.set_postfix_str(f"best {number(record.best.fitness)}", refresh=False)
            if self._table and self._plan is not None:
                line = generation_line(record, self._plan.steps, self._plan.time_limit)
                self._bar.write(line, file=self._stream)

    def message(self, text: str) -> None:
        if self._bar is not None:
            self._bar.write(text, file=self._stream)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def can_draw(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the stream supports a live table: a terminal, and neither NO_COLOR nor CI is set."""
    if environment.get("NO_COLOR") or environment.get("CI") or environment.get("TERM") == "dumb":
        return False
    return bool(foreign.is_terminal(stream))


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


def bar_sink() -> Sink:
    """A bar on standard error if that is a terminal; else lines, as a file would store every state of a bar."""
    return TqdmSink() if sys.stderr.isatty() else PlainSink(sys.stderr)
