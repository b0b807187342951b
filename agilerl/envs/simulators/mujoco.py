"""Gymnasium's MuJoCo environments (version 5), stepped together; bit-identical to single environments.

Threads simulate their lanes one after another. Observations, rewards and ends are computed for all lanes, by the
formulas of https://gymnasium.farama.org/environments/mujoco/ with their default arguments, in an order of operations
that rounds as Gymnasium's does. Resets are Gymnasium's. `mujoco` is imported only where such lanes are built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing, TimeLimit

from agilerl.core import foreign
from agilerl.envs.copies import HELPER
from agilerl.envs.generators import construct
from agilerl.envs.lanes import EnvFactory, SyncLanes, failure
from agilerl.native.library import library

GYMNASIUM = "1.4."  # start of the versions compared bit for bit; with others, environments step one after another
MIN_LANES = 2  # of a thread: to hand one over takes as long as a step of the quickest tasks


@dataclass(frozen=True, slots=True)
class Model:
    """Constants of a simulation: seconds of an action and of a simulated step, body numbers, masses [B] (kg)."""

    action_s: float
    timestep_s: float
    bodies: tuple[int, ...]
    masses: np.ndarray


@dataclass(frozen=True, slots=True)
class Transition:
    """One action of K lanes.

    Attributes:
        model: constants, the same for all lanes.
        actions: [K, A] float32 or float64, as given (not clipped).
        before: [K, ...] the array `Task.before` in front of the action; empty without one.
        after: [K, n] float64 after it, by the names of MuJoCo's `mjData`: qpos, qvel, ...
    """

    model: Model
    actions: np.ndarray
    before: np.ndarray
    after: Mapping[str, np.ndarray]


# Observations [K, O], rewards [K] float64, terminated [K] bool.
Outcome = tuple[np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True, slots=True)
class Task:
    """How one environment's outcome follows from the simulation.

    Attributes:
        entry_point: Gymnasium's implementation.
        outcome: observations, rewards and ends of transitions.
        reads: arrays of `mjData` after an action. before: array read in front of it.
        bodies: names of bodies whose positions are compared.
    """

    entry_point: str
    outcome: Callable[[Transition], Outcome]
    reads: tuple[str, ...] = ("qpos", "qvel")
    before: str = ""
    bodies: tuple[str, ...] = ()


# -- formulas ---------------------------------------------------------------------------------------------------------


def _effort(t: Transition) -> np.ndarray:
    """Return the sum of squared actions [K], in the actions' precision."""
    effort: np.ndarray = np.square(t.actions).sum(axis=1)
    return effort


def _speed(t: Transition) -> np.ndarray:
    """Return the forward speed [K] of the first coordinate (m/s)."""
    speed: np.ndarray = (t.after["qpos"][:, 0] - t.before[:, 0]) / t.model.action_s
    return speed


def _never(t: Transition) -> np.ndarray:
    return np.zeros(len(t.actions), dtype=bool)


def _is_within(values: np.ndarray, low: float, high: float) -> np.ndarray:
    return (low < values) & (values < high)


def _squares(values: np.ndarray) -> np.ndarray:
    """values² [K], squared as scalars, which NumPy may round differently from arrays."""
    return np.array([value**2 for value in values])


def _lengths(vectors: np.ndarray) -> np.ndarray:
    """Return the Euclidean norms [K] of vectors [K, 3], by dot products as in np.linalg.norm."""
    return np.array([math.sqrt(vector.dot(vector)) for vector in vectors])


def _between(t: Transition, start: int, end: int) -> np.ndarray:
    """Return the vectors [K, 3] (m) from one of the model's `bodies` to another."""
    positions = t.after["xpos"].reshape(len(t.actions), -1, 3)
    vectors: np.ndarray = positions[:, t.model.bodies[end]] - positions[:, t.model.bodies[start]]
    return vectors


def hopper(t: Transition) -> Outcome:
    """Forward speed + 1 while healthy - 0.001 effort; ends when it has fallen or bent."""
    qpos, qvel = t.after["qpos"], t.after["qvel"]
    rest = np.concatenate([qpos[:, 2:], qvel], axis=1)
    healthy = _is_within(rest, -100.0, 100.0).all(axis=1)
    healthy &= _is_within(qpos[:, 1], 0.7, math.inf) & _is_within(qpos[:, 2], -0.2, 0.2)
    obs = np.concatenate([qpos[:, 1:], np.clip(qvel, -10, 10)], axis=1)
    return obs, _speed(t) + healthy * 1.0 - 1e-3 * _effort(t), ~healthy


