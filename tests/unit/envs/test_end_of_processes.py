"""Workers, and the processes that their simulators have started, end with the process that has started them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from process_kinds import ChildProcess, Plain

from agilerl.envs import healing
from agilerl.envs.healing import HealingLanes
from agilerl.envs.ready import ReadyLanes
from agilerl.runs.signals import StopSignals
from agilerl.workers.local import LocalWorkers

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")
FORK = multiprocessing.get_context("fork")


class Stubborn(ChildProcess):
    """Leaves its process behind, and hangs in the third step."""

    def step(self, action: Any) -> Any:
        if self.time == 2:
            time.sleep(3600)
        return super().step(action)

    def close(self) -> None:
        pass


def members_of(group: int) -> list[int]:
    """Living processes of a process group."""
    members = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, of = (entry / "stat").read_text().rsplit(")", 1)[1].split()[:3]
            except (OSError, IndexError, ValueError):
                continue
            members += [int(entry.name)] if int(of) == group and state != "Z" else []
    return members


def wait_until_gone(groups: list[int]) -> None:
    end = time.monotonic() + 20
    while left := [pid for group in groups for pid in members_of(group)]:
        assert time.monotonic() < end, f"{left} are still there"
        time.sleep(0.05)


def _sleep() -> None:
    time.sleep(600)


def serve(connection: Any, kind: Any) -> None:
    """A parent: says who its workers are, and steps."""
    sets = [HealingLanes([kind] * 2, num_workers=2), HealingLanes([kind], num_workers=1)]
    for lanes in sets:
        lanes.reset(np.arange(lanes.num_lanes))
    connection.send([worker.process.pid for lanes in sets for worker in lanes.workers])
    while True:
        for lanes in sets:
            lanes.step(np.zeros(lanes.num_lanes, int))


@pytest.mark.parametrize("kind", [ChildProcess, Stubborn])
def test_they_end_when_their_parent_is_killed(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healing, "CLOSE_S", 0.3)
    mine, theirs = FORK.Pipe()
    parent = FORK.Process(target=serve, args=(theirs, kind))
    parent.start()
    theirs.close()
    groups = mine.recv()
    time.sleep(0.2)
    assert all(len(members_of(group)) >= 3 for group in groups), "a worker, its simulator, and what waits for the end"
    os.kill(parent.pid or 0, signal.SIGKILL)
    parent.join()
    wait_until_gone(groups)


@pytest.mark.parametrize("kind", [ChildProcess, Stubborn])
def test_closing_lanes_ends_what_their_simulators_have_left(kind: Any) -> None:
    lanes = HealingLanes([kind] * 2, num_workers=2)
    lanes.reset(np.arange(2))
    groups = [worker.process.pid for worker in lanes.workers]
    assert all(members_of(group) for group in groups)
    lanes.close()
    wait_until_gone(groups)


def _made(place: int) -> Any:
    FORK.Process(target=_sleep).start()
    return lambda job, report: job


def _with_worker(connection: Any) -> None:
    workers = LocalWorkers(_made, 1)
    while not workers.idle():
        workers.poll(0.1)
    connection.send([one.process.pid for one in workers._workers.values()])
    time.sleep(600)


@pytest.mark.thorough
@pytest.mark.usefixtures("new_interpreters")
def test_a_worker_of_a_population_leaves_no_process_behind() -> None:
    mine, theirs = FORK.Pipe()
    parent = FORK.Process(target=_with_worker, args=(theirs,))
    parent.start()
    theirs.close()
    groups = mine.recv()
    assert len(members_of(groups[0])) >= 2
    os.kill(parent.pid or 0, signal.SIGKILL)
    parent.join()
    wait_until_gone(groups)


class Dying(ChildProcess):
    """Its process dies in the second step; that of its simulator goes on, and holds the pipe to the parent open."""

    def step(self, action: Any) -> Any:
        if self.time == 1 and self.np_random.random() < 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


@pytest.mark.parametrize("kind", [HealingLanes, ReadyLanes])
def test_a_death_is_noticed_though_a_simulator_keeps_the_pipe(kind: Any) -> None:
    lanes = kind([Dying], num_workers=1, deadline_s=600.0)
    lanes.reset(np.arange(1))
    batches = [lanes.step(np.zeros(1, int)) for _ in range(2)]
    assert [batch.healed is not None for batch in batches] == [False, True]
    assert lanes.faults[0].kind == "died"
    lanes.close()


def test_an_environment_for_which_a_simulator_takes_long_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four environments of 0.15 s in one worker, with 0.3 s for each and for a step."""

    class Slow(Plain):
        def __init__(self) -> None:
            time.sleep(0.15)

    monkeypatch.setattr(healing, "START_S", 0.3)
    lanes = HealingLanes([Slow] * 4, num_workers=1, deadline_s=0.3, max_restarts=0)
    lanes.reset(np.arange(4))
    lanes.close()


def test_a_process_that_is_forked_during_a_run_obeys_terminate() -> None:
    with StopSignals() as signals:
        signals.check()  # from now on the run's own handlers only note a signal
        for _ in range(20):
            child = FORK.Process(target=_sleep)
            child.start()
            child.terminate()
            child.join(20)
            assert child.exitcode == -signal.SIGTERM
        assert signals.received is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == signal.SIGTERM
