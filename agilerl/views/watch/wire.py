"""Events for the live page: JSON with the changes since the last ones. Generations count from 1."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agilerl.core.redaction import redact
from agilerl.runs.names import way_on
from agilerl.runs.newborns import born_together
from agilerl.runs.records import Member
from agilerl.telemetry.console import how_it_ended
from agilerl.telemetry.record import Birth
from agilerl.views.watch.folder import RunEntry
from agilerl.views.watch.state import MAX_LOG, RUNNING, RunFollower

MEMBERS_PER_EVENT = 50_000  # a page of a long run draws its first generations immediately
BIRTHS_PER_EVENT = 50_000
NO_PARENT = -1
MAX_DIGITS = 18  # of a position in an id
DIGITS = 6  # significant digits on the page


@dataclass(frozen=True)
class Event:
    """A server-sent event; `id`: position to continue from after a lost connection."""

    name: str
    data: Mapping[str, Any]
    id: str = ""

    def encode(self) -> bytes:
        """Encode the event for the protocol (HTML standard, section 9.2)."""
        text = json.dumps(plain(self.data), separators=(",", ":"), allow_nan=False)
        place = f"id: {self.id}\n" if self.id else ""
        return f"event: {self.name}\n{place}data: {text}\n\n".encode()


class Cursor:
    """Position of one page in the records of a run.

    Args:
        last_id: id of the last event received before a lost connection; "" for a new page.
    """

    def __init__(self, follower: RunFollower, last_id: str = "") -> None:
        self._follower = follower
        self._epoch, self._generations, self._births, self._log = "", 0, 0, 0
        self._members_of_last = 0
        self._sent: dict[str, Any] = {}
        parts = last_id.rpartition("/")[0], last_id.rpartition("/")[2].split(".")
        if parts[0] == epoch_of(follower) and len(parts[1]) == 4 and all(map(_is_count, parts[1])):
            self._epoch = parts[0]
            self._generations, self._members_of_last, self._births, self._log = map(int, parts[1])

    def advance(self, extra: Mapping[str, Any]) -> list[Event]:
        """Return the events that update the page, at most a few MB; `extra`: further entries of "now".

        Call again while it returns generations.
        """
        run, events = self._follower, []
        with run.lock:
            if epoch_of(run) != self._epoch:
                self._epoch = epoch_of(run)
                self._generations = self._births = self._members_of_last = 0
                self._log = max(0, len(run.log) - MAX_LOG)
                self._sent = {}
                events.append(Event("reset", {"epoch": self._epoch}, self._id()))
            events += self._if_new("run", facts_of(run))
            events += self._new_births(run)
            generations = self._new_generations(run)
            events += generations
            is_complete = self._generations == len(run.generations)
            if is_complete:
                rows = [
                    [m.id, m.slot, m.score, m.env_steps, m.updates, m.loss, m.mutation, m.network] for m in run.last
                ]
                members = {"number": run.last[0].number if run.last else None, "rows": rows}
                events += self._if_new("members", members) if generations or "members" not in self._sent else []
            if run.log[self._log :]:
                lines = [{**asdict(line), "generation": _from_one(line.generation)} for line in run.log[self._log :]]
                self._log = len(run.log)
                events.append(Event("log", {"lines": lines}, self._id()))
            best = None if run.winner is None else {"id": run.winner.id, "generation": run.winner.number}
            progress = asdict(run.progress())
            progress["generation"] += 1
            now = {"progress": progress, "winner": best, "damaged": len(run.damage), **extra}
            events += self._if_new("now", {**now, "complete": is_complete})
        return events

    @property
    def is_complete(self) -> bool:
        """Whether the page has all generations read so far."""
        return self._generations == len(self._follower.generations)

    def _id(self) -> str:
        return f"{self._epoch}/{self._generations}.{self._members_of_last}.{self._births}.{self._log}"

    def _if_new(self, name: str, data: Mapping[str, Any]) -> list[Event]:
        if self._sent.get(name) == data:
            return []
        self._sent[name] = data
        return [Event(name, data, self._id())]

    def _new_births(self, run: RunFollower) -> list[Event]:
        births = run.births[self._births : self._births + BIRTHS_PER_EVENT]
        if not births:
            return []
        self._births += len(births)
        return [Event("births", birth_columns(run, births), self._id())]

    def _new_generations(self, run: RunFollower) -> list[Event]:
        if self._generations and self._generations <= len(run.generations):
            has_grown = len(run.generations[self._generations - 1]) != self._members_of_last
            self._generations -= has_grown  # read while being written: sent again
        first, members = self._generations, 0
        while self._generations < len(run.generations) and members < MEMBERS_PER_EVENT:
            self._members_of_last = len(run.generations[self._generations])
            members += self._members_of_last
            self._generations += 1
        chosen = run.generations[first : self._generations]
        if not chosen:
            return []
        return [Event("generations", {"list": [generation_columns(run, members) for members in chosen]}, self._id())]


def epoch_of(run: RunFollower) -> str:
    """Name of a follower's content; it changes with the follower, and when the records are read again."""
    return f"{run.token}-{run.epoch}"


