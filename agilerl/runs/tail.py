"""Files that grow: new whole lines since the last look, and whether the file was cut or replaced in between."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from agilerl.core.hostile import MIB, READ_PLAIN

CHUNK_BYTES = 8 * MIB  # of one read, so that a long file is read in pieces
CHECKED_BYTES = 1024  # before the offset, compared at every read


@dataclass(frozen=True)
class Lines:
    """New lines of a file.

    Attributes:
        lines: without their line ends. is_rewound: content that was read before is gone; the lines are from the start.
        dropped: number of lines that were too long. has_more: the file holds more; read again.
    """

    lines: tuple[str, ...] = ()
    is_rewound: bool = False
    dropped: int = 0
    has_more: bool = False


class Tail:
    """Reads appended bytes of one file.

    A resume cuts files back to a checkpoint and appends again, so a file may be longer than before and hold something
    else: the bytes before the offset are compared too. An incomplete last line is left for later.
    """

    def __init__(self, path: Path, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.path, self._chunk_bytes = path, chunk_bytes
        self._offset, self._inode, self._before, self._skips = 0, 0, b"", False

    def read(self) -> Lines:
        """Return the lines since the last call; a missing file, a link or a pipe has none."""
        try:
            descriptor = os.open(self.path, READ_PLAIN)
        except OSError:
            return self._vanished()
        with os.fdopen(descriptor, "rb") as file:
            facts = os.fstat(file.fileno())
            if not stat.S_ISREG(facts.st_mode):
                return self._vanished()
            is_rewound = self._offset > 0 and (
                facts.st_ino != self._inode or facts.st_size < self._offset or not self._is_same(file)
            )
            if is_rewound:
                self._offset, self._before, self._skips = 0, b"", False
            self._inode = facts.st_ino
            file.seek(self._offset)
            data = file.read(min(self._chunk_bytes, max(0, facts.st_size - self._offset)))
            has_more = self._offset + len(data) < facts.st_size
        return self._split(data, is_rewound, has_more)

    def _split(self, data: bytes, is_rewound: bool, has_more: bool) -> Lines:
        end = data.rfind(b"\n") + 1
        if end == 0:
            if len(data) < self._chunk_bytes:
                return Lines(is_rewound=is_rewound)
            end, whole, dropped = len(data), b"", int(not self._skips)  # a line longer than a chunk
            self._skips = True
        else:
            whole, dropped = data[:end], 0
            if self._skips:
                whole, self._skips = whole[whole.index(b"\n") + 1 :], False
        self._offset += end
        self._before = (self._before + data[:end])[-CHECKED_BYTES:]
        lines = tuple(whole.decode("utf-8", errors="replace").split("\n")[:-1])
        return Lines(lines, is_rewound, dropped, has_more)

    def _is_same(self, file: IO[bytes]) -> bool:
        file.seek(self._offset - len(self._before))
        return file.read(len(self._before)) == self._before

    def _vanished(self) -> Lines:
        is_rewound = self._offset > 0
        self._offset, self._inode, self._before, self._skips = 0, 0, b"", False
        return Lines(is_rewound=is_rewound)
