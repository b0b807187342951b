"""Memory that was freed goes back to the system; memory that ran out is named, with what can be done."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any

import torch

from agilerl.errors import AgileRLError, RunError

TORCH_ON_CPU = "can't allocate memory"  # of a plain RuntimeError; on a GPU it is torch.OutOfMemoryError


def return_freed_memory() -> bool:
    """Ask the C library to give back what it holds without need; False where it has no such call (glibc has).

    Simulators make and free many small objects between long-lived ones; without this the resident memory of a
    population that trains for hours grows although nothing is kept.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
    trim(ctypes.c_size_t(0))
    return True


def is_shortage(error: BaseException) -> bool:
    """Whether memory ran out, on the CPU or on a GPU."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or TORCH_ON_CPU in str(error)


@contextmanager
def naming_shortage(env_id: str, progress: Any, run: str | PathLike[str] | None) -> Iterator[None]:
    """Inside the block, memory that runs out is a `RunError` with the generation and the ways to go on.

    Nothing is made smaller in silence: another batch size or another number of lanes is another experiment, and would
    end the promise that a resumed run has the same bits. `progress.generations` are whole.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, AgileRLError) or not is_shortage(error):
            raise
        saved = "" if run is None else f", or `agilerl resume {run}` where there is more memory"
        lines = str(error).splitlines() or [type(error).__name__]
        raise RunError(
            f"{env_id}: memory ran out in generation {progress.generations + 1} ({lines[0]}). "
            f"fix: a smaller population, batch_size, num_envs, network or replay max_size{saved}."
        ) from error
