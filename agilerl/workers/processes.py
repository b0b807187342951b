"""Spawned processes that run one function on many arguments, a few at a time; a lost process is replaced."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, TypeVar

from agilerl.core import foreign
from agilerl.core.safe_path import as_before, without_working_folder
from agilerl.errors import AgileRLError

PARENT_DEATH = 1  # PR_SET_PDEATHSIG of Linux' prctl(2)
RETRIES = 2  # new processes for one argument
POLL_SECONDS = 0.2
Key = TypeVar("Key")
Send = Callable[[Any], None]


@dataclass(frozen=True)
class Ended:
    """How the call for one argument ended.

    Attributes:
        value: the function's result; None unless it returned. error: "" if it returned, else what happened.
        is_user_error: whether the function raised an `AgileRLError`, whose message names a fix.
        traceback: of an exception. losses: processes that were lost on the way.
    """

    value: Any = None
    error: str = ""
    is_user_error: bool = False
    traceback: str = ""
    losses: int = 0


@dataclass
class _Process(Generic[Key]):
    """One process, the parent's end of its pipe, and the key that it works on (None: it waits)."""

    process: Any
    connection: Connection
    key: Key | None = None


class Processes(Generic[Key]):
    """Runs `function(argument, send)` in spawned processes; each takes the next argument when it is done.

    A process that dies is replaced, and its argument is tried again, at most `RETRIES` times; the function must find
    earlier results itself. Processes run in separate sessions, so that Ctrl-C only reaches this one, which passes it
    on; they end when this one does, however it ends.

    Args:
        function: importable by name. count: processes at most.
        prepare: called in every process first, importable too; imports a user's code, for instance.
    """

    def __init__(
        self, function: Callable[[Any, Send], Any], count: int, prepare: Callable[[], None] | None = None
    ) -> None:
        self.function, self.count, self.prepare = function, count, prepare
        self._context = multiprocessing.get_context("spawn")
        self._processes: list[_Process[Key]] = []

    def run(
        self,
        arguments: Mapping[Key, Any],
        on_message: Callable[[Key, Any], None],
        on_end: Callable[[Key, Ended], None],
        stop_signal: Callable[[], int | None],
        idle: Callable[[], None] = lambda: None,
    ) -> dict[Key, Ended]:
        """Run the function on every argument; returns how each call ended, without those never begun.

        Args:
            on_message: called with what a call sends. on_end: called when a call has ended.
            stop_signal: polled; a signal number is passed on to all processes once, and no further call begins.
            idle: called a few times a second.
        """
        waiting, ended, losses = deque(arguments), dict[Key, Ended](), dict.fromkeys(arguments, 0)
        stopped_by: int | None = None
        try:
            while True:
                if stopped_by is None and (stopped_by := stop_signal()) is not None:
                    waiting.clear()
                    for one in self._processes:
                        os.kill(one.process.pid, stopped_by)
                while waiting and len(self._processes) < self.count:
                    self._processes.append(self._start())
                for one in self._processes:
                    if one.key is None and waiting:
                        one.key = waiting.popleft()
                        with contextlib.suppress(OSError):  # it has just died, which is seen below
                            one.connection.send((arguments[one.key],))
                busy = [one for one in self._processes if one.key is not None]
                if not busy:
                    return ended
                wait([one.connection for one in busy], timeout=POLL_SECONDS)
                for one in busy:
                    end = self._read(one, on_message)
                    if end is None:
                        continue
                    key = one.key
                    assert key is not None
                    if end.losses:
                        self._processes.remove(one)
                        losses[key] += 1
                        if losses[key] <= RETRIES and stopped_by is None:
                            waiting.appendleft(key)
                            continue
                    one.key = None
                    ended[key] = Ended(end.value, end.error, end.is_user_error, end.traceback, losses[key])
                    on_end(key, ended[key])
                idle()
        finally:
            self._close()

    def _start(self) -> _Process[Key]:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs, self.function, self.prepare, os.getpid()))
        with without_working_folder():
            process.start()
        theirs.close()
        return _Process(process, ours)

    def _read(self, one: _Process[Key], on_message: Callable[[Key, Any], None]) -> Ended | None:
        """Pass on the messages of a process; returns how its call ended, or None while it runs."""
        while True:
            try:
                if not one.connection.poll():
                    return None
                kind, content = one.connection.recv()
            except (EOFError, OSError):
                one.process.join()
                code = one.process.exitcode
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
                one.connection.close()
                return Ended(error=f"its process {how}", losses=1)
            if kind == "ended":
                end: Ended = content
                return end
            assert one.key is not None
            on_message(one.key, content)  # its errors, such as those of a closed pipe, are the caller's

    def _close(self) -> None:
        """End all processes: those that wait by the end of their pipe, others at once."""
        for one in self._processes:
            one.connection.close()
            if one.key is not None:
                one.process.kill()
        for one in self._processes:
            one.process.join()
        self._processes.clear()


def count_of(workers: int | str, at_most: int) -> int:
    """Number of processes for `workers`: a number, or "auto" for one per core; `at_most` of them are useful."""
    from agilerl.core.threads import available_cores  # imports torch, which a process may not need

    return min(available_cores() if workers == "auto" else int(workers), at_most)


def _serve(
    connection: Connection, function: Callable[[Any, Send], Any], prepare: Callable[[], None] | None, parent: int
) -> None:
    """Run in a process: call the function on the arguments that arrive, until the pipe closes."""
    as_before()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # others are at work on the other cores
    if sys.platform != "win32":  # the parent's terminal signals are its own
        os.setsid()
    end_with_parent(parent)

    def send(message: object) -> None:
        try:
            connection.send(("sent", message))
        except OSError:  # the parent is gone
            signal.raise_signal(signal.SIGTERM)

    is_prepared = prepare is None
    while True:
        try:
            (argument,) = connection.recv()
        except (EOFError, OSError, KeyboardInterrupt):
            return
        try:
            if prepare is not None and not is_prepared:
                prepare()
                is_prepared = True
            end = Ended(function(argument, send))
        except AgileRLError as error:
            end = Ended(error="\n".join([str(error), *foreign.notes(error)]), is_user_error=True)
        except KeyboardInterrupt:
            end = Ended(error="interrupted")
        except Exception as error:
            end = Ended(error=f"{type(error).__name__}: {error}", traceback=traceback.format_exc())
        try:
            connection.send(("ended", end))
        except OSError:
            return


def end_with_parent(parent: int, by: int = signal.SIGTERM) -> None:
    """Ask the system for a signal when the parent dies, where that exists."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PARENT_DEATH, by)
        if os.getppid() != parent:  # it died before the request
            os._exit(1)
