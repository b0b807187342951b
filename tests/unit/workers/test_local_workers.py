"""Workers in processes of this machine: whatever happens to one is reported, another one starts, nothing is left."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import served_jobs as jobs

from agilerl.envs.copies import as_copy
from agilerl.errors import ConfigError, RunError
from agilerl.workers import executor, local
from agilerl.workers.executor import Reply
from agilerl.workers.local import LocalWorkers
from agilerl.workers.main import Report

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds processes by /proc"),
    pytest.mark.usefixtures("new_interpreters"),
]


@pytest.fixture(params=[None, as_copy], ids=["interpreters", "copies"])
def started(request: pytest.FixtureRequest) -> Iterator[Callable[..., LocalWorkers]]:
    """Starts workers, and ends them after the test."""
    every: list[LocalWorkers] = []

    def start(make: Any = jobs.make, count: int = 1) -> LocalWorkers:
        every.append(LocalWorkers(make, count, as_copy=request.param))
        return every[-1]

    yield start
    for workers in every:
        workers.close()


def until(workers: LocalWorkers, is_enough: Callable[[list[Reply]], bool]) -> list[Reply]:
    """What comes from workers until it is enough."""
    replies: list[Reply] = []
    while not is_enough(replies):
        replies += workers.poll(0.05)
    return replies


def idle(workers: LocalWorkers, count: int = 1) -> list[int]:
    """Workers that wait, once there are `count` of them."""
    until(workers, lambda _: len(workers.idle()) >= count)
    return workers.idle()


def ended(replies: list[Reply]) -> bool:
    return any(reply.kind != "progress" for reply in replies)


def done(workers: LocalWorkers, job: bytes, worker: int | None = None) -> Reply:
    """How a job ends."""
    workers.submit(idle(workers)[0] if worker is None else worker, job)
    return next(reply for reply in until(workers, ended) if reply.kind != "progress")


def pid_of(workers: LocalWorkers) -> int:
    return int(done(workers, b"pid").payload)


def members_of(group: int) -> list[int]:
    """Processes of a worker: itself and those that it has started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, its_group = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[:3]
            found += [int(entry.name)] if int(its_group) == group and state != "Z" else []
    return found


def test_jobs_are_done_by_every_place_and_an_exception_is_a_reply(started: Any) -> None:
    workers = started(jobs.make_place, 2)
    assert [done(workers, b"", each).payload for each in idle(workers, 2)] == [b"0", b"1"]
    workers = started()
    assert done(workers, b"x" * 5_000_000).payload == b"5000000"
    raised = done(workers, b"raise")
    assert (raised.kind, raised.error, raised.is_user_error) == ("raised", "ValueError: bad", False)
    assert "served_jobs.py" in raised.traceback
    assert done(workers, b"xx").payload == b"2"  # of the same worker
    assert workers.idle() == [raised.worker]


@pytest.mark.parametrize(
    ("job", "error"),
    [
        (b"die", r"process \d+ was killed by SIGKILL"),
        (b"half, then die", r"process \d+ was killed by SIGKILL"),
        (b"half, then stop", r"it stopped in the middle of a message"),
        (b"leave a child", r"process \d+ was killed by SIGKILL"),
        (b"memory", r"process \d+ exited with 1; MemoryError"),
    ],
)
def test_a_lost_worker_is_reported_and_replaced(
    job: bytes, error: str, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "STALL_SECONDS", 1)
    workers = started()
    before = pid_of(workers)
    lost = done(workers, job)
    assert lost.kind == "lost"
    assert re.match(error, lost.error), lost.error
    assert done(workers, b"xx").payload == b"2"
    assert workers.idle() != [lost.worker]
    limit = time.monotonic() + 10  # its pipe closes before the kernel has ended it
    while members_of(before) and time.monotonic() < limit:
        time.sleep(0.01)
    assert members_of(before) == []


def test_a_worker_that_does_not_take_its_job_is_lost(started: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "STALL_SECONDS", 1)
    workers = started()
    os.kill(pid_of(workers), signal.SIGSTOP)
    lost = done(workers, b"x" * 5_000_000)
    assert lost.kind == "lost"
    assert "it did not take its job" in lost.error


