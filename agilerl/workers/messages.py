"""Messages between a run and its workers: a kind, a payload of bytes, and a few plain facts."""

from __future__ import annotations

import json
import select
import socket
import struct
from multiprocessing.connection import Connection
from typing import Any

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
