"""What a run returns, and the best agent that it keeps for that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agilerl.telemetry.record import Birth


@dataclass
class EvolveResult:
    """What a run returns.

    Attributes:
        population: the agents after the last generation (after evolution if one followed).
        best: an independent copy of the best agent: the one with the best confirmation, else the best fitness.
        history: `history[generation][member]` fitness.
        births: every birth, founders first.
        env_steps_member, env_steps_population: training steps of the furthest member, and of all members.
        evaluation_env_steps: steps of all evaluations, confirmations included.
        confirmed: mean of the confirmation that `best` has, None without one.
        stopped: "target" or "budget".
        restarts: workers of self-healing environments that were replaced, those of evaluations included.
        quarantined: members that had diverged at the end of a generation and were kept out of selection.
    """

    population: list[Any]
    best: Any
    history: list[list[float]] = field(default_factory=list)
    births: list[Birth] = field(default_factory=list)
    generations: int = 0
    env_steps_member: int = 0
    env_steps_population: int = 0
    evaluation_env_steps: int = 0
    updates: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    confirmed: float | None = None
    stopped: str = "budget"
    restarts: int = 0
    quarantined: int = 0


class BestAgent:
    """Keeps a copy of the best agent of a run: a confirmation beats fitness, a better one beats a worse one.

    Args:
        on_best: called with the copy whenever there is a better one.

    Attributes:
        agent: the copy, None before the first. fitness: that it was kept for.
        confirmed: mean of its confirmation, None without one. generation: in which it was found.
    """

    def __init__(self, on_best: Callable[[Any], None] | None = None) -> None:
        self.on_best = on_best
        self.agent: Any = None
        self.fitness = -np.inf
        self.confirmed: float | None = None
        self.generation = 0

    def offer(self, agent: Any, fitness: float, confirmed: float | None, generation: int) -> None:
        """Keep a copy of `agent` if it is better; agents without `clone` are never kept."""
        if confirmed is not None:
            better = self.confirmed is None or confirmed > self.confirmed
        else:
            better = self.confirmed is None and (self.agent is None or fitness > self.fitness)
        if better and callable(getattr(agent, "clone", None)):
            self.agent, self.confirmed, self.fitness, self.generation = agent.clone(), confirmed, fitness, generation
            self.announce()

    def announce(self) -> None:
        """Tell `on_best` of the copy, if there is one."""
        if self.agent is not None and self.on_best is not None:
            self.on_best(self.agent)

    def or_fittest(self, population: Sequence[Any], fitness: Sequence[float]) -> Any:
        """The copy; where none could be kept the fittest member stands, else the first."""
        if self.agent is not None or not population:
            return self.agent
        return population[int(np.argmax(ranked(fitness)))]


def ranked(fitness: Sequence[float]) -> list[float]:
    """Fitness for a ranking: a NaN is the worst."""
    return [value if value == value else -np.inf for value in fitness]
