"""A ring of rows in pieces: what a log on disk appends, and how a ring comes back from it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from agilerl.components.frames import FRAME, NEXT_FRAME, FrameStore
from agilerl.components.ring_log import Changes, Mark
from agilerl.components.row_store import RowStore


class InPieces:
    """The part of a `RowRing` that gives and takes its contents piece by piece.

    Rows are numbered from the first one ever added. Row r lies `counter - r` places before the next one to be
    written, so that a ring that is put together again samples the same rows for the same draws.
    """

    max_size: int
    counter: int
    _store: RowStore | None
    _frames: FrameStore | None
    _size: int
    _position: int
    _log: int  # which life of the contents: marks of another one say nothing about this one
    _oldest_row: int  # rows before this one are not there, although there would be room for them

    def _first(self) -> int:
        """The oldest row in the memory."""
        return max(self._oldest_row, self.counter - self.max_size)

    def _places(self, rows: np.ndarray) -> np.ndarray:
        """Where the rows of these numbers lie."""
        return np.asarray((self._position - self.counter + rows) % self.max_size)

    def mark(self) -> Mark:
        """This moment, from which `changes` goes on."""
        return Mark(self._log, self.counter, 0 if self._frames is None else self._frames.next_epoch())

    def needs(self) -> Mark:
        """The oldest row and the oldest image that are still in the buffer."""
        return Mark(self._log, self._first(), 0 if self._frames is None else self._frames.oldest_epoch())

    def changes(self, since: Mark | None = None) -> Changes:
        """The rows added, and the images placed, since a mark; all that there are where it is none of this contents."""
        known = since if since is not None and since.log == self._log else Mark(self._log, 0, 0)
        first = max(known.row, self._first())
        count = self.counter - first
        start = int(self._places(np.int64(first)))  # type: ignore[arg-type]
        rows = None if self._store is None or not count else self._store.piece(start, count)
        frames = None if self._frames is None else self._frames.placed_since(known.epoch)
        return Changes(first, count, start, rows, frames)

    def load_changes(self, changes: Changes) -> None:
        """Put back what `changes` returned, oldest first, into a buffer that has loaded the state without rows."""
        if changes.rows is not None and self._store is not None:
            self._store.load_piece(changes.start, changes.rows)
        if changes.frames is not None and self._frames is not None:
            self._frames.load_placed(changes.frames)

    def rows_in(self, pieces: Sequence[Changes]) -> np.ndarray:
        """Numbers of the rows that these pieces hold in full, with their images; they have been loaded."""
        ranges = [np.arange(max(p.first, self._first()), p.first + p.count) for p in pieces]
        rows = np.unique(np.concatenate([np.zeros(0, np.int64), *ranges]))
        if self._frames is None or self._store is None:
            return rows
        whole = self._frames.whole([p.frames for p in pieces if p.frames is not None])
        places = torch.from_numpy(self._places(rows))
        named = [self._store.own[path][places].cpu().numpy().reshape(-1) for path in (FRAME, NEXT_FRAME)]
        return np.asarray(rows[whole[named[0]] & whole[named[1]]])

    def keep_rows(self, rows: np.ndarray) -> None:
        """Forget all rows but these; they move together, to the front of the memory, in their order."""
        count = len(rows)
        if self._store is not None:
            self._store.load_piece(0, self._store.piece_at(self._places(rows)))
        self._size, self._position, self._oldest_row = count, count % self.max_size, self.counter - count
        self._log += 1
        self._recount()

    def _recount(self) -> None:
        """References to images are those of the rows that are there."""
        if self._frames is not None and self._store is not None:
            own = self._store.own
            for path in (FRAME, NEXT_FRAME):
                own[path][self._size :] = 0  # what is written there later gives back what it replaces
            self._frames.recount([own[path][: self._size].cpu().numpy().reshape(-1) for path in (FRAME, NEXT_FRAME)])
