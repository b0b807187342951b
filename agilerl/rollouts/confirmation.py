"""Sequential test of a confirmation: whether a mean return reaches a target, in as few episodes as possible."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

# Probability of success below which a confirmation ends (docs/decisions.md, "When does a confirmation end early?").
FUTILITY = 0.05


@dataclass(frozen=True)
class SequentialTest:
    """Test of the mean return against a threshold, after each batch of episodes.

    A mean passes if it is at least `threshold + errors * s / sqrt(n)`, with the standard deviation s of the n returns.
    It can pass only after `episodes`, each further `episodes`, and `max_episodes`; passing at more points would make
    false stops more frequent. The test ends early for futility: as soon as passing at `max_episodes` = N has a
    predictive probability below `FUTILITY`. With independent normal returns and a flat prior, the final mean is

        M_N ~ t_{n-1}(mean, s^2 (1/n - 1/N)),

    the posterior predictive of the remaining N - n episodes weighted with those played (predictive power:
    Spiegelhalter, Freedman and Blackburn 1986, "Monitoring clinical trials: conditional or predictive power?";
    stochastic curtailment: Lan, Simon and Halperin 1982, "Stochastically curtailed tests in long-term clinical
    trials"). Ending early can only reject, so it adds no false stops.

    Attributes:
        threshold: the target and its margin. errors: additional margin in standard errors.
        episodes: number that passing needs. max_episodes: number after which the test ends, at least `episodes`.
    """

    threshold: float
    errors: float
    episodes: int
    max_episodes: int

    def decide(self, returns: np.ndarray) -> bool | None:
        """Return True if the mean passes, False if it does not, None if more episodes are needed.

        Args:
            returns: [n] of the episodes so far.
        """
        count, mean = len(returns), float(returns.mean())
        if not math.isfinite(mean):
            return False
        deviation = float(returns.std(ddof=1)) if count > 1 else 0.0
        can_pass = count % self.episodes == 0 or count >= self.max_episodes
        if can_pass and mean >= self.threshold + self.errors * deviation / math.sqrt(count):
            return True
        if count >= self.max_episodes or (count >= self.episodes and mean < self.threshold):
            return False
        return False if count > 1 and self._is_futile(count, mean, deviation) else None

    def _is_futile(self, count: int, mean: float, deviation: float) -> bool:
        missing = self.threshold + self.errors * deviation / math.sqrt(self.max_episodes) - mean
        spread = deviation * math.sqrt(1 / count - 1 / self.max_episodes)
        return missing > student_quantile(1 - FUTILITY, count - 1) * spread


def batch_ends(episodes: int, max_episodes: int, batch: int) -> list[int]:
    """Numbers of episodes after which a `SequentialTest` decides: about equal batches of at most `batch` episodes.

    Each point at which the test can pass is one of them.
    """
    points = [0, *range(episodes, max_episodes, episodes), max_episodes]
    ends = []
    for begin, end in itertools.pairwise(points):
        batches = -(-(end - begin) // batch)
        ends += [begin + (end - begin) * number // batches for number in range(1, batches + 1)]
    return ends


def student_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t distribution by its Cornish-Fisher expansion.

    Abramowitz and Stegun 1964, "Handbook of mathematical functions", 26.7.5. At 0.95 it is within 0.002 of the exact
    value from four degrees of freedom on.
    """
    x: float = NormalDist().inv_cdf(probability)
    terms: tuple[float, ...] = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    return math.fsum([x, *(term / float(degrees) ** (power + 1) for power, term in enumerate(terms))])
