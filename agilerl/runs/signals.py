"""SIGTERM and SIGINT: the first one ends a run at the next vector step, the second one at once."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from types import FrameType
from typing import Any, ClassVar


class Stopped(KeyboardInterrupt):
    """The run was stopped by the signal `signum`."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum


def exit_code(error: BaseException | None) -> int:
    """Exit code of a command after an interrupt: 128 + the signal, 130 for Ctrl-C."""
    return 128 + int(error.signum if isinstance(error, Stopped) else signal.SIGINT)


class StopSignals:
    """Handles SIGTERM and SIGINT inside a block; the previous handlers are restored afterwards.

    Before the first call of `check` the run is being set up and writes nothing that could be corrupted: a signal raises
    immediately. After that it takes effect at the next call.

    Python allows handlers in the main thread only: in other threads nothing is installed.
    """

    SIGNALS = (signal.SIGTERM, signal.SIGINT)
    installed: ClassVar[list[StopSignals]] = []  # in this process; an environment may fork
    _has_hooks = False

    def __init__(self) -> None:
        self.received: int | None = None
        self.is_running = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._receive) for number in self.SIGNALS}
            if not StopSignals._has_hooks and hasattr(os, "register_at_fork"):
                after = [partial(_after_fork, is_child) for is_child in (False, True)]
                os.register_at_fork(before=_before_fork, after_in_parent=after[0], after_in_child=after[1])
                StopSignals._has_hooks = True
            self.installed.append(self)
        return self

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before = {}
        StopSignals.installed = [signals for signals in self.installed if signals is not self]

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        if self.received is not None:  # the second signal: default action, immediately
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
        self.received = signum
        if not self.is_running:
            raise Stopped(signum)

    def check(self) -> None:
        """Called between vector steps: raises `Stopped` after a signal."""
        self.is_running = True
        if self.received is not None:
            raise Stopped(self.received)


def _before_fork() -> None:
    if StopSignals.installed:  # a signal to the new process waits until it has its handlers
        signal.pthread_sigmask(signal.SIG_BLOCK, StopSignals.SIGNALS)


def _after_fork(is_child: bool) -> None:
    """In a process that a simulator forks, restore the handlers from before the run: it obeys `terminate`."""
    if StopSignals.installed:
        for signals in reversed(StopSignals.installed) if is_child else ():
            signals.__exit__()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, StopSignals.SIGNALS)
