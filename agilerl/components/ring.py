"""Ring buffer of rows under every replay buffer: memory, size, and state, whole or incremental."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.components.data import to_tensordict
from agilerl.components.rows import Changes, Field, Mark, Path, Rows, check_rows, host_array, plan, put
from agilerl.components.storage import FRAME, NEXT_FRAME, Block, FrameStore, RowStore, frames_in, shared_fields
from agilerl.core.arguments import Checked
from agilerl.core.hostile import malformed
from agilerl.core.ranges import Count, check
from agilerl.errors import ConfigError, RunError, ShapeError

MASKS = ("next_mask", "obs_mask")  # fields that rows may lack


class Part:
    """State kept alongside the rows of a ring, such as priorities: cleared, saved and undone with them.

    Attributes:
        name: key in the state. label: name in messages. settings: attributes that must equal those of a loaded state.
        follows_rows: whether `write` does anything.
    """

    name: str
    label: str
    settings: tuple[str, ...]
    memory_bytes = 0
    follows_rows = True

    def clear(self, ring: RowRing) -> None:
        """Reset; the ring is empty."""

    def reserve(self, ring: RowRing) -> None:
        """Resize to the `max_size` of an empty ring."""

    def write(self, ring: RowRing, start: int, stop: int) -> None:
        """Update for new rows in start .. stop - 1."""

    def resize(self, ring: RowRing, before: int) -> None:
        """Update for a size set by the user, previously `before`."""

    def keep(self, ring: RowRing, places: np.ndarray) -> None:
        """Update for the rows of `places` [k] moved to the front, all others discarded."""

    def state(self, ring: RowRing) -> dict[str, Any]:
        """Return plain data, including the settings."""
        return {name: vars(self)[name] for name in self.settings}

    def check(self, state: Mapping[str, Any]) -> None:
        """Raise RunError for the state of a ring without this part, or with other settings."""
        if self.name not in state:
            raise RunError(f"the saved buffer has no {self.label}. fix: load it into a ReplayBuffer.")
        for name in self.settings:
            theirs, ours = state[self.name][name], vars(self)[name]
            if theirs != ours:
                raise RunError(f"the saved buffer has {name} {theirs}, this one {ours}. fix: use the same.")

    def load_state(self, ring: RowRing, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`, after the rows of the ring."""


