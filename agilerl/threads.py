"""One intra-op thread where small networks run: set around the work, given back afterwards, never at import."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One intra-op torch thread inside the block; the caller's setting comes back afterwards.

    Small networks run fastest so, and rounding then does not depend on how many cores a machine has.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
