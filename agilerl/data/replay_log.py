"""Replay on disk: append-only segments of checksummed chunks, which checkpoints refer to.

If chunks are damaged, buffers are rebuilt from the intact ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agilerl.components.rows import Changes, Mark
from agilerl.core.checkpoint import decode_tree, encode_tree
from agilerl.core.files import sync_folder
from agilerl.errors import CorruptCheckpoint, RunError
from agilerl.runs.checkpoints import open_unlinked

if TYPE_CHECKING:
    from agilerl.components.uniform import ReplayBuffer

ROLL_BYTES = 64 * 2**20  # size of a segment after which a new one is started
_HEADER = 8 + 32  # bytes of length and sha256 before a chunk
_SEGMENT = re.compile(r"seg-(\d{8})\.bin")


@dataclass(frozen=True)
class Chunk:
    """Part of a replay in a segment.

    Attributes:
        file: the segment. offset: of the chunk's header in it. size: bytes after the header. sha256: of those.
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
        """Restore from a manifest; CorruptCheckpoint for an invalid segment name."""
        chunk = cls(**entry)
        if not _SEGMENT.fullmatch(chunk.file) or min(chunk.offset, chunk.size, chunk.first, chunk.count) < 0:
            raise CorruptCheckpoint(f"a manifest names the replay segment {chunk.file!r}.")
        return chunk


@dataclass
class ReplayLog:
    """The segments of one replay buffer.

    A log never writes into a segment that it has not created: bytes that a killed process left after the last chunk of
    a manifest remain, and older manifests stay valid.

    Args:
        folder: of the segments.
        chunks: of the buffer's current content, oldest first.
    """

    folder: Path
    chunks: list[Chunk] = field(default_factory=list)
    roll_bytes: int = ROLL_BYTES
    _mark: Mark | None = None
    _current: Path | None = None

    def append(self, memory: ReplayBuffer) -> None:
        """Append the additions to `memory` since the last call, and flush them to disk.

        Raises:
            OSError: the segment is unchanged, and the next call appends the same rows.
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
        """Append one chunk; returns (segment, offset of its header)."""
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
        """Read and verify `chunk`; CorruptCheckpoint if its bytes have changed."""
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

    def continue_from(self, memory: ReplayBuffer, chunks: Iterable[Chunk]) -> None:
        """Continue after `memory` was restored from `chunks`: the next `append` writes additions from here on."""
        self.chunks, self._mark, self._current = list(chunks), memory.mark(), None

    def forget(self) -> None:
        """Reset, so that the next `append` writes everything."""
        self.chunks, self._mark, self._current = [], None, None

    def prune(self, kept: set[str]) -> None:
        """Delete the segments that are neither in `kept` nor needed by this log."""
        keep = kept | {chunk.file for chunk in self.chunks} | ({self._current.name} if self._current else set())
        for path in segments(self.folder):
            if path.name not in keep:
                path.unlink()


def needed(chunks: list[Chunk], oldest: Mark) -> list[Chunk]:
    """The chunks from the first one with a row or an image that is still in the buffer."""
    for position, chunk in enumerate(chunks):
        if chunk.first + chunk.count > oldest.row or chunk.epoch >= oldest.epoch:
            return chunks[position:]
    return []


def segments(folder: Path) -> list[Path]:
    """The segments in a folder, in order."""
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
    """Fill `memories` from their states (without rows) and the chunks of their logs.

    Rows of damaged chunks are lost: the buffer then holds the remaining ones, compacted, in order. Buffers that are
    filled together lose the same rows.

    Returns:
        Notes on lost rows.

    Raises:
        RunError: rows are lost and `strict` is set.
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
    """(the intact chunks, notes on the damaged ones)."""
    pieces, bad = [], []
    for chunk in chunks:
        try:
            pieces.append((log.read(chunk), chunk))
        except CorruptCheckpoint as error:
            bad.append(f"{chunk.count} rows of the replay in {log.folder.name}/{chunk.file} are lost: {error}")
    return pieces, bad


def _rows_left(memories: Mapping[str, Any], pieces: Mapping[str, Sequence[Changes]]) -> dict[str, np.ndarray]:
    """Indices of the remaining rows, counted from the first row ever added, by memory."""
    left = {name: memory.rows_in(pieces[name]) for name, memory in memories.items()}
    if len({int(memory.counter) for memory in memories.values()}) == 1:  # filled together, row by row
        common = next(iter(left.values()))
        for rows in left.values():
            common = np.intersect1d(common, rows)
        return dict.fromkeys(left, common)
    return left
