"""Classic-control environments as NumPy over all lanes, bit for bit what Gymnasium's single environments do."""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from agilerl.envs.batch_lanes import BatchLanes
from agilerl.envs.masked import CARTPOLE_KEPT, PENDULUM_KEPT


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


class MaskedCartPoleLanes(CartPoleLanes):
    """MaskedCartPole-v1 over all lanes at once."""

    backend = "masked_cartpole"
    env_id = "MaskedCartPole-v1"
    kept: ClassVar[list[int]] = list(CARTPOLE_KEPT)

    def _observe(self, state: np.ndarray) -> np.ndarray:
        return super()._observe(state)[:, self.kept]


class MaskedPendulumLanes(PendulumLanes):
    """MaskedPendulum-v1 over all lanes at once."""

    backend = "masked_pendulum"
    env_id = "MaskedPendulum-v1"
    kept: ClassVar[list[int]] = list(PENDULUM_KEPT)

    def _observe(self, state: np.ndarray) -> np.ndarray:
        return super()._observe(state)[:, self.kept]


# Plain registered ids that have lanes of their own; tests/unit/test_envs_classic.py runs over this table.
FAST: dict[str | None, type[BatchLanes]] = {
    lanes.env_id: lanes
    for lanes in (
        AcrobotLanes,
        CartPoleLanes,
        MaskedCartPoleLanes,
        MaskedPendulumLanes,
        MountainCarLanes,
        PendulumLanes,
    )
}
