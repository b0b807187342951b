"""Calls on several threads; each member is computed by itself, so that bits do not depend on their number."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from ctypes import c_void_p
from typing import Any

import torch

from agilerl.native.library import Call, Library, library, pointer

# Of a call on one thread, below which a run gains nothing by handing it over: to wait for it, or to go on beside it.
MIN_SECONDS, MIN_SECONDS_BESIDE = 2e-3, 2e-4
TRIALS = 2  # calls that are timed, of which the faster one counts: the first one also loads code and memory


class Threads:
    """Threads in C beside this one.

    Args:
        count: at least two, this thread included.

    Attributes:
        count: as asked for, 1 if the system gives no thread.
        defers: whether calls go on after `Kernel.run`, until `finish`.
    """

    def __init__(self, kernels: Library, count: int) -> None:
        self._kernels, self.defers = kernels, False
        self._begun: list[Kernel] = []  # their memory is in use
        self._pool = kernels.start(count - 1) if kernels.has_threads else None
        self.count = count if self._pool is not None else 1

    def gain(self, seconds: float, members: int) -> bool:
        """Whether a call of so many members that takes so long here is worth handing over."""
        return seconds >= MIN_SECONDS_BESIDE if self.defers else seconds >= MIN_SECONDS and members > 1

    def begin(self, kernel: Kernel) -> None:
        """Begin a call, whose members the threads take one by one."""
        assert self._pool is not None
        self._begun.append(kernel)
        self._kernels.begin(self._pool, kernel.call, kernel.rooms(self.count), kernel.dtype == torch.float64)

    def finish(self) -> None:
        """Take part in all calls that have begun, until they are done."""
        if self._begun and self._pool is not None:
            self._kernels.finish(self._pool)
            self._begun.clear()

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._kernels.end(self._pool)


@contextlib.contextmanager
def kernel_threads(count: int) -> Iterator[None]:
    """Context manager: kernels run members on up to `count` threads; the previous setting is restored afterwards."""
    kernels = library()
    if kernels is None:
        yield
        return
    before, threads = kernels.threads, Threads(kernels, count) if count > 1 else None
    kernels.threads = None if threads is None or threads.count == 1 else threads
    try:
        yield
    finally:
        kernels.threads = before
        if threads is not None:
            threads.close()


@contextlib.contextmanager
def deferring() -> Iterator[None]:
    """Context manager: calls made inside go on until `finish`; their results are undefined until then."""
    kernels = library()
    threads = None if kernels is None else kernels.threads
    if threads is None:
        yield
        return
    threads.defers = True
    try:
        yield
    except BaseException:
        threads.finish()  # before the memory of the calls is freed
        raise
    finally:
        threads.defers = False


def finish() -> None:
    """Wait for the calls that were made inside of `deferring`, and take part in them."""
    kernels = library()
    if kernels is not None and kernels.threads is not None:
        kernels.threads.finish()


class Kernel:
    """A call that is filled again for each batch, with memory for intermediate results of each thread.

    Args:
        call: whose `rows` say which members it has.
    """

    def __init__(self, kernels: Library, call: Call, dtype: torch.dtype) -> None:
        self.library, self.call, self.dtype = kernels, call, dtype
        self._room_size = kernels.room(call)
        self._rooms: list[torch.Tensor] = []
        call.rows.room = self.rooms(1)[0]
        self._seconds: list[float] = []  # of calls on one thread

    def run(self) -> None:
        """Run the call; on several threads where it takes long enough, or only begin it there, see `deferring`."""
        rows, threads = self.call.rows, self.library.threads
        is_timed = len(self._seconds) == TRIALS
        if threads is not None and is_timed and threads.gain(min(self._seconds), rows.end - rows.begin):
            threads.begin(self)
            if not threads.defers:
                threads.finish()
            return
        begin = time.perf_counter()
        self.library.run(self.call, self.dtype == torch.float64)
        if not is_timed:
            self._seconds.append(time.perf_counter() - begin)

    def rooms(self, count: int) -> Any:
        """Return the addresses of the memory of so many threads."""
        if len(self._rooms) < count:
            while len(self._rooms) < count:
                self._rooms.append(torch.empty(self._room_size, dtype=self.dtype))
            self._addresses = (c_void_p * count)(*map(pointer, self._rooms))
        return self._addresses
