"""The records of a run, read from its directory: as a whole, or piece by piece while it trains."""

from __future__ import annotations

import csv
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from agilerl.config.yaml_text import parse_yaml
from agilerl.core.hostile import MIB, read_json, read_text
from agilerl.errors import AgileRLError, RunError
from agilerl.runs.directory import RunDirectory
from agilerl.runs.lock import status_of
from agilerl.runs.names import CONFIG, LINEAGE, METRICS, RUN, run_command
from agilerl.runs.newborns import Newborns, born_together, ended_by, newborns
from agilerl.runs.tail import Tail
from agilerl.telemetry.evaluation import Baseline
from agilerl.telemetry.progress import MESSAGES
from agilerl.telemetry.record import Arrival, Birth, Steering
from agilerl.telemetry.time_spent import TimeSpent

CONFIG_LIMIT = MIB
MALFORMED = (ValueError, KeyError, TypeError, OverflowError, RecursionError, csv.Error)
EVENTS: dict[str, type[Any]] = {Arrival.kind: Arrival, Steering.kind: Steering}  # others are births
FIELDS = {cls: {f.name for f in fields(cls)} for cls in (Birth, Arrival, Steering)}


class Member(NamedTuple):
    """One member at the end of one generation: a row of metrics.csv.

    Attributes:
        fitness: −∞ if it diverged, NaN if none is recorded. hyperparameters: by name.
        mutation: of its birth, as in the table. score, loss: None if not recorded or not finite.
        confirmation, confirmation_episodes: held-out score of the best member, if one was measured.
        population_env_steps, evaluation_env_steps, seconds: of the run at the end of the generation.
    """

    generation: int
    id: int
    slot: int
    parent: int | None
    fitness: float
    env_steps: int
    mutation: str
    network: str
    is_best: bool
    hyperparameters: Mapping[str, float] = MappingProxyType({})
    confirmation: float | None = None
    confirmation_episodes: int | None = None
    score: float | None = None
    updates: int = 0
    loss: float | None = None
    population_env_steps: int | None = None
    evaluation_env_steps: int | None = None
    seconds: float | None = None

    @property
    def number(self) -> int:
        """The generation as readers count it, from 1."""
        return self.generation + 1


@dataclass(frozen=True)
class Damage:
    """A line that cannot be read."""

    file: str
    line: int
    reason: str


@dataclass(frozen=True)
class _Ranking:
    """The best member up to a generation, and the last fitness values of each line of descent, by its member."""

    lines: Mapping[int, list[float]] = field(default_factory=dict)
    best: Member | None = None
    rank: tuple[int, float] = (0, -math.inf)


