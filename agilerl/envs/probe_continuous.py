"""Probe environments with continuous actions: each knows the best action and the values that should be learned.

Bounds are uneven on purpose: an action that is not rescaled, or rescaled twice, misses its target.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces

from agilerl.envs.probe import ProbeEnv


class ContinuousProbe(ProbeEnv):
    """Base: S states, each with its observation, and one action component in [-2, 6].

    Attributes:
        observations: [S, 1] float32. best: [S, 1] the best action in each state, NaN where none is better.
        expected_q: (gamma, actions [M] in units of the environment) -> [S, M] their optimal values.
    """

    best: ClassVar[np.ndarray]
    low, high = -2.0, 6.0

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(self.low, self.high, (1,), np.float32)  # type: ignore[assignment]

    def _taken(self, action: Any) -> float:
        return float(np.asarray(action).reshape(-1)[0])


class TargetActionEnv(ContinuousProbe):
    """Two start states; one step; 1 − ((a − best) / 4)². Fails: the policy's gradient, its input, the rescaling."""

    observations = np.array([[-1.0], [1.0]], dtype=np.float32)
    best = np.array([[0.0], [4.0]])  # raw -0.5 and 0.5

    def _start(self) -> int:
        return int(self.np_random.integers(2))

    def _follow(self, action: float) -> tuple[int, float, bool, bool]:
        return self.state, 1 - ((action - float(self.best[self.state, 0])) / 4) ** 2, True, False

    def expected_q(self, gamma: float, action: np.ndarray) -> np.ndarray:
        """The reward."""
        values: np.ndarray = 1 - ((action[None] - self.best) / 4) ** 2
        return values


class DiscountedActionEnv(ContinuousProbe):
    """Two steps, reward 0 then 1, whatever is done. Q = γ, 1. Fails: the discount, the target's next observation."""

    observations = np.array([[0.0], [1.0]], dtype=np.float32)
    best = np.full((2, 1), np.nan)

    def _follow(self, action: float) -> tuple[int, float, bool, bool]:
        return 1, float(self.state == 1), self.state == 1, False

    def expected_q(self, gamma: float, action: np.ndarray) -> np.ndarray:
        """γ in the first state, 1 in the second."""
        return np.repeat([[gamma], [1.0]], len(action), axis=1)


class TruncatedActionEnv(ContinuousProbe):
    """Reward 1 for ever, cut after every step. Q = 1 / (1 − γ). Fails: the bootstrap through a time limit."""

    observations = np.zeros((1, 1), dtype=np.float32)
    best = np.full((1, 1), np.nan)

    def _follow(self, action: float) -> tuple[int, float, bool, bool]:
        return 0, 1.0, False, True

    def expected_q(self, gamma: float, action: np.ndarray) -> np.ndarray:
        """The geometric series."""
        return np.full((1, len(action)), 1 / (1 - gamma))


class TwoStepActionEnv(ContinuousProbe):
    """The first action a pays in the second step: 1 − ((a − 4) / 4)². Q(start, a) = γ · that. Fails: the trace.

    What the first action was is what the second observation shows, so that its value can be learned.
    """

    observations = np.array([[-1.0]], dtype=np.float32)
    best = np.array([[4.0]])
    first = 0.0  # what the first action of the episode was

    def _follow(self, action: float) -> tuple[int, float, bool, bool]:
        if self.time == 1:
            self.first = action
            return 0, 0.0, False, False
        return 0, 1 - ((self.first - 4) / 4) ** 2, True, False

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """As in Gymnasium; the second observation is the first action, from [-2, 6] to [0, 2]."""
        obs, reward, terminated, truncated, info = super().step(action)
        if self.time == 1:
            obs = np.array([(self.first + 2) / 4], np.float32)
        return obs, reward, terminated, truncated, info

    def expected_q(self, gamma: float, action: np.ndarray) -> np.ndarray:
        """Of the start alone."""
        return gamma * (1 - ((action[None] - 4) / 4) ** 2)


CONTINUOUS_PROBES: tuple[type[ContinuousProbe], ...] = (
    TargetActionEnv,
    DiscountedActionEnv,
    TruncatedActionEnv,
    TwoStepActionEnv,
)
