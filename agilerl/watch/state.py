"""State of a run for the page, read incrementally from its directory while it trains."""

from __future__ import annotations

import csv
import json
import math
import os
import secrets
import threading
import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from agilerl.config.yaml_text import parse_yaml
from agilerl.errors import AgileRLError
from agilerl.hostile import MIB, read_json, read_text
from agilerl.options import LoopOptions
from agilerl.runs.lock import status_of
from agilerl.runs.names import CONFIG, LINEAGE, METRICS, REQUESTS, RUN
from agilerl.runs.newborns import born_together, ended_by, newborns
from agilerl.telemetry.progress import MESSAGES, PROGRESS
from agilerl.watch.tail import Tail

NO_PARENT = -1
MAX_LOG = 2_000  # lines of the log that are shown to a new page
MAX_DIGITS = 18  # of a whole number; `int` refuses texts of thousands
RECENT_GENERATIONS = 5  # over which speed is measured
RUNNING = "running"


@dataclass(frozen=True)
class Generation:
    """One generation of metrics.csv, by columns: one entry per member, in the order of the file.

    Attributes:
        parents: -1 for founders. fitness: −∞ for a diverged member, NaN: none.
        hyperparameters: name -> values, NaN: none.
        best: id of the best member by the run; None if none is marked.
        confirmation, confirmation_episodes: held-out score of the best member, if one was measured.
        member_env_steps: the largest of all members. seconds: wall clock of the run at its end.
    """

    number: int
    ids: array[int]
    parents: array[int]
    fitness: array[float]
    hyperparameters: Mapping[str, array[float]]
    best: int | None
    confirmation: float | None
    confirmation_episodes: int | None
    population_env_steps: int
    evaluation_env_steps: int
    member_env_steps: int
    seconds: float


@dataclass(frozen=True)
class MemberDetail:
    """Further columns of a member in the last generation."""

    id: int
    slot: int
    score: float | None
    env_steps: int
    updates: int
    loss: float | None
    mutation: str
    network: str


@dataclass(frozen=True, slots=True)
class BirthLine:
    """A birth as a line of the lineage.

    Attributes:
        parent: the nearest ancestor that had trained, see `runs.newborns.born_together`; None for a founder.
        path: the changed setting. text: the change, "lr 0.002 → 0.0024"; "" if nothing changed.
    """

    id: int
    parent: int | None
    generation: int
    kind: str
    text: str
    path: str = field(default="", compare=False)


@dataclass(frozen=True)
class LogLine:
    """A line of the log.

    Attributes:
        kind: message, fault, confirmation, steering or damage. time: Unix seconds; None: unknown.
        facts: of a steering event, as recorded.
    """

    kind: str
    text: str
    generation: int | None = None
    time: float | None = None
    facts: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Progress:
    """Where the run is now.

    Attributes:
        phase: "training", "evaluating" (no training step for some seconds), or "" for a run that does not train.
        generation: the current one, from 0. generations: expected number, None: unknown.
        env_steps, max_env_steps: of one member. population_env_steps: of all, training alone.
        share: of the current generation's training, 0 to 1.
        steps_per_second: of all members. seconds_left: at most, at the recent speed and by the run's minutes.
        training: ids of members that train for the first time. going_on: number of members that train on.
        idle_seconds: since the last training step.
    """

    phase: str = ""
    generation: int = 0
    generations: int | None = None
    env_steps: int = 0
    max_env_steps: int | None = None
    population_env_steps: int = 0
    share: float | None = None
    steps_per_second: float | None = None
    seconds: float = 0.0
    seconds_left: float | None = None
    training: tuple[int, ...] = ()
    going_on: int = 0
    idle_seconds: float | None = None


@dataclass
class _Rows:
    """Raw rows of metrics.csv by column names; damaged ones are counted."""

    header: list[str] = field(default_factory=list)
    open: list[list[str]] = field(default_factory=list)  # of the last generation, to which rows may still come
    number: int | None = None
    damaged: int = 0


