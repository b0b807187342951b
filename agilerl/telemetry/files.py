"""Records as files: metrics.csv (a row per member and generation), evolution.jsonl (a line per event)."""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from agilerl.core import foreign
from agilerl.core.texts import as_dict
from agilerl.telemetry.record import Arrival, BaseSink, Birth, GenerationRecord, MemberRecord, RunPlan, Steering

MEMBER_COLUMNS = (
    "generation", "id", "slot", "parent", "fitness", "score", "env_steps", "updates", "loss", "mutation", "network",
    "is_best",
)  # fmt: skip
GENERATION_COLUMNS = (
    "population_env_steps",
    "evaluation_env_steps",
    "epsilon",
    "confirmation",
    "confirmation_episodes",
    "seconds",
)


def jsonable(value: object) -> Any:
    """Plain JSON values: numpy scalars become numbers, tuples lists, a number that is not finite becomes null."""
    if hasattr(value, "item") and foreign.ndim(value) == 0:
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(v) for v in value]
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


Event = Birth | Arrival | Steering


def lineage_line(event: Event) -> str:
    """An event as its line in the lineage."""
    return json.dumps(jsonable(as_dict(event)), allow_nan=False) + "\n"


def lineage_text(births: Iterable[Birth], arrivals: Iterable[Arrival], steering: Iterable[Steering] = ()) -> str:
    """Return the whole lineage: the arrivals of each generation, then the births after it, and the requests."""
    events: list[tuple[int, Event]] = [(arrival.generation, arrival) for arrival in arrivals]
    events += [(birth.generation - 1, birth) for birth in births]
    events += [(request.generation - 1, request) for request in steering]
    return "".join(lineage_line(event) for _, event in sorted(events, key=lambda item: item[0]))  # stable


class _FileSink(BaseSink):
    """A text file opened at `start` for appending and flushed after each generation."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._file: IO[str] | None = None

    def _open(self) -> IO[str]:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(self.path, "a", encoding="utf-8", newline="")  # noqa: SIM115 (open for the whole run)
        return self._file

    def start(self, plan: RunPlan, founders: Sequence[Birth]) -> None:
        self._open()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class CsvSink(_FileSink):
    """One row per member and generation, with one header.

    Hyperparameters are columns `hp.<name>`. Returns of a team's agents that are not summed are `fitness.<agent>` and
    `score.<agent>`, if the first generation has them. Counters are `details.<name>`. Opponents of self-play are the
    last column.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._columns: list[str] = []

    def generation(self, record: GenerationRecord) -> None:
        """Append the generation's rows and flush."""
        file = self._open()
        rows = [_row(record, member) for member in record.members]
        if not self._columns and file.tell():  # the file of a resumed run
            with open(self.path, encoding="utf-8", newline="") as before:
                self._columns = next(csv.reader(before))
        if not self._columns:
            names = sorted(
                {key for row in rows for key in row if key.startswith(("hp.", "fitness.", "score.", "details."))}
            )
            optional = ["opponents"] if record.opponents else []
            self._columns = [*MEMBER_COLUMNS, *names, *GENERATION_COLUMNS, *optional]
        writer = csv.DictWriter(file, self._columns, extrasaction="ignore", lineterminator="\n")
        if file.tell() == 0:
            writer.writeheader()
        writer.writerows(rows)
        file.flush()


def _row(record: GenerationRecord, member: MemberRecord) -> dict[str, Any]:
    row = {name: vars(member)[name] for name in MEMBER_COLUMNS if name != "generation"}
    row |= {name: vars(record)[name] for name in ("generation", *GENERATION_COLUMNS)}
    row |= {f"hp.{name}": value for name, value in member.hyperparameters.items()}
    row |= {f"fitness.{agent}": value for agent, value in member.agents.items()}
    row |= {f"score.{agent}": value for agent, value in member.agent_scores.items()}
    row |= {f"details.{name}": value for name, value in member.details.items()}
    row["opponents"] = " ".join(record.opponents)
    row["seconds"] = round(record.seconds, 3)
    row["is_best"] = int(member.is_best)
    return row


class JsonlSink(_FileSink):
    """One JSON line per birth, founders first, per arrival and per request; append-only."""

    def start(self, plan: RunPlan, founders: Sequence[Birth]) -> None:
        super().start(plan, founders)
        self._write(founders)

    def generation(self, record: GenerationRecord) -> None:
        self._write([*record.arrivals, *record.births, *record.steering])

    def _write(self, events: Iterable[Event]) -> None:
        file = self._open()
        file.writelines(map(lineage_line, events))
        file.flush()