def walker2d(t: Transition) -> Outcome:
    """Forward speed + 1 while healthy - 0.001 effort; ends when the torso is low, high or tilted."""
    qpos = t.after["qpos"]
    healthy = _is_within(qpos[:, 1], 0.8, 2.0) & _is_within(qpos[:, 2], -1.0, 1.0)
    obs = np.concatenate([qpos[:, 1:], np.clip(t.after["qvel"], -10, 10)], axis=1)
    return obs, _speed(t) + healthy * 1.0 - 1e-3 * _effort(t), ~healthy


def half_cheetah(t: Transition) -> Outcome:
    """Forward speed - 0.1 effort; never ends."""
    obs = np.concatenate([t.after["qpos"][:, 1:], t.after["qvel"]], axis=1)
    return obs, _speed(t) - 0.1 * _effort(t), _never(t)


def swimmer(t: Transition) -> Outcome:
    """Forward speed - 0.0001 effort; never ends."""
    obs = np.concatenate([t.after["qpos"][:, 2:], t.after["qvel"]], axis=1)
    return obs, _speed(t) - 1e-4 * _effort(t), _never(t)


def inverted_pendulum(t: Transition) -> Outcome:
    """1 while the pole is within 0.2 rad."""
    obs = np.concatenate([t.after["qpos"], t.after["qvel"]], axis=1)
    terminated = ~np.isfinite(obs).all(axis=1) | (np.abs(obs[:, 1]) > 0.2)
    return obs, (~terminated).astype(np.float64), terminated


def inverted_double_pendulum(t: Transition) -> Outcome:
    """10 while the tip is above 1 m, minus penalties for its distance from (0, 2) and for the joints' speeds."""
    qpos, qvel, tip = t.after["qpos"], t.after["qvel"], t.after["site_xpos"]
    force = np.clip(t.after["qfrc_constraint"], -10, 10)[:, :1]
    angles = qpos[:, 1:]
    obs = np.concatenate([qpos[:, :1], np.sin(angles), np.cos(angles), np.clip(qvel, -10, 10), force], axis=1)
    terminated = tip[:, 2] <= 1
    distance = 0.01 * _squares(tip[:, 0]) + _squares(tip[:, 2] - 2)
    speed = 1e-3 * _squares(qvel[:, 1]) + 5e-3 * _squares(qvel[:, 2])
    return obs, 10.0 * ~terminated - distance - speed, terminated


def reacher(t: Transition) -> Outcome:
    """Minus the distance between fingertip and target, minus effort; never ends."""
    qpos, way = t.after["qpos"], _between(t, 1, 0)
    angles = qpos[:, :2]
    obs = np.concatenate([np.cos(angles), np.sin(angles), qpos[:, 2:], t.after["qvel"][:, :2], way[:, :2]], axis=1)
    return obs, -_lengths(way) + -_effort(t), _never(t)


def pusher(t: Transition) -> Outcome:
    """Minus the object's distance from the goal, 0.1 effort, and half its distance from the arm's tip; never ends."""
    near, far = _lengths(_between(t, 0, 1)), _lengths(_between(t, 2, 1))
    positions = t.after["xpos"].reshape(len(t.actions), -1, 3)
    tip, thing, goal = (positions[:, body] for body in t.model.bodies)
    obs = np.concatenate([t.after["qpos"][:, :7], t.after["qvel"][:, :7], tip, thing, goal], axis=1)
    return obs, -far + -_effort(t) * 0.1 + -near * 0.5, _never(t)


def ant(t: Transition) -> Outcome:
    """Forward speed of the torso + 1 while healthy - 0.5 effort - 0.0005 squared contact forces (clipped to 1)."""
    qpos, qvel, forces = t.after["qpos"], t.after["qvel"], np.clip(t.after["cfrc_ext"], -1.0, 1.0)
    healthy = np.isfinite(qpos).all(axis=1) & np.isfinite(qvel).all(axis=1) & (qpos[:, 2] >= 0.2) & (qpos[:, 2] <= 1.0)
    speed = (t.after["xpos"][:, 3] - t.before[:, 3]) / t.model.action_s  # body 1, first coordinate
    costs = 0.5 * _effort(t) + 5e-4 * np.square(forces).sum(axis=1)
    obs = np.concatenate([qpos[:, 2:], qvel, forces[:, 6:]], axis=1)
    return obs, speed + healthy * 1.0 - costs, ~healthy


def _body_state(t: Transition) -> np.ndarray:
    """Return the observation [K, 348] of both humanoids; the world (the first body) has no part in it."""
    a = t.after
    parts = [a["qpos"][:, 2:], a["qvel"], a["cinert"][:, 10:], a["cvel"][:, 6:], a["qfrc_actuator"][:, 6:]]
    return np.concatenate([*parts, a["cfrc_ext"][:, 6:]], axis=1)