class RunFollower:
    """Follows one run directory. `poll` reads what is new; everything else only returns what was read.

    Attributes:
        token: random; ids of events of another follower or server are not continued.
        epoch: increases when earlier content is gone (a resume cuts files back), and everything is read again.
        is_gone: the directory has vanished. generations, births, log: in order. details: of the last generation.
        facts: run.json. damaged: number of lines that could not be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.lock = threading.RLock()
        self.token, self.epoch = secrets.token_hex(4), 0
        self.facts: dict[str, Any] = {}
        self.settings: Mapping[str, Any] = {}
        self.is_gone = False
        self.polled_s = -math.inf  # monotonic time of the last poll, for `Runs.look`
        self._stamps: dict[str, tuple[int, int]] = {}
        self._progress: Mapping[str, Any] = {}
        self._rates: list[tuple[float, float]] = []
        self._clear()

    def _clear(self) -> None:
        self.generations: list[Generation] = []
        self.births: list[BirthLine] = []
        self.log: list[LogLine] = []
        self.details: list[MemberDetail] = []
        self.damaged = 0
        self._metrics, self._lineage = Tail(self.path / METRICS), Tail(self.path / LINEAGE)
        self._messages = Tail(self.path / MESSAGES)
        self._rows = _Rows()
        self._born: dict[int, BirthLine] = {}  # by id, with the member that it was cloned from
        self._parents: dict[int, int | None] = {}  # as `parent` returns them
        self._without_row: dict[int, BirthLine] = {}
        self._with_row: set[int] = set()
        self._numbers: set[int] = set()
        self._ended: set[int] = set()  # by requests
        self._winner: tuple[int, int] | None = None
        self._rank: tuple[int, float] = (0, -math.inf)
        self._lines: dict[int, list[float]] = {}
        self._before_last: dict[int, list[float]] = {}
        self._before_rank: tuple[tuple[int, int] | None, tuple[int, float]] = (None, (0, -math.inf))

    def poll(self) -> bool:
        """Read what is new, at most some MB of each file; True if more is waiting.

        Damaged lines are skipped and counted; a missing file has no lines.
        """
        with self.lock:
            self.is_gone = not self.path.is_dir()
            self._read_facts()
            pieces = [tail.read() for tail in (self._metrics, self._lineage, self._messages)]
            if any(piece.is_rewound for piece in pieces):
                self.epoch += 1
                self._clear()
                pieces = [tail.read() for tail in (self._metrics, self._lineage, self._messages)]
            metrics, lineage, messages = pieces
            self.damaged += sum(piece.dropped for piece in pieces)
            self._add_events(lineage.lines)
            self._add_rows(metrics.lines)
            self._add_messages(messages.lines)
            return any(piece.has_more for piece in pieces)

    # --- files that are replaced --------------------------------------------------------------------------------------

    def _read_facts(self) -> None:
        content = self._changed(RUN)
        if isinstance(content, dict):
            self.facts = content
        content = self._changed(PROGRESS)
        if isinstance(content, dict):
            self._progress = content
            self._measure(content)
        if self._stamp(CONFIG):
            try:
                settings = parse_yaml(read_text(self.path / CONFIG, MIB), CONFIG)
            except (OSError, AgileRLError):  # a page without settings is better than none
                settings = {}
            self.settings = settings if isinstance(settings, Mapping) else {}

    def _changed(self, name: str) -> Any:
        """The content of a JSON file that has changed; None: it has not, or cannot be read."""
        if not self._stamp(name):
            return None
        try:
            return read_json(self.path / name)
        except (OSError, AgileRLError):
            return None

    def _stamp(self, name: str) -> bool:
        """Whether a file has changed since the last call."""
        try:
            facts = os.stat(self.path / name)
        except OSError:
            return False
        stamp = (facts.st_mtime_ns, facts.st_size)
        has_changed = self._stamps.get(name) != stamp
        self._stamps[name] = stamp
        return has_changed

    def _measure(self, content: Mapping[str, Any]) -> None:
        """Remember (seconds, steps) of the last progress reports."""
        seconds, steps = _number(content.get("seconds")), _number(content.get("env_steps"))
        if seconds is None or steps is None:
            return
        if self._rates and (seconds < self._rates[-1][0] or steps < self._rates[-1][1]):
            self._rates = []
        self._rates = [*self._rates, (seconds, steps)][-2 * RECENT_GENERATIONS :]

    # --- metrics.csv --------------------------------------------------------------------------------------------------

    def _add_rows(self, lines: Sequence[str]) -> None:
        rows = self._rows
        if not lines:
            return
        if not rows.header:
            rows.header, lines = _cells(lines[0]), lines[1:]
        width, place = len(rows.header), {name: at for at, name in enumerate(rows.header)}
        if "generation" not in place or "id" not in place:
            self.damaged += len(lines)
            return
        numbered = []
        for line in lines:
            cells = _cells(line)
            number = _whole(cells[place["generation"]]) if len(cells) == width else None
            if number is None or (rows.number is not None and number < rows.number):
                self.damaged += 1
            else:
                numbered.append((number, cells))
        for number, group in groupby(numbered, key=lambda entry: entry[0]):
            if number != rows.number:
                rows.open, rows.number = [], number
            rows.open += [cells for _, cells in group]
            self._close(place)
        self.details = [_detail(cells, place) for cells in rows.open]

    def _close(self, place: Mapping[str, int]) -> None:
        """Add the generation of the open rows, or replace it if it was added with fewer rows."""
        rows = self._rows
        assert rows.number is not None
        before = len(rows.open)
        generation = _generation(rows.number, rows.open, place)
        if generation is None:  # look for the rows that are to blame
            rows.open = [cells for cells in rows.open if _generation(rows.number, [cells], place) is not None]
            self.damaged += before - len(rows.open)
            generation = _generation(rows.number, rows.open, place) if rows.open else None
        if generation is None:
            return
        self._numbers.add(generation.number)
        self._with_row.update(generation.ids)
        for member in generation.ids:
            self._without_row.pop(member, None)
        if self.generations and self.generations[-1].number == generation.number:
            self.generations[-1] = generation
        else:
            self.generations.append(generation)
            self._before_last, self._before_rank = self._lines, (self._winner, self._rank)
        self._rank_members(generation)
        self._log_confirmation(generation)

    def _log_confirmation(self, generation: Generation) -> None:
        if generation.confirmation is None:
            return
        episodes = generation.confirmation_episodes
        text = f"held-out {generation.confirmation:.6g}" + (f" over {episodes} episodes" if episodes else "")
        line = LogLine("confirmation", text, generation.number)
        if line not in self.log[-3:]:
            self.log.append(line)

    def _rank_members(self, generation: Generation) -> None:
        """Update the best member so far, by the rule of `RunRecords.winner`: held-out score first, then fitness."""
        past, (winner, rank) = self._before_last, self._before_rank
        window = self._window()
        self._lines = {}
        for member, parent, fitness in zip(generation.ids, generation.parents, generation.fitness, strict=True):
            origin = past.get(member)
            if origin is None:
                source = self._parents.get(member, parent)
                origin = past.get(NO_PARENT if source is None else source, [])
            self._lines[member] = [*origin, fitness][-window:]
        leader, mean = None, -math.inf
        for member, values in self._lines.items():
            average = sum(values) / len(values)
            if math.isfinite(average) and average > mean:
                leader, mean = member, average
        if leader is not None:
            score = (0, mean) if generation.confirmation is None else (1, generation.confirmation)
            if score > rank:
                winner, rank = (leader, generation.number), score
        self._winner, self._rank = winner, rank

    def _window(self) -> int:
        tournament = self.settings.get("tournament_selection")
        window = tournament.get("eval_loop") if isinstance(tournament, Mapping) else 1
        return window if isinstance(window, int) and window > 0 else 1

    # --- evolution.jsonl and messages.jsonl ---------------------------------------------------------------------------

    def _add_events(self, lines: Iterable[str]) -> None:
        for event in self._parsed(lines):
            kind = event.get("kind")
            if kind == "steering":
                self.log.append(_steering(event))
                if (ended := ended_by(event)) is not None:
                    self._ended.add(ended)
            elif kind != "arrival":
                birth = _birth(event)
                if birth is None:
                    self.damaged += 1
                    continue
                self._born[birth.id] = birth
                line = born_together(birth, self._born)
                self._parents[birth.id] = line[-1].parent
                text = ", ".join(each.text for each in reversed(line) if each.text)
                is_alone = len(line) == 1
                self.births.append(birth if is_alone else replace(birth, parent=line[-1].parent, text=text))
                if birth.id not in self._with_row:
                    self._without_row[birth.id] = birth
                if birth.kind == "healed":
                    text = f"{event.get('path')} has diverged ({event.get('after')}); member {birth.id} is a copy"
                    self.log.append(LogLine("fault", f"{text} of {birth.parent}", birth.generation))

    def _add_messages(self, lines: Iterable[str]) -> None:
        for content in self._parsed(lines):
            text, seconds = content.get("text"), _number(content.get("time"))
            if isinstance(text, str):
                self.log.append(LogLine("message", text, None, seconds))
            else:
                self.damaged += 1

    def _parsed(self, lines: Iterable[str]) -> Iterator[dict[str, Any]]:
        for line in lines:
            try:
                content = json.loads(line)
            except (ValueError, RecursionError):
                content = None
            if isinstance(content, dict):
                yield content
            else:
                self.damaged += 1

    # --- derived values -----------------------------------------------------------------------------------------------

    @property
    def status(self) -> str:
        """ "running", "done", "interrupted" (also after a kill), "failed", "unknown", or "gone"."""
        if self.is_gone:
            return "gone"
        return status_of(self.path, self.facts)

    @property
    def winner(self) -> tuple[int, int] | None:
        """(id, generation) of the best member: by the run if it has ended, else so far."""
        result = self.facts.get("result")
        if isinstance(result, Mapping) and self.status != RUNNING:
            member, number = _whole(result.get("best_member")), _whole(result.get("best_generation"))
            if member is not None and number is not None:
                return member, number
        return self._winner

    def parent(self, member: int) -> int | None:
        """Id of the nearest ancestor that had trained when the member was born; None for a founder."""
        return self._parents.get(member)

    def setting(self, section: str, name: str) -> Any:
        """A setting of config.yaml; None without it."""
        content = self.settings.get(section)
        return content.get(name) if isinstance(content, Mapping) else None

    def progress(self, now: float | None = None) -> Progress:
        """Return where the run is, at Unix time `now`."""
        with self.lock:
            return self._current(time.time() if now is None else now)

    def _current(self, now: float) -> Progress:
        last = self.generations[-1] if self.generations else None
        ended = 0 if last is None else last.number + 1
        total = self._expected_generations()
        limit = _whole(self._progress.get("max_env_steps")) or _whole(self.facts.get("max_env_steps"))
        begun, made, seconds = (
            (0, 0, 0.0) if last is None else (last.member_env_steps, last.population_env_steps, last.seconds)
        )
        if self.status != RUNNING:
            return Progress("", max(0, ended - 1), total, begun, limit, made, seconds=seconds)
        newest = _number(self._progress.get("env_steps"))
        steps = max(begun, int(newest or 0))
        seconds = max(_number(self._progress.get("seconds")) or 0.0, seconds)
        idle = None
        if (written := _number(self._progress.get("time"))) is not None:
            idle = max(0.0, now - written)
        share = self._share(begun, steps)
        is_evaluating = share is not None and share > 0.5 and idle is not None and idle > 2.0
        is_asynchronous = self.setting("evolution", "mode") == "async"
        births = newborns(self._without_row.values(), self._numbers, ended - 1, self._ended, is_asynchronous).waiting
        members = 0 if last is None else len(last.ids)
        return Progress(
            phase="evaluating" if is_evaluating else "training",
            generation=ended,
            generations=total,
            env_steps=steps,
            max_env_steps=limit,
            population_env_steps=made + (steps - begun) * self._members(),
            share=share,
            steps_per_second=self._speed(),
            seconds=seconds,
            seconds_left=self._seconds_left(steps, limit, seconds),
            training=births,
            going_on=max(0, members - len(births)),
            idle_seconds=idle,
        )

    def _expected_generations(self) -> int | None:
        if (total := _whole(self._progress.get("generations"))) is not None:
            return total
        options = self._options()
        is_by_time = self._progress.get("time_limit") is not None  # then the first generation tells
        return None if options is None or is_by_time else options.generations()

    def _options(self) -> LoopOptions | None:
        options = self.facts.get("options")
        if not isinstance(options, Mapping):
            return None
        try:
            return LoopOptions(**{name: options[name] for name in ("max_steps", "evo_steps", "evo_first")})
        except (KeyError, TypeError, ValueError, AgileRLError):
            return None

    def _share(self, begun: int, steps: int) -> float | None:
        options = self._options()
        if options is None or steps < begun:
            return None
        planned = min(options.generation_steps(begun), max(1, options.max_steps - begun))
        return min(1.0, (steps - begun) / max(1, planned))

    def _members(self) -> int:
        """Number of members that train."""
        return len(self.generations[-1].ids) if self.generations else _whole(self.facts.get("population")) or 1

    def _speed(self) -> float | None:
        """Steps of all members in a second of training, over the last reports; else over the last generations."""
        rates = self._rates if self.generations else [(0.0, 0.0), *self._rates]
        if len(rates) > 1:
            seconds, steps = (rates[-1][at] - rates[0][at] for at in (0, 1))
            if seconds > 0 and steps > 0:
                return steps * self._members() / seconds
        recent = self.generations[-RECENT_GENERATIONS - 1 :]
        if len(recent) > 1 and recent[-1].seconds > recent[0].seconds:
            steps = recent[-1].population_env_steps - recent[0].population_env_steps
            return steps / (recent[-1].seconds - recent[0].seconds)
        return None

    def _seconds_left(self, steps: int, limit: int | None, now: float) -> float | None:
        """Remaining seconds by the nearer limit: the run's minutes, and steps at the speed of the last generations with
        their evaluation, before the first at that of its training. `now`: seconds of the run."""
        until = _number(self._progress.get("time_limit"))
        left = [] if until is None else [max(0.0, until - now)]
        ends = [(0.0, 0), *((each.seconds, each.member_env_steps) for each in self.generations)]
        ends = ends[-RECENT_GENERATIONS - 1 :] if self.generations else [*ends, (now, steps)]
        seconds, env_steps = (ends[-1][at] - ends[0][at] for at in (0, 1))
        if limit is not None and env_steps > 0 and seconds > 0:
            left.append(max(0, limit - steps) * seconds / env_steps)
        return min(left, default=None)

    def has_requests(self) -> bool:
        """Whether requests wait in the directory; cheap, and without torch."""
        try:
            return any(entry.name.endswith(".json") for entry in os.scandir(self.path / REQUESTS))
        except OSError:
            return False


def _cells(line: str) -> list[str]:
    line = line.removesuffix("\r")
    if '"' not in line:
        return line.split(",")
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return []


def _generation(number: int, rows: Sequence[list[str]], place: Mapping[str, int]) -> Generation | None:
    """Rows of a generation by column; None if one of them holds something else."""

    def column(name: str) -> list[str]:
        return [cells[place[name]] for cells in rows] if name in place else [""] * len(rows)

    last = {name: rows[-1][at] for name, at in place.items()}
    try:
        ids = array("q", map(int, column("id")))
        marks = [member for member, mark in zip(ids, column("is_best"), strict=True) if mark == "1"]
        return Generation(
            number=number,
            ids=ids,
            parents=array("q", (int(text) if text else NO_PARENT for text in column("parent"))),
            fitness=_numbers(column("fitness")),
            hyperparameters={name[3:]: _numbers(column(name)) for name in place if name.startswith("hp.")},
            best=marks[0] if marks else None,
            confirmation=_finite(last.get("confirmation", "")),
            confirmation_episodes=_whole(last.get("confirmation_episodes", "")),
            population_env_steps=int(float(last.get("population_env_steps") or 0)),
            evaluation_env_steps=int(float(last.get("evaluation_env_steps") or 0)),
            member_env_steps=max(int(float(text or 0)) for text in column("env_steps")),
            seconds=_finite(last.get("seconds", "")) or 0.0,
        )
    except (ValueError, OverflowError):
        return None


def _numbers(texts: Iterable[str]) -> array[float]:
    return array("d", (float(text) if text else math.nan for text in texts))


def _detail(cells: list[str], place: Mapping[str, int]) -> MemberDetail:
    values = {name: cells[at] for name, at in place.items()}
    return MemberDetail(
        id=int(values["id"]),
        slot=_whole(values.get("slot")) or 0,
        score=_finite(values.get("score", "")),
        env_steps=int(_finite(values.get("env_steps", "")) or 0),
        updates=int(_finite(values.get("updates", "")) or 0),
        loss=_finite(values.get("loss", "")),
        mutation=values.get("mutation", ""),
        network=values.get("network", ""),
    )


def _finite(text: str) -> float | None:
    """The number in a text; None for another one, or none at all."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _whole(value: Any) -> int | None:
    """A whole number, also as a text or a float; None for something else."""
    if type(value) is int:
        return value
    if isinstance(value, str) and value.isdecimal() and len(value) <= MAX_DIGITS:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
        return int(number) if number == int(number) else None
    except (ValueError, OverflowError):
        return None


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def _birth(event: Mapping[str, Any]) -> BirthLine | None:
    member, parent, generation = _whole(event.get("id")), event.get("parent"), _whole(event.get("generation"))
    if member is None or generation is None or (parent is not None and _whole(parent) is None):
        return None
    path = str(event.get("path") or "")
    before, after = _short(event.get("before")), _short(event.get("after"))
    text = f"{path} {before} → {after}" if path and before and after else path
    return BirthLine(member, _whole(parent), generation, str(event.get("kind", "")), text, path)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)[:80]


