"""Workers that start after some time; optional for the run."""

from __future__ import annotations

import time
from collections.abc import Callable

from agilerl.errors import ConfigError, RunError
from agilerl.workers.executor import Executor, NoWorkers, Reply

START_AFTER = 20.0  # seconds; shorter runs would not gain


class LaterWorkers:
    """`Executor` without workers at the start.

    Args:
        start: returns the executor whose workers start later. say: called when they start, or with the reason if not.
        after: seconds from now; the start itself happens at the first use after that.
    """

    is_optional = True

    def __init__(self, start: Callable[[], Executor], say: Callable[[str], None], after: float = START_AFTER) -> None:
        self._start, self._say, self._at = start, say, time.monotonic() + after
        self._executor: Executor = NoWorkers()
        self._has_begun = False

    @property
    def reports_progress(self) -> bool:
        return self._executor.reports_progress

    @property
    def alive(self) -> int:
        return self._executor.alive

    def idle(self) -> list[int]:
        return self._executor.idle()

    def submit(self, worker: int, job: bytes) -> None:
        self._executor.submit(worker, job)

    def poll(self, seconds: float) -> list[Reply]:
        try:
            if not self._has_begun and time.monotonic() >= self._at:
                self._has_begun = True
                self._executor = self._start()
                more = self._executor.alive
                self._say(
                    f"{more} more process{'es play' if more > 1 else ' plays'} episodes of evaluations from now on"
                )
            return self._executor.poll(seconds)
        except (ConfigError, RunError) as error:  # no worker was ready, so none has work of the run
            self._say(f"one process does all the work: {str(error).splitlines()[0]}")
            self._executor.close()
            self._executor = NoWorkers()
            return []

    def kill(self, worker: int, reason: str) -> None:
        self._executor.kill(worker, reason)

    def close(self) -> None:
        self._executor.close()