def _is_count(text: str) -> bool:
    return text.isdecimal() and text.isascii() and len(text) <= MAX_DIGITS


def generation_columns(run: RunFollower, members: Sequence[Member]) -> dict[str, Any]:
    """A generation as columns; a hyperparameter shared by all members is one number."""
    last = members[-1]
    return {
        "number": last.number,
        "ids": [member.id for member in members],
        "parents": [NO_PARENT if member.parent is None else member.parent for member in members],
        "fitness": [rounded(member.fitness) for member in members],
        "hp": {name: _column([m.hyperparameters.get(name, math.nan) for m in members]) for name in run.hyperparameters},
        "best": next((member.id for member in members if member.is_best), None),
        "confirmation": last.confirmation,
        "episodes": last.confirmation_episodes,
        "env_steps": last.population_env_steps or 0,
        "evaluation_env_steps": last.evaluation_env_steps or 0,
        "seconds": last.seconds or 0.0,
    }


def _column(values: Sequence[float]) -> Any:
    column = [rounded(value) for value in values]
    return column[0] if all(value == column[0] for value in column) else column


def birth_columns(run: RunFollower, births: Sequence[Birth]) -> dict[str, Any]:
    """Births as columns, with the nearest trained ancestors as parents; kinds are indices of `names`."""
    names = list(dict.fromkeys(birth.kind for birth in births))
    place = {name: at for at, name in enumerate(names)}
    lines = [born_together(birth, run.births_by_id)[::-1] for birth in births]
    return {
        "ids": [birth.id for birth in births],
        "parents": [line[0].parent for line in lines],
        "generations": [birth.generation + 1 for birth in births],
        "names": names,
        "kinds": [place[birth.kind] for birth in births],
        "texts": [", ".join(filter(None, map(change_text, line))) for line in lines],
    }


def change_text(birth: Birth) -> str:
    """The change of a birth, "lr 0.002 → 0.0024"; "" if nothing changed."""
    before, after = _short(birth.before), _short(birth.after)
    return f"{birth.path} {before} → {after}" if birth.path and before and after else birth.path


def _short(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)[:80]


def facts_of(run: RunFollower) -> dict[str, Any]:
    """Header of a run: names, status, target, ranges, result."""
    facts, status = run.facts, run.status
    options, result = _mapping(facts.get("options")), run.result
    test, play = _mapping(result.get("test")), _mapping(facts.get("random_play"))
    is_over = status != RUNNING
    return {
        "path": str(run.path),
        "algo": str(facts.get("algo", "?")),
        "env_id": str(facts.get("env_id", "?")),
        "seed": facts.get("seed"),
        "device": facts.get("device"),
        "status": status,
        "started": _text(facts.get("started")),
        "ended": _text(facts.get("ended")) if is_over else None,
        "population": facts.get("population"),
        "scheme": run.setting("evolution.scheme"),
        "target": options.get("target"),
        "eval_episodes": options.get("eval_episodes"),
        "random_play": play.get("mean"),
        "notes": [redact(str(note)) for note in _list(facts.get("notes"))],
        "error": redact(str(facts["error"])) if facts.get("error") and is_over else None,
        "stopped": how_it_ended(result["stopped"]) if is_over and result.get("stopped") else None,
        "test": {name: test.get(name) for name in ("mean", "ci95", "episodes")} if test and is_over else None,
        "resume": way_on(run.path, facts) if status == "interrupted" else None,
        "ranges": ranges_of(run),
    }


def ranges_of(run: RunFollower) -> dict[str, list[float]]:
    """Hyperparameter -> [min, max] of mutation."""
    ranges = {}
    for name, limits in _mapping(run.setting("mutation.rl_hp_selection")).items():
        low, high = (_mapping(limits).get(key) for key in ("min", "max"))
        if isinstance(low, int | float) and isinstance(high, int | float):
            ranges[str(name)] = [float(low), float(high)]
    return ranges


def entry_facts(entries: Iterable[RunEntry]) -> list[dict[str, Any]]:
    """The list of runs for the page."""
    return [{**asdict(entry), "path": str(entry.path)} for entry in entries]


def _from_one(generation: int | None) -> int | None:
    return None if generation is None else generation + 1


def rounded(value: float) -> float | None:
    """Round to six significant digits; None for a non-finite number."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def plain(value: object) -> Any:
    """Convert to JSON values: non-finite numbers become null, unknown objects text."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): plain(content) for name, content in value.items()}
    if isinstance(value, list | tuple):
        return [plain(content) for content in value]
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
