"""Steps whose actions and results are in shared memory, in workers and in this process."""

from __future__ import annotations

import multiprocessing
import os
import signal
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from agilerl.envs.healing import HealingLanes
from agilerl.envs.lanes import SyncLanes

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")


class Counting(gym.Env[Any, Any]):
    """Observes its seed's number and the step; gives masks in odd steps, if it is `masked`."""

    observation_space = gym.spaces.Box(-1.0, 1e6, (2,), np.float32)
    action_space: Any = gym.spaces.Discrete(3)

    def __init__(self, masked: bool = False) -> None:
        self.masked = masked

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.time, self.number = 0, self.np_random.random()
        return np.array([self.number, 0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        info = {"action_mask": [True, self.number > 0.5, False]} if self.masked and self.time % 2 else {}
        return np.array([self.number, self.time], np.float32), float(action), self.time >= 7, False, info


def play(lanes: Any, steps: int = 20) -> list[Any]:
    """Rows and masks of some steps."""
    rows: list[Any] = list(lanes.reset(np.arange(4)))
    for t in range(steps):
        batch = lanes.step(np.arange(4) % 3, None if t % 4 else np.arange(4) != t % 3)
        rows += [batch.obs, batch.final_obs, batch.reward, batch.terminated, batch.mask, batch.info]
    return rows


@pytest.mark.parametrize("takes_part", [False, True])
def test_masks_come_with_the_steps_that_have_some(takes_part: bool) -> None:
    factories = [partial(Counting, True), Counting, Counting, partial(Counting, True)]
    lanes = HealingLanes(factories, num_workers=2, takes_part=takes_part)
    np.testing.assert_equal(play(lanes), play(SyncLanes(factories)))
    lanes.close()


def test_actions_of_another_type_reach_the_environments_as_they_are() -> None:
    lanes, alone = HealingLanes([Counting] * 4, num_workers=2, takes_part=True), SyncLanes([Counting] * 4)
    for one in (lanes, alone):
        one.reset(np.arange(4))
    for actions in (np.arange(4, dtype=np.int32), np.arange(4), np.arange(4.0)):
        np.testing.assert_equal(lanes.step(actions).reward, alone.step(actions).reward)
    lanes.close()


@pytest.mark.parametrize("takes_part", [False, True])
def test_a_worker_that_is_killed_between_steps_is_replaced(takes_part: bool) -> None:
    lanes = HealingLanes([Counting] * 4, num_workers=2, takes_part=takes_part)
    lanes.reset(np.arange(4))
    for _ in range(3):
        lanes.step(np.zeros(4, int))
    os.kill(lanes.workers[1].process.pid, signal.SIGKILL)
    batch = lanes.step(np.zeros(4, int))
    assert batch.mask.tolist() == [True, True, False, False]
    assert (lanes.faults[0].kind, lanes.faults[0].worker) == ("died", 1)
    assert lanes.step(np.zeros(4, int)).mask.all()
    lanes.close()


def test_a_worker_that_is_stopped_has_hung() -> None:
    lanes = HealingLanes([Counting] * 4, num_workers=2, takes_part=True, deadline_s=0.3)
    lanes.reset(np.arange(4))
    os.kill(lanes.workers[1].process.pid, signal.SIGSTOP)
    assert lanes.step(np.zeros(4, int)).mask.tolist() == [True, True, False, False]
    assert lanes.faults[0].kind == "hung"
    lanes.close()


def test_steps_go_on_after_an_interrupt_with_a_reset() -> None:
    """The answer to the interrupted step is not taken for that to a later one."""

    class Interrupted(Counting):
        is_due = False

        def step(self, action: Any) -> Any:
            if Interrupted.is_due:
                Interrupted.is_due = False
                raise KeyboardInterrupt
            return super().step(action)

    lanes = HealingLanes([Interrupted] * 4, num_workers=2, takes_part=True)
    lanes.reset(np.arange(4))
    Interrupted.is_due = True  # in this process
    with pytest.raises(KeyboardInterrupt):
        lanes.step(np.zeros(4, int))
    np.testing.assert_equal(play(lanes), play(SyncLanes([Counting] * 4)))
    assert not lanes.faults
    lanes.close()
    assert not multiprocessing.active_children()


def test_one_process_alone_can_take_part() -> None:
    lanes = HealingLanes([Counting] * 4, num_workers=1, takes_part=True)
    np.testing.assert_equal(play(lanes), play(SyncLanes([Counting] * 4)))
    assert not multiprocessing.active_children()
    lanes.close()
