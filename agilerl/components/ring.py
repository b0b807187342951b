"""A ring of rows: the memory, its size and its state, under every replay buffer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.components.data import to_tensordict
from agilerl.components.row_store import Path, Rows, RowStore, check_dtype, plan, put
from agilerl.errors import ConfigError, RunError, ShapeError


class RowRing:
    """The last `max_size` rows; the fields and their shapes are those of the first rows.

    Args:
        max_size: rows.
        device: where the memory is.
        dtype: of floating-point fields: float32, float64 or float16.
    """

    def __init__(self, max_size: int | None, device: torch.device, dtype: torch.dtype) -> None:
        if isinstance(max_size, bool) or not isinstance(max_size, int | np.integer) or max_size < 1:
            raise ConfigError(
                f"max_size must be a positive integer (transitions kept); got {max_size!r}. fix: 100_000."
            )
        self.max_size = int(max_size)
        self.device, self.dtype = device, check_dtype(dtype)
        self.counter = 0
        self._names: dict[str, str] = {}  # role -> the user's name for it
        self._store: RowStore | None = None
        self._size = 0
        self._position = 0

    def __len__(self) -> int:
        return self._size

    @property
    def size(self) -> int:
        """Transitions in the buffer now; at most `max_size`. (`counter` is the number ever added.)"""
        return self._size

    @size.setter
    def size(self, value: int) -> None:
        if not 0 <= value <= self.max_size:
            raise ConfigError(f"size must be in 0..{self.max_size}; got {value}.")
        before, self._size = self._size, int(value)
        self._resized(before)

    @property
    def is_full(self) -> bool:
        """Whether the next transition replaces the oldest one."""
        return self._size == self.max_size

    @property
    def initialized(self) -> bool:
        """Whether the fields are known: something has been added."""
        return self._store is not None

    @property
    def storage(self) -> Any:
        """The whole memory as a TensorDict of batch size [max_size]: views, unwritten rows too; None if new."""
        if self._store is None:
            return None
        return to_tensordict(self._named(self._store.views()), [self.max_size])

    def clear(self) -> None:
        """Forget everything, the fields too."""
        self._store, self._size, self._position, self.counter = None, 0, 0, 0
        self._names = {}

    def state(self) -> dict[str, Any]:
        """Contents and counters as nested dicts of tensors, numbers and strings; a copy."""
        return {
            "max_size": self.max_size,
            "counter": self.counter,
            "size": self._size,
            "position": self._position,
            "names": dict(self._names),
            "rows": None if self._store is None else self._store.state(max(self._size, self._position)),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Become the buffer that `state()` was taken from, to the bit; `max_size` must be the same.

        Raises:
            RunError: another `max_size`.
        """
        if state["max_size"] != self.max_size:
            raise RunError(
                f"the saved buffer has max_size {state['max_size']}, this one {self.max_size}. fix: make it as large."
            )
        rows = state["rows"]
        self._store = None if rows is None else RowStore.from_state(rows, self.max_size, self.dtype, self.device)
        self.counter, self._size, self._position = state["counter"], state["size"], state["position"]
        self._names = dict(state["names"])

    def _add(self, rows: Rows) -> int:
        """Put rows behind the newest ones; returns how many were given."""
        if self._store is None:
            self._store = RowStore(plan(rows, self.dtype), self.max_size, self.dtype, self.device)
        count = added = self._store.check(rows)
        if count > self.max_size:  # only the last max_size would survive
            rows = {path: values[-self.max_size :] for path, values in rows.items()}
            self._position = (self._position + count - self.max_size) % self.max_size
            count = self.max_size
        first = min(count, self.max_size - self._position)
        if first == count:
            if count:
                self._put(self._position, rows, count)
        else:
            self._put(self._position, {path: values[:first] for path, values in rows.items()}, first)
            self._put(0, {path: values[first:] for path, values in rows.items()}, count - first)
        self._position = (self._position + count) % self.max_size
        self._size = min(self._size + count, self.max_size)
        self.counter += added
        return added

    def _put(self, start: int, rows: Rows, count: int) -> None:
        """Write `count` rows to start, start + 1, ...; subclasses follow what is written by extending this."""
        assert self._store is not None
        self._store.write(start, rows)

    def _resized(self, before: int) -> None:
        """The user has set `size`, which was `before`."""

    def _live_rows(self, indices: Any) -> np.ndarray:
        """`indices` of any shape, an array or a tensor, as int64.

        Raises:
            ShapeError: not integers, or not all of them rows in the buffer.
        """
        index = indices.detach().cpu().numpy() if isinstance(indices, Tensor) else np.asarray(indices)
        if index.size and index.dtype.kind not in "iu":
            raise ShapeError(f"row indices must be integers; got {index.dtype}. fix: the `idxs` of a sample.")
        if index.size and not 0 <= index.min() <= index.max() < self._size:
            raise ShapeError(
                f"row indices must be in 0..{self._size - 1} (rows in the buffer); got {index.min()}..{index.max()}. "
                "fix: the `idxs` of a sample."
            )
        return index.astype(np.int64, copy=False)

    def _named(self, data: Mapping[Path, Tensor]) -> dict[str, Any]:
        """Fields by path as nested dicts under the names that they were added with."""
        out: dict[str, Any] = {}
        for (role, *rest), values in data.items():
            put(out, (self._name(role), *rest), values)
        return out

    def _name(self, role: str) -> str:
        return self._names.get(role, role)
