"""When a run without a target has stopped getting better."""

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
    if patience is None or len(history) < patience + SMOOTHED:
        return False
    best = np.array([max((f for f in row if np.isfinite(f)), default=-np.inf) for row in history])
    smooth = np.convolve(best, np.ones(SMOOTHED) / SMOOTHED, mode="valid")
    gained = smooth.max() - smooth[np.isfinite(smooth)][0] if np.isfinite(smooth).any() else 0.0
    if gained <= 0:
        return False
    return bool(smooth[-patience:].max() <= smooth[:-patience].max() + SLIGHT * gained)


def is_stuck(history: Sequence[Sequence[float]], patience: int) -> bool:
    """As `has_plateaued`; also after twice as many generations in which nothing at all has been gained."""
    if has_plateaued(history, patience):
        return True
    best = [max((f for f in row if np.isfinite(f)), default=-np.inf) for row in history]
    return len(best) >= 2 * patience and max(best) <= best[0]
