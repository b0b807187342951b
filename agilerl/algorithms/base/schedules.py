"""Hyperparameter schedules: over the budget, or following the divergence of rollouts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Schedule = Literal["constant", "linear"]

DEFAULT_TARGET_KL = 0.01
# `AdaptiveRate`: maximum factor of a step during the search, of a later rise, and of all later rises together.
RATE_STEP, RATE_RISE, RATE_ROOM = 10.0, 1.5, 3.0
RATE_LIMITS = (1e-6, 1e-2)


def scheduled(value: float, schedule: str, progress: float) -> float:
    """Return the value at fraction `progress` of the budget; "linear" decays to 0."""
    return value * max(0.0, 1 - progress) if schedule == "linear" else value


@dataclass
class AdaptiveRate:
    """A learning rate that is adapted to the KL divergence of rollouts.

    If a rollout's divergence is below half of `aim` or above twice `aim`, the rate is multiplied by
    sqrt(aim / divergence), at most by 10 or 1/10.

    After the first rate that reaches half of `aim`, it rises by at most half at a time, up to three times that rate: a
    converged policy moves little at any rate, and a higher one would only follow the noise in its advantages.

    A divergence grows with the square of a step (Kakade 2001, "A natural policy gradient", section 2). The thresholds
    are those by which Schulman et al. 2017 (arXiv:1707.06347, section 4) adapt a penalty's weight.

    Attributes:
        aim: target divergence of a rollout.
        found: the first rate that reached at least half of `aim`; None during the search.
    """

    aim: float = DEFAULT_TARGET_KL
    found: float | None = None

    @property
    def limit(self) -> float:
        """Divergence above which the rate falls and a rollout's epochs end."""
        return 2 * self.aim

    def step(self, lr: float, divergence: float) -> float:
        """Return the rate after a rollout with this mean divergence at rate `lr`; unchanged for NaN."""
        aim, first_rate = self.aim, self.found
        if math.isnan(divergence):
            return lr
        if not aim / 2 <= divergence <= self.limit:
            rise = RATE_STEP if first_rate is None else RATE_RISE
            highest = RATE_LIMITS[1] if first_rate is None else max(lr, min(RATE_ROOM * first_rate, RATE_LIMITS[1]))
            factor = math.sqrt(aim / divergence) if divergence > aim / rise**2 else rise
            lr = float(min(max(lr * max(factor, 1 / RATE_STEP), RATE_LIMITS[0]), highest))
        if first_rate is None and divergence >= aim / 2:
            self.found = lr
        return lr
