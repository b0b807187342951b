"""Resources of the process: freed memory, which the system gets back, errors for exhausted memory, and waits."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from agilerl.errors import AgileRLError, RunError

TORCH_ON_CPU = "can't allocate memory"  # in a plain RuntimeError; on a GPU it is torch.OutOfMemoryError


def return_freed_memory() -> bool:
    """Return freed memory to the system by `malloc_trim`; False if the C library does not have it (glibc does).

    Simulators allocate and free many small objects between long-lived ones; without this, fragmentation increases the
    resident memory of a population that trains for hours.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # not glibc
        return False
    trim(ctypes.c_size_t(0))
    return True


def available_bytes() -> int | None:
    """Memory that this process may still allocate, given the machine's free memory, its control group and its limits.

    None if none of them can be read.
    """
    limits = [_free_of_machine(), _free_of_group(), _free_of_limits()]
    return min((n for n in limits if n is not None), default=None)


def _free_of_machine() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return None
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # another system
        return None


def _free_of_group() -> int | None:
    """Free memory of a container: control groups version 2, then version 1."""
    root = Path("/sys/fs/cgroup")
    for maximum, used in (
        (root / "memory.max", root / "memory.current"),
        (root / "memory/memory.limit_in_bytes", root / "memory/memory.usage_in_bytes"),
    ):
        try:
            limit = maximum.read_text(encoding="utf-8").strip()
            return None if limit == "max" else max(0, int(limit) - int(used.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue
    return None


def _free_of_limits() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def count_waits() -> int:
    """Number of times that this process has given up its core to wait; another one at each call where it is unknown."""
    try:
        import resource
    except ImportError:  # Windows
        return time.perf_counter_ns()
    return resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


def is_shortage(error: BaseException) -> bool:
    """Whether it is an out-of-memory error, on the CPU or a GPU."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or TORCH_ON_CPU in str(error)


@contextmanager
def naming_shortage(env_id: str, progress: Any, way_on: str | None) -> Iterator[None]:
    """Context manager: out-of-memory errors become a `RunError` with the generation and the fixes.

    Nothing is reduced silently: another batch size or number of lanes is another experiment, and a resumed run would no
    longer be bit-identical. `progress.generations`: number of finished generations. `way_on`: the command that resumes
    the run, if any.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, AgileRLError) or not is_shortage(error):
            raise
        saved = "" if way_on is None else f", or `{way_on}` where there is more memory"
        lines = str(error).splitlines() or [type(error).__name__]
        raise RunError(
            f"{env_id}: memory ran out in generation {progress.generations + 1} ({lines[0]}). "
            f"fix: a smaller population, batch_size, num_envs, network or replay max_size{saved}."
        ) from error
