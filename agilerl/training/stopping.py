"""When a run without a target has stopped getting better."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SMOOTHED = 3  # generations
SLIGHT = 0.02  # of all that has been gained so far: less than this is no progress
RISING = 0.2  # the same of training returns, which rise by themselves while exploration fades


def has_plateaued(history: Sequence[Sequence[float]], patience: int | None) -> bool:
    """Whether the best of the last `patience` generations is no better than what came before.

    A generation counts with the mean, over the last `SMOOTHED` ones, of its fittest member, because a fitness is a mean
    of few episodes. A run that has gained nothing at all yet has not plateaued: it may not have found its first reward.

    Args:
        history: fitness of every member, generation by generation. patience: None never says so.
    """
    if patience is None or len(history) < patience + SMOOTHED:
        return False
    gained, late = _progress(history, patience)
    return gained > 0 and late <= SLIGHT * gained


def is_stuck(history: Sequence[Sequence[float]], patience: int, returns: Sequence[Sequence[float | None]] = ()) -> bool:
    """As `has_plateaued`; also after twice as many generations in which nothing at all has been gained.

    Not where the last `patience` generations have added more than a fifth to training returns: what a policy draws may
    get better long before its greedy actions show it (Swimmer-v5: 154 and rising where these were at 52).

    Args:
        returns: of the training episodes that each member finished, generation by generation; None: it finished none.
    """
    if len(returns) >= patience + SMOOTHED:
        gained, late = _progress([[-np.inf if r is None else r for r in row] for row in returns], patience)
        if gained > 0 and late > RISING * gained:
            return False
    if has_plateaued(history, patience):
        return True
    best = _best(history)
    return len(best) >= 2 * patience and bool(best.max() <= best[0])


def _best(history: Sequence[Sequence[float]]) -> np.ndarray:
    return np.array([max((f for f in row if np.isfinite(f)), default=-np.inf) for row in history])


def _progress(history: Sequence[Sequence[float]], patience: int) -> tuple[float, float]:
    """(what has been gained since the first generations, what the last `patience` ones have added to it)."""
    smooth = np.convolve(_best(history), np.ones(SMOOTHED) / SMOOTHED, mode="valid")
    known = smooth[np.isfinite(smooth)]
    if not known.size:
        return 0.0, 0.0
    return float(smooth.max() - known[0]), float(smooth[-patience:].max() - smooth[:-patience].max())
