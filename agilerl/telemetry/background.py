"""Calls that may take as long as they like, without the training waiting for them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

CAPACITY = 1000
PATIENCE_S = 10.0


class Background:
    """A thread of its own that makes calls in order; a full queue drops the newest and counts it.

    Args:
        on_error: called in that thread with what a call raised; no further call is made.
        capacity: calls that wait at most. name: of the thread.

    Attributes:
        dropped: calls that were never made.
    """

    def __init__(self, on_error: Callable[[Exception], None], capacity: int = CAPACITY, name: str = "tracker") -> None:
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(capacity)
        self._on_error = on_error
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._failed = threading.Event()
        self.dropped = 0
        self._thread.start()

    def call(self, function: Callable[[], None]) -> None:
        """Make this call when its turn comes; returns at once."""
        if self._failed.is_set():
            return
        try:
            self._queue.put_nowait(function)
        except queue.Full:
            self.dropped += 1

    def close(self, patience_s: float = PATIENCE_S) -> bool:
        """Let waiting calls be made, for so long at most; whether all were."""
        try:
            self._queue.put(None, timeout=patience_s)
        except queue.Full:
            return False
        self._thread.join(patience_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (function := self._queue.get()) is not None:
            if self._failed.is_set():
                continue
            try:
                function()
            except Exception as error:  # whatever a tracker may raise must not end the training
                self._failed.set()
                self._on_error(error)
