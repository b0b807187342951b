"""Records of a run: plain frozen data, one per generation, passed to every sink; broken sinks are dropped."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agilerl.core.redaction import redact
from agilerl.errors import AgileRLError, warn_once


@dataclass(frozen=True)
class Birth:
    """Origin of one member. Appended to `evolution.jsonl`, never changed.

    Attributes:
        id: unique member id within the run (`agent.index`); parent: the id it was cloned from, None for a founder. A
            mutated elite of a published function keeps its id and is its own parent.
        generation: its first training generation (founders: 0).
        kind: "founder", "elite", of a mutation (`hpo.kinds`), "healed" (a copy of the fittest member in place of a
            diverged one: `path` names it, `after` is the reason), "steered" (by a request, see `Steering`).
        path: the changed setting ("lr", "encoder.add_node", ...), "" if unchanged; for a founder that continues an
            agent of another run, that run and member.
        before, after: JSON-able values of the change.
        change: relative change of the policy's output over probe observations, None if not measured.
        parent_fitness: fitness of the parent at selection.
        changes: relative changes of the other networks' outputs by name, None without.
    """

    id: int
    parent: int | None
    generation: int
    kind: str
    path: str = ""
    before: Any = None
    after: Any = None
    change: float | None = None
    parent_fitness: float | None = None
    changes: dict[str, float] | None = None

    @property
    def number(self) -> int:
        """The generation as readers count it, from 1."""
        return self.generation + 1


@dataclass(frozen=True)
class Arrival:
    """End of a shard's generation in asynchronous mode, a line of `evolution.jsonl`.

    The run follows from its seed and the order of these lines.

    Attributes:
        generation: of the run, in which the arrival was processed (a row of metrics.csv).
        shard: its number. shard_generation: number of generations that it had ended before this one.
    """

    generation: int
    shard: int
    shard_generation: int
    kind: str = "arrival"


@dataclass(frozen=True)
class Steering:
    """A request of a person that a run has taken over, a line of `evolution.jsonl`. Its changes are births too.

    Attributes:
        generation: the first one that trains with the change. request: name of its file, without the suffix.
        action, member, name, value, reason, author: see `runs.steering.Request`.
        result: JSON values: {"born": ids}, for `clone` with "instead_of", the member whose place the copy took;
            {"scores": {id: {"mean", "error", "episodes"}}} of held-out episodes, null for an unknown score; {"refused":
            reason}; or {}.
    """

    generation: int
    request: str
    action: str
    member: int | None
    name: str
    value: Any
    reason: str
    author: str
    result: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "steering"


@dataclass(frozen=True)
class MemberRecord:
    """One member at the end of one generation (before selection)."""

    id: int
    slot: int
    parent: int | None
    fitness: float
    score: float | None  # mean return of the training episodes finished in this generation
    env_steps: int  # of this member, since the start of its lineage
    updates: int  # optimiser steps in this generation
    loss: float | None  # mean over this generation's updates
    mutation: str  # of its birth: "None", "lr", "encoder.add_node", ...
    hyperparameters: Mapping[str, float]
    network: str  # short architecture, e.g. "[64, 64] 64 [32]"
    is_best: bool = False
    # For teams whose returns are not summed, agent -> mean return: of the evaluation, and of `score`.
    agents: Mapping[str, float] = field(default_factory=dict)
    agent_scores: Mapping[str, float] = field(default_factory=dict)
    # Further counters of its source, summed.
    details: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class GenerationRecord:
    """One generation, as shown by the table, the CSV and the trackers."""

    generation: int
    generations: int  # expected total
    members: tuple[MemberRecord, ...]
    env_steps: int  # per member, so far
    max_env_steps: int  # per member, budget
    population_env_steps: int  # all members, so far, training only
    evaluation_env_steps: int  # all members, so far
    updates: int  # all members, so far
    seconds: float  # wall clock since the start
    epsilon: float | None = None
    arrivals: tuple[Arrival, ...] = ()  # in asynchronous mode
    births: tuple[Birth, ...] = ()
    steering: tuple[Steering, ...] = ()
    confirmation: float | None = None  # mean of the confirmation episodes, if a stop was tried
    confirmation_episodes: int | None = None  # their number
    opponents: tuple[str, ...] = ()  # of self-play: "generation:member" of each, "random" for the random player
    members_left: int | None = None  # number of survivors, if members were stopped

    @property
    def going_on(self) -> int:
        """Number of members that train in the next generation."""
        return len(self.members) if self.members_left is None else self.members_left

    @property
    def best(self) -> MemberRecord:
        """The fittest member; a NaN fitness never wins."""
        return max(self.members, key=lambda m: m.fitness if m.fitness == m.fitness else float("-inf"))

    @property
    def mean_fitness(self) -> float | None:
        """Mean over the members with finite fitness; None without any."""
        finite = [m.fitness for m in self.members if math.isfinite(m.fitness)]
        return sum(finite) / len(finite) if finite else None


@dataclass(frozen=True)
class RunPlan:
    """The plan of a run, shown once before the first step."""

    algo: str
    env_id: str
    population: int
    num_envs: int
    max_env_steps: int  # per member
    evo_steps: int  # per member
    seed: int
    device: str
    learner: str  # "fused" or "sequential", with the reason in `notes`
    env_backend: str
    threads: int
    target: float | None = None
    notes: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    steps: str = "env steps"  # unit of a step, in messages
    time_limit: float | None = None  # seconds of the run, on the clock of its records, at which its minutes are up


class Sink(Protocol):
    """Destination of records. After `start`, exceptions do not reach the training loop."""

    def start(self, plan: RunPlan, founders: Sequence[Birth]) -> None:
        """Called once, before the first environment step."""

    def progress(self, env_steps: int, seconds: float) -> None:
        """Called repeatedly during a generation; `env_steps` per member so far."""

    def generation(self, record: GenerationRecord) -> None:
        """Called after each generation's evaluation and evolution."""

    def message(self, text: str) -> None:
        """One line that the user should see (a fallback with its reason, a confirmation)."""

    def close(self) -> None:
        """Called once, also after an error or an interrupt."""


