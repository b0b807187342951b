"""The records of a run, read from its files: members by generation, births, facts, settings."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from agilerl.config.yaml_text import parse_yaml
from agilerl.errors import AgileRLError, RunError
from agilerl.hostile import MIB, malformed, read_text
from agilerl.runs.commands import run_command
from agilerl.runs.directory import RunDirectory
from agilerl.runs.lock import status_of
from agilerl.runs.names import CONFIG
from agilerl.runs.newborns import Newborns, born_together, ended_by, newborns
from agilerl.telemetry.evaluation import Baseline
from agilerl.telemetry.record import Birth
from agilerl.telemetry.time_spent import TimeSpent

CONFIG_LIMIT = MIB


@dataclass(frozen=True)
class Member:
    """One member at the end of one generation: a row of metrics.csv.

    Attributes:
        fitness: −∞ if it diverged, NaN if none is recorded. hyperparameters: by name.
        mutation: of its birth, as in the table.
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
    hyperparameters: Mapping[str, float] = field(default_factory=dict)
    confirmation: float | None = None

    @property
    def number(self) -> int:
        """The generation as readers count it, from 1."""
        return self.generation + 1


@dataclass(frozen=True)
class RunRecords:
    """A run, finished or still training, read from its directory.

    Attributes:
        path: the directory. facts: run.json. settings: config.yaml, nested; {} if it cannot be read.
        config: config.yaml as text. generations: members by generation, in the order of their slots.
        births: every birth, founders first. env_steps, evaluation_env_steps: of the whole population so far.
        seconds: wall clock so far. ended: ids of members that requests have removed or copied over.
        ends: generation -> (training steps of all members, seconds) at its end, where both are recorded.
    """

    path: Path
    facts: Mapping[str, Any]
    settings: Mapping[str, Any]
    config: str
    generations: tuple[tuple[Member, ...], ...]
    births: tuple[Birth, ...]
    env_steps: int
    evaluation_env_steps: int
    seconds: float
    ended: frozenset[int] = frozenset()
    ends: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> RunRecords:
        """Read the run at `path`. An incomplete last line, of a run in progress, is ignored.

        Raises:
            RunError: no run at the path, or a malformed file.
        """
        directory = RunDirectory.open(path)
        facts, (config, settings) = directory.facts(), _settings(directory.path)
        if facts.get("status") in ("running", "failed"):  # after a resume the result is outdated
            facts = {**facts, "status": status_of(directory.path, facts), "result": {}}
        with malformed(directory.path):
            rows = directory.rows()
            births, steering = directory.lineage_and_steering()
            by_generation: dict[int, list[Member]] = {}
            for row in rows:
                by_generation.setdefault(int(row["generation"]), []).append(_member(row))
            generations = tuple(tuple(sorted(of, key=lambda m: m.slot)) for _, of in sorted(by_generation.items()))
            result, last = facts.get("result") or {}, rows[-1] if rows else {}
            return cls(
                path=directory.path,
                facts=facts,
                settings=settings,
                config=config,
                generations=generations,
                births=tuple(births),
                env_steps=int(result.get("env_steps_population") or last.get("population_env_steps") or 0),
                evaluation_env_steps=int(result.get("evaluation_env_steps") or last.get("evaluation_env_steps") or 0),
                seconds=float(result.get("seconds") or last.get("seconds") or 0.0),
                ended=frozenset(id for id in (ended_by(vars(event)) for event in steering) if id is not None),
                ends={
                    int(row["generation"]): (float(row["population_env_steps"]), float(row["seconds"]))
                    for row in rows
                    if row.get("population_env_steps") and row.get("seconds")
                },
            )

    @property
    def env_id(self) -> str:
        return str(self.facts.get("env_id", "?"))

    @property
    def algo(self) -> str:
        return str(self.facts.get("algo", "?"))

    @property
    def status(self) -> str:
        """ "running", "done", "interrupted" or "failed"."""
        return str(self.facts.get("status", "unknown"))

    @property
    def test(self) -> Mapping[str, Any] | None:
        """The closing test of the best agent (mean, iqm, ci95, returns, ...); None without one."""
        return closing_test(self.facts.get("result") or {})

    @property
    def random_play(self) -> Baseline | None:
        """The score of uniformly random play; None if the run has not recorded it."""
        return Baseline.from_dict(self.facts.get("random_play"))

    @property
    def time(self) -> TimeSpent | None:
        """Where the time of a finished run went; None if the run has not recorded it."""
        return TimeSpent.from_dict(self.facts.get("time"))

    def setting(self, dotted: str, default: Any = None) -> Any:
        """One of the settings: "training.target_score"."""
        value: Any = self.settings
        for key in dotted.split("."):
            if not isinstance(value, Mapping) or key not in value:
                return default
            value = value[key]
        return value

    @cached_property
    def births_by_id(self) -> dict[int, Birth]:
        """The last birth of every id."""
        return {birth.id: birth for birth in self.births}

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
        return self._parents_in_metrics.get(member) if birth is None else birth.parent

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
        seen = {member.id for generation in self.generations for member in generation}
        numbers = {generation[0].generation for generation in self.generations}
        births = [birth for birth in self.births if birth.id not in seen]
        return newborns(births, numbers, max(numbers, default=-1), self.ended, self.is_asynchronous)

    @property
    def is_asynchronous(self) -> bool:
        """Whether shards were trained and selected without waiting for each other."""
        return bool(self.setting("evolution.mode") == "async")

    @cached_property
    def rounds(self) -> tuple[tuple[Member, ...], ...]:
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
        return tuple(tuple(sorted(members, key=lambda m: m.slot)) for members in rounds)

    @cached_property
    def _parents_in_metrics(self) -> dict[int, int | None]:
        """Parents by metrics.csv, for a run whose lineage is lost."""
        return {member.id: member.parent for generation in self.generations for member in generation}

    @cached_property
    def winner(self) -> Member | None:
        """The best member as recorded by the run.

        Unfinished runs, and those of earlier versions, have no such record: then the member with the best
        confirmation, else the best fitness; ties go to the first.

        Fitness is the mean over a member's last `tournament_selection.eval_loop` generations, including ancestors.
        """
        result = self.facts.get("result") or {}
        best_key = (result.get("best_member"), result.get("best_generation"))
        recorded = [m for generation in self.generations for m in generation if (m.id, m.generation) == best_key]
        if recorded:
            return recorded[0]
        window = self.setting("tournament_selection.eval_loop", 1)
        window = window if isinstance(window, int) and window > 0 else 1
        best, rank = None, (0, -math.inf)
        lines: dict[int, list[float]] = {}
        for generation in self.generations:
            lines = {m.id: [*self._past(m.id, lines), m.fitness][-window:] for m in generation}
            means = [sum(lines[m.id]) / len(lines[m.id]) for m in generation]
            candidates = [(mean, -at) for at, mean in enumerate(means) if math.isfinite(mean)]
            if not candidates:
                continue
            mean, at = max(candidates)
            leader = generation[-at]
            score = (0, mean) if leader.confirmation is None else (1, leader.confirmation)
            if score > rank:
                best, rank = leader, score
        return best

    def _past(self, member: int, lines: Mapping[int, list[float]]) -> list[float]:
        """Fitness in earlier generations: the member's, or its source's."""
        source = self.source(member)
        return lines.get(member, [] if source is None else lines.get(source, []))

    @cached_property
    def winner_line(self) -> tuple[int, ...]:
        """Ids from the founder to the winner."""
        line: list[int] = []
        at = None if self.winner is None else self.winner.id
        while at is not None and at not in line:
            line.append(at)
            at = self.parent(at)
        return tuple(reversed(line))


