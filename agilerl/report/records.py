"""What the files of a run say, as data: members by generation, births, facts, settings."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from agilerl.config.load import parse_yaml
from agilerl.errors import AgileRLError
from agilerl.hostile import MIB, malformed, read_text
from agilerl.runs.directory import LINEAGE_LIMIT, METRICS, RunDirectory
from agilerl.runs.lock import status_of
from agilerl.telemetry.evaluation import Baseline
from agilerl.telemetry.record import Birth

CONFIG_LIMIT = MIB


@dataclass(frozen=True)
class Member:
    """One member at the end of one generation: a row of metrics.csv.

    Attributes:
        fitness: NaN where it diverged. hyperparameters: by name. mutation: what its birth did, as the table has it.
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


@dataclass(frozen=True)
class RunRecords:
    """A run, finished or still going, as its directory describes it.

    Attributes:
        path: the directory. facts: run.json. settings: config.yaml, nested; {} where it cannot be read.
        config: config.yaml as text. generations: members by generation, in the order of their slots.
        births: every birth, founders first. env_steps, evaluation_env_steps: of the whole population so far.
        seconds: wall clock so far.
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

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> RunRecords:
        """The run at `path`. Half of a last line, of a run that is writing it, does not count.

        Raises:
            RunError: no run is there, or a file of it holds something else.
        """
        directory = RunDirectory.open(path)
        facts, (config, settings) = directory.facts(), _settings(directory.path)
        if facts.get("status") in ("running", "failed"):  # after a resume: the result is of the run until then
            facts = {**facts, "status": status_of(directory.path, facts), "result": {}}
        with malformed(directory.path):
            rows = _rows(directory.path / METRICS)
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
                births=tuple(directory.lineage()),
                env_steps=int(result.get("env_steps_population") or last.get("population_env_steps") or 0),
                evaluation_env_steps=int(result.get("evaluation_env_steps") or last.get("evaluation_env_steps") or 0),
                seconds=float(result.get("seconds") or last.get("seconds") or 0.0),
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
        """The closing test of the best agent (mean, iqm, ci95, returns, ...); None where there was none."""
        return closing_test(self.facts.get("result") or {})

    @property
    def random_play(self) -> Baseline | None:
        """What uniformly random play scores; None where the run has not recorded it."""
        return Baseline.from_dict(self.facts.get("random_play"))

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

    def parent(self, member: int) -> int | None:
        """Id of the member that `member` was cloned from, None for a founder."""
        birth = self.births_by_id.get(member)
        return self._parents_in_metrics.get(member) if birth is None else birth.parent

    @cached_property
    def _parents_in_metrics(self) -> dict[int, int | None]:
        """What metrics.csv says: for a run whose lineage is lost."""
        return {member.id: member.parent for generation in self.generations for member in generation}

    @cached_property
    def winner(self) -> Member | None:
        """The best member as the run has recorded it. Of a run that has not ended, and of one from before this was
        recorded, the one with the best confirmation, else the best fitness; the first of equals.

        Fitness is the mean over a member's last `tournament_selection.eval_loop` generations, its ancestors' included.
        """
        result = self.facts.get("result") or {}
        known = (result.get("best_member"), result.get("best_generation"))
        recorded = [m for generation in self.generations for m in generation if (m.id, m.generation) == known]
        if recorded:
            return recorded[0]
        window = self.setting("tournament_selection.eval_loop", 1)
        window = window if isinstance(window, int) and window > 0 else 1
        best, rank = None, (0, -math.inf)
        lines: dict[int, list[float]] = {}
        for generation in self.generations:
            lines = {m.id: [*self._past(m.id, lines), m.fitness][-window:] for m in generation}
            means = [sum(lines[m.id]) / len(lines[m.id]) for m in generation]
            found = [(mean, -at) for at, mean in enumerate(means) if math.isfinite(mean)]
            if not found:
                continue
            mean, at = max(found)
            leader = generation[-at]
            own = (0, mean) if leader.confirmation is None else (1, leader.confirmation)
            if own > rank:
                best, rank = leader, own
        return best

    def _past(self, member: int, lines: Mapping[int, list[float]]) -> list[float]:
        """Fitness in the generations before: its own, or its parent's."""
        parent = self.parent(member)
        return lines.get(member, [] if parent is None else lines.get(parent, []))

    @cached_property
    def winner_line(self) -> tuple[int, ...]:
        """Ids from the founder to the winner."""
        line: list[int] = []
        at = None if self.winner is None else self.winner.id
        while at is not None and at not in line:
            line.append(at)
            at = self.parent(at)
        return tuple(reversed(line))


def closing_test(result: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The closing test in the result of a run.json; None where there is none, or something else in its place."""
    found = result.get("test")
    if not isinstance(found, Mapping):
        return None
    numbers = [found.get("mean"), found.get("iqm")]
    for name, least in (("ci95", 2), ("returns", 1)):
        values = found.get(name)
        numbers += values if isinstance(values, list) and len(values) >= least else [None]
    is_sound = all(isinstance(n, int | float) and math.isfinite(n) for n in numbers) and len(found["ci95"]) == 2
    return found if is_sound else None


def _settings(path: Path) -> tuple[str, Mapping[str, Any]]:
    try:
        text = read_text(path / "config.yaml", CONFIG_LIMIT)
        found = parse_yaml(text, "config.yaml")
    except (OSError, AgileRLError):  # a page without the settings is better than none
        return "", {}
    return text, found if isinstance(found, Mapping) else {}


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    text = read_text(path, LINEAGE_LIMIT)
    with io.StringIO(text[: text.rfind("\n") + 1], newline="") as file:
        return list(csv.DictReader(file))


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
    """A value of a birth in a few characters: numbers with their significant digits, the rest as JSON."""
    if isinstance(value, bool) or value is None:
        return "-" if value is None else str(value).lower()
    if isinstance(value, int | float):
        return tidy(float(value))
    return value if isinstance(value, str) else json.dumps(value)


def tidy(value: float | None, digits: int = 4) -> str:
    """Significant digits: 6.3e-4, 0.99, 128, 1234; an em dash for what is not there or not finite."""
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
    """Those that are numbers."""
    return [value for value in values if value is not None and math.isfinite(value)]
