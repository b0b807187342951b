"""Selection as pure functions of fitness."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def rank(fitness: Sequence[float] | NDArray[np.float64]) -> NDArray[np.int64]:
    """Rank of each member [N]: N-1 is the best; NaN ranks below everything; of equals the earlier ranks higher."""
    values = np.asarray(fitness, dtype=np.float64)
    order = np.lexsort((-np.arange(len(values)), np.where(np.isnan(values), -np.inf, values), ~np.isnan(values)))
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[order] = np.arange(len(values))
    return ranks


def tournament(
    fitness: Sequence[float] | NDArray[np.float64], size: int, count: int, rng: np.random.Generator, elitism: bool
) -> list[int]:
    """Positions [count] of the parents of the next population.

    With `elitism` the first is the best member. Each of the others is the best of `size` members drawn with
    replacement (Goldberg and Deb 1991) among those whose fitness is a number; only if none is, all take part.
    """
    ranks = rank(fitness)
    numbers = np.flatnonzero(~np.isnan(np.asarray(fitness, dtype=np.float64)))
    candidates = numbers if len(numbers) else np.arange(len(ranks))
    parents = [int(ranks.argmax())] if elitism else []
    while len(parents) < count:
        drawn = candidates[rng.integers(0, len(candidates), size=size)]
        parents.append(int(drawn[ranks[drawn].argmax()]))
    return parents[:count]
