"""What workers of the tests do: importable there by name."""

from __future__ import annotations

import gc
import os
import signal
import struct
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from agilerl.errors import ConfigError

Report = Callable[[int], None]


def connection() -> Connection:
    """The worker's end of its pipe."""
    return next(each for each in gc.get_objects() if isinstance(each, Connection))


def answer(job: bytes, report: Report) -> bytes:
    """Do one of the jobs below, or return the job's length."""
    if job == b"raise":
        raise ValueError("bad")
    if job == b"memory":
        raise MemoryError
    if job == b"die":
        os.kill(os.getpid(), signal.SIGKILL)
    if job in (b"half, then die", b"half, then stop"):
        os.write(connection().fileno(), struct.pack("!i", 10**6) + b"[" * 1000)
        os.kill(os.getpid(), signal.SIGKILL if job.endswith(b"die") else signal.SIGSTOP)
    if job == b"leave a child":
        if os.fork() == 0:  # it holds the pipe open
            time.sleep(600)
        os.kill(os.getpid(), signal.SIGKILL)
    if job == b"print":
        os.write(2, b"x" * 2**21)
    if job == b"pid":
        return str(os.getpid()).encode()
    return str(len(job)).encode()


def make(place: int) -> Any:
    return answer


def make_place(place: int) -> Any:
    return lambda job, report: str(place).encode()


def make_nothing(place: int) -> Any:
    raise ValueError("no licence")


def make_mistake(place: int) -> Any:
    raise ConfigError("no such environment. fix: install it.")


def make_dead(place: int) -> Any:
    os.kill(os.getpid(), signal.SIGSEGV)


def make_once(folder: Path, place: int) -> Any:
    """Start the first time only."""
    if (folder / "was here").exists():
        raise ValueError("no second licence")
    (folder / "was here").touch()
    return answer
