"""Processes that execute nothing of the working folder while they start."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

VARIABLE = "PYTHONSAFEPATH"
OURS = "agilerl"  # any text switches it on


@contextmanager
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
