"""Messages between a run and its workers: a kind, a payload of bytes, and a few plain facts."""

from __future__ import annotations

import json
from multiprocessing.connection import Connection
from typing import Any


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
