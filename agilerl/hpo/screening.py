"""Screening by training returns, which need no additional steps: select the members worth evaluating."""

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
