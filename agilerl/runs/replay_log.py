"""Replay on disk: segments that are only appended to, in checksummed chunks; checkpoints say which are theirs."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agilerl.checkpoint import CorruptCheckpoint, decode_tree, encode_tree, sync_folder
from agilerl.components.ring import Changes, Mark

ROLL_BYTES = 64 * 2**20  # a segment that is larger gets no further chunk
_HEADER = 8 + 32  # length and sha256 of a chunk stand before it
_SEGMENT = re.compile(r"seg-(\d{8})\.bin")


@dataclass(frozen=True)
class Chunk:
    """One piece of a replay in a segment.

    Attributes:
        file: the segment. offset: of the chunk's header in it. size: bytes behind the header. sha256: of those.
        first, count: its rows, counted from the first row ever added. epoch: of the newest image in it.
    """

    file: str
    offset: int
    size: int
    sha256: str
    first: int
    count: int
    epoch: int

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Chunk:
        """From a manifest; CorruptCheckpoint for a name that no segment has."""
        chunk = cls(**entry)
        if not _SEGMENT.fullmatch(chunk.file) or min(chunk.offset, chunk.size, chunk.first, chunk.count) < 0:
            raise CorruptCheckpoint(f"a manifest names the replay segment {chunk.file!r}.")
        return chunk


@dataclass
class ReplayLog:
    """The segments of one replay buffer.

    A log never writes into a segment that it has not begun itself: what a killed process left behind the last chunk
    of a manifest stays where it is, and no older manifest loses a byte.

    Args:
        folder: of the segments.
        chunks: those that hold the buffer's present contents, oldest first.
    """

    folder: Path
    chunks: list[Chunk] = field(default_factory=list)
    roll_bytes: int = ROLL_BYTES
    _mark: Mark | None = None
    _current: Path | None = None

    def append(self, memory: Any) -> None:
        """Append what `memory` has gained since the last call, and flush it to disk.

        Raises:
            OSError: the segment is as it was, and the next call appends the same and more.
        """
        if self._mark is None or self._mark.log != memory.needs().log:
            self.chunks = []
        changes = memory.changes(self._mark)
        mark = memory.mark()
        if not changes.is_empty:
            payload = encode_tree(changes.tree())
            file, offset = self._write(payload)
            digest = hashlib.sha256(payload).hexdigest()
            self.chunks.append(Chunk(file, offset, len(payload), digest, changes.first, changes.count, mark.epoch - 1))
        self._mark = mark
        self.chunks = needed(self.chunks, memory.needs())

    def _write(self, payload: bytes) -> tuple[str, int]:
        """Append one chunk; (segment, offset of its header)."""
        if self._current is None or self._current.stat().st_size >= self.roll_bytes:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._current = self.folder / f"seg-{1 + max(map(_number, segments(self.folder)), default=0):08d}.bin"
            os.close(os.open(self._current, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            sync_folder(self.folder)
        with open(self._current, "r+b", buffering=0) as file:
            offset = file.seek(0, os.SEEK_END)
            try:
                _write_all(file, len(payload).to_bytes(8, "little") + hashlib.sha256(payload).digest())
                _write_all(file, payload)
                os.fsync(file.fileno())
            except BaseException:
                with contextlib.suppress(OSError):
                    file.truncate(offset)
                raise
        return self._current.name, offset

    def entries(self) -> list[dict[str, Any]]:
        """The chunks for a manifest."""
        return [asdict(chunk) for chunk in self.chunks]

    def read(self, chunk: Chunk) -> Changes:
        """The piece in `chunk`; CorruptCheckpoint where the bytes are not what was written."""
        path = self.folder / chunk.file
        try:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
            with open(descriptor, "rb") as file:
                if chunk.offset + _HEADER + chunk.size > os.fstat(descriptor).st_size:
                    raise CorruptCheckpoint(f"{path} ends before byte {chunk.offset + _HEADER + chunk.size}.")
                file.seek(chunk.offset + _HEADER)
                payload = file.read(chunk.size)
        except OSError as error:
            raise CorruptCheckpoint(f"{path} cannot be read ({error.strerror}).") from error
        if hashlib.sha256(payload).hexdigest() != chunk.sha256:
            raise CorruptCheckpoint(f"{path} does not match its checksum at byte {chunk.offset}.")
        return Changes.of(decode_tree(payload, str(path)))

    def continue_from(self, memory: Any, chunks: Iterable[Chunk]) -> None:
        """`memory` has just been restored from `chunks`: the next call of `append` adds what it gains from here on."""
        self.chunks, self._mark, self._current = list(chunks), memory.mark(), None

    def forget(self) -> None:
        """The next call of `append` writes everything."""
        self.chunks, self._mark, self._current = [], None, None

    def prune(self, kept: set[str]) -> None:
        """Delete the segments that neither `kept` nor this log needs."""
        keep = kept | {chunk.file for chunk in self.chunks} | ({self._current.name} if self._current else set())
        for path in segments(self.folder):
            if path.name not in keep:
                path.unlink()


def needed(chunks: list[Chunk], oldest: Mark) -> list[Chunk]:
    """The chunks from the first one on that holds a row or an image that is still in the buffer."""
    for position, chunk in enumerate(chunks):
        if chunk.first + chunk.count > oldest.row or chunk.epoch >= oldest.epoch:
            return chunks[position:]
    return []


def segments(folder: Path) -> list[Path]:
    """The segments in a folder, in their order."""
    return sorted(p for p in folder.iterdir() if _SEGMENT.fullmatch(p.name)) if folder.is_dir() else []


def _number(path: Path) -> int:
    match = _SEGMENT.fullmatch(path.name)
    return int(match[1]) if match else 0


def _write_all(file: Any, data: bytes) -> None:
    """Write all of `data`: one raw write may be short."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]
