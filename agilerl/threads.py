"""Intra-op threads of torch: set around the work, given back afterwards, never at import."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch

from agilerl.errors import warn_once


@contextlib.contextmanager
def fixed_threads(count: int) -> Iterator[None]:
    """`count` intra-op torch threads inside the block; the caller's setting comes back afterwards.

    Rounding depends on this number, and not on how many cores a machine has: with fewer of them the same numbers come
    out, later, and a warning says so.
    """
    cores = available_cores()
    if count > cores:
        warn_once(
            f"threads:{count}:{cores}",
            f"{count} threads share the {cores} core{'s' if cores != 1 else ''} of this machine: the results are the "
            "same, but slower. fix for a new run: as many threads as cores, or fewer.",
        )
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def one_thread() -> contextlib.AbstractContextManager[None]:
    """One intra-op torch thread inside the block: small networks run fastest so."""
    return fixed_threads(1)


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
