"""Members of one call on several threads; each is computed by itself, so that bits do not depend on their number."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import torch

from agilerl.native.library import Call, Library, Threads, library, pointer

MIN_SECONDS = 2e-3  # of a call on one thread, below which a run gains nothing by handing over
TRIALS = 2  # calls that are timed, of which the faster one counts: the first one also loads code and memory


@contextlib.contextmanager
def kernel_threads(count: int) -> Iterator[None]:
    """Context manager: kernels run members on up to `count` threads; the previous setting is restored afterwards."""
    kernels = library()
    if kernels is None:
        yield
        return
    before, kernels.threads = kernels.threads, Threads(count) if count > 1 else None
    try:
        yield
    finally:
        if kernels.threads is not None:
            kernels.threads.close()
        kernels.threads = before


class Kernel:
    """A call that is filled again for each batch, with memory for intermediate results of each thread.

    Args:
        call: whose `rows` say which members it has.
    """

    def __init__(self, kernels: Library, call: Call, dtype: torch.dtype) -> None:
        self.library, self.call, self.dtype = kernels, call, dtype
        self._room_size = kernels.room(call)
        self._rooms = [self._new_room()]
        call.rows.room = pointer(self._rooms[0])
        self._seconds: list[float] = []  # of calls on one thread

    def run(self) -> None:
        """Run the call, on several threads where it takes long enough."""
        rows, threads = self.call.rows, self.library.threads
        count = 1 if threads is None else min(threads.count, rows.end - rows.begin)
        is_timed = len(self._seconds) == TRIALS
        if threads is not None and count > 1 and is_timed and min(self._seconds) >= MIN_SECONDS:
            self.run_on(threads, count)
            return
        begin = time.perf_counter()
        self.library.run(self.call, self.dtype == torch.float64)
        if not is_timed:
            self._seconds.append(time.perf_counter() - begin)

    def run_on(self, threads: Threads, count: int) -> None:
        """Run the call on `count` threads, each of which takes the next member until none is left."""
        while len(self._rooms) < count:
            self._rooms.append(self._new_room())
        members = iter(range(self.call.rows.begin, self.call.rows.end))

        def work(number: int) -> None:
            call = type(self.call).from_buffer_copy(self.call)
            call.rows.room = pointer(self._rooms[number])
            for member in members:
                call.rows.begin, call.rows.end = member, member + 1
                self.library.run(call, self.dtype == torch.float64)

        threads.run(work, count)

    def _new_room(self) -> torch.Tensor:
        return torch.empty(self._room_size, dtype=self.dtype)
