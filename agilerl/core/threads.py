"""Settings of torch that results depend on: set by context managers, never at import."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import torch

from agilerl.errors import warn_once


@contextlib.contextmanager
def fixed_threads(count: int) -> Iterator[None]:
    """Context manager: `count` intra-op torch threads; the previous setting is restored afterwards.

    Rounding depends on this number, not on the cores of a machine: with fewer cores the results are the same, but
    slower, which a warning reports.
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


@contextlib.contextmanager
def repeatable_convolutions() -> Iterator[None]:
    """Context manager: convolutions on CUDA give equal bits in equal calls; the previous settings are restored.

    cuDNN's faster gradients add in no fixed order, and its search (`benchmark`) chooses by time, so that a resumed run
    would not equal an uninterrupted one. No effect on the CPU.
    """
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before


def one_thread() -> contextlib.AbstractContextManager[None]:
    """Context manager: one intra-op torch thread, which is fastest for small networks."""
    return fixed_threads(1)


def usual_threads(processes: int = 1) -> int:
    """Return how many threads each of so many processes may use: its share of the cores, or of OMP_NUM_THREADS."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    cores = min(available_cores(), int(asked)) if asked.isdecimal() else available_cores()
    return max(1, cores // processes)


def available_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
