"""SIGTERM and SIGINT: the first one ends a run at the next vector step, the second one at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any


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

    def __init__(self) -> None:
        self.received: int | None = None
        self.is_running = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._receive) for number in self.SIGNALS}
        return self

    def __exit__(self, *raised: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._before = {}

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
