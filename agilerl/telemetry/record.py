"""What a run reports: plain frozen records, one per generation, handed to every sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Birth:
    """How one member came to be. Appended to `evolution.jsonl`, never changed.

    Attributes:
        id: unique member id within the run (`agent.index`); parent: the id it was cloned from, None for a founder.
        generation: the generation in which it will train first (founders: 0).
        kind: "founder", "elite", "none", "architecture", "parameters", "activation", "rl_hp", "healed" (a copy of the
            fittest member in place of one that diverged: `path` names it, `after` says why).
        path: what changed ("lr", "encoder.add_node", ...), "" if nothing.
        before, after: JSON-able values of what changed.
        change: relative change of the policy's output over probe observations, None if not measured.
        parent_fitness: the fitness that the parent was selected with.
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


@dataclass(frozen=True)
class MemberRecord:
    """One member at the end of one generation (before selection)."""

    id: int
    slot: int
    parent: int | None
    fitness: float
    score: float | None  # mean return of the training episodes finished in this generation
    env_steps: int  # of this member, since the start of its line
    updates: int  # optimiser steps in this generation
    loss: float | None  # mean over this generation's updates
    mutation: str  # what its birth did to it: "None", "lr", "encoder.add_node", ...
    hyperparameters: Mapping[str, float]
    network: str  # short architecture, e.g. "[64, 64] 64 [32]"
    is_best: bool = False


@dataclass(frozen=True)
class GenerationRecord:
    """One generation: what the table, the CSV and the trackers show."""

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
    births: tuple[Birth, ...] = ()
    confirmation: float | None = None  # mean of the fresh episodes, where a stop was tried

    @property
    def best(self) -> MemberRecord:
        """The fittest member; a NaN fitness never wins."""
        return max(self.members, key=lambda m: m.fitness if m.fitness == m.fitness else float("-inf"))


@dataclass(frozen=True)
class RunPlan:
    """What is about to run: shown once before the first step."""

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


class Sink(Protocol):
    """Where records go. Six lines make a new one; none may raise into the training loop after `start`."""

    def start(self, plan: RunPlan, founders: Sequence[Birth]) -> None:
        """Called once, before the first environment step."""

    def progress(self, env_steps: int, seconds: float) -> None:
        """Called now and then inside a generation; `env_steps` per member so far."""

    def generation(self, record: GenerationRecord) -> None:
        """Called after each generation's evaluation and evolution."""

    def message(self, text: str) -> None:
        """One line that the user should see (a fallback with its reason, a confirmation)."""

    def close(self) -> None:
        """Called once, also after an error or an interrupt."""
