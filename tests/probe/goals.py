"""Goal environments of the tests, with sparse rewards: 0 at the goal, -1 elsewhere."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class GoalTask(gymnasium.Env[Any, Any]):
    """Episodes of at most `limit` steps; the goal ends them."""

    limit: int

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.observation_space = spaces.Dict(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), space))

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return np.where(self.compute_terminated(achieved_goal, desired_goal, info), 0.0, -1.0)

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        raise NotImplementedError

    def drawn(self) -> np.ndarray:
        """Return a random state."""
        raise NotImplementedError

    def move(self, action: Any) -> None:
        raise NotImplementedError

    def _observed(self) -> dict[str, np.ndarray]:
        return {"observation": self.at.copy(), "achieved_goal": self.at.copy(), "desired_goal": self.goal.copy()}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.goal, self.age = self.drawn(), self.drawn(), 0
        return self._observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.move(action)
        self.age += 1
        is_there = bool(self.compute_terminated(self.at, self.goal, {}))
        return self._observed(), 0.0 if is_there else -1.0, is_there, self.age == self.limit and not is_there, {}


class BitFlip(GoalTask):
    """Action k flips bit k of `size` (Andrychowicz et al. 2017, arXiv:1707.01495, section 3.1)."""

    def __init__(self, size: int = 8) -> None:
        super().__init__(spaces.MultiBinary(size))
        self.size = self.limit = size
        self.action_space = spaces.Discrete(size)

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return np.all(achieved_goal == desired_goal, axis=-1)

    def drawn(self) -> np.ndarray:
        return self.np_random.integers(0, 2, self.size, dtype=np.int8)

    def move(self, action: Any) -> None:
        self.at[action] ^= 1


class PointGoal(GoalTask):
    """A point in the cube [-1, 1]^axes moves by at most 0.2 along each axis, to within 0.05 * axes of its goal."""

    limit = 25

    def __init__(self, axes: int = 2) -> None:
        super().__init__(spaces.Box(-1, 1, (axes,), np.float64))
        self.action_space = spaces.Box(-1, 1, (axes,), np.float32)
        self.axes = axes

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return np.linalg.norm(achieved_goal - desired_goal, axis=-1) < 0.05 * self.axes

    def drawn(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, self.axes)

    def move(self, action: Any) -> None:
        self.at = np.clip(self.at + 0.2 * np.clip(action, -1, 1), -1, 1)
