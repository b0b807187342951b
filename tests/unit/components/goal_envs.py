"""Goal environments for the tests of hindsight replay."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from agilerl.components.replay_buffer import HindsightReplayBuffer


class GoalEnv(gymnasium.Env[Any, Any]):
    """Rewards of a goal environment: 0 within `radius` of the goal, else -1. Never stepped."""

    def __init__(self, size: int = 1, radius: float = 0.5, space: spaces.Space[Any] | None = None) -> None:
        space = space or spaces.Box(-np.inf, np.inf, (size,), np.float64)
        names = ("observation", "achieved_goal", "desired_goal")
        self.observation_space = spaces.Dict(dict.fromkeys(names, space))
        self.action_space = spaces.Discrete(2)
        self.radius = radius
        self.calls: list[int] = []

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> Any:
        self.calls.append(len(achieved_goal))
        distance = np.linalg.norm(np.asarray(achieved_goal) - desired_goal, axis=-1)
        return -(distance > self.radius).astype(np.float64)


class EndingEnv(GoalEnv):
    """The episode terminates at the goal."""

    def compute_terminated(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> Any:
        return self.compute_reward(achieved_goal, desired_goal, info) == 0.0


class RowByRowEnv(EndingEnv):
    """Both functions take one pair of goals."""

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> float:
        self.calls.append(np.ndim(achieved_goal))
        return 0.0 if np.linalg.norm(achieved_goal - desired_goal) <= self.radius else -1.0

    def compute_terminated(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> bool:
        return self.compute_reward(achieved_goal, desired_goal, info) == 0.0


class WithGoals(HindsightReplayBuffer):
    """Of observations of any kind: a step achieves the first number of its observation, and 0 is desired."""

    def __init__(self, max_size: int) -> None:
        super().__init__(max_size, GoalEnv(), seed=0)

    def write(self, obs: Any, action: Any, reward: Any, next_obs: Any, *args: Any, **kwargs: Any) -> int:
        return super().write(with_goals(obs), action, reward, with_goals(next_obs), *args, **kwargs)

    def add(self, data: Any, truncated: Any = None) -> None:
        seen = {name: with_goals(data[name]) for name in ("obs", "next_obs")}
        super().add({**data, **seen}, truncated)


def with_goals(obs: Any) -> dict[str, Any]:
    vectors = obs["v"] if isinstance(obs, dict) else obs
    achieved = vectors.reshape(len(vectors), -1)[:, :1].astype(np.float64)
    return {"observation": obs, "achieved_goal": achieved, "desired_goal": np.zeros_like(achieved)}