def _mass_centres(t: Transition, positions: np.ndarray) -> np.ndarray:
    """Return the first coordinate [K] of the centre of mass of body centres [K, 3 B]."""
    moments = t.model.masses[:, None] * positions.reshape(len(positions), -1, 3)
    centres: np.ndarray = moments.sum(axis=1)[:, 0] / t.model.masses.sum()
    return centres


def _impact(t: Transition) -> np.ndarray:
    """Return the cost [K] of squared external forces, at most 10."""
    cost: np.ndarray = np.clip(5e-7 * np.square(t.after["cfrc_ext"]).sum(axis=1), -math.inf, 10.0)
    return cost


def humanoid(t: Transition) -> Outcome:
    """1.25 speed of the centre of mass + 5 while healthy - 0.1 squared controls - contact cost (at most 10)."""
    healthy = _is_within(t.after["qpos"][:, 2], 1.0, 2.0)
    speed = (_mass_centres(t, t.after["xipos"]) - _mass_centres(t, t.before)) / t.model.action_s
    costs = 0.1 * np.square(t.after["ctrl"]).sum(axis=1) + _impact(t)
    return _body_state(t), 1.25 * speed + healthy * 5.0 - costs, ~healthy


def humanoid_standup(t: Transition) -> Outcome:
    """Height over the simulation's timestep - 0.1 squared controls - impact cost (at most 10) + 1; never ends."""
    height = t.after["qpos"][:, 2] / t.model.timestep_s
    return _body_state(t), height - 0.1 * np.square(t.after["ctrl"]).sum(axis=1) - _impact(t) + 1, _never(t)


_HUMANOID = ("qpos", "qvel", "cinert", "cvel", "qfrc_actuator", "cfrc_ext", "ctrl")
_PACKAGE = "gymnasium.envs.mujoco."
# By id; tests/unit/envs/test_envs_mujoco.py compares all of them.
TASKS: dict[str, Task] = {
    "Ant-v5": Task("ant_v5:AntEnv", ant, ("qpos", "qvel", "xpos", "cfrc_ext"), "xpos"),
    "HalfCheetah-v5": Task("half_cheetah_v5:HalfCheetahEnv", half_cheetah, before="qpos"),
    "Hopper-v5": Task("hopper_v5:HopperEnv", hopper, before="qpos"),
    "Humanoid-v5": Task("humanoid_v5:HumanoidEnv", humanoid, (*_HUMANOID, "xipos"), "xipos"),
    "HumanoidStandup-v5": Task("humanoidstandup_v5:HumanoidStandupEnv", humanoid_standup, _HUMANOID),
    "InvertedDoublePendulum-v5": Task(
        "inverted_double_pendulum_v5:InvertedDoublePendulumEnv",
        inverted_double_pendulum,
        ("qpos", "qvel", "site_xpos", "qfrc_constraint"),
    ),
    "InvertedPendulum-v5": Task("inverted_pendulum_v5:InvertedPendulumEnv", inverted_pendulum),
    "Pusher-v5": Task("pusher_v5:PusherEnv", pusher, ("qpos", "qvel", "xpos"), bodies=("tips_arm", "object", "goal")),
    "Reacher-v5": Task("reacher_v5:ReacherEnv", reacher, ("qpos", "qvel", "xpos"), bodies=("fingertip", "target")),
    "Swimmer-v5": Task("swimmer_v5:SwimmerEnv", swimmer, before="qpos"),
    "Walker2d-v5": Task("walker2d_v5:Walker2dEnv", walker2d, before="qpos"),
}


# -- lanes ------------------------------------------------------------------------------------------------------------


def step_lanes(factories: Sequence[EnvFactory], *, reset_ended: bool = True) -> SyncLanes:
    """Create lanes over one registered environment: `MujocoLanes` if it is one of `TASKS`, else `SyncLanes`.

    Both give the same results, as long as the factories only make the environment: attributes, masses and the like that
    they change are not seen by `MujocoLanes`. For the arguments see `SyncLanes`.
    """
    envs = construct(factories)
    is_fast = bool(envs) and all(is_supported(env) and env.spec.id == envs[0].spec.id for env in envs)
    kind = MujocoLanes if is_fast else SyncLanes
    return kind([iter(envs).__next__] * len(envs), reset_ended=reset_ended)


def is_supported(env: foreign.Env) -> bool:
    """Whether `env` is one of `TASKS` as `gymnasium.make(id)` builds it: no arguments, wrappers or replaced code."""
    if type(env) is not TimeLimit or type(env.env) is not OrderEnforcing:
        return False
    spec, kind = env.spec, type(env.env.env)
    task = TASKS.get(spec.id) if spec is not None and gymnasium.__version__.startswith(GYMNASIUM) else None
    if spec is None or task is None or spec.kwargs or spec.additional_wrappers:
        return False
    functions = [part for part in vars(kind).values() if isinstance(part, FunctionType)]
    is_original = f"{kind.__module__}:{kind.__name__}" == spec.entry_point == _PACKAGE + task.entry_point
    return is_original and all(function.__module__ == kind.__module__ for function in functions)


