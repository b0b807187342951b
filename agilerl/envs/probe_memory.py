"""Probe environments that only a policy with a memory can solve."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class RecallEnv(gymnasium.Env[np.ndarray, int]):
    """A sign is shown in the first of `length` observations; the last action must name it (1 for +1, 0 for −1).

    Reward 1 for the right last action, else 0, and none before. With a memory the return is 1 and, undiscounted, every
    state is worth 1; without one the last observation tells nothing: 0.5. Fails: hidden states that are not carried
    from step to step, not reset between episodes, or not those that acted.

    Args:
        length: steps of an episode, at least 2.
    """

    def __init__(self, length: int = 3) -> None:
        self.length = length
        self.observation_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space: spaces.Discrete = spaces.Discrete(2)  # type: ignore[assignment]
        self.sign, self.time = 1, 0

    def _obs(self) -> np.ndarray:
        shown = self.sign if self.time == 0 else 0
        return np.array([shown, self.time == self.length - 1], np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """As in Gymnasium."""
        super().reset(seed=seed)
        self.sign, self.time = (1 if self.np_random.random() < 0.5 else -1), 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """As in Gymnasium."""
        is_last = self.time == self.length - 1
        reward = float(is_last and (int(action) == 1) == (self.sign == 1))
        self.time += 1
        return self._obs(), reward, is_last, False, {}
