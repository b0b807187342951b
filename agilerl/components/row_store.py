"""Rows of experience in preallocated memory: small numeric fields packed into one array, images separately."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.core.transfer import to_device
from agilerl.core.tree import untuple
from agilerl.errors import ReplayError, ShapeError

Path = tuple[str, ...]
Rows = dict[Path, np.ndarray]

# Integer fields packed as floating point: their values are small and exact there (checked at every write).
PACKED_INTEGERS = {"action", "done"}


@dataclass(frozen=True, slots=True)
class Field:
    """Storage of one field.

    Attributes:
        path: keys from the outside in, such as ("obs", "camera"). shape: of one row; (1,) for scalars.
        dtype: output dtype. is_scalar: rows were given without a trailing axis.
        columns: (first, last + 1) in the packed rows; None for a separately stored field.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_scalar: bool
    columns: tuple[int, int] | None
    largest: float = dataclasses.field(init=False, compare=False)
    """Largest accepted magnitude: the maximum of the floating-point dtype, of float32 for integers."""

    def __post_init__(self) -> None:
        stored_dtype = self.dtype if self.dtype.is_floating_point else torch.float32
        object.__setattr__(self, "largest", float(torch.finfo(stored_dtype).max))

    @property
    def name(self) -> str:
        """Path as one string."""
        return "/".join(self.path)

    def state(self) -> dict[str, Any]:
        """Return plain data."""
        columns = None if self.columns is None else list(self.columns)
        kind = {"dtype": str(self.dtype).removeprefix("torch."), "is_scalar": self.is_scalar}
        return {"path": list(self.path), "shape": list(self.shape), **kind, "columns": columns}

    @classmethod
    def from_state(cls, entry: Mapping[str, Any]) -> Field:
        """Restore the field from `state`."""
        columns = None if entry["columns"] is None else (entry["columns"][0], entry["columns"][1])
        dtype = getattr(torch, entry["dtype"])
        return cls(tuple(entry["path"]), tuple(entry["shape"]), dtype, entry["is_scalar"], columns)


def plan(rows: Rows, dtype: torch.dtype) -> tuple[Field, ...]:
    """Plan the fields for data like `rows` ([n, ...] arrays); floating-point ones are stored in `dtype`."""
    fields, width = [], 0
    for path, values in rows.items():
        shape = values.shape[1:] or (1,)
        kind = torch.from_numpy(np.empty(0, values.dtype)).dtype
        # An integer reward may be a fraction in later rows; other fields keep their dtype.
        stored_dtype = dtype if kind.is_floating_point or path[0] == "reward" else kind
        is_packed = len(shape) == 1 and (
            stored_dtype.is_floating_point or stored_dtype == torch.bool or path[0] in PACKED_INTEGERS
        )
        columns = (width, width + shape[0]) if is_packed else None
        width += shape[0] if is_packed else 0
        fields.append(Field(path, shape, stored_dtype, values.ndim == 1, columns))
    return tuple(fields)


def check_rows(fields: Mapping[Path, Field], rows: Rows, dtype: torch.dtype) -> int:
    """Check that `rows` match `fields` and their shapes; return the number of rows.

    Raises:
        ShapeError: other fields or shapes, unequal counts, or an integer that is not exact in `dtype`.
        ReplayError: NaN or Inf: one such row would corrupt every member that samples it.
    """
    if rows.keys() != fields.keys():
        missing, extra = fields.keys() - rows.keys(), rows.keys() - fields.keys()
        raise ShapeError(
            f"the buffer holds the fields {sorted('/'.join(p) for p in fields)}; missing: "
            f"{sorted('/'.join(p) for p in missing)}, unknown: {sorted('/'.join(p) for p in extra)}. "
            "fix: the same fields in all rows; clear() the buffer if its first rows were incomplete."
        )
    count = -1
    for path, values in rows.items():
        field = fields[path]
        if values.shape[1:] != field.shape and not (values.ndim == 1 and field.shape == (1,)):
            raise ShapeError(
                f"field {field.name!r} has rows of shape {list(field.shape)}; got {list(values.shape[1:])}. "
                "fix: use one buffer per environment."
            )
        if count not in (-1, len(values)):
            raise ShapeError(f"every field needs the same number of rows; {field.name!r} has {len(values)}.")
        count = len(values)
        if values.dtype.kind == "f":
            flat = values.reshape(-1)
            # One product instead of two passes; if it overflows, the passes check the values themselves.
            if not math.sqrt(np.vdot(flat, flat)) <= field.largest:
                _check_finite(field, values)
        if field.columns and not field.dtype.is_floating_point and values.dtype.kind in "iu":
            largest = int(np.abs(values).max(initial=0))
            if largest > 2 / torch.finfo(dtype).eps:  # integers up to here are exact in this dtype
                raise ShapeError(f"field {field.name!r}: {largest} is not exact in {dtype}. fix: float64.")
    return count