class MujocoLanes(SyncLanes):
    """L environments of one of `TASKS`, stepped by MuJoCo and evaluated together.

    Results, errors and state are those of `SyncLanes` over the same environments, which also do the resets. Actions
    that are not an array of float32 or float64 in the space's shape go through the environments' own `step`.
    """

    def __init__(self, factories: Sequence[EnvFactory], *, reset_ended: bool = True) -> None:
        super().__init__(factories, reset_ended=reset_ended)
        import mujoco

        self._step_simulation, self._add_forces = mujoco.mj_step, mujoco.mj_rnePostConstraint
        self._task = TASKS[self.envs[0].spec.id]
        singles = [env.unwrapped for env in self.envs]
        model = singles[0].model
        bodies = tuple(int(model.body(name).id) for name in self._task.bodies)
        self._constants = Model(singles[0].dt, model.opt.timestep, bodies, model.body_mass)
        self._repeat = singles[0].frame_skip
        self._simulations = [(single.model, single.data, single.data.ctrl) for single in singles]
        names = dict.fromkeys([*self._task.reads, *filter(None, [self._task.before])])
        # Views of MuJoCo's memory, which stays in place.
        self._views = {name: [getattr(single.data, name).reshape(-1) for single in singles] for name in names}
        self._has_begun = False
        self._helpers: ThreadPoolExecutor | None = None

    def close(self) -> None:
        super().close()
        if self._helpers is not None:
            self._helpers.shutdown()
            self._helpers = None

    def reset(self, seeds: np.ndarray | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        result = super().reset(seeds)
        self._has_begun = True
        return result

    def _step_envs(
        self,
        actions: Any,
        stepped: Sequence[int],
        obs: Any,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
    ) -> tuple[list[int], dict[int, Any]]:
        shape = (self.num_lanes, *(self.single_action_space.shape or ()))
        is_array = type(actions) is np.ndarray and actions.dtype in (np.float32, np.float64)
        if not self._has_begun or not is_array or actions.shape != shape:
            return super()._step_envs(actions, stepped, obs, reward, terminated, truncated)
        if not len(stepped):
            return [], {}
        rows = slice(None) if len(stepped) == self.num_lanes else list(stepped)
        before = self._read(self._task.before, stepped) if self._task.before else np.empty((len(stepped), 0))
        self._simulate(actions, stepped)
        after = {name: self._read(name, stepped) for name in self._task.reads}
        transition = Transition(self._constants, np.ascontiguousarray(actions[rows]), before, after)
        obs[rows], reward[rows], terminated[rows] = self._task.outcome(transition)
        for lane in stepped:
            limit = self.envs[lane]
            limit._elapsed_steps += 1
            truncated[lane] = limit._elapsed_steps >= limit._max_episode_steps
        return np.flatnonzero(terminated | truncated).tolist(), {}

    def _simulate(self, actions: np.ndarray, stepped: Sequence[int]) -> None:
        """Step simulations, also on as many threads as kernels use: MuJoCo steps without the interpreter's lock."""
        kernels = library()
        threads = 1 if kernels is None or kernels.threads is None else kernels.threads.count
        count = max(1, min(threads, len(stepped) // MIN_LANES))
        if count > 1 and self._helpers is None:
            self._helpers = ThreadPoolExecutor(threads - 1, HELPER)
        parts = [stepped[first::count] for first in range(count)]
        others = [self._helpers.submit(self._simulate_part, actions, part) for part in parts[1:] if self._helpers]
        try:
            self._simulate_part(actions, parts[0])
        finally:
            wait(others)
        for other in others:
            other.result()

    def _simulate_part(self, actions: np.ndarray, stepped: Sequence[int]) -> None:
        step, add_forces, repeat, lane = self._step_simulation, self._add_forces, self._repeat, 0
        try:
            for lane in stepped:
                model, data, controls = self._simulations[lane]
                controls[:] = actions[lane]
                step(model, data, repeat)
                add_forces(model, data)
        except (Exception, SystemExit) as error:
            raise failure(error, f"{self.name}, lane {lane}: step()") from error

    def _read(self, name: str, lanes: Sequence[int]) -> np.ndarray:
        """Return a copy [K, n] of an array of these lanes' simulations."""
        views = self._views[name]
        return np.concatenate(views if len(lanes) == self.num_lanes else [views[lane] for lane in lanes]).reshape(
            len(lanes), -1
        )
