"""Rows of experience on the host: their fields, checks, and records of a log."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.core.tree import Tree, untuple
from agilerl.errors import ConfigError, ReplayError, ShapeError

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
    host_dtype: np.dtype[Any] = dataclasses.field(init=False, compare=False)
    largest: float = dataclasses.field(init=False, compare=False)
    """Largest accepted magnitude: the maximum of the floating-point dtype, of float32 for integers."""

    def __post_init__(self) -> None:
        stored_dtype = self.dtype if self.dtype.is_floating_point else torch.float32
        object.__setattr__(self, "host_dtype", np.dtype(numpy_dtype(self.dtype)))
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
        ShapeError: other fields or shapes, unequal counts, or an integer that is not exact in `dtype` or in the
            field's, which is that of the first rows. Floating-point numbers are rounded to the field's.
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
        if not field.dtype.is_floating_point and values.dtype != field.host_dtype:
            with np.errstate(invalid="ignore"):
                is_exact = np.array_equal(values.astype(field.host_dtype), values)
            if not is_exact:
                text = f"field {field.name!r} holds {field.host_dtype}, as in its first rows; got other {values.dtype}."
                raise ShapeError(f"{text} fix: {values.dtype} from the first rows on.")
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


def check_distinct(argument: str, names: Sequence[str]) -> None:
    """Raise ConfigError for names that occur twice."""
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{argument} name the same one twice: {', '.join(doubled)}. fix: one name for each.")


def host_array(leaf: Tree) -> np.ndarray:
    """Return a leaf on the host; ShapeError for nested lists of unequal length."""
    try:
        return leaf.numpy(force=True) if isinstance(leaf, Tensor) else np.asarray(leaf)
    except ValueError:
        raise ShapeError("a batch has rows of unequal length. fix: rows of one shape.") from None


def flatten(fields: Iterable[tuple[str, Any]]) -> Rows:
    """Return the leaves of fields, given by name, as host arrays [n, ...] by path."""
    rows: Rows = {}
    waiting = list[tuple[Path, Any]](((name,), value) for name, value in fields)[::-1]
    while waiting:
        path, value = waiting.pop()
        if type(value) is dict or isinstance(value, Mapping | tuple):
            parts = value if isinstance(value, Mapping) else untuple(value)
            waiting += [((*path, str(key)), part) for key, part in parts.items()][::-1]
            continue
        rows[path] = value if isinstance(value, np.ndarray) else host_array(value)
        if not rows[path].ndim:
            is_number = rows[path].dtype != object
            got, fix = ("a scalar", "unsqueeze(0)") if is_number else (f"{value!r}", "an array of numbers")
            raise ShapeError(f"field {'/'.join(path)!r} needs a leading batch axis; got {got}. fix: {fix}.")
    return rows


def put(out: dict[str, Any], path: Sequence[str], values: Tree) -> None:
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