def _check_finite(field: Field, values: np.ndarray) -> None:
    dtype = field.dtype if field.dtype.is_floating_point else torch.float32
    fits = np.abs(values) <= field.largest  # False for NaN too
    if fits.all():
        return
    bad = ~fits.reshape(len(values), -1).all(axis=1)
    raise ReplayError(
        f"field {field.name!r} must hold finite numbers (in {dtype}); row {int(np.argmax(bad))} of {len(values)} does "
        f"not ({int(bad.sum())} in all); nothing was added. fix: look for a diverged network or a failing environment."
    )


class Block:
    """`count` rows [*shape] in preallocated memory, with undo of what is written after a savepoint.

    On the host, memory is committed when it is first written, and NumPy slices cost a tenth of torch's.
    """

    def __init__(self, count: int, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        if device.type == "cpu":
            self.tensor = torch.from_numpy(np.zeros((count, *shape), numpy_dtype(dtype)))
        else:
            self.tensor = torch.zeros((count, *shape), dtype=dtype, device=device)
        self.is_copied: np.ndarray | None = None  # [rows at the savepoint] bool, those in `copies`; None without one
        self.copies: list[tuple[Any, Tensor]] = []  # (rows [k], contents before), in the order of the writes
        self._bind()

    def _bind(self) -> None:
        self.view = self.tensor.numpy() if self.tensor.device.type == "cpu" else None

    def __getstate__(self) -> dict[str, Any]:
        # Pickle and deepcopy would detach the view from its tensor: it is recreated instead.
        return {**self.__dict__, "view": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._bind()

    def begin(self, start: int, stop: int) -> np.ndarray:
        """Return a host array [k, ...] to fill with the rows start .. stop - 1 and pass to `end`."""
        if self.is_copied is not None and not self.is_copied[start:stop].all():
            self.copies.append((slice(start, stop), self.tensor[start:stop].clone()))
            self.is_copied[start:stop] = True
        if self.view is not None:
            return self.view[start:stop]
        return np.empty((stop - start, *self.tensor.shape[1:]), numpy_dtype(self.tensor.dtype))

    def end(self, start: int, rows: np.ndarray) -> None:
        """Copy the filled array of `begin` to the device."""
        if self.view is None:
            self.tensor[start : start + len(rows)] = to_device(torch.from_numpy(rows), self.tensor.device)

    def put(self, index: np.ndarray, rows: Any) -> None:
        """Write an array or a tensor [k, ...] to the rows `index` [k]."""
        if self.is_copied is not None:
            fresh = index[index < len(self.is_copied)]
            fresh = fresh[~self.is_copied[fresh]]
            self.copies.append((self._index(fresh), self.take(fresh)))
            self.is_copied[fresh] = True
        if self.view is not None:
            self.view[index] = rows.cpu().numpy() if isinstance(rows, Tensor) else rows
        else:
            self.tensor[self._index(index)] = torch.as_tensor(rows).to(self.tensor.device)

    def take(self, index: np.ndarray | Tensor) -> Tensor:
        """Return copies of the rows `index` [...], on the block's device."""
        if self.view is not None:
            return torch.from_numpy(np.take(self.view, index.numpy() if isinstance(index, Tensor) else index, axis=0))
        return self.tensor[self._index(index)]

    def _index(self, index: np.ndarray | Tensor) -> Tensor:
        return to_device(torch.as_tensor(index), self.tensor.device)

    def savepoint(self, used: int) -> None:
        """Copy the first `used` rows from here on before they are overwritten; replaces an earlier savepoint."""
        self.is_copied, self.copies = np.zeros(used, dtype=bool), []

    def rollback(self) -> None:
        """Restore the rows of the savepoint, and end it."""
        for index, rows in reversed(self.copies):  # of a row that was copied twice the first copy counts
            self.tensor[index] = rows
        self.is_copied, self.copies = None, []


class RowStore:
    """`max_size` rows. One gather of the packed block fetches every small field of every sampled row.

    Args:
        fields: from `plan`. max_size: rows. dtype: of the packed block.
        device: device of the memory; rows come from and indices may be on the host.
    """

    def __init__(self, fields: tuple[Field, ...], max_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.fields, self.max_size = fields, max_size
        self._widths = [field.shape[0] for field in fields if field.columns]
        self.packed = Block(max_size, (sum(self._widths),), dtype, device)
        apart = [field for field in fields if field.columns is None]
        self.own = {field.path: Block(max_size, field.shape, field.dtype, device) for field in apart}

    @property
    def blocks(self) -> list[Block]:
        """The packed block and those of single fields."""
        return [self.packed, *self.own.values()]

    def savepoint(self) -> None:
        """See `Block.savepoint`."""
        for block in self.blocks:
            block.savepoint(self.max_size)

    def write(self, start: int, rows: Rows) -> None:
        """Copy checked rows to start, start + 1, ...; they must fit before the end."""
        stop = start + len(next(iter(rows.values())))
        target = self.packed.begin(start, stop)
        for field in self.fields:
            if field.columns:
                target[:, field.columns[0] : field.columns[1]] = rows[field.path].reshape(len(target), -1)
        self.packed.end(start, target)
        for path, block in self.own.items():
            target = block.begin(start, stop)
            target[...] = rows[path].reshape(target.shape)
            block.end(start, target)

    def gather(self, indices: np.ndarray | Tensor) -> dict[Path, Tensor]:
        """Every field [..., *shape] of the rows `indices` [...]; packed ones in the store's dtype, views of one copy.

        The result is on the store's device and shares no memory with it.
        """
        # A slice per field costs three times as much.
        parts = iter(self.packed.take(indices).split_with_sizes(self._widths, dim=-1))
        return {f.path: next(parts) if f.columns else self.own[f.path].take(indices) for f in self.fields}

    def views(self) -> dict[Path, Tensor]:
        """Return every field [max_size, *shape]: views of the memory (packed ones in the store's dtype)."""
        parts = iter(self.packed.tensor.split_with_sizes(self._widths, dim=-1))
        return {f.path: next(parts) if f.columns else self.own[f.path].tensor for f in self.fields}

    def state(self, size: int) -> dict[str, Any]:
        """Return the first `size` rows (copied) and the fields, as plain data."""
        separate = {"/".join(path): block.tensor[:size].clone() for path, block in self.own.items()}
        packed = self.packed.tensor[:size].clone()
        return {"fields": [field.state() for field in self.fields], "packed": packed, "own": separate}

    def piece(self, places: np.ndarray) -> dict[str, Any]:
        """Return copies of the rows at `places`: tensors on the host."""
        separate = {"/".join(path): block.take(places).cpu() for path, block in self.own.items()}
        return {"packed": self.packed.take(places).cpu(), "own": separate}

    def load_piece(self, start: int, piece: Mapping[str, Any]) -> None:
        """Write the result of `piece` to `start` and the following places."""
        places = (start + np.arange(len(piece["packed"]))) % self.max_size
        self.packed.put(places, piece["packed"])
        for path, block in self.own.items():
            block.put(places, piece["own"]["/".join(path)])

    @classmethod
    def from_state(cls, state: Mapping[str, Any], max_size: int, dtype: torch.dtype, device: torch.device) -> RowStore:
        """Restore a store with the rows of `state`, at most `max_size`."""
        fields = tuple(Field.from_state(entry) for entry in state["fields"])
        store = cls(fields, max_size, dtype, device)
        store.load_piece(0, state)
        return store


def flatten(path: Path, value: Any, rows: Rows) -> None:
    """Collect the leaves of `value` in `rows` as host arrays [n, ...], by path."""
    if isinstance(value, np.ndarray) and value.ndim:
        rows[path] = value
        return
    if isinstance(value, Mapping | tuple):
        for key, part in (value if isinstance(value, Mapping) else untuple(value)).items():
            flatten((*path, str(key)), part, rows)
        return
    rows[path] = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    if not rows[path].ndim:
        raise ShapeError(f"field {'/'.join(path)!r} needs a leading batch axis; got a scalar. fix: unsqueeze(0).")


def put(out: dict[str, Any], path: Sequence[str], values: Any) -> None:
    """Set `values` at `path` in a dict of dicts."""
    for key in path[:-1]:
        out = out.setdefault(key, {})
    out[path[-1]] = values


def numpy_dtype(dtype: torch.dtype) -> Any:
    """Return the NumPy dtype for a torch dtype."""
    return torch.empty(0, dtype=dtype).numpy().dtype


# --- logs of rows -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mark:
    """A point in a buffer's history.

    Attributes:
        log: incarnation of the contents (`clear` and `load_state` start another). row: rows added before.
        epoch: epoch of subsequently placed images.
    """

    log: int
    row: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows `first` .. `first + count - 1`, counted from the first ever added, and images placed meanwhile.

    Attributes:
        start: place of the first row in memory; the others follow, wrapping around.
        rows: their contents, None if empty. frames: images with their numbers, None for a buffer without images.
    """

    first: int
    count: int
    start: int
    rows: Mapping[str, Any] | None
    frames: Mapping[str, Any] | None

    @property
    def is_empty(self) -> bool:
        """Whether there are no changes."""
        return not self.count and (self.frames is None or not len(self.frames["numbers"]))

    def tree(self) -> dict[str, Any]:
        """Return plain data."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Changes:
        """Restore the result of `tree`."""
        return cls(**tree)
