"""CartPole-v1 over all lanes at once."""

from __future__ import annotations

import numpy as np

from agilerl.envs.batch_lanes import BatchLanes


class CartPoleLanes(BatchLanes):
    """Cart and pole (Barto, Sutton & Anderson 1983; equations of Florian 2007), integrated by Euler's method.

    Equal to Gymnasium's CartPole-v1 in every bit: same order of operations, float64 state, float32 observations.
    State: cart position (m), its speed, pole angle (rad), its speed. Reward 1. Ends beyond 2.4 m or 12 degrees.
    """

    backend = "cartpole"
    env_id = "CartPole-v1"

    GRAVITY, POLE_MASS, HALF_LENGTH, FORCE, SECONDS = 9.8, 0.1, 0.5, 10.0, 0.02
    TOTAL_MASS = POLE_MASS + 1.0
    POLE_MOMENT = POLE_MASS * HALF_LENGTH
    MAX_POSITION, MAX_ANGLE = 2.4, 12 * 2 * np.pi / 360

    def _initial(self, rng: np.random.Generator) -> np.ndarray:
        return rng.uniform(low=-0.05, high=0.05, size=(4,))

    def _observe(self, state: np.ndarray) -> np.ndarray:
        return state.astype(np.float32)

    def _advance(self, state: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x, speed, angle, spin = state.T
        force = np.where(actions == 1, self.FORCE, -self.FORCE)
        cosine, sine = np.cos(angle), np.sin(angle)
        push = (force + self.POLE_MOMENT * np.square(spin) * sine) / self.TOTAL_MASS
        inertia = self.HALF_LENGTH * (4.0 / 3.0 - self.POLE_MASS * np.square(cosine) / self.TOTAL_MASS)
        turn = (self.GRAVITY * sine - cosine * push) / inertia
        pull = push - self.POLE_MOMENT * turn * cosine / self.TOTAL_MASS
        new = np.empty_like(state)
        new[:, 0] = x + self.SECONDS * speed
        new[:, 1] = speed + self.SECONDS * pull
        new[:, 2] = angle + self.SECONDS * spin
        new[:, 3] = spin + self.SECONDS * turn
        terminated = (np.abs(new[:, 0]) > self.MAX_POSITION) | (np.abs(new[:, 2]) > self.MAX_ANGLE)
        return new, np.ones(self.num_lanes), terminated
