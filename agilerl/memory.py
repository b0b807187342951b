"""Memory that was freed goes back to the system between generations."""

from __future__ import annotations

import ctypes


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
