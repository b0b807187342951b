"""Acrobot-v1 over all lanes at once."""

from __future__ import annotations

import math

import numpy as np

from agilerl.envs.batch_lanes import BatchLanes


class AcrobotLanes(BatchLanes):
    """Two links, a motor in the elbow (Sutton & Barto 2018, section 11.3 of the first edition): swing the tip up.

    State: the two angles (rad) and their speeds; one Runge-Kutta step of 0.2 s per action. Reward -1 per step, 0 at the
    end. Equal to Gymnasium's Acrobot-v1 (the "book" equations, all masses, lengths and inertias 1, centres of mass
    halfway) in every bit; the products of those constants are written out.
    """

    backend = "acrobot"
    env_id = "Acrobot-v1"

    GRAVITY, SECONDS = 9.8, 0.2
    MAX_SPEEDS = np.array([4 * np.pi, 9 * np.pi])

    def _initial(self, rng: np.random.Generator) -> np.ndarray:
        return rng.uniform(low=-0.1, high=0.1, size=(4,)).astype(np.float32)

    def _observe(self, state: np.ndarray) -> np.ndarray:
        angles, speeds = state[:, :2], state[:, 2:]
        obs = np.empty((len(state), 6), dtype=np.float32)
        obs[:, 0:4:2], obs[:, 1:4:2], obs[:, 4:] = np.cos(angles), np.sin(angles), speeds
        return obs

    def _observe_initial(self, state: np.ndarray) -> np.ndarray:
        return self._observe(state.astype(np.float32))  # a start state is float32 there, its cosine too

    def _advance(self, state: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        y, torque, h = state.T.astype(np.float64), actions - 1.0, self.SECONDS
        k1 = self._derivative(y, torque)
        k2 = self._derivative(y + h / 2.0 * k1, torque)
        k3 = self._derivative(y + h / 2.0 * k2, torque)
        k4 = self._derivative(y + h * k3, torque)
        new = (y + h / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)).T
        new = np.concatenate([_wrap(new[:, :2]), np.clip(new[:, 2:], -self.MAX_SPEEDS, self.MAX_SPEEDS)], axis=1)
        terminated = -np.cos(new[:, 0]) - np.cos(new[:, 1] + new[:, 0]) > 1.0
        return new, np.where(terminated, 0.0, -1.0), terminated

    def _derivative(self, y: np.ndarray, torque: np.ndarray) -> np.ndarray:
        """[4, L] of the state [4, L]: the speeds and the accelerations."""
        angle1, angle2, speed1, speed2 = y
        cosine, sine = np.cos(angle2), np.sin(angle2)
        inertia1 = 0.25 + (1.25 + cosine) + 1.0 + 1.0
        inertia2 = (0.25 + 0.5 * cosine) + 1.0
        weight2 = 0.5 * self.GRAVITY * np.cos(angle1 + angle2 - np.pi / 2)
        speed1_squared, speed2_squared, inertia2_squared = _squares(np.stack([speed1, speed2, inertia2]))
        coupling = -0.5 * speed2_squared * sine - speed2 * speed1 * sine
        weight1 = coupling + 1.5 * self.GRAVITY * np.cos(angle1 - np.pi / 2) + weight2
        push2 = torque + inertia2 / inertia1 * weight1 - 0.5 * speed1_squared * sine - weight2
        acceleration2 = push2 / (1.25 - inertia2_squared / inertia1)
        acceleration1 = -(inertia2 * acceleration2 + weight1) / inertia1
        return np.stack([speed1, speed2, acceleration1, acceleration2])


def _squares(values: np.ndarray) -> np.ndarray:
    """values², rounded as C's pow does: Gymnasium squares scalars, where NumPy calls pow, which is not always x * x."""
    return np.array([math.pow(value, 2.0) for value in values.ravel().tolist()]).reshape(values.shape)


def _wrap(angles: np.ndarray) -> np.ndarray:
    while (high := angles > np.pi).any():
        angles = np.where(high, angles - 2 * np.pi, angles)
    while (low := angles < -np.pi).any():
        angles = np.where(low, angles + 2 * np.pi, angles)
    return angles
