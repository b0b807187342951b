"""Replay on disk: segments that are only appended to, in checksummed chunks; checkpoints say which are theirs.

Where chunks are damaged, buffers are rebuilt from what is left of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agilerl.checkpoint import CorruptCheckpoint, decode_tree, encode_tree, sync_folder
from agilerl.components.ring import Changes, Mark
from agilerl.errors import RunError
from agilerl.runs.checkpoints import open_unlinked

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
            numbers = (int(path.stem.removeprefix("seg-")) for path in segments(self.folder))
            self._current = self.folder / f"seg-{1 + max(numbers, default=0):08d}.bin"
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
        start = chunk.offset + _HEADER
        with open_unlinked(path) as (file, size):
            if start + chunk.size > size:
                raise CorruptCheckpoint(f"{path} ends before byte {start + chunk.size}.")
            file.seek(start)
            payload = file.read(chunk.size)
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


def _write_all(file: Any, data: bytes) -> None:
    """Write all of `data`: one raw write may be short."""
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


# -- back into buffers -----------------------------------------------------------------------------------------------


def rebuild_memories(
    memories: Mapping[str, Any],
    states: Mapping[str, Any],
    logs: Mapping[str, ReplayLog],
    chunks: Mapping[str, Sequence[Chunk]],
    *,
    strict: bool,
) -> list[str]:
    """Fill `memories` from their states without rows and the chunks of their logs.

    Where a chunk is damaged its rows are lost: the buffer then holds the others, moved together, in their order.
    Buffers that are filled together lose the same rows.

    Returns:
        What was lost.

    Raises:
        RunError: something is lost and `strict` is set.
    """
    contents = {name: _read(logs[name], chunks[name]) for name in memories}
    notes = [note for _, bad in contents.values() for note in bad]
    if notes and strict:
        raise RunError(f"{notes[0]} fix: resume without strict_replay, which goes on without those rows.")
    for name, memory in memories.items():
        memory.load_state(states[name])
        for changes, _ in contents[name][0]:
            memory.load_changes(changes)
    if not notes:
        for name, memory in memories.items():
            logs[name].continue_from(memory, chunks[name])
        return []
    rows_left = _rows_left(memories, {name: [c for c, _ in pieces] for name, (pieces, _) in contents.items()})
    for name, memory in memories.items():
        total = len(memory)
        memory.keep_rows(rows_left[name])
        logs[name].forget()
        notes.append(f"replay {name!r} goes on with {len(memory)} of its {total} rows.")
    return notes


def _read(log: ReplayLog, chunks: Sequence[Chunk]) -> tuple[list[tuple[Changes, Chunk]], list[str]]:
    """(the chunks that are whole, what is wrong with the others)."""
    pieces, bad = [], []
    for chunk in chunks:
        try:
            pieces.append((log.read(chunk), chunk))
        except CorruptCheckpoint as error:
            bad.append(f"{chunk.count} rows of the replay in {log.folder.name}/{chunk.file} are lost: {error}")
    return pieces, bad


def _rows_left(memories: Mapping[str, Any], pieces: Mapping[str, Sequence[Changes]]) -> dict[str, np.ndarray]:
    """The numbers of the rows, counted from the first ever added, that can go on; by memory."""
    left = {name: memory.rows_in(pieces[name]) for name, memory in memories.items()}
    if len({int(memory.counter) for memory in memories.values()}) == 1:  # filled together, row by row
        common = next(iter(left.values()))
        for rows in left.values():
            common = np.intersect1d(common, rows)
        return dict.fromkeys(left, common)
    return left