class RunRecords:
    """A run, finished or still training, read from its directory.

    `read` reads all of it once; `poll` reads what is new since its last call.

    Attributes:
        path: the directory; `is_gone`: it has vanished. facts: run.json; {} if it cannot be read.
        settings: config.yaml, nested; {} if it cannot be read. config: config.yaml as text.
        generations: members by generation, in the order of their slots. hyperparameters: names of columns.
        events: lines of evolution.jsonl. births: every birth, founders first. births_by_id: the last birth of every id.
        messages: (Unix seconds, text) of messages.jsonl; None: unknown.
        ends: generation -> (training steps of all members, seconds) at its end, where both are recorded.
        damage: lines that cannot be read. An incomplete last line, of a run in progress, is none.
        epoch: increases when earlier content is gone (a resume cuts files back), and everything is read again.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.facts: Mapping[str, Any] = {}
        self.settings: Mapping[str, Any] = {}
        self.config = ""
        self.is_gone, self.epoch = False, 0
        self._stamps: dict[str, tuple[int, int]] = {}
        self._clear()

    def _clear(self) -> None:
        self.generations: list[list[Member]] = []
        self.hyperparameters: tuple[str, ...] = ()
        self.events: list[Birth | Steering | Arrival] = []
        self.births: list[Birth] = []
        self.births_by_id: dict[int, Birth] = {}
        self.messages: list[tuple[float | None, str]] = []
        self.ends: dict[int, tuple[int, float]] = {}
        self.damage: list[Damage] = []
        readers = {LINEAGE: self._add_event, METRICS: self._add_row, MESSAGES: self._add_message}
        self._tails = [(name, Tail(self.path / name), add) for name, add in readers.items()]
        self._line_counts = dict.fromkeys(readers, 0)
        self._header: list[str] = []
        self._values: dict[tuple[str, ...], dict[str, float]] = {}  # shared hyperparameters, by their texts
        self._parents: dict[int, int | None] = {}  # by the rows of metrics.csv
        self._without_row: dict[int, Birth] = {}
        self._ended: set[int] = set()
        self._ranking, self._ranked = _Ranking(), 0
        self._forget()

    def _forget(self) -> None:
        """Clear the cached values."""
        for name in ("winner", "winner_line", "winner_rows", "newborns", "rounds", "rows"):
            vars(self).pop(name, None)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> RunRecords:
        """Read the run at `path`.

        Raises:
            RunError: no run at the path, or a damaged file.
        """
        directory = RunDirectory.open(path)
        directory.facts()  # an error if it cannot be read
        run = cls(directory.path)
        while run.poll():
            pass
        damage = next((entry for entry in run.damage if entry.file != MESSAGES), None)
        if damage is not None:
            effect = "restores it" if damage.file == LINEAGE else "replaces it"
            raise RunError(
                f"line {damage.line} of {run.path / damage.file} is damaged ({damage.reason}). "
                f"fix: `{run_command('resume', run.path)}`, which {effect}."
            )
        return run

    @classmethod
    def of(
        cls, settings: Mapping[str, Any], generations: Iterable[Iterable[Member]], births: Iterable[Birth]
    ) -> RunRecords:
        """The records of a run in memory."""
        run = cls(Path())
        run.settings, run.generations, run.births = settings, [list(members) for members in generations], list(births)
        run.births_by_id = {birth.id: birth for birth in run.births}
        return run

    def poll(self) -> bool:
        """Read what is new, at most some MB of each file; True if more is waiting.

        Damaged lines are skipped and listed; a missing file has no lines.
        """
        self.read_facts()
        if self._has_changed(CONFIG):
            self.config, self.settings = _settings(self.path)
        parts = [tail.read() for _, tail, _ in self._tails]
        if any(part.is_rewound for part in parts):
            self.epoch += 1
            self._clear()
            parts = [tail.read() for _, tail, _ in self._tails]
        first = max(0, len(self.generations) - 1)
        for (name, _, add), part in zip(self._tails, parts, strict=True):
            self.damage += [Damage(name, self._line_counts[name] + 1, "too long")] * part.dropped
            for line in part.lines:
                self._line_counts[name] += 1
                try:
                    add(line)
                except MALFORMED as error:
                    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
                    self.damage.append(Damage(name, self._line_counts[name], reason))
        for generation in self.generations[first:]:  # to the last one rows may have been added
            generation.sort(key=lambda member: member.slot)
        self._forget()
        return any(part.has_more for part in parts)

    # --- files --------------------------------------------------------------------------------------------------------

    def read_facts(self) -> None:
        """Read run.json, if it has changed, and nothing else."""
        self.is_gone = not self.path.is_dir()
        if isinstance(facts := self._changed(RUN), dict):
            self.facts = facts

    def _has_changed(self, name: str) -> bool:
        """Whether a file has changed since the last call."""
        try:
            facts = os.stat(self.path / name)
        except OSError:
            return False
        stamp = (facts.st_mtime_ns, facts.st_size)
        has_changed = self._stamps.get(name) != stamp
        self._stamps[name] = stamp
        return has_changed

    def _changed(self, name: str) -> Any:
        """The content of a JSON file that has changed; None: it has not, or cannot be read."""
        try:
            return read_json(self.path / name) if self._has_changed(name) else None
        except (OSError, AgileRLError):
            return None

    def _add_event(self, line: str) -> None:
        content = json.loads(line)
        cls = EVENTS.get(content["kind"], Birth)
        names = FIELDS[cls]  # entries of later versions are ignored
        event = cls(**{name: value for name, value in content.items() if name in names})
        if isinstance(event, Steering):
            if (member := ended_by(event)) is not None:
                self._ended.add(member)
        elif isinstance(event, Birth):
            if not all(type(number) is int for number in (event.id, event.generation, event.parent or 0)):
                raise TypeError("numbers of a birth are integers")
            self.births.append(event)
            self.births_by_id[event.id] = event
            if event.id not in self._parents:
                self._without_row[event.id] = event
        self.events.append(event)

    def _add_row(self, line: str) -> None:
        if not self._header:
            self._header = _cells(line)
            self._columns = [name for name in self._header if name.startswith("hp.")]
            self.hyperparameters = tuple(name[3:] for name in self._columns)
            return
        row = dict(zip(self._header, _cells(line), strict=True))
        texts = tuple(map(row.__getitem__, self._columns))
        if texts not in self._values:
            values = zip(self.hyperparameters, texts, strict=True)
            self._values[texts] = {name: float(text) for name, text in values if text}
        member = _member(row, self._values[texts])
        last = self.last[0].generation if self.last else -1
        if member.generation < last:
            raise ValueError(f"generation {member.generation} after {last}")
        if member.generation > last:
            self.generations.append([])
        self.generations[-1].append(member)
        self._parents[member.id] = member.parent
        self._without_row.pop(member.id, None)
        if member.population_env_steps is not None and member.seconds is not None:
            self.ends[member.generation] = member.population_env_steps, member.seconds

    def _add_message(self, line: str) -> None:
        content = json.loads(line)
        if not isinstance(content["text"], str):
            raise TypeError("a message is a text")
        self.messages.append((finite_number(content.get("time")), content["text"]))

    # --- facts --------------------------------------------------------------------------------------------------------

    @property
    def env_id(self) -> str:
        return str(self.facts.get("env_id", "?"))

    @property
    def algo(self) -> str:
        return str(self.facts.get("algo", "?"))

    @property
    def status(self) -> str:
        """ "running", "done", "interrupted" (also after a kill), "failed", "unknown", or "gone"."""
        return "gone" if self.is_gone else status_of(self.path, self.facts)

    @property
    def result(self) -> Mapping[str, Any]:
        """The result in run.json; {} for a run that trains or has failed: that of before a resume is outdated."""
        result = self.facts.get("result")
        return result if isinstance(result, Mapping) and self.facts.get("status") not in ("running", "failed") else {}

    @property
    def test(self) -> Mapping[str, Any] | None:
        """The final evaluation of the best agent (mean, iqm, ci95, returns, ...); None without one."""
        return final_evaluation(self.result)

    @property
    def random_play(self) -> Baseline | None:
        """The score of uniformly random play; None if the run has not recorded it."""
        return Baseline.from_dict(self.facts.get("random_play"))

    @property
    def time(self) -> TimeSpent | None:
        """Where the time of a finished run went; None if the run has not recorded it."""
        return TimeSpent.from_dict(self.facts.get("time"))

    @property
    def env_steps(self) -> int:
        """Training steps of the whole population so far."""
        return int(self._total("env_steps_population", lambda member: member.population_env_steps))

    @property
    def evaluation_env_steps(self) -> int:
        """Evaluation steps of the whole population so far."""
        return int(self._total("evaluation_env_steps", lambda member: member.evaluation_env_steps))

    @property
    def seconds(self) -> float:
        """Wall clock so far."""
        return float(self._total("seconds", lambda member: member.seconds))

    def _total(self, name: str, of: Callable[[Member], float | None]) -> float:
        last = of(self.last[-1]) if self.last else None
        return finite_number(self.result.get(name)) or last or 0

    def setting(self, dotted: str, default: object = None) -> Any:
        """One of the settings: "training.target_score"."""
        value: Any = self.settings
        for key in dotted.split("."):
            if not isinstance(value, Mapping) or key not in value:
                return default
            value = value[key]
        return value

    @property
    def is_asynchronous(self) -> bool:
        """Whether shards were trained and selected without waiting for each other."""
        return bool(self.setting("evolution.mode") == "async")

    # --- lineage ------------------------------------------------------------------------------------------------------

    @property
    def steering(self) -> list[Steering]:
        """Every request that was taken over."""
        return [event for event in self.events if isinstance(event, Steering)]

    @property
    def arrivals(self) -> list[int]:
        """Shards of a run in asynchronous mode, in the order in which their generations ended."""
        return [int(event.shard) for event in self.events if isinstance(event, Arrival)]

    @property
    def last(self) -> list[Member]:
        """Members of the last generation; [] before the first has ended."""
        return self.generations[-1] if self.generations else []

    @cached_property
    def rows(self) -> dict[int, list[Member]]:
        """Rows of each member, by id, in order."""
        rows: dict[int, list[Member]] = {}
        for member in (member for generation in self.generations for member in generation):
            rows.setdefault(member.id, []).append(member)
        return rows

    @property
    def history(self) -> list[list[float]]:
        """Fitness by generation, then member."""
        return [[member.fitness for member in generation] for generation in self.generations]

    def check_lineage(self) -> None:
        """Check that evolution.jsonl has the birth of every member; a running run may still write the last ones.

        Raises:
            RunError: it lacks one.
        """
        whole = self.generations[:-1] if self.status == "running" else self.generations
        lost = {member.id for generation in whole for member in generation} - self.births_by_id.keys()
        if lost:
            raise lacks_birth(self.path, min(lost))

    def parent(self, member: int) -> int | None:
        """Id of the member that `member` was cloned from, None for a founder; see `source`."""
        birth = self.births_by_id.get(member)
        return self._parents.get(member) if birth is None else birth.parent

    def source(self, member: int) -> int | None:
        """Id of the nearest ancestor that had trained when `member` was born, None for a founder.

        It is the parent, but for a parent that was itself born between the same two generations.
        """
        line = self.line_of_birth(member)
        return line[0].parent if line else self.parent(member)

    def line_of_birth(self, member: int) -> list[Birth]:
        """Births from the one whose parent is `source` to that of `member`; most members have one, [] if it is lost."""
        birth = self.births_by_id.get(member)
        return [] if birth is None else born_together(birth, self.births_by_id)[::-1]

    @cached_property
    def newborns(self) -> Newborns:
        """Members without a row: those that train now, and those that were replaced before they trained."""
        numbers = {generation[0].generation for generation in self.generations}
        last = max(numbers, default=-1)
        return newborns(self._without_row.values(), numbers, last, self._ended, self.is_asynchronous)

    @cached_property
    def rounds(self) -> list[list[Member]]:
        """Members that trained in each generation, in order.

        Of asynchronous runs, those of the first, second, ... generation of every shard: their metrics.csv also has, for
        each shard whose generation ends, the last rows of all others again.
        """
        if not self.is_asynchronous:
            return self.generations
        steps: dict[int, int] = {}  # by slot; newborns go on with those of their slot
        rounds: list[list[Member]] = []
        counts: dict[int, int] = {}
        for member in (member for generation in self.generations for member in generation):
            if member.env_steps <= steps.get(member.slot, 0):
                continue
            steps[member.slot] = member.env_steps
            number = counts[member.slot] = counts.get(member.slot, -1) + 1
            if number == len(rounds):
                rounds.append([])
            rounds[number].append(member)
        return [sorted(members, key=lambda m: m.slot) for members in rounds]

    @cached_property
    def winner(self) -> Member | None:
        """The best member as recorded by the run.

        Unfinished runs, and those of earlier versions, have no such record: then the member with the best
        confirmation, else the best fitness; ties go to the first.

        Fitness is the mean over a member's last `tournament_selection.eval_loop` generations, including ancestors.
        """
        id, number = self.result.get("best_member"), self.result.get("best_generation")
        for generation in self.generations if id is not None else ():
            for member in generation if generation[0].generation == number else ():
                if member.id == id:
                    return member
        for generation in self.generations[self._ranked : -1]:  # the last one may still get members
            self._ranking = self._rank(self._ranking, generation)
            self._ranked += 1
        return self._rank(self._ranking, self.last).best

    def _rank(self, before: _Ranking, generation: list[Member]) -> _Ranking:
        """The ranking after a generation."""
        window = self.setting("tournament_selection.eval_loop", 1)
        window = window if isinstance(window, int) and window > 0 else 1
        lines: dict[int, list[float]] = {}
        leader, highest = None, -math.inf
        for member in generation:
            past = before.lines.get(member.id)
            if past is None:
                source = self.source(member.id)
                past = [] if source is None else before.lines.get(source, [])
            values = lines[member.id] = [*past, member.fitness][-window:]
            mean = sum(values) / len(values)
            if math.isfinite(mean) and mean > highest:
                leader, highest = member, mean
        if leader is None:
            return _Ranking(lines, before.best, before.rank)
        rank = (0, highest) if leader.confirmation is None else (1, leader.confirmation)
        return _Ranking(lines, leader, rank) if rank > before.rank else _Ranking(lines, before.best, before.rank)

    @cached_property
    def winner_line(self) -> tuple[int, ...]:
        """Ids from the founder to the winner."""
        line: list[int] = []
        at = None if self.winner is None else self.winner.id
        while at is not None and at not in line:
            line.append(at)
            at = self.parent(at)
        return tuple(reversed(line))

    @cached_property
    def winner_rows(self) -> list[Member]:
        """The winner and its ancestors by generation, up to that in which it won; a child rather than its parent."""
        place = {id: number for number, id in enumerate(self.winner_line)}
        until = -1 if self.winner is None else self.winner.generation
        lines = ([m for m in generation if m.id in place and m.generation <= until] for generation in self.generations)
        return [max(line, key=lambda member: place[member.id]) for line in lines if line]


def lacks_birth(path: Path, member: int) -> RunError:
    """An error for a lineage that has lost the birth of a member."""
    return RunError(
        f"{LINEAGE} of {path} lacks the birth of member {member}. "
        f"fix: `{run_command('resume', path)}`, which restores it."
    )


def final_evaluation(result: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The final evaluation in the result of a run.json; None if it is missing or malformed."""
    test = result.get("test")
    if not isinstance(test, Mapping):
        return None
    numbers = [test.get("mean"), test.get("iqm")]
    for name, min_length in (("ci95", 2), ("returns", 1)):
        values = test.get(name)
        numbers += values if isinstance(values, list) and len(values) >= min_length else [None]
    is_valid = all(isinstance(n, int | float) and math.isfinite(n) for n in numbers) and len(test["ci95"]) == 2
    return test if is_valid else None