class RowRing(Checked):
    """The last `max_size` rows; fields and shapes are fixed by the first rows.

    Small fields are stored side by side in one packed row, the others separately (`RowStore`). If the first rows are
    written by lane (`write`), large observations are stored once (`FrameStore`): a row then holds its two frame
    numbers, 16 bytes, and there is one frame per transition, one more per episode, and those in transit.

    Args:
        max_size: rows. device: device of the memory.
        dtype: dtype of floating-point fields: float32, float64 or float16.
    """

    # Attributes that `rollback` restores; subclasses add theirs.
    _undone: tuple[str, ...] = ("counter", "_size", "_position", "_names", "fields", "frames", "_store", "_parts")

    def __init__(self, max_size: int | None, device: torch.device, dtype: torch.dtype) -> None:
        check("max_size", max_size, Count, 100_000, unit="transitions")
        self.max_size = int(max_size or 0)
        if dtype not in (torch.float16, torch.float32, torch.float64):
            raise ConfigError(f"dtype must be torch.float32, float64 or float16; got {dtype}. fix: torch.float32.")
        self.device, self.dtype = device, dtype
        self.counter = 0
        self._names: dict[str, str] = {}  # role -> the user's name for it
        self.fields: dict[Path, Field] = {}  # as passed in and out; empty before the first rows
        self.frames: FrameStore | None = None
        self._store: RowStore | None = None  # created with the first rows, frame numbers instead of images
        self._size = 0
        self._position = 0
        self._log = 0  # incarnation of the contents: marks of another one are invalid
        self._oldest_row = 0  # earlier rows are missing, although there would be room for them
        self._parts: list[Part] = []
        self._saved: dict[str, Any] | None = None  # `_undone` at the savepoint

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        """Summarise fill level, fields and memory."""
        named = {".".join((self._name(role), *map(str, rest))): f for (role, *rest), f in self.fields.items()}
        shapes = ", ".join(f"{name} {list(field.shape)}" for name, field in named.items())
        return (
            f"{type(self).__name__}: {self._size:,} of {self.max_size:,} transitions, "
            f"{self.memory_bytes / 1e6:.1f} MB on {self.device}\n"
            f"  fields: {shapes or 'not known before the first rows'}"
        )

    @property
    def size(self) -> int:
        """Transitions in the buffer; at most `max_size`. (`counter` is the number ever added.)"""
        return self._size

    @size.setter
    def size(self, value: int) -> None:
        if not 0 <= value <= self.max_size:
            raise ConfigError(f"size must be in 0..{self.max_size}; got {value}.")
        self._refuse_in_savepoint("setting size")
        before, self._size = self._size, int(value)
        for part in self._parts:
            part.resize(self, before)

    @property
    def is_full(self) -> bool:
        """Whether the next transition replaces the oldest one."""
        return self._size == self.max_size

    @property
    def initialized(self) -> bool:
        """Whether the fields are known, that is, something has been added."""
        return bool(self.fields)

    @property
    def storage(self) -> Any:
        """The whole memory as a TensorDict of batch size [max_size], including unwritten rows; None if new.

        The values are views, except for deduplicated observations, which are copies.
        """
        if self._store is None:
            return None
        data = self._store.views()
        if self.frames is not None:
            self.frames.expand(data)
        return to_tensordict(
            self._named({path: data[path] for path in self._kept_fields()}), batch_size=[self.max_size]
        )

    @property
    def _blocks(self) -> list[Block]:
        return [block for part in (self._store, self.frames) if part is not None for block in part.blocks]

    @property
    def memory_bytes(self) -> int:
        """Bytes of the rows, their frames and their priorities, for all `max_size` rows."""
        return sum(block.tensor.nbytes for block in self._blocks) + sum(part.memory_bytes for part in self._parts)

    def clear(self) -> None:
        """Discard all contents, including the fields."""
        self._refuse_in_savepoint("clear()")
        self._store, self._size, self._position, self.counter = None, 0, 0, 0
        self.fields, self.frames, self._names = {}, None, {}
        self._log, self._oldest_row = self._log + 1, 0
        for part in self._parts:
            part.clear(self)

    def reserve(self, rows: int) -> None:
        """Grow to at least `rows` rows; only for an empty buffer."""
        self._refuse_in_savepoint("reserve()")
        if self._store is not None:
            raise RunError("a buffer that holds rows cannot grow. fix: clear() it first, or make it larger.")
        self.max_size = max(self.max_size, rows)
        for part in self._parts:
            part.reserve(self)

    def state(self, *, rows: bool = True) -> dict[str, Any]:
        """Return a copy of contents and counters as nested dicts of tensors, numbers and strings.

        `rows=False` omits rows and images, which `changes` returns incrementally.
        """
        stored = max(self._size, self._position) if rows else 0
        return {
            "max_size": self.max_size,
            "counter": self.counter,
            "size": self._size,
            "position": self._position,
            "oldest_row": self._oldest_row,
            "names": dict(self._names),
            "fields": [field.state() for field in self.fields.values()] or None,
            "frames": None if self.frames is None else self.frames.state(contents=rows),
            "rows": None if self._store is None else self._store.state(stored),
            **{part.name: part.state(self) for part in self._parts},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the buffer from `state()`, bit for bit; RunError for a malformed state or that of another buffer.

        After a state without rows, restore them with `load_changes` of every piece since the oldest row.
        """
        self._refuse_in_savepoint("load_state()")
        with malformed(f"the state of a {type(self).__name__}"):
            self._restore(state)

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Implement `load_state`; subclasses restore what they add to it."""
        if state["max_size"] != self.max_size:
            sizes = f"max_size {state['max_size']}, this one {self.max_size}"
            raise RunError(f"the saved buffer has {sizes}. fix: the same max_size.")
        for part in self._parts:
            part.check(state)
        rows, fields, frames = state["rows"], state["fields"], state["frames"]
        self.fields = {f.path: f for f in map(Field.from_state, fields or ())}
        self.frames = None if frames is None else FrameStore.from_state(frames, self.max_size, self.device)
        self._store = None if rows is None else RowStore.from_state(rows, self.max_size, self.dtype, self.device)
        self.counter, self._size, self._position = (int(state[name]) for name in ("counter", "size", "position"))
        self._names = dict(state["names"])
        self._log, self._oldest_row = self._log + 1, state.get("oldest_row", 0)
        for part in self._parts:
            part.load_state(self, state[part.name])

    # -- undo --------------------------------------------------------------------------------------------------------

    def savepoint(self) -> None:
        """Remember the contents; `rollback` undoes what is done from here on. A second call replaces the first.

        Rows are copied when they are first overwritten, so the cost is that of the rows written later, and of one or a
        few numbers per row here. Until `rollback`, what cannot be undone raises a RunError: `clear`, `reserve`,
        `load_state`, `load_changes`, `keep_rows` and setting `size`; and so does `mark`, since a log must not contain
        rows that are undone.
        """
        for part in (self._store, self.frames):
            if part is not None:
                part.savepoint()
        state = {name: getattr(self, name) for name in self._undone}
        self._saved = copy.deepcopy(state, {id(block): block for block in self._blocks})  # blocks are shared

    def rollback(self) -> None:
        """Restore the contents of the last `savepoint`, bit for bit, and end it; RunError without one."""
        vars(self).update(self._active_savepoint("rollback()"))
        self._saved = None
        for block in self._blocks:
            block.rollback()

    def _active_savepoint(self, call: str) -> dict[str, Any]:
        if self._saved is None:
            raise RunError(f"{call} needs a savepoint, and this buffer has none. fix: call savepoint() before writing.")
        return self._saved

    def _refuse_in_savepoint(self, call: str) -> None:
        if self._saved is not None:
            raise RunError(f"{call} cannot be undone, and this buffer has a savepoint. fix: call rollback() before.")

    # -- rows of one copy of the buffer for all others -----------------------------------------------------------------

    def written(self) -> dict[str, Any]:
        """Return the rows added since the savepoint, as plain data for `write_rows` of buffers that had its contents.

        Of more than `max_size` rows the last ones are returned.
        """
        saved = self._active_savepoint("written()")
        added = self.counter - saved["counter"]
        if not added:
            return {"added": 0}
        assert self._store is not None
        places = self._places(np.arange(self.counter - min(added, self.max_size), self.counter))
        images = None
        if self.frames is not None:
            images = self.frames.contents_of(np.unique(self._frames_at(places)))
        return {
            "first": saved["counter"],
            "added": added,
            "rows": self._store.piece(places),
            "images": images,
            "empty": self._store.state(0),
            "fields": [field.state() for field in self.fields.values()],
            "names": dict(self._names),
        }

    def write_rows(self, written: Mapping[str, Any]) -> None:
        """Append the result of `written` of another copy of the buffer.

        Where two copies were empty and fixed their fields by themselves, masks count as in `write`: those that this
        buffer does not store are left out, missing ones allow every action.
        """
        added, images = written["added"], written.get("images")
        if not added:
            return
        if self._store is None:
            self.fields = {field.path: field for field in map(Field.from_state, written["fields"])}
            self._names = dict(written["names"])
            self._store = RowStore.from_state(written["empty"], self.max_size, self.dtype, self.device)
            if images is not None:
                self.frames = FrameStore(shared_fields(self.fields), self.max_size, self.device)
        theirs = {field.path: field for field in map(Field.from_state, written["empty"]["fields"])}
        rows = {f.path: _values_of(theirs.get(f.path), f, written["rows"]) for f in self._store.fields}
        if images is not None and self.frames is not None:
            rows = self.frames.intern_numbered(rows, images)
        missing = added - len(next(iter(rows.values())))  # more than the buffer holds
        self._position, self.counter = (self._position + missing) % self.max_size, self.counter + missing
        self._append(rows)
        self._release(rows)

    # -- in pieces, for a log ----------------------------------------------------------------------------------------
    # Rows are numbered from the first one ever added. Row r lies `counter - r` places before the next write position,
    # so that a reassembled ring samples the same rows for the same draws.

    def _oldest(self) -> int:
        """Return the number of the oldest row in memory."""
        return max(self._oldest_row, self.counter - self.max_size)

    def in_order(self) -> np.ndarray:
        """Return the places of the rows in memory, oldest first: [size] int64."""
        return self._places(np.arange(self.counter - self._size, self.counter))

    def _places(self, rows: np.ndarray) -> np.ndarray:
        """Return the places of the rows with these numbers."""
        return np.asarray((self._position - self.counter + rows) % self.max_size)

    def mark(self) -> Mark:
        """Return the current point in history, as argument of `changes`; RunError inside a savepoint."""
        self._refuse_in_savepoint("mark()")
        return Mark(self._log, self.counter, 0 if self.frames is None else self.frames.next_epoch())

    def needs(self) -> Mark:
        """Return the mark of the oldest row and the oldest image still in the buffer."""
        return Mark(self._log, self._oldest(), 0 if self.frames is None else self.frames.oldest_epoch())

    def changes(self, since: Mark | None = None) -> Changes:
        """Return rows added and images placed since a mark; all current ones if the mark is from other contents."""
        mark = since if since is not None and since.log == self._log else Mark(self._log, 0, 0)
        first = max(mark.row, self._oldest())
        count = self.counter - first
        places = self._places(first + np.arange(max(count, 1)))
        rows = None if self._store is None or not count else self._store.piece(places)
        frames = None if self.frames is None else self.frames.placed_since(mark.epoch)
        return Changes(first, count, int(places[0]), rows, frames)

    def load_changes(self, changes: Changes) -> None:
        """Restore the results of `changes`, oldest first, into a buffer that has loaded the state without rows."""
        self._refuse_in_savepoint("load_changes()")
        if changes.rows is not None and self._store is not None:
            self._store.load_piece(changes.start, changes.rows)
        if changes.frames is not None and self.frames is not None:
            self.frames.load_placed(changes.frames)

    def rows_in(self, pieces: Sequence[Changes]) -> np.ndarray:
        """Return the numbers of rows that these loaded pieces contain completely, including images."""
        ranges = [np.arange(max(p.first, self._oldest()), p.first + p.count) for p in pieces]
        rows = np.unique(np.concatenate([np.zeros(0, np.int64), *ranges]))
        if self.frames is None or self._store is None:
            return rows
        whole = self.frames.whole([p.frames for p in pieces if p.frames is not None])
        return np.asarray(rows[whole[self._frames_at(self._places(rows))].reshape(2, -1).all(0)])

    def keep_rows(self, rows: np.ndarray) -> None:
        """Discard all rows but these; they are moved to the front of the memory, in order."""
        self._refuse_in_savepoint("keep_rows()")
        count, places = len(rows), self._places(rows)
        if self._store is not None:
            self._store.load_piece(0, self._store.piece(places))
        self._size, self._position, self._oldest_row = count, count % self.max_size, self.counter - count
        self._log += 1
        if self.frames is not None and self._store is not None:
            for path in (FRAME, NEXT_FRAME):
                self._store.own[path].tensor[self._size :] = 0  # a later write there releases what it replaces
            self.frames.recount(self._frames_at(slice(self._size)))
        for part in self._parts:
            part.keep(self, places)

    # -- rows in and out -----------------------------------------------------------------------------------------

    def _check(self, rows: Rows, in_lanes: bool) -> None:
        """Fix the fields at the first rows, and check further ones; `in_lanes`: row l continues row l before."""
        if not self.fields:
            fields = {field.path: field for field in plan(rows, self.dtype)}
            check_rows(fields, rows, self.dtype)
            self.fields = fields
            shared = shared_fields(fields) if in_lanes else []
            self.frames = FrameStore(shared, self.max_size, self.device) if shared else None
        else:
            check_rows(self.fields, rows, self.dtype)

    def _kept_fields(self) -> dict[Path, Field]:
        """Fields as returned to the caller."""
        return self.fields

    def _release(self, rows: Rows) -> None:
        """Release the frame references of interned rows."""
        if self.frames is not None:
            self.frames.release(frames_in(rows))

    def _frames_at(self, places: Any) -> np.ndarray:
        """Return the frame numbers [2k] of the rows at `places` [k], as `frames_in` does."""
        assert self._store is not None
        own = self._store.own
        return frames_in({path: own[path].tensor[places].cpu().numpy() for path in (FRAME, NEXT_FRAME)})

    def _append(self, rows: Rows) -> int:
        """Append checked, interned rows; return how many were given."""
        if self._store is None:
            self._store = RowStore(plan(rows, self.dtype), self.max_size, self.dtype, self.device)
        count = added = len(next(iter(rows.values())))
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
        """Write `count` rows to start, start + 1, ..."""
        assert self._store is not None
        if self.frames is not None:
            self.frames.retain(frames_in(rows))
            self.frames.release(self._frames_at(slice(start, start + count)))
        self._store.write(start, rows)
        for part in self._parts:
            if part.follows_rows:
                part.write(self, start, start + count)

    def _gather(self, indices: np.ndarray | Tensor) -> dict[Path, Tensor]:
        """Return every field [..., *shape] of the rows `indices` [...], packed ones in the ring's dtype; copies.

        Its order is that of the memory; that of the user is `_kept_fields`.
        """
        assert self._store is not None
        data = self._store.gather(indices)
        if self.frames is not None:
            self.frames.expand(data)
        return data

    def _live_rows(self, indices: Any) -> np.ndarray:
        """Return `indices` of any shape, array or tensor, as int64; ShapeError unless all are rows in the buffer."""
        index = host_array(indices)
        if index.size and index.dtype.kind not in "iu":
            raise ShapeError(f"row indices must be integers; got {index.dtype}. fix: the `idxs` of a sample.")
        if index.size and not 0 <= index.min() <= index.max() < self._size:
            wanted, got = f"0..{self._size - 1} (rows in the buffer)", f"{index.min()}..{index.max()}"
            raise ShapeError(f"row indices must be in {wanted}; got {got}. fix: the `idxs` of a sample.")
        return index.astype(np.int64, copy=False)

    def _named(self, data: Mapping[Path, Tensor]) -> dict[str, Any]:
        """Convert fields by path to nested dicts under their original names."""
        out: dict[str, Any] = {}
        for (role, *rest), values in data.items():
            put(out, (self._name(role), *rest), values)
        return out

    def _name(self, role: str) -> str:
        return self._names.get(role, role)


def _values_of(stored: Field | None, field: Field, piece: Mapping[str, Any]) -> np.ndarray:
    """Return one field of the result of `RowStore.piece`, `stored` there; a missing mask allows every action."""
    if stored is None and field.path[0] in MASKS:
        return np.ones((len(piece["packed"]), *field.shape), bool)
    assert stored is not None
    if stored.columns is None:
        return np.asarray(piece["own"][field.name])
    return np.asarray(piece["packed"][:, slice(*stored.columns)])
