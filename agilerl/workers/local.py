"""Workers in processes of this machine: started with a fresh interpreter, kept for the run, replaced when lost."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle

from agilerl.errors import ConfigError, NotAvailableYetError, RunError
from agilerl.workers.executor import Reply
from agilerl.workers.messages import receive, send

MAX_FAILED_STARTS = 3  # in a row
LAST_LINES = 5  # of a lost worker's output, in messages

# Makes what does the jobs in a worker: job -> result, with a function that reports environment steps.
Serve = Callable[[bytes, Callable[[int], None]], bytes]


@dataclass
class _Worker:
    """One process and the parent's end of its pipe.

    Attributes:
        is_ready: whether it has said that it is built. is_busy: whether it has a job.
        output: its standard error. reason: why it was killed, "" unless it was.
    """

    process: subprocess.Popen[bytes]
    connection: Connection
    output: Any
    is_ready: bool = False
    is_busy: bool = False
    reason: str = ""


class LocalWorkers:
    """`Executor` whose workers are processes of this machine.

    A process is a new interpreter, so that nothing of this one is inherited: no CUDA context, lock or thread, and no
    script that would run again. Processes have a session of their own, so that Ctrl-C reaches this process alone. They
    end when this one does, however it ends.

    Args:
        make: called in every process with the worker's place (0 .. count - 1); returns what does the jobs. Serialised
            by value where it cannot be imported there.
        count: processes. variables: of their environment, in addition to this process's.

    Raises:
        ConfigError: `make` cannot be serialised.
    """

    reports_progress = True

    def __init__(self, make: Callable[[int], Serve], count: int, variables: Mapping[str, str] | None = None) -> None:
        if os.name != "posix":
            raise NotAvailableYetError("workers are processes that inherit a pipe, which needs POSIX. fix: workers=1.")
        self.count = count
        self._variables = {"OMP_NUM_THREADS": "1", **(variables or {})}
        self._make = serialised(make)
        self._numbers = itertools.count()
        self._places: dict[int, int] = {}
        self._workers: dict[int, _Worker] = {}
        self._failed_starts = 0
        for place in range(count):
            self._start(place)

    @property
    def alive(self) -> int:
        return len(self._workers)

    def idle(self) -> list[int]:
        return [number for number, one in self._workers.items() if one.is_ready and not one.is_busy and not one.reason]

    def submit(self, worker: int, job: bytes) -> None:
        one = self._workers[worker]
        one.is_busy = True
        with contextlib.suppress(OSError):  # it has just died, which `poll` reports
            send(one.connection, "job", job)

    def poll(self, seconds: float) -> list[Reply]:
        if not self._workers:
            return []
        wait([one.connection for one in self._workers.values()], timeout=seconds)
        replies = []
        for number in list(self._workers):
            replies += self._read(number)
        return replies

    def kill(self, worker: int, reason: str) -> None:
        one = self._workers[worker]
        one.reason = reason
        one.process.kill()

    def close(self) -> None:
        for one in self._workers.values():
            one.process.kill()
        for one in self._workers.values():
            self._end(one)
        self._workers.clear()

    def _start(self, place: int) -> None:
        ours, theirs = socket.socketpair()
        output = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the process
        command = [sys.executable, "-m", "agilerl.workers.main", str(theirs.fileno()), str(os.getpid()), str(place)]
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], start_new_session=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=output, env={**os.environ, **self._variables, "PYTHONPATH": paths},
        )  # fmt: skip
        theirs.close()
        connection, number = Connection(ours.detach()), next(self._numbers)
        self._workers[number], self._places[number] = _Worker(process, connection, output), place
        with contextlib.suppress(OSError):
            send(connection, "make", self._make)

    def _read(self, number: int) -> list[Reply]:
        """Return what has come from one worker; a lost one is replaced."""
        one, replies = self._workers[number], []
        try:
            while one.connection.poll():
                kind, content, facts = receive(one.connection)
                if kind == "ready":
                    one.is_ready, self._failed_starts = True, 0
                    continue
                if kind == "failed":
                    raise (ConfigError if facts["is_user_error"] else RunError)(
                        f"a worker cannot start: {facts['error']}"
                    )
                one.is_busy = one.is_busy and kind == "progress"
                replies.append(Reply(number, kind, payload=content, **facts))  # type: ignore[arg-type]  # of a worker
        except (EOFError, OSError):
            replies.append(Reply(number, "lost", error=self._lost(number), host=socket.gethostname()))
        return replies

    def _lost(self, number: int) -> str:
        """Replace a worker; returns why it was lost."""
        one = self._workers.pop(number)
        code = self._end(one)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        one.output.seek(0)
        said = one.output.read().decode(errors="replace").strip().splitlines()[-LAST_LINES:]
        one.output.close()
        reason = one.reason or "; ".join([f"process {one.process.pid} {how}", *said[-1:]])
        self._failed_starts += not one.is_ready
        if self._failed_starts >= MAX_FAILED_STARTS:
            raise RunError(
                f"{self._failed_starts} workers in a row could not start, the last one because {reason}. "
                f"fix: workers=1, which trains in this process. {' / '.join(said)}"
            )
        self._start(self._places.pop(number))
        return reason

    @staticmethod
    def _end(one: _Worker) -> int:
        """Close the pipe and wait for the process; returns its exit code."""
        one.connection.close()
        try:
            return one.process.wait(timeout=5)
        except subprocess.TimeoutExpired:  # it goes on without a pipe
            one.process.kill()
            return one.process.wait()


def serialised(make: Any) -> bytes:
    """Serialise what workers are made from; functions and classes that cannot be imported are sent by value.

    Raises:
        ConfigError: it holds what belongs to this process alone.
    """
    try:
        return bytes(cloudpickle.dumps(make))
    except Exception as error:  # of whatever cannot be pickled
        raise ConfigError(
            f"the environment cannot be sent to a worker ({type(error).__name__}: {error}). fix: pass a function that "
            "makes it, such as env=lambda: MyEnv(), or workers=1."
        ) from None
