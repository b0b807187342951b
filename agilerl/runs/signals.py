"""SIGTERM and SIGINT: the first one ends a run at the next vector step, the second one at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any


class Stopped(KeyboardInterrupt):
    """A signal has asked the run to end; `signum` is its number."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum


def exit_code(error: BaseException | None) -> int:
    """With what a command ends after an interrupt: 128 + the signal, 130 for Ctrl-C."""
    return 128 + int(error.signum if isinstance(error, Stopped) else signal.SIGINT)


class StopSignals:
    """Listens for SIGTERM and SIGINT inside a block; the handlers that were there come back afterwards.

    Until `check` is called for the first time a run is being set up, which writes nothing that could be torn: a signal
    ends that at once, wherever it is. From then on it waits for the next call.

    Python allows that in the main thread only: elsewhere nothing is installed, and signals do what they did.
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
        if self.received is not None:  # the second time: at once, as if nobody listened
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
        self.received = signum
        if not self.is_running:
            raise Stopped(signum)

    def check(self) -> None:
        """Called between vector steps: raises `Stopped` once a signal has come."""
        self.is_running = True
        if self.received is not None:
            raise Stopped(self.received)