class BaseSink:
    """A no-op sink to derive from."""

    def start(self, plan: RunPlan, founders: Sequence[Birth]) -> None: ...
    def progress(self, env_steps: int, seconds: float) -> None: ...
    def generation(self, record: GenerationRecord) -> None: ...
    def message(self, text: str) -> None: ...
    def close(self) -> None: ...


class Sinks(BaseSink):
    """Forwards every call to each sink in turn.

    A sink that raises is closed and dropped, with one warning; training continues. User errors in `start`
    (`AgileRLError`) are raised instead: nothing has been trained yet.

    Attributes:
        lost: name of each dropped sink -> number of missed generations.
    """

    def __init__(self, sinks: Iterable[Sink] = ()) -> None:
        self.sinks: list[Sink] = list(sinks)
        self.lost: dict[str, int] = {}

    def start(self, plan: RunPlan, founders: Sequence[Birth]) -> None:
        self._each(lambda sink: sink.start(plan, founders), raise_user_errors=True)

    def progress(self, env_steps: int, seconds: float) -> None:
        listening = [sink for sink in self.sinks if type(sink).progress is not BaseSink.progress]  # most do not
        if listening:
            self._each(lambda sink: sink.progress(env_steps, seconds), listening)

    def generation(self, record: GenerationRecord) -> None:
        for name in self.lost:
            self.lost[name] += 1
        self._each(lambda sink: sink.generation(record), lost=1)

    def message(self, text: str) -> None:
        self._each(lambda sink: sink.message(text))

    def close(self) -> None:
        """Close each remaining sink once."""
        self._each(lambda sink: sink.close())
        self.sinks = []

    def _each(
        self,
        call: Callable[[Sink], None],
        sinks: Sequence[Sink] | None = None,
        raise_user_errors: bool = False,
        lost: int = 0,
    ) -> None:
        for sink in list(self.sinks) if sinks is None else sinks:
            try:
                call(sink)
            except Exception as error:  # failures of a tracker must not end the training
                if raise_user_errors and isinstance(error, AgileRLError):
                    raise
                name, kind = type(sink).__name__, type(error).__name__
                self.sinks.remove(sink)
                self.lost[name] = self.lost.get(name, 0) + lost
                with contextlib.suppress(Exception):
                    sink.close()
                text = f"{name} failed ({kind}: {redact(str(error))}) and gets no more records; the training goes on."
                warn_once(f"sink:{name}:{kind}", text, stacklevel=4)
