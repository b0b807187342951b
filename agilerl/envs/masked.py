"""Classic tasks whose velocities are hidden: the next action needs what was seen before. See `env_ids.SHIPPED`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class KeptFeatures(gymnasium.ObservationWrapper[np.ndarray, Any, np.ndarray]):
    """Shows some features of a vector observation.

    Args:
        env: with a Box observation of one axis. kept: which features, in this order.
    """

    def __init__(self, env: gymnasium.Env[np.ndarray, Any], kept: tuple[int, ...]) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, spaces.Box)
        self.kept = list(kept)
        self.observation_space = spaces.Box(space.low[self.kept], space.high[self.kept], dtype=np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """The kept features [K] float32."""
        return np.asarray(observation)[self.kept]


CARTPOLE_KEPT = (0, 2)  # position of the cart, angle of the pole
PENDULUM_KEPT = (0, 1)  # cosine and sine of the angle


def masked_cartpole(**kwargs: Any) -> gymnasium.Env[np.ndarray, Any]:
    """CartPole-v1 without its two velocities."""
    return KeptFeatures(gymnasium.make("CartPole-v1", **kwargs).unwrapped, CARTPOLE_KEPT)


def masked_pendulum(**kwargs: Any) -> gymnasium.Env[np.ndarray, Any]:
    """Pendulum-v1 without its angular velocity."""
    return KeptFeatures(gymnasium.make("Pendulum-v1", **kwargs).unwrapped, PENDULUM_KEPT)
