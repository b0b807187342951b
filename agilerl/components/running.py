"""Running mean and variance of a stream of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np


class RunningMeanStd:
    """Mean and variance of everything seen, updated batch by batch.

    Batches are merged as in Chan, Golub and LeVeque 1983 (The American Statistician 37, equations 1.5a and 1.5b), so
    the order and size of the batches do not matter beyond rounding.

    Attributes:
        mean, var: [*shape] float64; 0 and 1 before anything was seen. count: rows seen.
        epsilon: added to the variance where values are scaled.
    """

    def __init__(self, shape: tuple[int, ...] = (), epsilon: float = 1e-4) -> None:
        self.mean, self.var = np.zeros(shape), np.ones(shape)
        self.count, self.epsilon = 0, epsilon

    def update(self, values: np.ndarray) -> None:
        """Take in [B, *shape]."""
        values = np.asarray(values, dtype=np.float64)
        rows = len(values)
        if rows == 0:
            return
        if self.mean.shape != values.shape[1:] and not self.count:
            self.mean, self.var = np.zeros(values.shape[1:]), np.ones(values.shape[1:])
        delta, total = values.mean(axis=0) - self.mean, self.count + rows
        squares = self.var * self.count + values.var(axis=0) * rows + delta**2 * self.count * rows / total
        self.mean, self.var, self.count = self.mean + delta * rows / total, squares / total, total

    def normalise(self, values: Any) -> np.ndarray:
        """(x − mean) / sqrt(var + epsilon), float32; the argument is left as it is."""
        scaled: np.ndarray = (np.asarray(values) - self.mean) / np.sqrt(self.var + self.epsilon)
        return scaled.astype(np.float32)

    def state(self) -> dict[str, Any]:
        """As plain data."""
        return {"mean": self.mean.copy(), "var": self.var.copy(), "count": self.count, "epsilon": self.epsilon}

    def load_state(self, state: dict[str, Any]) -> None:
        """Become what `state()` was taken from."""
        self.mean, self.var = (np.array(state[name], dtype=np.float64) for name in ("mean", "var"))
        self.count, self.epsilon = int(state["count"]), float(state["epsilon"])
