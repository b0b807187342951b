"""Interface between a run and the workers that do parts of it, in other processes or on other machines."""

from __future__ import annotations

import json
import select
import socket
import struct
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Literal, Protocol


@dataclass(frozen=True)
class Reply:
    """What came from a worker.

    Attributes:
        worker: its number; a replacement gets a new one.
        kind: "done": the job is done, `payload` is its result. "progress": `steps` environment steps more.
            "raised": the job raised an exception, whose text is `error`. "lost": the worker is gone, for the reason
            `error`, and with it its job, if it had one.
        host: name of the worker's machine.
        is_user_error: of "raised": whether the exception names a fix. traceback: of the exception.
    """

    worker: int
    kind: Literal["done", "progress", "raised", "lost"]
    payload: bytes = b""
    steps: int = 0
    error: str = ""
    host: str = ""
    is_user_error: bool = False
    traceback: str = ""


class Executor(Protocol):
    """Workers that do one job each at a time. They start when the executor is made, and are replaced when lost.

    Attributes:
        is_optional: whether workers were not requested, so that a run that cannot use them continues without.
    """

    is_optional: bool

    @property
    def reports_progress(self) -> bool:
        """Whether a worker that is well sends "progress" during a job, so that silence is a fault."""

    @property
    def alive(self) -> int:
        """Number of workers that have not been lost, idle, busy or starting."""

    def idle(self) -> list[int]:
        """Numbers of the workers that are ready and have no job: a worker that is starting gets none."""

    def submit(self, worker: int, job: bytes) -> None:
        """Give an idle worker a job."""

    def poll(self, seconds: float) -> list[Reply]:
        """Return what came from workers, after `seconds` at most.

        Raises:
            ConfigError, RunError: workers cannot start.
        """

    def kill(self, worker: int, reason: str) -> None:
        """End a worker that does not answer; `poll` reports it as lost, and another one starts."""

    def close(self) -> None:
        """End all workers."""


class NoWorkers:
    """`Executor` of a run that works alone."""

    alive = 0
    reports_progress = True
    is_optional = True

    def idle(self) -> list[int]:
        return []

    def submit(self, worker: int, job: bytes) -> None:
        """Never called: no worker is idle."""

    def poll(self, seconds: float) -> list[Reply]:
        return []

    def kill(self, worker: int, reason: str) -> None:
        """Never called."""

    def close(self) -> None:
        """Nothing is open."""


STALL_SECONDS = 10  # without a byte, in the middle of a message


def connection_of(end: socket.socket) -> Connection:
    """Return the connection over one end of a socket pair, which it closes.

    `send` and `receive` raise `BlockingIOError` if the other process stops in the middle of a message, so that a
    stopped worker does not block its run.
    """
    limit = struct.pack("ll", STALL_SECONDS, 0)  # of C's struct timeval
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        end.setsockopt(socket.SOL_SOCKET, option, limit)
    return Connection(end.detach())


def has_room(connection: Connection) -> bool:
    """Whether a short message can be sent without waiting for the other process."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLOUT)
    return bool(poll.poll(0))


def send(connection: Connection, kind: str, payload: bytes = b"", **facts: Any) -> None:
    """Send one message; OSError if the other end is gone."""
    connection.send_bytes(json.dumps([kind, facts]).encode())
    connection.send_bytes(payload)


def receive(connection: Connection) -> tuple[str, bytes, dict[str, Any]]:
    """Wait for the next message; EOFError or OSError if the other end is gone.

    Returns:
        Its kind, payload and facts.
    """
    kind, facts = json.loads(connection.recv_bytes())
    return str(kind), connection.recv_bytes(), dict(facts)
