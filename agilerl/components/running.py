"""Running mean and variance of a stream of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from agilerl.core.signatures import also_takes
from agilerl.core.tree import Tree
from agilerl.ranks import Ranks


class RunningMeanStd:
    """Running mean and variance, updated batch by batch.

    Batches are merged as in Chan, Golub and LeVeque 1983 (The American Statistician 37, equations 1.5a and 1.5b), so
    the order and size of the batches do not matter beyond rounding.

    Attributes:
        mean, var: [*shape] float64; initially 0 and 1. count: rows seen.
        epsilon: added to the variance when values are scaled.
    """

    @also_takes(device=None, dtype=None)
    def __init__(self, shape: tuple[int, ...] = (), epsilon: float = 1e-4) -> None:
        self.mean, self.var = np.zeros(shape), np.ones(shape)
        self.count, self.epsilon = 0, epsilon

    def update(self, values: np.ndarray) -> None:
        """Update with a batch [B, *shape]."""
        values = np.asarray(values, dtype=np.float64)
        if len(values):
            self.merge(values.mean(axis=0), values.var(axis=0), len(values))

    def merge(self, mean: np.ndarray, var: np.ndarray, rows: int) -> None:
        """Merge `rows` rows with this mean and variance [*shape]."""
        if self.mean.shape != np.shape(mean) and not self.count:
            self.mean, self.var = np.zeros(np.shape(mean)), np.ones(np.shape(mean))
        delta, total = mean - self.mean, self.count + rows
        squares = self.var * self.count + var * rows + delta**2 * self.count * rows / total
        self.mean, self.var, self.count = self.mean + delta * rows / total, squares / total, total

    def update_over(self, ranks: Ranks, values: np.ndarray, shape: tuple[int, ...] = ()) -> None:
        """Update with the values [B, *shape] of all ranks, rank by rank; B may be 0 on some."""
        if ranks.size == 1:
            self.update(values)
            return
        values = np.asarray(values, dtype=np.float64).reshape(-1, *shape)
        moments = np.zeros((3, *shape))
        if len(values):
            moments[0], moments[1], moments[2] = values.mean(axis=0), values.var(axis=0), len(values)
        for mean, var, rows in ranks.gather_rows(moments):
            count = int(rows.flat[0]) if rows.size else 0
            if count:
                self.merge(mean, var, count)

    def normalise(self, values: Tree) -> np.ndarray:
        """Return (x − mean) / sqrt(var + epsilon) as float32; the argument is unchanged."""
        scaled: np.ndarray = (np.asarray(values) - self.mean) / np.sqrt(self.var + self.epsilon)
        return scaled.astype(np.float32)

    def state(self) -> dict[str, Any]:
        """Return plain data."""
        return {"mean": self.mean.copy(), "var": self.var.copy(), "count": self.count, "epsilon": self.epsilon}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `state()`."""
        self.mean, self.var = (np.array(state[name], dtype=np.float64) for name in ("mean", "var"))
        self.count, self.epsilon = int(state["count"]), float(state["epsilon"])
