"""MountainCar-v0 over all lanes at once."""

from __future__ import annotations

import math

import numpy as np

from agilerl.envs.batch_lanes import BatchLanes


class MountainCarLanes(BatchLanes):
    """A car too weak for the hill (Moore 1990): swing up to position 0.5. Reward -1 per step.

    State: position, speed. Equal to Gymnasium's MountainCar-v0 in every bit.
    """

    backend = "mountain_car"
    env_id = "MountainCar-v0"

    ENGINE, SLOPE, MAX_SPEED = 0.001, 0.0025, 0.07
    LEFT, RIGHT, GOAL = -1.2, 0.6, 0.5

    def _initial(self, rng: np.random.Generator) -> np.ndarray:
        return np.array([rng.uniform(low=-0.6, high=-0.4), 0.0])

    def _observe(self, state: np.ndarray) -> np.ndarray:
        return state.astype(np.float32)

    def _advance(self, state: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        position, speed = state.T
        # math.cos lane by lane, because NumPy's differs from it in the last bit.
        slope = np.array([math.cos(angle) for angle in (3 * position).tolist()])
        speed = speed + ((actions - 1) * self.ENGINE + slope * (-self.SLOPE))
        speed = np.clip(speed, -self.MAX_SPEED, self.MAX_SPEED)
        position = np.clip(position + speed, self.LEFT, self.RIGHT)
        speed = np.where((position == self.LEFT) & (speed < 0), 0.0, speed)
        terminated = (position >= self.GOAL) & (speed >= 0)
        return np.stack([position, speed], axis=1), np.full(self.num_lanes, -1.0), terminated
