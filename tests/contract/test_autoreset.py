"""All autoreset modes and backends give the same transitions: final observations, no reset step, two kinds of end."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from agilerl.envs.healing import HealingLanes
from agilerl.envs.step import Lanes, StepBatch, SyncLanes, VectorLanes, as_lanes
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import EnvError

# Per lane: (episode length, how it ends), then again from the start. Lane 0 ends twice in a row after one step.
SCRIPTS = {
    0: [(1, "terminated"), (1, "terminated"), (4, "truncated")],
    1: [(3, "terminated"), (2, "truncated")],
    2: [(2, "truncated"), (5, "terminated")],
    3: [(1, "both"), (6, "truncated")],
}
STEPS = 24


class ScriptedEnv(gymnasium.Env[np.ndarray, int]):
    """Observation (lane, episode, time); reward 100 lane + 10 episode + time; the action is what the info repeats."""

    observation_space = gymnasium.spaces.Box(-1, 1000, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(self, lane: int, with_masks: bool = False) -> None:
        self.lane, self.episode, self.time, self.with_masks = lane, -1, 0, with_masks

    def _obs(self) -> np.ndarray:
        return np.array([self.lane, self.episode, self.time], dtype=np.float32)

    def _info(self) -> dict[str, Any]:
        legal = np.arange(4) == self.time % 4
        return {"action_mask": legal.astype(np.int8)} if self.with_masks else {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.episode, self.time = self.episode + 1, 0
        return self._obs(), self._info()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        length, how = SCRIPTS[self.lane][self.episode % len(SCRIPTS[self.lane])]
        assert self.time < length, "stepped after its end"
        self.time += 1
        at_end = self.time == length
        reward = 100.0 * self.lane + 10.0 * self.episode + self.time
        return self._obs(), reward, at_end and how != "truncated", at_end and how != "terminated", self._info()


def factories(with_masks: bool = False) -> list[Any]:
    return [lambda lane=lane: ScriptedEnv(lane, with_masks) for lane in SCRIPTS]


class EnvPoolLike:
    """Like EnvPool's Gymnasium interface: `num_envs`, no metadata, steps after the end reset (reward 0)."""

    def __init__(self) -> None:
        self.inner = SyncVectorEnv(factories(), autoreset_mode=AutoresetMode.NEXT_STEP)
        self.num_envs = len(SCRIPTS)

    def reset(self) -> Any:
        return self.inner.reset()

    def step(self, actions: np.ndarray) -> Any:
        return self.inner.step(actions)


class OldSameStep:
    """A vector environment that declares no mode, resets at once and uses the older info key."""

    def __init__(self) -> None:
        self.inner = SyncVectorEnv(factories(), autoreset_mode=AutoresetMode.SAME_STEP)
        self.num_envs = len(SCRIPTS)

    def reset(self) -> Any:
        return self.inner.reset()

    def step(self, actions: np.ndarray) -> Any:
        *rest, info = self.inner.step(actions)
        return *rest, {"final_observation": info["final_obs"]} if "final_obs" in info else {}


def healing_for_users() -> VectorLanes:
    """What make_vect_envs(healing=True) gives a user's own loop, over the scripts of all lanes."""
    env = make_vect_envs(num_envs=len(SCRIPTS), make_env=lambda: ScriptedEnv(0), healing=True)
    env.lanes = HealingLanes(factories(), num_workers=2)
    return VectorLanes(env)


BACKENDS = {
    "lanes": lambda: SyncLanes(factories()),
    "healing": lambda: HealingLanes(factories(), num_workers=2),
    "healing_next_step": lambda: healing_for_users(),
    "next_step": lambda: as_lanes(SyncVectorEnv(factories(), autoreset_mode=AutoresetMode.NEXT_STEP)),
    "same_step": lambda: as_lanes(SyncVectorEnv(factories(), autoreset_mode=AutoresetMode.SAME_STEP)),
    "disabled": lambda: as_lanes(SyncVectorEnv(factories(), autoreset_mode=AutoresetMode.DISABLED)),
    "async_next_step": lambda: as_lanes(AsyncVectorEnv(factories(), autoreset_mode=AutoresetMode.NEXT_STEP)),
    "async_same_step": lambda: as_lanes(AsyncVectorEnv(factories(), autoreset_mode=AutoresetMode.SAME_STEP)),
    "async_disabled": lambda: as_lanes(AsyncVectorEnv(factories(), autoreset_mode=AutoresetMode.DISABLED)),
    "envpool_like": lambda: as_lanes(EnvPoolLike()),
    "old_same_step": lambda: as_lanes(OldSameStep()),
}
Row = tuple[tuple[float, ...], float, bool, bool, tuple[float, ...]]


