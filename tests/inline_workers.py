"""Workers that do their jobs in this process, at once."""

from __future__ import annotations

import socket
import traceback
from collections.abc import Callable

from agilerl.errors import AgileRLError
from agilerl.workers.executor import Reply
from agilerl.workers.local import Serve


class InlineWorkers:
    """`Executor` without further processes.

    Args:
        make: see `LocalWorkers`. count: workers, each with what `make` returns.
    """

    reports_progress = True
    is_optional = False

    def __init__(self, make: Callable[[int], Serve], count: int, as_copy: object = None) -> None:
        self._make, self._next = make, count
        self._workers = {place: make(place) for place in range(count)}
        self._replies: dict[int, list[Reply]] = {}

    @property
    def alive(self) -> int:
        return len(self._workers)

    def idle(self) -> list[int]:
        return [number for number in self._workers if number not in self._replies]

    def submit(self, worker: int, job: bytes) -> None:
        host, replies = socket.gethostname(), self._replies.setdefault(worker, [])

        def report(steps: int) -> None:
            replies.append(Reply(worker, "progress", steps=steps, host=host))

        try:
            replies.append(Reply(worker, "done", self._workers[worker](job, report), host=host))
        except Exception as error:
            text, is_user_error = f"{type(error).__name__}: {error}", isinstance(error, AgileRLError)
            more = {"is_user_error": is_user_error, "traceback": traceback.format_exc()}
            replies.append(Reply(worker, "raised", error=text, host=host, **more))  # type: ignore[arg-type]

    def poll(self, seconds: float) -> list[Reply]:
        replies = [reply for each in self._replies.values() for reply in each]
        self._replies.clear()
        return replies

    def kill(self, worker: int, reason: str) -> None:
        """Replace a worker by a new one."""
        del self._workers[worker]
        self._replies[worker] = [Reply(worker, "lost", error=reason, host=socket.gethostname())]
        self._workers[self._next] = self._make(self._next)
        self._next += 1

    def close(self) -> None:
        self._workers.clear()
        self._replies.clear()