def lacks_birth(path: Path, member: int) -> RunError:
    """An error for a lineage that has lost the birth of a member."""
    return RunError(
        f"evolution.jsonl of {path} lacks the birth of member {member}. "
        f"fix: `{run_command('resume', path)}`, which restores it."
    )


def closing_test(result: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The closing test in the result of a run.json; None if it is missing or malformed."""
    test = result.get("test")
    if not isinstance(test, Mapping):
        return None
    numbers = [test.get("mean"), test.get("iqm")]
    for name, min_length in (("ci95", 2), ("returns", 1)):
        values = test.get(name)
        numbers += values if isinstance(values, list) and len(values) >= min_length else [None]
    is_valid = all(isinstance(n, int | float) and math.isfinite(n) for n in numbers) and len(test["ci95"]) == 2
    return test if is_valid else None


def _settings(path: Path) -> tuple[str, Mapping[str, Any]]:
    try:
        text = read_text(path / CONFIG, CONFIG_LIMIT)
        settings = parse_yaml(text, CONFIG)
    except (OSError, AgileRLError):  # a page without settings is better than none
        return "", {}
    return text, settings if isinstance(settings, Mapping) else {}


def _member(row: Mapping[str, str]) -> Member:
    hyperparameters = {k.removeprefix("hp."): float(v) for k, v in row.items() if k.startswith("hp.") and v}
    return Member(
        generation=int(row["generation"]),
        id=int(row["id"]),
        slot=int(row["slot"]),
        parent=int(row["parent"]) if row["parent"] else None,
        fitness=float(row["fitness"] or "nan"),
        env_steps=int(float(row["env_steps"] or 0)),
        mutation=row["mutation"],
        network=row["network"],
        is_best=row["is_best"] == "1",
        hyperparameters=hyperparameters,
        confirmation=float(row["confirmation"]) if row.get("confirmation") else None,
    )


def compact(value: Any) -> str:
    """Short form of a value of a birth: numbers with their significant digits, the rest as JSON."""
    if isinstance(value, bool) or value is None:
        return "-" if value is None else str(value).lower()
    if isinstance(value, int | float):
        return tidy(float(value))
    return value if isinstance(value, str) else json.dumps(value)


def tidy(value: float | None, digits: int = 4) -> str:
    """Significant digits: 6.3e-4, 0.99, 128, 1234; a dash for None or a value that is not finite."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    if value and (abs(value) < 1e-2 or abs(value) >= 1e6):
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e" in text else text


def finite(values: Iterable[float | None]) -> list[float]:
    """The finite values."""
    return [value for value in values if value is not None and math.isfinite(value)]
