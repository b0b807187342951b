"""End of a budget in minutes: whether a run has time for another generation and for its closing test."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Deadline:
    """Time at which a run must have ended, its closing test included.

    Attributes:
        ends: reading of `clock`, in seconds.
        closing_episodes: episodes of the closing test that follows the run.
        clock: monotonic, in seconds.
    """

    ends: float
    closing_episodes: int = 0
    clock: Callable[[], float] = time.perf_counter

    def is_last(self, generation: float, episodes: int, seconds_per_episode: float) -> bool:
        """Whether the current generation must be the last one.

        Args:
            generation: expected seconds of the next generation.
            episodes: held-out episodes that confirm the best agents at the end of the run.
            seconds_per_episode: measured in the last evaluation.
        """
        reserved = (episodes + self.closing_episodes) * seconds_per_episode
        return self.clock() + generation + reserved > self.ends
