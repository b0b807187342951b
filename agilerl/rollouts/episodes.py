"""Values of an evaluation: the episodes that are played, and their scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np


@dataclass(frozen=True)
class Episodes:
    """Consecutive episodes of one evaluation, optionally one stage of it.

    Attributes:
        seeds: [episodes] one seed per episode. first: number of the first episode within the evaluation.
        planned: number of episodes of the whole evaluation; for a confirmation, before any are added.
    """

    seeds: np.ndarray
    first: int
    planned: int

    @classmethod
    def of(cls, seeds: np.ndarray) -> Self:
        """All episodes of an evaluation."""
        return cls(seeds, 0, len(seeds))

    def __len__(self) -> int:
        return len(self.seeds)

    @property
    def numbers(self) -> np.ndarray:
        """Episode numbers [episodes] within the evaluation."""
        return self.first + np.arange(len(self))

    def part(self, begin: int, end: int) -> Self:
        """Return episodes `begin` to `end` as one stage."""
        return type(self)(self.seeds[begin:end], self.first + begin, self.planned)


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Scores of all members.

    Attributes:
        returns: [N, episodes] float64, undiscounted; column i of every member was played with the same seed. For
            several agents [N, episodes, M], if requested.
        lengths: [N, episodes] int64, transitions. env_steps: total transitions.
        cut: [N, episodes] bool, whether the episode was truncated at `max_steps` rather than by the environment.
    """

    returns: np.ndarray
    lengths: np.ndarray
    env_steps: int
    cut: np.ndarray
