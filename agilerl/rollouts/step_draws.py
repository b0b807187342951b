"""Exploration noise for lanes that have made different numbers of steps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


class StepDraws:
    """Noise of every step of every lane, drawn ahead: a function of the seed, the lane and its step.

    Args:
        draw: returns noise [count, N, E, ...] for further steps of all lanes.
        ahead: steps drawn at once. total: expected steps of a lane; more are drawn if they are needed.
        shape: (N, E), members and lanes of each.
    """

    def __init__(
        self, draw: Callable[[int], tuple[np.ndarray, ...]], ahead: int, total: int, shape: tuple[int, int]
    ) -> None:
        self._draw, self._ahead, self._total, self._shape = draw, ahead, total, shape
        self._begin = self._end = 0  # steps covered by the current draws
        self._draws: tuple[np.ndarray, ...] = ()

    def of(self, steps: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the noise [N, E, ...] of the steps [L], in the lanes `chosen` [L] bool; any noise in the others."""
        while steps[chosen].max() >= self._end:
            self._draw_ahead(int(steps.min()))
        at = np.minimum(steps, self._end - 1).reshape(self._shape) - self._begin
        member, lane = np.indices(self._shape)
        return tuple(part[at, member, lane] for part in self._draws)

    def _draw_ahead(self, first: int) -> None:
        """Draw noise for further steps, and drop that of the steps before `first`."""
        left = self._total - self._end
        drawn = self._draw(min(self._ahead, left if left > 0 else self._total))
        before = [part[first - self._begin :] for part in self._draws] or [part[:0] for part in drawn]
        self._draws = tuple(np.concatenate(parts) for parts in zip(before, drawn, strict=True))
        self._begin, self._end = first, first + len(self._draws[0])
