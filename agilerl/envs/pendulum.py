"""Pendulum-v1 over all lanes at once."""

from __future__ import annotations

import numpy as np

from agilerl.envs.batch_lanes import BatchLanes


class PendulumLanes(BatchLanes):
    """Swing a pendulum up and hold it there with a torque of at most 2; the reward is minus the cost.

    State: angle (0 is upright), angular speed. Equal to Gymnasium's Pendulum-v1 in every bit.
    """

    backend = "pendulum"
    env_id = "Pendulum-v1"

    MAX_SPEED, MAX_TORQUE, TIME_STEP, GRAVITY = 8, 2.0, 0.05, 10.0
    HIGH = np.array([np.pi, 1.0])

    def _initial(self, rng: np.random.Generator) -> np.ndarray:
        return rng.uniform(low=-self.HIGH, high=self.HIGH)

    def _observe(self, state: np.ndarray) -> np.ndarray:
        angle, speed = state.T
        return np.stack([np.cos(angle), np.sin(angle), speed], axis=1).astype(np.float32)

    def _advance(self, state: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        angle, speed = state.T
        torque = np.clip(actions, -self.MAX_TORQUE, self.MAX_TORQUE)[:, 0]  # float32, as its square in the cost
        distance = ((angle + np.pi) % (2 * np.pi)) - np.pi
        # Squares lane by lane, with the C library's pow in float64 and float32: NumPy's differ in the last bit.
        distance, slip, effort = (np.array([x**2 for x in values]) for values in (distance, speed, torque))
        cost = distance + 0.1 * slip + 0.001 * effort
        speed = speed + (3 * self.GRAVITY / 2 * np.sin(angle) + 3.0 * torque) * self.TIME_STEP
        speed = np.clip(speed, -self.MAX_SPEED, self.MAX_SPEED)
        return np.stack([angle + speed * self.TIME_STEP, speed], axis=1), -cost, np.zeros(self.num_lanes, dtype=bool)
