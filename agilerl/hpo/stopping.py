"""When a run has stopped getting better."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SMOOTHED = 3  # generations
SLIGHT = 0.02  # of all that has been gained so far: less than this is no progress


def has_plateaued(history: Sequence[Sequence[float]], patience: int | None) -> bool:
    """Whether the best of the last `patience` generations is no better than what came before.

    A generation counts with the mean, over the last `SMOOTHED` ones, of its fittest member, because a fitness is a mean
    of few episodes. A run that has gained nothing at all yet has not plateaued: it may not have found its first reward.

    Args:
        history: fitness of every member, generation by generation. patience: None never says so.
    """
    return patience is not None and _is_better(history, patience) is False


def still_learns(returns: Sequence[float], patience: int) -> bool:
    """Whether training returns have got better within the last `patience` generations, once anything has been gained.

    Greedy actions may be worth more than draws early on, and less again while the policy learns what withstands its
    noise: Walker2d-v5 (seed 1000) had a fitness of 2,557 where its draws had 683, and 1,160 where these had 1,188.

    Args:
        returns: of every generation, those of its best member.
    """
    return _is_better([[value] for value in returns], patience) is True


def is_stuck(history: Sequence[Sequence[float]], patience: int) -> bool:
    """As `has_plateaued`; also after twice as many generations in which nothing at all has been gained."""
    if has_plateaued(history, patience):
        return True
    best = [max((f for f in row if np.isfinite(f)), default=-np.inf) for row in history]
    return len(best) >= 2 * patience and max(best) <= best[0]


def _is_better(history: Sequence[Sequence[float]], patience: int) -> bool | None:
    """Whether the last `patience` generations have a better one than all before; None where it is too early to say, or
    nothing has been gained."""
    if len(history) < patience + SMOOTHED:
        return None
    best = np.array([max((f for f in row if np.isfinite(f)), default=-np.inf) for row in history])
    smooth = np.convolve(best, np.ones(SMOOTHED) / SMOOTHED, mode="valid")
    gained = smooth.max() - smooth[np.isfinite(smooth)][0] if np.isfinite(smooth).any() else 0.0
    if gained <= 0:
        return None
    return bool(smooth[-patience:].max() > smooth[:-patience].max() + SLIGHT * gained)
