"""Arrays in a row, for plain observations and for Dict and Tuple ones: the lanes' row store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from gymnasium import Space, spaces


def stack(space: Space[Any] | None, rows: Sequence[Any]) -> Any:
    """Rows of single observations -> [L, ...] arrays, nested as the space is; the space's dtype where it has one.

    Without a space they are nested as the rows are.
    """
    if space is None and isinstance(rows[0], dict):
        return {key: stack(None, [row[key] for row in rows]) for key in rows[0]}
    if space is None and isinstance(rows[0], tuple):
        return tuple(stack(None, [row[i] for row in rows]) for i in range(len(rows[0])))
    if isinstance(space, spaces.Dict):
        return {key: stack(sub, [row[key] for row in rows]) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(stack(sub, [row[i] for row in rows]) for i, sub in enumerate(space.spaces))
    dtype = None if space is None else space.dtype
    return np.stack([np.asarray(row, dtype) for row in rows])


def put(batch: Any, lane: int, row: Any) -> None:
    """Write one observation into row `lane` of `batch`, in place."""
    if isinstance(batch, np.ndarray):
        batch[lane] = row
    elif isinstance(batch, dict):
        for key, part in batch.items():
            put(part, lane, row[key])
    else:
        for i, part in enumerate(batch):
            put(part, lane, row[i])


def copy(batch: Any) -> Any:
    """A copy that shares no memory."""
    if isinstance(batch, np.ndarray):
        return batch.copy()
    if isinstance(batch, dict):
        return {key: copy(part) for key, part in batch.items()}
    return tuple(copy(part) for part in batch)


def choose(rows: np.ndarray, where: Any, otherwise: Any) -> Any:
    """Row by row: `where` where `rows` [L] bool is True, else `otherwise`. A new batch."""
    if isinstance(where, dict):
        return {key: choose(rows, part, otherwise[key]) for key, part in where.items()}
    if isinstance(where, tuple):
        return tuple(choose(rows, part, other) for part, other in zip(where, otherwise, strict=True))
    out = np.array(otherwise)
    out[rows] = np.asarray(where)[rows]
    return out


def take(batch: Any, rows: Any) -> Any:
    """Rows of a batch (an index, a slice, an index array or a boolean mask), nested as the batch is."""
    if isinstance(batch, dict):
        return {key: take(part, rows) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(take(part, rows) for part in batch)
    return batch[rows]


def reshape(batch: Any, *leading: int) -> Any:
    """[L, ...] -> [*leading, ...] as views, nested as the batch is."""
    if isinstance(batch, dict):
        return {key: reshape(part, *leading) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(reshape(part, *leading) for part in batch)
    return batch.reshape(*leading, *batch.shape[1:])


def leaves(batch: Any) -> Iterator[np.ndarray]:
    """Every array of a batch."""
    if isinstance(batch, np.ndarray):
        yield batch
        return
    for part in batch.values() if isinstance(batch, dict) else batch:
        yield from leaves(part)
