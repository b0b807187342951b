"""Classic-control environments vectorised in NumPy, bit-identical to Gymnasium's single environments.

Some have a variant with hidden velocities, which requires memory (`env_ids.SHIPPED`).
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import Space, spaces
from gymnasium.utils import seeding

from agilerl.envs.lanes import check_seeds
from agilerl.envs.protocol import StepBatch
from agilerl.errors import EnvError


class BatchLanes:
    """Base class of lanes with one float64 state array [L, S]: implements seeds, time limit, resets and idling.

    A subclass implements `_advance` (the dynamics), `_initial`, and `_observe`. Every lane has the generator that
    Gymnasium's single environment would have for its seed, so its episodes are the same, independent of other lanes.
    """

    backend: str
    env_id: str

    def __init__(self, num_lanes: int, *, reset_ended: bool = True) -> None:
        spec = gymnasium.spec(self.env_id)
        single = gymnasium.make(self.env_id, disable_env_checker=True)
        self.num_lanes, self.reset_ended = num_lanes, reset_ended
        self.single_observation_space: Space[Any] = single.observation_space
        self.single_action_space: Space[Any] = single.action_space
        single.close()
        assert spec.max_episode_steps is not None
        self._limit = spec.max_episode_steps
        self._generators = [seeding.np_random()[0] for _ in range(num_lanes)]
        self._state = np.empty((num_lanes, 0))
        self._obs = np.empty((num_lanes, 0))
        self._elapsed = np.zeros(num_lanes, dtype=np.int64)

    def _initial(self, rng: np.random.Generator) -> np.ndarray:
        """Sample one lane's initial state [S] as Gymnasium's environment does."""
        raise NotImplementedError

    def _observe(self, state: np.ndarray) -> np.ndarray:
        """Map states [L, S] float64 to observations [L, O] float32; the identity by default."""
        return state.astype(np.float32)

    def _observe_initial(self, state: np.ndarray) -> np.ndarray:
        """Return observations [K, O] of initial states [K, S], if they differ in rounding."""
        return self._observe(state)

    def _advance(self, state: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Step every lane: new state [L, S], reward [L] float64, terminated [L] bool."""
        raise NotImplementedError

    def reset(self, seeds: np.ndarray | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        numbers = check_seeds(seeds, self.num_lanes)
        if numbers is not None:
            self._generators = [seeding.np_random(number)[0] for number in numbers]
        self._state = np.stack([self._initial(rng) for rng in self._generators])
        self._elapsed = np.zeros(self.num_lanes, dtype=np.int64)
        self._obs = self._observe_initial(self._state)
        return self._obs.copy(), {}

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> StepBatch:
        """Step the lanes; `actions` [L] integers, or [L, A]. EnvError: not reset, or an action outside of the space."""
        if self._state.shape[1] == 0:
            raise EnvError("lanes must be reset before the first step. fix: call reset() first.")
        actions = self._check(actions)
        mask = np.ones(self.num_lanes, dtype=bool) if active is None else np.array(active, dtype=bool)
        state, reward, terminated = self._advance(self._state, actions)
        obs = self._observe(state)
        if active is not None:
            state = np.where(mask[:, None], state, self._state)
            obs = np.where(mask[:, None], obs, self._obs)
            reward, terminated = np.where(mask, reward, 0.0), terminated & mask
        self._elapsed += mask
        truncated = (self._elapsed >= self._limit) & mask
        final_obs = obs
        has_ended = terminated | truncated
        if self.reset_ended and has_ended.any():
            state, obs, done_lanes = state.copy(), obs.copy(), np.flatnonzero(has_ended)
            for lane in done_lanes.tolist():
                state[lane] = self._initial(self._generators[lane])
            obs[done_lanes] = self._observe_initial(state[done_lanes])
            self._elapsed[done_lanes] = 0
        self._state, self._obs = state, obs
        return StepBatch(obs.copy(), reward, terminated, truncated, final_obs, mask, {})

    def _check(self, actions: np.ndarray) -> np.ndarray:
        space = self.single_action_space
        if isinstance(space, spaces.Discrete):
            actions, wanted = np.asarray(actions), f"one action in 0..{space.n - 1} per lane"
            fits = actions.shape == (self.num_lanes,) and actions.min() >= 0 and actions.max() < space.n
        else:
            actions, wanted = np.asarray(actions, dtype=space.dtype), f"finite actions {space.shape} per lane"
            fits = actions.shape == (self.num_lanes, *(space.shape or ())) and bool(np.isfinite(actions).all())
        if not fits:
            values = f", values {actions.min()}..{actions.max()}" if actions.size else ""
            expected = (self.num_lanes, *(space.shape or ()))
            got = f"shape {actions.shape}{values}"
            raise EnvError(f"{self.env_id} takes {wanted}: expected shape {expected}, got {got}.")
        return actions

    def close(self) -> None:
        pass


class AcrobotLanes(BatchLanes):
    """Two links, a motor in the elbow (Sutton & Barto 2018, section 11.3 of the first edition): swing the tip up.

    State: the two angles (rad) and their speeds; one Runge-Kutta step of 0.2 s per action. Reward -1 per step, 0 at the
    end. Equal to Gymnasium's Acrobot-v1 (the "book" equations, all masses, lengths and inertias 1, centres of mass
    halfway) in every bit; the products of those constants are written out.
    """

    backend, env_id = "acrobot", "Acrobot-v1"
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
        return self._observe(state.astype(np.float32))  # Gymnasium's initial state is float32, so its cosine is too

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
        """Return the derivative [4, L] of the state [4, L]: speeds and accelerations."""
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
    """values², rounded as C's pow, which NumPy calls for Gymnasium's scalars and which may differ from x * x."""
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

    backend, env_id = "cartpole", "CartPole-v1"
    GRAVITY, POLE_MASS, HALF_LENGTH, FORCE, SECONDS = 9.8, 0.1, 0.5, 10.0, 0.02
    TOTAL_MASS = POLE_MASS + 1.0
    POLE_MOMENT = POLE_MASS * HALF_LENGTH
    MAX_POSITION, MAX_ANGLE = 2.4, 12 * 2 * np.pi / 360

    def _initial(self, rng: np.random.Generator) -> np.ndarray:
        return rng.uniform(low=-0.05, high=0.05, size=(4,))

    def _advance(self, state: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x, speed, angle, spin = state.T
        force = np.where(actions == 1, self.FORCE, -self.FORCE)
        cosine, sine = np.cos(angle), np.sin(angle)
        push = (force + self.POLE_MOMENT * np.square(spin) * sine) / self.TOTAL_MASS
        inertia = self.HALF_LENGTH * (4.0 / 3.0 - self.POLE_MASS * np.square(cosine) / self.TOTAL_MASS)
        turn = (self.GRAVITY * sine - cosine * push) / inertia
        pull = push - self.POLE_MOMENT * turn * cosine / self.TOTAL_MASS
        new = np.empty_like(state)
        new[:, 0], new[:, 1] = x + self.SECONDS * speed, speed + self.SECONDS * pull
        new[:, 2], new[:, 3] = angle + self.SECONDS * spin, spin + self.SECONDS * turn
        terminated = (np.abs(new[:, 0]) > self.MAX_POSITION) | (np.abs(new[:, 2]) > self.MAX_ANGLE)
        return new, np.ones(self.num_lanes), terminated


class MountainCarLanes(BatchLanes):
    """A car too weak for the hill (Moore 1990): swing up to position 0.5. Reward -1 per step.

    State: position, speed. Equal to Gymnasium's MountainCar-v0 in every bit.
    """

    backend, env_id = "mountain_car", "MountainCar-v0"
    ENGINE, SLOPE, MAX_SPEED = 0.001, 0.0025, 0.07
    LEFT, RIGHT, GOAL = -1.2, 0.6, 0.5

    def _initial(self, rng: np.random.Generator) -> np.ndarray:
        return np.array([rng.uniform(low=-0.6, high=-0.4), 0.0])

    def _advance(self, state: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        position, speed = state.T
        # math.cos per lane, because NumPy's differs in the last bit.
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

    backend, env_id = "pendulum", "Pendulum-v1"
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
        # Squares per lane, with the C library's pow in float64 and float32: NumPy's differ in the last bit.
        distance, slip, effort = (np.array([x**2 for x in values]) for values in (distance, speed, torque))
        cost = distance + 0.1 * slip + 0.001 * effort
        speed = speed + (3 * self.GRAVITY / 2 * np.sin(angle) + 3.0 * torque) * self.TIME_STEP
        speed = np.clip(speed, -self.MAX_SPEED, self.MAX_SPEED)
        return np.stack([angle + speed * self.TIME_STEP, speed], axis=1), -cost, np.zeros(self.num_lanes, dtype=bool)


# -- with hidden velocities -------------------------------------------------------------------------------------------


class KeptFeatures(gymnasium.ObservationWrapper[np.ndarray, Any, np.ndarray]):
    """Reduce a vector observation (of `env`, a Box with one axis) to these features, in this order."""

    def __init__(self, env: gymnasium.Env[np.ndarray, Any], features: tuple[int, ...]) -> None:
        super().__init__(env)
        space = env.observation_space
        assert isinstance(space, spaces.Box)
        self.kept = list(features)
        self.observation_space = spaces.Box(space.low[self.kept], space.high[self.kept], dtype=np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """Return the kept features [K] float32."""
        return np.asarray(observation)[self.kept]


CARTPOLE_KEPT = (0, 2)  # position of the cart, angle of the pole
PENDULUM_KEPT = (0, 1)  # cosine and sine of the angle


def masked_cartpole(**kwargs: Any) -> gymnasium.Env[np.ndarray, Any]:
    """CartPole-v1 without its two velocities."""
    return KeptFeatures(gymnasium.make("CartPole-v1", **kwargs).unwrapped, CARTPOLE_KEPT)


def masked_pendulum(**kwargs: Any) -> gymnasium.Env[np.ndarray, Any]:
    """Pendulum-v1 without its angular velocity."""
    return KeptFeatures(gymnasium.make("Pendulum-v1", **kwargs).unwrapped, PENDULUM_KEPT)


class _KeptLanes(BatchLanes):
    """Mixin that reduces the observations of the lanes named second in the bases to the features `kept`."""

    kept: ClassVar[list[int]]

    def _observe(self, state: np.ndarray) -> np.ndarray:
        return super()._observe(state)[:, self.kept]


class MaskedCartPoleLanes(_KeptLanes, CartPoleLanes):
    """Vectorised MaskedCartPole-v1."""

    backend, env_id, kept = "masked_cartpole", "MaskedCartPole-v1", list(CARTPOLE_KEPT)


class MaskedPendulumLanes(_KeptLanes, PendulumLanes):
    """Vectorised MaskedPendulum-v1."""

    backend, env_id, kept = "masked_pendulum", "MaskedPendulum-v1", list(PENDULUM_KEPT)


# Registered ids with a vectorised implementation; tests/unit/envs/test_envs_classic.py covers this table.
_LANES = (
    AcrobotLanes, CartPoleLanes, MaskedCartPoleLanes, MaskedPendulumLanes, MountainCarLanes, PendulumLanes
)  # fmt: skip
FAST: dict[str | None, type[BatchLanes]] = {lanes.env_id: lanes for lanes in _LANES}
