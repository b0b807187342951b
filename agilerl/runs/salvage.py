"""Replay buffers from their logs; where chunks are damaged, from what is left of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agilerl.checkpoint import CorruptCheckpoint
from agilerl.components.ring import Changes
from agilerl.errors import RunError
from agilerl.runs.replay_log import Chunk, ReplayLog


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
    found = {name: _read(logs[name], chunks[name]) for name in memories}
    notes = [note for _, bad in found.values() for note in bad]
    if notes and strict:
        raise RunError(f"{notes[0]} fix: resume without strict_replay, which goes on without those rows.")
    for name, memory in memories.items():
        memory.load_state(states[name])
        for changes, _ in found[name][0]:
            memory.load_changes(changes)
    if not notes:
        for name, memory in memories.items():
            logs[name].continue_from(memory, chunks[name])
        return []
    kept = _rows_left(memories, {name: [c for c, _ in pieces] for name, (pieces, _) in found.items()})
    for name, memory in memories.items():
        total = len(memory)
        memory.keep_rows(kept[name])
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