def test_idle_workers_that_are_killed_are_replaced(started: Any) -> None:
    workers = started(count=2)
    pids = [int(done(workers, b"pid", each).payload) for each in idle(workers, 2)]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    replies = until(workers, lambda replies: len(replies) == 2)
    assert [reply.kind for reply in replies] == ["lost", "lost"]
    assert len(idle(workers, 2)) == workers.alive == 2


def test_a_job_for_a_worker_that_has_just_died_is_lost_with_it(started: Any) -> None:
    workers = started()
    pid = pid_of(workers)
    os.kill(pid, signal.SIGKILL)
    while (Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]) != "Z":
        time.sleep(0.01)
    assert done(workers, b"xx", workers.idle()[0]).kind == "lost"


def test_a_run_that_does_not_listen_does_not_hold_up_a_worker() -> None:
    """Reports of steps do not wait where the pipe is full: they are added up."""
    ours, theirs = socket.socketpair()
    sending = Connection(theirs.detach())
    with contextlib.closing(executor.connection_of(ours)) as connection, contextlib.closing(sending):
        report, calls = Report(sending, "here"), 0
        while executor.has_room(sending):
            report._sent = -1.0
            report(1)
            calls += 1
        for _ in range(10):
            report._sent = -1.0
            report(1)
        steps = [executor.receive(connection)[2]["steps"] for _ in range(calls)]
        assert steps == [1] * calls
        report._sent = -1.0
        report(1)
        assert executor.receive(connection)[2]["steps"] == 11


def test_what_workers_print_is_kept_to_a_size(started: Any) -> None:
    workers = started()
    for _ in range(3):
        assert done(workers, b"print").payload == b"5"
    assert done(workers, b"x").payload == b"1"
    (one,) = workers._workers.values()
    assert os.fstat(one.output.fileno()).st_size < 2 * local.MAX_OUTPUT


@pytest.mark.parametrize(
    ("make", "kind", "error"),
    [
        (
            jobs.make_nothing,
            RunError,
            r"a worker cannot start: ValueError: no licence\nA worker is .*fix: env=make_env",
        ),
        (jobs.make_mistake, ConfigError, r"a worker cannot start: no such environment\. fix: install it"),
        (jobs.make_dead, RunError, r"3 workers in a row could not start, .* SIGSEGV.*fix: workers=1"),
    ],
)
def test_workers_that_cannot_start_are_an_error(make: Any, kind: Any, error: str, started: Any) -> None:
    workers = started(make, 2)
    with pytest.raises(kind, match=error):
        until(workers, lambda _: False)


def test_a_replacement_that_cannot_start_is_tried_again_later(started: Any, tmp_path: Path) -> None:
    workers = started(partial(jobs.make_once, tmp_path))
    assert done(workers, b"die").kind == "lost"
    (lost,) = until(workers, ended)
    assert lost.error == "ValueError: no second licence"
    assert workers.alive == 0
    (tmp_path / "was here").unlink()
    assert done(workers, b"xx").payload == b"2"


def test_a_process_that_the_system_does_not_start_is_tried_again_later(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = started()
    idle(workers)
    with monkeypatch.context() as patch:
        for module, name in ((subprocess, "Popen"), (local, "Copy")):
            patch.setattr(module, name, lambda *args, **kwargs: (_ for _ in ()).throw(OSError(12, "no memory")))
        assert done(workers, b"die").kind == "lost"
    assert workers.alive == 0
    assert done(workers, b"xx").payload == b"2"


@pytest.mark.parametrize("made", [{"env": threading.Lock()}])
def test_what_belongs_to_this_process_cannot_be_sent(made: Any) -> None:
    with pytest.raises(ConfigError, match=r"cannot be sent to a worker \(TypeError: .*lock.*fix: pass a function"):
        LocalWorkers(partial(jobs.make, made), 1)  # type: ignore[arg-type]


def test_nothing_is_left_after_closing(started: Any) -> None:
    before = len(os.listdir("/proc/self/fd"))
    workers = started(count=2)
    pids = [int(done(workers, b"pid", each).payload) for each in idle(workers, 2)]
    os.kill(pids[0], signal.SIGSTOP)
    workers.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    end = time.monotonic() + 20
    while any(members_of(pid) for pid in pids):  # what they have started, which is not this process's to wait for
        assert time.monotonic() < end
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) == before
