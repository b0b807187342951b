"""Processes that this one starts: they execute nothing of the working folder, and end with it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator

VARIABLE = "PYTHONSAFEPATH"
OURS = "agilerl"  # any text switches it on


@contextlib.contextmanager
def without_working_folder() -> Iterator[None]:
    """Keep `multiprocessing` from importing files of the working folder in what it starts here.

    It starts processes with `python -c`, which looks there first, for a `pickle.py`, say, before it takes over the path
    of this process. Their main function calls `as_before`, since the variable would reach the processes that they
    start.
    """
    if sys.flags.safe_path or VARIABLE in os.environ:
        yield
        return
    os.environ[VARIABLE] = OURS
    try:
        yield
    finally:
        as_before()


def as_before() -> None:
    """Drop the variable, unless the user has set it."""
    if os.environ.get(VARIABLE) == OURS:
        del os.environ[VARIABLE]


def end_group_with_parent(parent: int, seconds: float) -> None:
    """Kill this process and those it starts this many seconds after the process `parent` has ended, on Linux.

    They get a session of their own, so that the terminal's signals are the parent's. A process beside this one waits
    for the end, since a simulator may hang, or start processes that nobody else knows.
    """
    if not hasattr(os, "setsid"):
        return
    if os.getsid(0) != os.getpid():
        os.setsid()
    try:
        descriptor = os.pidfd_open(parent)
    except ProcessLookupError:
        os._exit(1)
    except (AttributeError, OSError):
        return
    if os.fork():
        os.close(descriptor)
        return
    os.closerange(0, descriptor)  # pipes of the worker, whose end tells of its own
    os.closerange(descriptor + 1, os.sysconf("SC_OPEN_MAX"))
    end = select.poll()
    end.register(descriptor, select.POLLIN)
    end.poll()
    time.sleep(seconds)
    os.killpg(0, signal.SIGKILL)


def kill_group(leader: int) -> None:
    """Kill a process that leads a group, and its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError, AttributeError):
        os.killpg(leader, signal.SIGKILL)
