"""n-step windows over lanes that end at different times, vectorised over lanes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from agilerl.components.rows import Field, Path, Rows, numpy_dtype


@dataclass(frozen=True, slots=True)
class Finished:
    """K completed windows, ordered by first step, then by lane.

    Attributes:
        lane: [K] int64.
        first, last: [K] int64, places of the first and the last step in the ring of the lane.
        steps: [K] int64, number of steps of the window, 1 to n.
        total: [K] float64, sum over its steps of gamma^j times the reward of step j. For several agents [K, M], up to
            the step that ended each agent.
        ended: [K, M] bool, agents that a step of the window ended; None for a single agent.
    """

    lane: np.ndarray
    first: np.ndarray
    last: np.ndarray
    steps: np.ndarray
    total: np.ndarray
    ended: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.lane)


class LaneWindows:
    """The last n steps of each of L lanes, and the running reward sum of the window that begins at each.

    Each lane has a separate ring, because a row that is not a transition (the reset step of an environment) advances
    only the other lanes.

    Args:
        n_step: steps of a whole window. gamma: discount per step. fields: of one step. num_lanes: L.
        agents: M, with rewards summed by agent; 0 for a single agent.
    """

    def __init__(self, n_step: int, gamma: float, fields: tuple[Field, ...], num_lanes: int, agents: int = 0) -> None:
        self.n_step, self.num_lanes = n_step, num_lanes
        self.powers = gamma ** np.arange(n_step + 1, dtype=np.float64)
        # Scalar fields stay [n, L].
        shapes = {field.path: () if field.is_scalar else field.shape for field in fields}
        self.rows: Rows = {f.path: np.zeros((n_step, num_lanes, *shapes[f.path]), numpy_dtype(f.dtype)) for f in fields}
        self._total = np.zeros((n_step, num_lanes, agents) if agents else (n_step, num_lanes))
        self._ended = np.zeros(self._total.shape, bool) if agents else None  # agents ended by a step so far
        self._next = np.zeros(num_lanes, dtype=np.int64)  # place of the next step
        self._open = np.zeros(num_lanes, dtype=np.int64)  # incomplete windows: those of the last steps
        self._seen = np.zeros(num_lanes, dtype=np.int64)  # steps in the ring, at most n

    def push(
        self, rows: Rows, reward: np.ndarray, is_end: np.ndarray, lanes: np.ndarray, done: np.ndarray | None = None
    ) -> Finished:
        """Add one step in `lanes` [k].

        Args:
            rows: fields [k, ...]. reward: [k] float64, [k, M] for several agents.
            is_end: [k] bool, terminated or truncated: every open window of the lane ends with this step.
            lanes: [k] int64, each at most once.
            done: [k, M] bool, agents terminated by this step while others continue; None for a single agent.

        Returns:
            The windows completed or ended by this step.
        """
        at = self._next[lanes]
        for path, values in rows.items():
            self.rows[path][at, lanes] = values
        self._total[at, lanes] = 0.0
        self._open[lanes] += 1
        self._seen[lanes] = np.minimum(self._seen[lanes] + 1, self.n_step)
        self._next[lanes] = (at + 1) % self.n_step
        age = (at - np.arange(self.n_step)[:, None]) % self.n_step  # [n, k] steps since the step in that place
        is_open = age < self._open[lanes]
        if self._ended is None or done is None:
            self._total[:, lanes] += np.where(is_open, self.powers[age] * reward, 0.0)
        else:
            self._ended[at, lanes] = False
            counts = is_open[..., None] & ~self._ended[:, lanes]
            self._total[:, lanes] += np.where(counts, self.powers[age][..., None] * reward, 0.0)
            self._ended[:, lanes] |= counts & done
        return self._finish(lanes, np.where(is_end, self._open[lanes], self._open[lanes] == self.n_step))

    def flush(self, lanes: np.ndarray | None = None) -> Finished:
        """End every open window (of `lanes` [k] only, if given) with the last step of its lane."""
        lanes = np.arange(self.num_lanes) if lanes is None else lanes
        finished = self._finish(lanes, self._open[lanes])
        self._seen[lanes] = 0
        return finished

    def _finish(self, lanes: np.ndarray, counts: np.ndarray) -> Finished:
        """Close the `counts` [k] oldest windows of `lanes` [k]."""
        rank, column = np.nonzero(np.arange(self.n_step)[:, None] < counts)
        lane = lanes[column]
        last = (self._next[lane] - 1) % self.n_step
        steps = self._open[lane] - rank
        first = (last - steps + 1) % self.n_step
        self._open[lanes] -= counts
        over = None if self._ended is None else self._ended[first, lane]
        return Finished(lane, first, last, steps, self._total[first, lane], over)

    def upcoming(self, path: Path, lanes: np.ndarray) -> np.ndarray:
        """Return the values of one field that the next steps of `lanes` [k] will overwrite: [k, ...]."""
        return np.asarray(self.rows[path][self._next[lanes], lanes])

    def recent(self) -> list[np.ndarray]:
        """Return the places [L] of the last steps common to all lanes, oldest first; at most n."""
        depth = int(self._seen.min(initial=self.n_step))
        return [(self._next - depth + j) % self.n_step for j in range(depth)]

    def state(self) -> dict[str, Any]:
        """Return a copy of the mutable state as plain data."""
        rows = {"/".join(path): torch.from_numpy(values.copy()) for path, values in self.rows.items()}
        counters = {name: torch.from_numpy(values.copy()) for name, values in self._counters().items()}
        return {"num_lanes": self.num_lanes, "rows": rows, **counters}

    def _counters(self) -> dict[str, np.ndarray]:
        counters = {"total": self._total, "next": self._next, "open": self._open, "seen": self._seen}
        return counters if self._ended is None else {**counters, "ended": self._ended}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore windows from `state()`, with the same number of lanes and the same fields."""
        for path, values in self.rows.items():
            values[...] = state["rows"]["/".join(path)].cpu().numpy()
        for name, values in self._counters().items():
            values[...] = state[name].cpu().numpy()
