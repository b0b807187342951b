"""Members by their training returns, which cost no steps of their own: who is worth an evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

RECENT = 32  # training episodes


def recent_returns(agent: Any) -> list[float]:
    """Returns of the episodes that a member has finished last while it learned, at most `RECENT`."""
    return [float(score) for score in agent.scores[-RECENT:]]


def best_returns(members: Sequence[Any]) -> float:
    """The highest median of a member's recent training returns, so that no single lucky episode counts; -inf before any
    episode has ended."""
    return max((float(np.median(own)) for agent in members if (own := recent_returns(agent))), default=-math.inf)


def promising(members: Sequence[Any], count: int | None) -> list[Any]:
    """The `count` members with the highest recent training returns, in their order; None: all.

    A member that has finished no episode yet may be anything, so it stands before all others.
    """
    if count is None or count >= len(members):
        return list(members)
    means = [float(np.mean(own)) if (own := recent_returns(agent)) else np.inf for agent in members]
    best = sorted(np.argsort([-mean for mean in means], kind="stable")[:count].tolist())
    return [members[slot] for slot in best]


def screened(members: Sequence[Any], found: Mapping[int, float]) -> dict[int, float]:
    """Fitness of the members that were not evaluated: their recent training returns, at most the lowest in `found`.

    Returns of a policy that explores are no measure of the greedy one, but among members that explore alike they rank.
    A member that has finished no episode either is the last one.
    """
    lowest = min((value for value in found.values() if value == value), default=np.inf)
    others = [(agent.index, recent_returns(agent)) for agent in members if agent.index not in found]
    return {index: min(lowest, float(np.mean(own)) if own else -np.inf) for index, own in others}
