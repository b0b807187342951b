"""Lanes whose images have their channels last, seen with channels first."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import Space

from agilerl.envs.protocol import Lanes, StepBatch
from agilerl.spaces import observation_space_channels_to_first, swap_channels


class ChannelsFirstLanes:
    """Other lanes, with every image [H, W, C] in their observations as [C, H, W]; inside Dict and Tuple spaces too.

    For agents that were built for such observations while the environment gives channels last.
    """

    def __init__(self, lanes: Lanes) -> None:
        self.lanes, self.num_lanes, self.backend = lanes, lanes.num_lanes, lanes.backend
        self._space = lanes.single_observation_space
        self.single_observation_space: Space[Any] = observation_space_channels_to_first(self._space)
        self.single_action_space = lanes.single_action_space

    def reset(self, seeds: np.ndarray | None = None) -> tuple[Any, dict[str, Any]]:
        """As of the lanes."""
        obs, info = self.lanes.reset(seeds)
        return swap_channels(obs, self._space), info

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> StepBatch:
        """As of the lanes."""
        batch = self.lanes.step(actions, active)
        obs, final_obs = (swap_channels(part, self._space) for part in (batch.obs, batch.final_obs))
        return replace(batch, obs=obs, final_obs=final_obs)

    def close(self) -> None:
        """Close the lanes."""
        self.lanes.close()