def _steering(event: Mapping[str, Any]) -> LogLine:
    """A steering request of a person, as a line of the log."""
    names = ("action", "member", "name", "value", "reason", "author", "result")
    facts = {name: event.get(name) for name in names}
    member = "all members" if facts["member"] is None else f"member {facts['member']}"
    change = " ".join(str(facts[name]) for name in ("name", "value") if facts[name] not in (None, ""))
    text = f"{facts['action']} {member}" + (f": {change}" if change else "")
    for name, mark in (("reason", "because "), ("author", "by ")):
        text += f" ({mark}{facts[name]})" if facts[name] not in (None, "") else ""
    text += _outcome(facts["result"])
    return LogLine("steering", text, _whole(event.get("generation")), _number(event.get("time")), facts)


def _outcome(result: Any) -> str:
    """The result of a request, see `telemetry.record.Steering`; "" without one."""
    if not isinstance(result, Mapping):
        return f" → {result}" if result else ""
    parts = []
    if result.get("refused"):
        parts.append(f"refused: {result['refused']}")
    if isinstance(result.get("born"), list):
        parts.append(f"born {', '.join(map(str, result['born']))}")
    if isinstance(result.get("scores"), Mapping):
        parts += [f"member {member}: {_held_out(score)}" for member, score in result["scores"].items()]
    return f" → {'; '.join(parts)}" if parts else ""


def _held_out(score: Any) -> str:
    """The score of a member in held-out episodes, of a request `evaluate`."""
    mean = _number(score.get("mean")) if isinstance(score, Mapping) else None
    return "unknown" if mean is None else f"held-out {mean:.6g} over {score.get('episodes', '?')} episodes"
