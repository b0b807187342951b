"""Lanes that do not wait for each other: what completes, what does not, and what happens to a worker in between."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from agilerl.envs import ready
from agilerl.envs.adapters import ChannelsFirstLanes
from agilerl.envs.lanes import SyncLanes
from agilerl.envs.observed_masks import MaskedObservations
from agilerl.envs.ready import ReadyLanes
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import EnvError, ShapeError


class Diary(gym.Env[Any, Any]):
    """The observation holds the episode's number, its step and the last action; reward 100 * step + action.

    Args:
        gate: where the file exists, a step with action 9 waits until it is gone.
        length: steps of an episode.
    """

    observation_space = spaces.Box(0, 2**20, (3,), np.float32)
    action_space = spaces.Discrete(10)

    def __init__(self, gate: Path | None = None, length: int = 5) -> None:
        self.gate, self.length = gate, length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.steps = int(self.np_random.integers(2**20)), 0
        return np.array([self.episode, 0, 0], np.float32), {}

    def step(self, action: Any) -> Any:
        while action == 9 and self.gate is not None and self.gate.exists():
            time.sleep(0.001)
        if action == 8:
            os.kill(os.getpid(), signal.SIGKILL)
        if action == 7:
            raise ValueError("seven")
        self.steps += 1
        obs = np.array([self.episode, self.steps, action], np.float32)
        return obs, 100.0 * self.steps + action, self.steps == self.length, False, {}


@pytest.fixture
def gate(tmp_path: Path) -> Any:
    path = tmp_path / "closed"
    path.touch()
    yield path
    path.unlink(missing_ok=True)


def lanes_with(gate: Path | None, count: int = 3, **options: Any) -> ReadyLanes:
    return ReadyLanes([partial(Diary, gate)] * count, **{"num_workers": count, **options})


def steps_until(lanes: ReadyLanes, expected: list[int]) -> list[Any]:
    """Finish steps until each lane has completed as many as expected."""
    batches, made = [], np.zeros(lanes.num_lanes, int)
    pending = lanes.begin_step(np.zeros(lanes.num_lanes, int), np.zeros(lanes.num_lanes, bool))
    while made.tolist() != expected:
        batches.append(lanes.finish_step(pending))
        made += batches[-1].mask
        assert (made <= expected).all()
    return batches


def test_a_slow_lane_does_not_hold_up_the_others(gate: Path) -> None:
    lanes = lanes_with(gate)
    first, _ = lanes.reset(np.arange(3))
    lanes.begin_step(np.array([9, 1, 2]))
    steps_until(lanes, [0, 1, 1])
    for number in range(2, 5):
        pending = lanes.begin_step(np.array([5, 3, 4]))  # 5 is not for the lane that is still stepping
        assert pending.mask.all()
        batch = steps_until(lanes, [0, 1, 1])[-1]
        np.testing.assert_array_equal(batch.obs[0], first[0])
        np.testing.assert_array_equal(batch.obs[1:, 1:], [[number, 3], [number, 4]])
        np.testing.assert_array_equal(batch.final_obs, batch.obs)
        assert not batch.terminated.any()
    gate.unlink()
    batch = steps_until(lanes, [1, 0, 0])[-1]
    assert batch.mask.tolist() == [True, False, False]
    np.testing.assert_array_equal(batch.obs[0], [first[0, 0], 1, 9])
    assert batch.reward.tolist() == [109.0, 0.0, 0.0]
    np.testing.assert_array_equal(batch.obs[1:, 1:], [[4, 3], [4, 4]])
    lanes.close()


def test_an_ended_episode_shows_its_final_observation_once() -> None:
    lanes = lanes_with(None, count=2)
    obs, _ = lanes.reset(np.arange(2))
    for _ in range(4):
        lanes.begin_step(np.array([1, 1]), np.array([True, False]))
        steps_until(lanes, [1, 0])
    lanes.begin_step(np.array([2, 3]))
    batches = steps_until(lanes, [1, 1])
    ended = next(batch for batch in batches if batch.mask[0])
    assert (ended.terminated[0], ended.reward[0]) == (True, 502.0)
    np.testing.assert_array_equal(ended.final_obs[0], [obs[0, 0], 5, 2])
    np.testing.assert_array_equal(ended.obs[0, 1:], [0, 0])
    assert ended.obs[0, 0] != obs[0, 0]
    lanes.begin_step(np.array([3, 3]), np.array([False, True]))
    (later,) = steps_until(lanes, [0, 1])
    assert not later.terminated.any()
    np.testing.assert_array_equal(later.obs[0], ended.obs[0])
    lanes.close()


def test_lanes_of_one_worker_complete_together_and_equal_lanes_that_wait() -> None:
    lanes, waiting = lanes_with(None, num_workers=1), SyncLanes([partial(Diary, None)] * 3)
    np.testing.assert_equal(lanes.reset(np.arange(3)), waiting.reset(np.arange(3)))
    for number in range(12):
        actions, active = np.array([number % 7, 2, 3]), np.array([True, number % 2 == 0, True])
        one, other = lanes.step(actions, active), waiting.step(actions, active)
        for name in ("obs", "reward", "terminated", "truncated", "final_obs", "mask", "info"):
            np.testing.assert_equal(getattr(one, name), getattr(other, name))
    lanes.close()


def test_what_is_returned_belongs_to_the_caller() -> None:
    lanes = lanes_with(None, count=2)
    first, _ = lanes.reset(np.arange(2))
    first[:] = -1
    batch = lanes.step(np.zeros(2, int), np.array([True, False]))
    assert batch.obs[1, 1] == 0
    copy = batch.obs.copy()
    lanes.step(np.ones(2, int))
    np.testing.assert_array_equal(batch.obs, copy)
    batch.obs[:] = -1
    batch = lanes.step(np.ones(2, int), np.array([True, False]))
    assert (batch.obs[1] >= 0).all()
    lanes.close()


@pytest.mark.parametrize(("action", "kind"), [(8, "died"), (7, "failed")])
def test_a_worker_that_fails_in_a_step_is_replaced_and_the_others_go_on(gate: Path, action: int, kind: str) -> None:
    lanes = lanes_with(gate)
    lanes.reset(np.arange(3))
    lanes.begin_step(np.array([9, 0, action]))
    pending = lanes.begin_step(np.zeros(3, int), np.zeros(3, bool))
    healed = np.zeros(3, bool)
    while not healed.any():
        batch = lanes.finish_step(pending)
        healed |= False if batch.healed is None else batch.healed
    assert (batch.mask[2], batch.truncated[2], batch.reward[2], batch.obs[2, 1]) == (False, True, 0.0, 0.0)
    assert healed.tolist() == [False, False, True]
    assert [(fault.kind, fault.lanes) for fault in lanes.faults] == [(kind, (2, 2))]
    lanes.begin_step(np.array([0, 0, 3]), np.array([False, False, True]))
    np.testing.assert_array_equal(steps_until_lane(lanes, 2).obs[2, 1:], [1, 3])
    gate.unlink()
    np.testing.assert_array_equal(steps_until_lane(lanes, 0).obs[0, 1:], [1, 9])
    lanes.close()


def steps_until_lane(lanes: ReadyLanes, lane: int) -> Any:
    pending = lanes.begin_step(np.zeros(lanes.num_lanes, int), np.zeros(lanes.num_lanes, bool))
    while not (batch := lanes.finish_step(pending)).mask[lane]:
        pass
    return batch


def test_a_worker_that_has_died_between_two_steps_is_replaced() -> None:
    lanes = lanes_with(None, count=2)
    lanes.reset(np.arange(2))
    process = lanes.workers[1].process
    process.kill()
    process.join()
    lanes.begin_step(np.zeros(2, int))
    batches = [lanes.step(np.zeros(2, int), np.zeros(2, bool))]
    while not any(batch.mask[0] for batch in batches):
        batches.append(lanes.step(np.zeros(2, int), np.zeros(2, bool)))
    (healed,) = [batch.healed.tolist() for batch in batches if batch.healed is not None]
    assert healed == [False, True]
    assert [fault.kind for fault in lanes.faults] == ["died"]
    assert lanes.step(np.zeros(2, int), np.array([False, True])).mask.tolist() == [False, True]
    lanes.close()


def test_the_deadline_of_a_step_begins_when_it_is_sent(gate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

    clock = Clock()
    monkeypatch.setattr(ready, "time", clock)
    lanes = lanes_with(gate, count=2, deadline_s=60.0)
    lanes.reset(np.arange(2))
    lanes.begin_step(np.array([9, 0]))
    steps_until(lanes, [0, 1])
    clock.now = 59.0
    lanes.begin_step(np.array([0, 9]))
    clock.now = 61.0
    batch = lanes.step(np.array([0, 0]), np.zeros(2, bool))
    assert batch.healed.tolist() == [True, False]
    assert [(fault.kind, fault.lanes) for fault in lanes.faults] == [("hung", (0, 0))]
    gate.unlink()
    np.testing.assert_array_equal(steps_until_lane(lanes, 1).obs[1, 1:], [2, 9])
    lanes.close()


@pytest.mark.thorough
def test_too_many_failures_end_in_an_error_and_a_reset_starts_again() -> None:
    lanes = lanes_with(None, count=2, max_restarts=0)
    lanes.reset(np.arange(2))
    lanes.begin_step(np.array([7, 0]))
    with pytest.raises(EnvError, match="limit of max_restarts=0"):
        steps_until(lanes, [1, 1])
    lanes.reset(np.arange(2))
    lanes.begin_step(np.array([1, 2]))
    assert len(steps_until(lanes, [1, 1])) <= 2
    lanes.close()


def test_a_reset_stops_what_is_still_stepping(gate: Path) -> None:
    lanes = lanes_with(gate, count=2)
    first, _ = lanes.reset(np.arange(2))
    lanes.begin_step(np.array([9, 0]))
    steps_until(lanes, [0, 1])
    with pytest.raises(EnvError, match=r"1 workers are stepping.*fix: "):
        lanes.call("length")
    again, _ = lanes.reset(np.arange(2))
    np.testing.assert_array_equal(first, again)
    assert lanes.call("length") == (5, 5)
    assert lanes.faults == []
    lanes.close()


def test_steps_need_a_reset_and_one_action_per_lane() -> None:
    lanes = lanes_with(None, count=2)
    with pytest.raises(EnvError, match="reset"):
        lanes.begin_step(np.zeros(2, int))
    lanes.reset()
    with pytest.raises(ShapeError, match="expected 2, got 3"):
        lanes.begin_step(np.zeros(3, int))
    lanes.close()


class MaskedDiary(Diary):
    """Only the action that is the next step's number is legal; images have one channel, last."""

    def __init__(self, gate: Path | None) -> None:
        super().__init__(gate, length=9)
        seen = {"obs": spaces.Box(0, 9, (1, 2, 1), np.float32), "action_mask": spaces.MultiBinary(10)}
        self.observation_space = spaces.Dict(seen)

    def _seen(self) -> Any:
        image = np.array([self.steps, 0], np.float32).reshape(1, 2, 1)
        return {"obs": image, "action_mask": np.eye(10, dtype=np.int8)[min(9, self.steps + 1)]}

    def reset(self, **arguments: Any) -> Any:
        super().reset(**arguments)
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        outcome = super().step(action if action != 7 else 0)
        return (self._seen(), *outcome[1:])


def test_masks_and_images_of_lanes_that_have_not_completed_stay() -> None:
    inner = ReadyLanes([partial(MaskedDiary, None)] * 2, num_workers=2)
    lanes = ChannelsFirstLanes(MaskedObservations(inner))
    lanes.reset(np.arange(2))
    for number in (1, 2):
        batch = lanes.finish_step(lanes.begin_step(np.array([number, 1]), np.array([True, False])))
        assert batch.mask.tolist() == [True, False]
        assert batch.obs["obs"].shape == (2, 1, 1, 2)
        assert batch.obs["obs"][:, 0, 0, 0].tolist() == [number, 0]
        assert batch.info["action_mask"].argmax(1).tolist() == [number + 1, 1]
    lanes.close()


def test_make_vect_envs_makes_them_for_training_alone() -> None:
    env: Any = make_vect_envs(make_env=Diary, num_envs=2, num_workers=2, asynchronous=True)
    lanes, evaluated = env.replicate_asynchronous(3), env.replicate(3, reset_ended=False)
    assert (type(lanes), lanes.num_lanes, type(evaluated).__name__) == (ReadyLanes, 6, "HealingLanes")
    env.close()
