"""Estimates from few returns: members worth evaluating, shrunken means, and plateaus."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

RECENT = 32  # training episodes
MIN_EPISODES = 2  # of an evaluation that is shortened: the fewest that have a standard error


def recent_returns(agent: Any) -> list[float]:
    """Returns of a member's last finished training episodes, at most `RECENT`."""
    return [float(score) for score in agent.scores[-RECENT:]]


def best_returns(members: Sequence[Any]) -> float:
    """Highest median of a member's recent training returns; -inf before any episode has ended.

    The median ignores single lucky episodes.
    """
    return max(
        (float(np.median(returns)) for agent in members if (returns := recent_returns(agent))), default=-math.inf
    )


def promising(members: Sequence[Any], count: int | None) -> list[Any]:
    """Return the `count` members with the highest recent training returns, in order; None: all.

    Members without a finished episode are ranked first, as nothing is known about them.
    """
    if count is None or count >= len(members):
        return list(members)
    means = [float(np.mean(returns)) if (returns := recent_returns(agent)) else np.inf for agent in members]
    best = sorted(np.argsort([-mean for mean in means], kind="stable")[:count].tolist())
    return [members[slot] for slot in best]


def affordable(room: float, episode_length: float, members: int, episodes: int) -> tuple[int, int]:
    """Return (how many members to evaluate, episodes of each) in `room` environment steps, at least one member.

    Episodes are left out before members are. `episode_length`: in environment steps.
    """
    fitting = room / max(episode_length, 1.0)
    count = min(episodes, max(MIN_EPISODES, int(fitting // members)))
    return max(1, min(members, int(fitting // count))), count


def screened(members: Sequence[Any], found: Mapping[int, float]) -> dict[int, float]:
    """Fitness of the members that were not evaluated: their recent training returns, at most the lowest in `found`.

    Returns of an exploring policy do not measure the greedy one, but they rank members that explore alike. Where the
    highest of them exceeds the lowest fitness, which may be that of a few unlucky episodes, all are lowered by the
    difference: cut off there, most would be equal, and chance would select. A member without a finished episode is
    ranked last.
    """
    lowest = min((value for value in found.values() if value == value), default=np.inf)
    others = {agent.index: recent_returns(agent) for agent in members if agent.index not in found}
    means = {index: float(np.mean(returns)) if returns else -np.inf for index, returns in others.items()}
    highest = max((mean for mean in means.values() if np.isfinite(mean)), default=-np.inf)
    return {index: lowest - (highest - mean) if highest > lowest else mean for index, mean in means.items()}


def shrink(means: Sequence[float], errors: Sequence[float], episodes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Shrink the mean returns of N members towards their common mean; return ([N] estimates, [N] standard errors).

    James and Stein's estimator in Lindley's form (Efron and Morris 1975, "Data analysis using Stein's estimator and
    its generalizations"), with the positive part:

        estimate_i = m + (1 - B_i) (mean_i - m),    B_i = min(1, (N - 3) V_i / sum_j (mean_j - m)^2),

    m the mean of the means, V_i = s^2 / n_i with the variance s^2 of a return pooled over all members: few episodes
    of one member estimate its variance poorly. The standard error is that of the empirical Bayes posterior,
    sqrt((1 - B_i) V_i). Fewer than four members are not shrunk.

    Args:
        means: [N] of `episodes` returns each. errors: [N] standard errors of the means.
    """
    values, counts = np.asarray(means, float), np.asarray(episodes, float)
    degrees = np.maximum(counts - 1, 0)
    within = float((degrees * np.square(errors) * counts).sum() / max(1.0, degrees.sum()))
    variances = within / counts
    center = values.mean()
    between = float(np.square(values - center).sum())
    weights = np.zeros_like(values)
    if len(values) > 3:
        weights = np.minimum(1, (len(values) - 3) * variances / between) if between > 0 else np.ones_like(values)
    return values - weights * (values - center), np.sqrt((1 - weights) * variances)


SMOOTHED = 3  # generations
SLIGHT = 0.02  # minimum progress, as a share of the total gain so far


def has_plateaued(history: Sequence[Sequence[float]], patience: int | None) -> bool:
    """Whether the last `patience` generations brought no improvement over earlier ones.

    The score of a generation is the fitness of its best member, averaged over the last `SMOOTHED` generations, because
    a fitness is a mean of few episodes. A run without any gain so far has not plateaued: it may not have found its
    first reward.

    Args:
        history: fitness of every member, generation by generation. patience: None disables detection.
    """
    return patience is not None and _is_better(history, patience) is False


def still_learns(returns: Sequence[float], patience: int) -> bool:
    """Whether training returns improved within the last `patience` generations; False before any gain.

    Greedy actions may score higher than sampled ones early on, and lower again while the policy becomes robust to its
    noise: Walker2d-v5 (seed 1000) had a fitness of 2,557 with training returns of 683, and later 1,160 with 1,188.

    Args:
        returns: of every generation, those of its best member.
    """
    return _is_better([[value] for value in returns], patience) is True


def is_stuck(history: Sequence[Sequence[float]], patience: int) -> bool:
    """Like `has_plateaued`; also True after twice as many generations without any gain."""
    if has_plateaued(history, patience):
        return True
    best = [max((f for f in row if np.isfinite(f)), default=-np.inf) for row in history]
    return len(best) >= 2 * patience and max(best) <= best[0]


def _is_better(history: Sequence[Sequence[float]], patience: int) -> bool | None:
    """Whether the last `patience` generations contain a better one than all before; None if it is too early to tell, or
    nothing has been gained."""
    if len(history) < patience + SMOOTHED:
        return None
    best = np.array([max((f for f in row if np.isfinite(f)), default=-np.inf) for row in history])
    smooth = np.convolve(best, np.ones(SMOOTHED) / SMOOTHED, mode="valid")
    gained = smooth.max() - smooth[np.isfinite(smooth)][0] if np.isfinite(smooth).any() else 0.0
    if gained <= 0:
        return None
    return bool(smooth[-patience:].max() > smooth[:-patience].max() + SLIGHT * gained)