def transitions(lanes: Lanes, steps: int) -> list[list[Row]]:
    """What a loop would store, lane by lane: (obs, reward, terminated, truncated, final obs) where the mask holds."""
    obs, _ = lanes.reset()
    stored: list[list[Row]] = [[] for _ in range(lanes.num_lanes)]
    for _ in range(steps):
        batch = lanes.step(np.zeros(lanes.num_lanes, dtype=np.int64))
        for lane in np.flatnonzero(batch.mask):
            flags = bool(batch.terminated[lane]), bool(batch.truncated[lane])
            stored[lane].append(
                (tuple(obs[lane].tolist()), float(batch.reward[lane]), *flags, tuple(batch.final_obs[lane].tolist()))
            )
        obs = batch.obs
    lanes.close()
    return stored


def expected(lane: int, count: int) -> list[Row]:
    """The script, written out."""
    rows: list[Row] = []
    episode = 0
    while len(rows) < count:
        length, how = SCRIPTS[lane][episode % len(SCRIPTS[lane])]
        for time in range(length):
            at_end = time == length - 1
            rows.append(
                (
                    (float(lane), float(episode), float(time)),
                    100.0 * lane + 10.0 * episode + time + 1,
                    at_end and how != "truncated",
                    at_end and how != "terminated",
                    (float(lane), float(episode), float(time + 1)),
                )
            )
        episode += 1
    return rows[:count]


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_mode_yields_the_scripted_transitions(backend: str) -> None:
    for lane, rows in enumerate(transitions(BACKENDS[backend](), STEPS)):
        assert rows == expected(lane, len(rows)), f"{backend}, lane {lane}"
        # NEXT_STEP spends one call per episode on the reset; every other mode stores a row in every call.
        spent = sum(row[2] or row[3] for row in rows) if "next" in backend or "pool" in backend else 0
        assert len(rows) >= STEPS - spent
        assert len(rows) > STEPS // 2 - 1


def test_the_reset_step_of_next_step_mode_has_no_reward_and_no_end() -> None:
    class Noisy(EnvPoolLike):
        def step(self, actions: np.ndarray) -> Any:
            obs, reward, terminated, truncated, info = super().step(actions)
            return obs, reward + 7.0, terminated, truncated, info

    lanes = as_lanes(Noisy())
    lanes.reset()
    lanes.step(np.zeros(4, dtype=np.int64))
    batch = lanes.step(np.zeros(4, dtype=np.int64))
    np.testing.assert_array_equal(batch.mask, [False, True, True, False])
    np.testing.assert_array_equal(batch.reward == 0.0, [True, False, False, True])


@pytest.mark.parametrize("backend", ["lanes", "healing", "same_step", "disabled"])
def test_the_next_action_sees_the_reset_observation_and_its_mask(backend: str) -> None:
    make = {
        "lanes": lambda: SyncLanes(factories(True)),
        "healing": lambda: HealingLanes(factories(True), num_workers=3),
        "same_step": lambda: as_lanes(SyncVectorEnv(factories(True), autoreset_mode=AutoresetMode.SAME_STEP)),
        "disabled": lambda: as_lanes(SyncVectorEnv(factories(True), autoreset_mode=AutoresetMode.DISABLED)),
    }[backend]
    lanes = make()
    lanes.reset()
    for _ in range(9):
        batch: StepBatch = lanes.step(np.zeros(4, dtype=np.int64))
        time = batch.obs[:, 2].astype(int)
        np.testing.assert_array_equal(np.argmax(batch.info["action_mask"], axis=1), time % 4)


def test_same_step_without_final_observations_is_refused_instead_of_guessed() -> None:
    class Forgetful(OldSameStep):
        metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.SAME_STEP}

        def step(self, actions: np.ndarray) -> Any:
            return *super().step(actions)[:-1], {}

    lanes = as_lanes(Forgetful())
    lanes.reset()
    with pytest.raises(EnvError, match="final_obs"):
        lanes.step(np.zeros(4, dtype=np.int64))


@pytest.mark.parametrize("make", [SyncLanes, HealingLanes])
def test_a_resting_lane_is_not_stepped(make: Any) -> None:
    lanes = make(factories())
    first, _ = lanes.reset()
    active = np.array([False, True, True, False])
    for _ in range(5):
        batch = lanes.step(np.zeros(4, dtype=np.int64), active)
        np.testing.assert_array_equal(batch.mask, active)
        np.testing.assert_array_equal(batch.obs[[0, 3]], first[[0, 3]])
        assert not batch.terminated[[0, 3]].any()
    again = lanes.step(np.zeros(4, dtype=np.int64))  # its first step: lanes 0 and 3 end with it
    np.testing.assert_array_equal(again.final_obs[[0, 3], 2], [1, 1])
    np.testing.assert_array_equal(again.final_obs[[0, 3], 1], [0, 0])
    lanes.close()


def test_what_make_vect_envs_returns_is_next_step_for_a_users_own_loop() -> None:
    env = make_vect_envs(num_envs=2, make_env=lambda: ScriptedEnv(1))
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    env.reset()
    for _ in range(2):
        env.step(np.zeros(2, dtype=np.int64))
    obs, _, terminated, _, _ = env.step(np.zeros(2, dtype=np.int64))
    assert terminated.all()
    np.testing.assert_array_equal(obs[0], [1, 0, 3])  # the final observation, not the reset one