def finite_number(value: Any) -> float | None:
    """The finite number in a JSON value; None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and math.isfinite(value) else None


def _settings(path: Path) -> tuple[str, Mapping[str, Any]]:
    try:
        text = read_text(path / CONFIG, CONFIG_LIMIT)
        settings = parse_yaml(text, CONFIG)
    except (OSError, AgileRLError):  # a page without settings is better than none
        return "", {}
    return text, settings if isinstance(settings, Mapping) else {}


def _cells(line: str) -> list[str]:
    line = line.removesuffix("\r")
    return line.split(",") if '"' not in line else next(csv.reader([line]), [])


def _number(text: str | None) -> float | None:
    return float(text) if text else None


def _whole(text: str | None) -> int | None:
    return int(float(text)) if text else None


def _member(row: Mapping[str, str], hyperparameters: Mapping[str, float]) -> Member:
    return Member(
        generation=int(row["generation"]),
        id=int(row["id"]),
        slot=int(row["slot"]),
        parent=int(row["parent"]) if row["parent"] else None,
        fitness=float(row["fitness"] or "nan"),
        env_steps=_whole(row.get("env_steps")) or 0,
        mutation=sys.intern(row["mutation"]),
        network=sys.intern(row["network"]),
        is_best=row["is_best"] == "1",
        hyperparameters=hyperparameters,
        confirmation=_number(row.get("confirmation")),
        confirmation_episodes=_whole(row.get("confirmation_episodes")),
        score=finite_number(_number(row.get("score"))),
        updates=_whole(row.get("updates")) or 0,
        loss=finite_number(_number(row.get("loss"))),
        population_env_steps=_whole(row.get("population_env_steps")),
        evaluation_env_steps=_whole(row.get("evaluation_env_steps")),
        seconds=_number(row.get("seconds")),
    )
