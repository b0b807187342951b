"""Main program of a worker process: `python -m agilerl.workers.main DESCRIPTOR PARENT PLACE`."""

from __future__ import annotations

import pickle
import signal
import socket
import sys
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

from agilerl.core.safe_path import end_group_with_parent
from agilerl.workers.executor import has_room, receive, send
from agilerl.workers.processes import end_with_parent

REPORT_SECONDS = 0.1  # between reports of environment steps


class Report:
    """Adds up environment steps and sends them a few times a second: a sign of life, too.

    They wait for the next time while the run is busy and the pipe is full.
    """

    def __init__(self, connection: Connection, host: str) -> None:
        self._connection, self._host = connection, host
        self._steps, self._sent = 0, time.monotonic()

    def __call__(self, steps: int) -> None:
        self._steps += steps
        now = time.monotonic()
        if now - self._sent >= REPORT_SECONDS and has_room(self._connection):
            send(self._connection, "progress", steps=self._steps, host=self._host)
            self._steps, self._sent = 0, now


def serve(connection: Connection, place: int) -> None:
    """Build what does the jobs, then do those that arrive until the pipe closes."""
    host = socket.gethostname()
    send(connection, "started")
    _, make, _ = receive(connection)
    try:
        work = pickle.loads(make)(place)  # from the parent, over a private pipe
    except Exception as error:
        send(connection, "failed", **described(error))
        return
    send(connection, "ready")
    while True:
        _, job, _ = receive(connection)
        try:
            result = work(job, Report(connection, host))
        except Exception as error:
            from agilerl.core.host import is_shortage  # imports torch, as every job has

            if is_shortage(error):  # memory comes back with a new process only
                raise
            send(connection, "raised", host=host, **described(error), traceback=traceback.format_exc())
        else:
            send(connection, "done", result, host=host)


def described(error: Exception) -> dict[str, Any]:
    """Return an exception as plain facts."""
    from agilerl.core import foreign
    from agilerl.errors import AgileRLError

    if isinstance(error, AgileRLError):
        return {"error": "\n".join([str(error), *foreign.notes(error)]), "is_user_error": True}
    return {"error": f"{type(error).__name__}: {error}", "is_user_error": False}


def main() -> None:
    """Serve as the arguments of the command say."""
    serve_process(*(int(text) for text in sys.argv[1:]))


def serve_process(descriptor: int, parent: int, place: int) -> None:
    """Serve at the end `descriptor` of a pipe, until the parent closes its own or is gone."""
    end_with_parent(parent, signal.SIGKILL)  # which ends stopped processes, too
    end_group_with_parent(parent, seconds=0.0)
    try:
        serve(Connection(descriptor), place)
    except (EOFError, OSError, KeyboardInterrupt):
        return


if __name__ == "__main__":
    main()
