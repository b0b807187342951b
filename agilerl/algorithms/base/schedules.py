"""Hyperparameters that change while an agent trains: over its budget, or after the divergence of its rollouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from agilerl.errors import ConfigError, unknown_name

Schedule = Literal["constant", "linear"]
SCHEDULES: tuple[Schedule, ...] = get_args(Schedule)
Name = TypeVar("Name", bound=str)

DEFAULT_TARGET_KL = 0.01
# Of `AdaptiveRate`: the largest factor of a step while the rate is sought, of a rise after that, and between the rate
# that was found and the highest one after it.
RATE_STEP, RATE_RISE, RATE_ROOM = 10.0, 1.5, 3.0
RATE_LIMITS = (1e-6, 1e-2)


def check_schedules(*names: Name, known: Sequence[str] = SCHEDULES) -> tuple[Name, ...]:
    """The names as they are; ConfigError for an unknown schedule."""
    for name in names:
        if name not in known:
            raise ConfigError(unknown_name("schedule", str(name), known))
    return names


def scheduled(value: float, schedule: str, progress: float) -> float:
    """The value at a share `progress` of the budget: "linear" goes from it to 0."""
    return value * max(0.0, 1 - progress) if schedule == "linear" else value


@dataclass
class AdaptiveRate:
    """A learning rate that follows the divergence of rollouts.

    The rate moves after a rollout in which the policy has moved by less than half of `aim`, or by more than twice, to
    where it would have moved by as much: by sqrt(aim / divergence), at most tenfold.

    Once it has been found so it rises by half at a time, up to three times what was found: a policy that has converged
    moves little at any rate, and a higher one would only follow the noise in its advantages.

    A divergence grows with the square of a step (Kakade 2001, "A natural policy gradient", section 2). The thresholds
    are those by which Schulman et al. 2017 (arXiv:1707.06347, section 4) adapt a penalty's weight.

    Attributes:
        aim: divergence of a rollout that the rate aims at.
        found: the first rate that has moved the policy by as much; None while it is sought.
    """

    aim: float = DEFAULT_TARGET_KL
    found: float | None = None

    @property
    def limit(self) -> float:
        """Divergence beyond which the rate falls: a rollout's epochs end there too."""
        return 2 * self.aim

    def step(self, lr: float, divergence: float) -> float:
        """The rate after a rollout of this mean divergence with rate `lr`; NaN leaves it."""
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
