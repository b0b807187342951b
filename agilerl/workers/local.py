"""Workers in processes of this machine, new interpreters or copies: kept for the run, replaced when lost."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import cloudpickle

from agilerl.errors import ConfigError, NotAvailableYetError, RunError
from agilerl.workers import main
from agilerl.workers.executor import STALL_SECONDS, Reply, connection_of, receive, send

MAX_FAILED_STARTS = 3  # in a row, before any worker was ready
MAX_RETRY_SECONDS = 60.0  # before another start, after several that failed
END_SECONDS = 5.0  # for a process to end by itself once its pipe is closed
LAST_LINES = 5  # of a lost worker's output, in messages
MAX_OUTPUT = 2**20  # bytes; beyond them the file is emptied

NEW_INTERPRETER = (
    "A worker is a new interpreter, in which the script has set up nothing. fix: env=make_env, a function that does "
    "all that the environment needs, or imports of its module (--import), or workers=1."
)

# Makes what does the jobs in a worker: job -> result, with a function that reports environment steps.
Serve = Callable[[bytes, Callable[[int], None]], bytes]


class Copy:
    """A copy of this process that calls a function, with the methods of `subprocess.Popen` that workers need."""

    def __init__(self, function: Callable[..., None], *args: Any) -> None:
        context: Any = multiprocessing.get_context("fork")
        self._process = context.Process(target=function, args=args, daemon=True)
        self._process.start()
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        code: int | None = self._process.exitcode
        return code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; TimeoutExpired after this many seconds."""
        self._process.join(timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        return code


@dataclass
class _Worker:
    """One process and the parent's end of its pipe.

    Attributes:
        is_ready: whether it has reported that it is built. is_busy: whether it has a job.
        output: its standard error. reason: why it was killed, "" unless it was.
    """

    process: subprocess.Popen[bytes] | Copy
    connection: Connection
    output: Any
    is_ready: bool = False
    is_busy: bool = False
    reason: str = ""


class LocalWorkers:
    """`Executor` whose workers are processes of this machine.

    A process is a new interpreter that inherits nothing: no CUDA context, lock or thread, and no script that would run
    again. With `as_copy` it is a copy of this process, which has imported all that it needs. Processes run in separate
    sessions, so that Ctrl-C only reaches this process. They end when this one does, however it ends.

    Args:
        make: called in every process with the worker's place (0 .. count - 1); returns what does the jobs. Serialised
            by value where it cannot be imported there.
        count: processes. variables: of their environment, in addition to this process's.
        as_copy: is called first in each copy; None for new interpreters.

    Raises:
        ConfigError: `make` cannot be serialised.
    """

    reports_progress = True
    is_optional = False

    def __init__(
        self,
        make: Callable[[int], Serve],
        count: int,
        variables: Mapping[str, str] | None = None,
        as_copy: Callable[[], None] | None = None,
    ) -> None:
        if os.name != "posix":
            raise NotAvailableYetError("workers are processes that inherit a pipe, which needs POSIX. fix: workers=1.")
        self.count, self._as_copy = count, as_copy
        self._variables = {"OMP_NUM_THREADS": "1", **(variables or {})}
        self._make = serialised(make)
        self._numbers = itertools.count()
        self._places: dict[int, int] = {}
        self._workers: dict[int, _Worker] = {}
        self._failed_starts, self._was_ready = 0, False
        self._vacant: list[int] = []  # places whose process could not start
        self._retry_at = 0.0
        for place in range(count):
            self._start(place)

    @property
    def alive(self) -> int:
        return len(self._workers)  # without vacant places

    def idle(self) -> list[int]:
        return [number for number, one in self._workers.items() if one.is_ready and not one.is_busy and not one.reason]

    def submit(self, worker: int, job: bytes) -> None:
        one = self._workers[worker]
        one.is_busy = True
        if os.fstat(one.output.fileno()).st_size > MAX_OUTPUT:
            os.ftruncate(one.output.fileno(), 0)
        try:
            send(one.connection, "job", job)
        except BlockingIOError:
            self.kill(worker, f"it did not take its job for {STALL_SECONDS} s")
        except OSError:  # it has just died, which `poll` reports
            return

    def poll(self, seconds: float) -> list[Reply]:
        if self._vacant and time.monotonic() >= self._retry_at:
            vacant, self._vacant = self._vacant, []
            for place in vacant:
                self._start(place)
        wait([one.connection for one in self._workers.values()], timeout=seconds)
        replies = []
        for number in list(self._workers):
            replies += self._read(number)
        return replies

    def kill(self, worker: int, reason: str) -> None:
        one = self._workers[worker]
        one.reason = reason
        _kill_session(one.process)

    def close(self) -> None:
        for one in self._workers.values():
            _kill_session(one.process)
        for one in self._workers.values():
            self._end(one)
            one.output.close()
        self._workers.clear()
        self._places.clear()
        self._vacant.clear()

    def _start(self, place: int) -> None:
        try:
            one = self._process(place)
        except OSError as error:  # no memory, processes or descriptors are left
            self._retry_later(place, str(error))
            return
        number = next(self._numbers)
        self._workers[number], self._places[number] = one, place

    def _process(self, place: int) -> _Worker:
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        with contextlib.ExitStack() as stack:
            ours, theirs = (stack.enter_context(end) for end in socket.socketpair())
            output = stack.enter_context(tempfile.TemporaryFile("a+b"))  # appended to, so that it can be emptied
            if self._as_copy is not None:
                copy = Copy(self._serve_as_copy, theirs.fileno(), output.fileno(), place, os.getpid())
                stack.pop_all()
                theirs.close()
                return _Worker(copy, connection_of(ours), output)
            command = ["-P", "-m", "agilerl.workers.main"]  # without the working directory, which may not be on it
            process = subprocess.Popen(
                [sys.executable, *command, str(theirs.fileno()), str(os.getpid()), str(place)],
                pass_fds=[theirs.fileno()], start_new_session=True, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=output, env={**os.environ, **self._variables, "PYTHONPATH": paths},
            )  # fmt: skip
            stack.pop_all()
        theirs.close()
        return _Worker(process, connection_of(ours), output)

    def _serve_as_copy(self, pipe: int, output: int, place: int, parent: int) -> None:
        """Serve in a copy of the process `parent`."""
        assert self._as_copy is not None
        self._as_copy()
        os.environ.update(self._variables)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number, file in enumerate((nothing, nothing, output)):
            os.dup2(file, number)
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # a notebook's would reach its page
        main.serve_process(pipe, parent, place)

    def _read(self, number: int) -> list[Reply]:
        """Return what has come from one worker; a lost one is replaced."""
        one, replies = self._workers[number], []
        has_ended = one.process.poll() is not None  # the pipe stays open where its own processes have inherited it
        try:
            while one.connection.poll():
                kind, content, facts = receive(one.connection)
                if kind == "started":
                    send(one.connection, "make", self._make)
                elif kind == "ready":
                    one.is_ready, self._failed_starts, self._was_ready = True, 0, True
                elif kind == "failed":
                    one.reason = self._failed(facts["error"], facts["is_user_error"])
                else:
                    one.is_busy = one.is_busy and kind == "progress"
                    replies.append(Reply(number, kind, payload=content, **facts))  # type: ignore[arg-type]  # of a worker
        except BlockingIOError:
            one.reason = f"it stopped in the middle of a message, for {STALL_SECONDS} s"
            has_ended = True
        except (EOFError, OSError):
            has_ended = True
        if has_ended:
            replies.append(Reply(number, "lost", error=self._lost(number), host=socket.gethostname()))
        return replies

    def _failed(self, error: str, is_user_error: bool) -> str:
        """Return why a worker is lost that could not build what does the jobs.

        Raises:
            ConfigError, RunError: none has been built before, so that it is a mistake rather than a shortage.
        """
        if not self._was_ready:
            kind = ConfigError if is_user_error else RunError
            raise kind(f"a worker cannot start: {error}\n{NEW_INTERPRETER}")
        return error.splitlines()[0]

    def _lost(self, number: int) -> str:
        """Replace a worker; returns why it was lost."""
        one = self._workers.pop(number)
        code = self._end(one)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
        one.output.seek(0)
        said = one.output.read().decode(errors="replace").strip().splitlines()[-LAST_LINES:]
        one.output.close()
        reason = one.reason or "; ".join([f"process {one.process.pid} {how}", *said[-1:]])
        place = self._places.pop(number)
        if one.is_ready:
            self._start(place)
        else:
            self._retry_later(place, reason, said)
        return reason

    def _retry_later(self, place: int, reason: str, said: Sequence[str] = ()) -> None:
        """Leave a place vacant for some seconds, twice as many after each failed start.

        Raises:
            RunError: no worker has ever been ready, so that waiting will not help.
        """
        self._failed_starts += 1
        self._vacant.append(place)
        self._retry_at = time.monotonic() + min(MAX_RETRY_SECONDS, 2.0 ** (self._failed_starts - 1))
        if self._failed_starts >= MAX_FAILED_STARTS and not self._was_ready:
            raise RunError(
                f"{self._failed_starts} workers in a row could not start, the last one because {reason}. "
                f"fix: workers=1, which trains in this process. {' / '.join(said)}".rstrip()
            )

    @staticmethod
    def _end(one: _Worker) -> int:
        """Close the pipe, wait for the process and end those that it has started; returns its exit code."""
        one.connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.process.wait(timeout=0 if one.reason else END_SECONDS)
        _kill_session(one.process)
        return one.process.wait()


def _kill_session(process: subprocess.Popen[bytes] | Copy) -> None:
    """Kill a worker and the processes that it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def serialised(make: object) -> bytes:
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
