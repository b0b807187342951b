"""State of a run for the page, read piece by piece from its directory while it trains."""

from __future__ import annotations

import math
import os
import secrets
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from agilerl.core.options import LoopOptions
from agilerl.errors import AgileRLError
from agilerl.runs.records import Member, RunRecords, finite_number
from agilerl.telemetry.progress import PROGRESS
from agilerl.telemetry.record import Birth, Steering

MAX_LOG = 2_000  # lines of the log that are shown to a new page
RECENT_GENERATIONS = 5  # over which speed is measured
RUNNING = "running"


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


class RunFollower(RunRecords):
    """A run on the page. `poll` reads what is new; everything else only returns what was read.

    Attributes:
        token: random; ids of events of another follower or server are not continued.
        log: messages, faults, confirmations and requests, in order.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.lock = threading.RLock()
        self.token = secrets.token_hex(4)
        self.polled_s = -math.inf  # monotonic time of the last poll, for `Runs.look`
        self._progress: Mapping[str, Any] = {}
        self._rates: list[tuple[float, float]] = []
        super().__init__(path)

    def _clear(self) -> None:
        super()._clear()
        self.log: list[LogLine] = []
        self._logged = 0, 0, 0  # events, generations and messages

    def poll(self) -> bool:
        """See `RunRecords.poll`; also the progress within the generation."""
        with self.lock:
            has_more = super().poll()
            if isinstance(content := self._changed(PROGRESS), dict):
                self._progress = content
                self._measure(content)
            events, generations, messages = self._logged
            self.log += [line for event in self.events[events:] if (line := _line_of(event)) is not None]
            firsts = (members[0] for members in self.generations[generations:])
            self.log += [_held_out_line(member) for member in firsts if member.confirmation is not None]
            self.log += [LogLine("message", text, None, seconds) for seconds, text in self.messages[messages:]]
            self._logged = len(self.events), len(self.generations), len(self.messages)
            return has_more

    def _measure(self, content: Mapping[str, Any]) -> None:
        """Remember (seconds, steps) of the last progress reports."""
        seconds, steps = finite_number(content.get("seconds")), finite_number(content.get("env_steps"))
        if seconds is None or steps is None:
            return
        if self._rates and (seconds < self._rates[-1][0] or steps < self._rates[-1][1]):
            self._rates = []
        self._rates = [*self._rates, (seconds, steps)][-2 * RECENT_GENERATIONS :]

    def progress(self, now: float | None = None) -> Progress:
        """Return where the run is, at Unix time `now`."""
        with self.lock:
            return self._current(time.time() if now is None else now)

    def _current(self, now: float) -> Progress:
        ended = self.last[0].number if self.last else 0
        total = self._expected_generations()
        limit = _whole(self._progress.get("max_env_steps")) or _whole(self.facts.get("max_env_steps"))
        begun, made, seconds = _end_of(self.last) if self.last else (0, 0, 0.0)
        if self.status != RUNNING:
            return Progress("", max(0, ended - 1), total, begun, limit, made, seconds=seconds)
        newest = finite_number(self._progress.get("env_steps"))
        steps = max(begun, int(newest or 0))
        seconds = max(finite_number(self._progress.get("seconds")) or 0.0, seconds)
        idle = None
        if (written := finite_number(self._progress.get("time"))) is not None:
            idle = max(0.0, now - written)
        share = self._share(begun, steps)
        is_evaluating = share is not None and share > 0.5 and idle is not None and idle > 2.0
        births = self.newborns.waiting
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
            going_on=max(0, len(self.last) - len(births)),
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
        return len(self.last) or _whole(self.facts.get("population")) or 1

    def _speed(self) -> float | None:
        """Steps of all members in a second of training, over the last reports; else over the last generations."""
        rates = self._rates if self.generations else [(0.0, 0.0), *self._rates]
        if len(rates) > 1:
            seconds, steps = (rates[-1][at] - rates[0][at] for at in (0, 1))
            if seconds > 0 and steps > 0:
                return steps * self._members() / seconds
        recent = [_end_of(generation) for generation in self.generations[-RECENT_GENERATIONS - 1 :]]
        if len(recent) > 1 and (seconds := recent[-1][2] - recent[0][2]) > 0:
            return (recent[-1][1] - recent[0][1]) / seconds
        return None

    def _seconds_left(self, steps: int, limit: int | None, now: float) -> float | None:
        """Remaining seconds by the nearer limit: the run's minutes, and steps at the speed of the last generations with
        their evaluation, before the first at that of its training. `now`: seconds of the run."""
        until = finite_number(self._progress.get("time_limit"))
        left = [] if until is None else [max(0.0, until - now)]
        recent = [_end_of(generation) for generation in self.generations[-RECENT_GENERATIONS - 1 :]]
        ends = [(0.0, 0), *((seconds, env_steps) for env_steps, _, seconds in recent)]
        ends = ends[-RECENT_GENERATIONS - 1 :] if recent else [*ends, (now, steps)]
        seconds, env_steps = (ends[-1][at] - ends[0][at] for at in (0, 1))
        if limit is not None and env_steps > 0 and seconds > 0:
            left.append(max(0, limit - steps) * seconds / env_steps)
        return min(left, default=None)


def _end_of(generation: list[Member]) -> tuple[int, int, float]:
    """(steps of the furthest member, of all, seconds of the run) at the end of a generation."""
    last = generation[-1]
    return max(member.env_steps for member in generation), last.population_env_steps or 0, last.seconds or 0.0


def _whole(value: object) -> int | None:
    number = finite_number(value)
    return int(number) if number is not None and number == int(number) else None


def _held_out_line(member: Member) -> LogLine:
    episodes = member.confirmation_episodes
    text = f"held-out {member.confirmation:.6g}" + (f" over {episodes} episodes" if episodes else "")
    return LogLine("confirmation", text, member.generation)


def _line_of(event: object) -> LogLine | None:
    """A request, or the birth of a copy of a diverged member, as a line of the log; None for other events."""
    if isinstance(event, Steering):
        return _steering(event)
    if isinstance(event, Birth) and event.kind == "healed":
        text = f"{event.path} has diverged ({event.after}); member {event.id} is a copy of {event.parent}"
        return LogLine("fault", text, event.generation)
    return None


def _steering(event: Steering) -> LogLine:
    """A steering request of a person, as a line of the log."""
    facts = {name: value for name, value in asdict(event).items() if name not in ("kind", "generation", "request")}
    member = "all members" if facts["member"] is None else f"member {facts['member']}"
    change = " ".join(str(facts[name]) for name in ("name", "value") if facts[name] not in (None, ""))
    text = f"{facts['action']} {member}" + (f": {change}" if change else "")
    for name, mark in (("reason", "because "), ("author", "by ")):
        text += f" ({mark}{facts[name]})" if facts[name] not in (None, "") else ""
    text += _outcome(facts["result"])
    return LogLine("steering", text, event.generation, None, facts)


def _outcome(result: object) -> str:
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
    mean = finite_number(score.get("mean")) if isinstance(score, Mapping) else None
    return "unknown" if mean is None else f"held-out {mean:.6g} over {score.get('episodes', '?')} episodes"
