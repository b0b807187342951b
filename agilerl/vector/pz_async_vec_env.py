"""Vectors of PettingZoo environments in worker processes, under their published name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space

from agilerl.core.spaces import nested
from agilerl.core.tree import map_leaves
from agilerl.envs.team_vector import AsyncPettingZooVecEnv

__all__ = ["AsyncPettingZooVecEnv", "get_placeholder_value"]


def get_placeholder_value(agent: str, transition_name: str, obs_spaces: Mapping[str, Space[Any]] | None = None) -> Any:
    """What stands in a transition for an agent that does not act in a step.

    Args:
        agent: its id. transition_name: "observation", "reward", "terminated", "truncated" or "info".
        obs_spaces: agent -> space of one observation; without it there is no placeholder for observations.

    Returns:
        NaN for a reward and for flags, an empty dictionary for an info, arrays of NaN, nested as the space is, for an
        observation; None for any other name.
    """
    if transition_name in ("reward", "terminated", "truncated"):
        return np.nan
    if transition_name == "info":
        return {}
    if transition_name != "observation" or obs_spaces is None:
        return None
    return map_leaves(lambda part: np.full(part.shape or (), np.nan), nested(obs_spaces[agent]))
