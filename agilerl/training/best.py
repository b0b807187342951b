"""The best agent so far, as an independent copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


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
