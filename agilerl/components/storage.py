"""Storage of replay: rows in preallocated memory, and deduplicated images.

Small numeric fields are packed into one array. An image that is s' of one transition and s of the next is stored once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.components.rows import Field, Path, Rows, numpy_dtype
from agilerl.core.transfer import to_device
from agilerl.core.tree import Tree

Leaves = dict[Path, np.ndarray]  # parts of an observation by path below "obs"
# Stored in a row instead of images: frame numbers. Frame 0 is the empty frame, for unwritten rows.
FRAME: Path = ("obs", "#frame")
NEXT_FRAME: Path = ("next_obs", "#frame")
MIN_SHARED_BYTES = 64  # below, the two numbers and the comparison cost more than the copy


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
        self.copies: list[tuple[np.ndarray, Tensor]] = []  # (rows [k], contents before), in the order of the writes
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
            self.copies.append((np.arange(start, stop), self.tensor[start:stop].clone()))
            self.is_copied[start:stop] = True
        if self.view is not None:
            return self.view[start:stop]
        return np.empty((stop - start, *self.tensor.shape[1:]), numpy_dtype(self.tensor.dtype))

    def end(self, start: int, rows: np.ndarray) -> None:
        """Copy the filled array of `begin` to the device."""
        if self.view is None:
            self.tensor[start : start + len(rows)] = to_device(torch.from_numpy(rows), self.tensor.device)

    def put(self, index: np.ndarray, rows: Tree) -> None:
        """Write an array or a tensor [k, ...] to the rows `index` [k]."""
        if self.is_copied is not None:
            fresh = index[index < len(self.is_copied)]
            fresh = fresh[~self.is_copied[fresh]]
            self.copies.append((fresh, self.take(fresh)))
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
        copies, self.is_copied, self.copies = self.copies, None, []
        for index, rows in reversed(copies):  # of a row that was copied twice the first copy counts
            self.put(index, rows)


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
        for path, block in ((None, self.packed), *self.own.items()):
            direct = block.is_copied is None and block.view is not None
            target = block.view[start:stop] if direct and block.view is not None else block.begin(start, stop)
            if path is not None:
                target[...] = rows[path].reshape(target.shape)
            else:
                for field in self.fields:
                    if field.columns:
                        target[:, field.columns[0] : field.columns[1]] = rows[field.path].reshape(len(target), -1)
            if not direct:
                block.end(start, target)

    def gather(self, indices: np.ndarray | Tensor) -> dict[Path, Tensor]:
        """Every field [..., *shape] of the rows `indices` [...]; packed ones in the store's dtype, views of one copy.

        The result is on the store's device and shares no memory with it.
        """
        if self.packed.view is not None:
            index = indices.numpy() if isinstance(indices, Tensor) else indices
            packed = torch.from_numpy(np.take(self.packed.view, index, axis=0))
            own: Any = {p: torch.from_numpy(np.take(b.view, index, axis=0)) for p, b in self.own.items()}  # type: ignore[arg-type]
        else:
            packed, own = self.packed.take(indices), {p: block.take(indices) for p, block in self.own.items()}
        parts = iter(packed.split_with_sizes(self._widths, dim=-1))  # a slice per field costs three times as much
        return {field.path: next(parts) if field.columns else own[field.path] for field in self.fields}

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


def shared_fields(fields: Mapping[Path, Field]) -> list[Field]:
    """Return the fields of `obs` worth sharing: unpacked ones whose counterpart in `next_obs` has the same layout."""
    shared = []
    for path, field in fields.items():
        other = fields.get(("next_obs", *path[1:])) if path[0] == "obs" and field.columns is None else None
        if other is not None and (other.shape, other.dtype, other.columns) == (field.shape, field.dtype, None):
            shared.append(field)
    return shared if sum(_bytes(field) for field in shared) >= MIN_SHARED_BYTES else []


class FrameStore:
    """Reference-counted frames: a frame contains all shared parts of one observation.

    The observations of consecutive vector steps of a lane overlap: s of a step is s' of the previous one, unless an
    episode ended, the environments were reset, or other lanes follow. Overlap is detected by comparing bytes, so frames
    are shared only if they are identical; otherwise both are stored.

    `capacity` frames fit into the main memory. Further ones (final observations, and frames not yet stored in rows) go
    to a side store, which is empty at first and grows as needed.

    Args:
        fields: result of `shared_fields`. capacity: frames in the main memory.
        device: device of the frames.
    """

    def __init__(self, fields: Sequence[Field], capacity: int, device: torch.device) -> None:
        self.fields = {field.path[1:]: field for field in fields}
        self.capacity, self.device = capacity, device
        self._main, self._side = self._allocate(capacity + 1), self._allocate(0)
        self._references = np.zeros(capacity + 1, dtype=np.int64)
        self._references[0] = 1
        self._epochs, self._epoch = np.zeros(capacity + 1, dtype=np.int64), 0
        self._free: list[int] = []
        self._used = 1  # frame numbers ever assigned
        self._lane_frame = np.zeros(0, dtype=np.int64)  # frame of each lane's last s'; 0: none
        self._lane_words: Leaves = {}  # the bits of those frames
        self._make_lanes(0, keep=False)

    def _allocate(self, count: int) -> dict[Path, Block]:
        return {part: Block(count, field.shape, field.dtype, self.device) for part, field in self.fields.items()}

    @property
    def blocks(self) -> list[Block]:
        """All memory of images."""
        return [*self._main.values(), *self._side.values()]

    # -- in ----------------------------------------------------------------------------------------------------------

    def intern(self, rows: Rows, mask: np.ndarray | None, lanes: np.ndarray | None = None) -> Rows:
        """Replace the images in the rows of one vector step by frame numbers.

        The caller holds one reference to each frame of the result and releases it with `release(frames_in(result))`.

        Args:
            rows: checked fields [K, ...]. mask: [K] bool; rows where it is False are dropped. None keeps all.
            lanes: [K] int64, lane of each row: several steps of a lane in order, in runs of increasing lanes. None: one
                row for each lane 0..K-1.
        """
        count = len(next(iter(rows.values())))
        if lanes is None:
            if len(self._lane_frame) != count:
                self._make_lanes(count, keep=False)
            return self._intern_once(rows, np.arange(count), mask)
        if lanes.max(initial=-1) >= len(self._lane_frame):
            self._make_lanes(int(lanes.max()) + 1, keep=True)
        runs = np.split(np.arange(count), np.flatnonzero(np.diff(lanes) <= 0) + 1)
        parts = [
            self._intern_once(
                {path: values[run] for path, values in rows.items()}, lanes[run], None if mask is None else mask[run]
            )
            for run in runs
        ]
        return {path: np.concatenate([part[path] for part in parts]) for path in parts[0]}

    def _intern_once(self, rows: Rows, lanes: np.ndarray, mask: np.ndarray | None) -> Rows:
        """Apply `intern` to rows [K] of distinct lanes [K]."""
        selected = np.arange(len(lanes)) if mask is None else np.flatnonzero(mask)
        obs, next_obs = self._leaves(rows, "obs"), self._leaves(rows, "next_obs")
        frame = np.where(self._is_known(obs, lanes), self._lane_frame[lanes], 0)[selected]
        self._references[frame] += 1  # lanes never share a frame
        is_new = frame == 0
        frame[is_new] = self._place({part: values[selected[is_new]] for part, values in obs.items()})
        if mask is not None:
            next_obs = {part: values[selected] for part, values in next_obs.items()}
        next_frame = self._place(next_obs)
        self._references[next_frame] += 1
        self.release(self._lane_frame[lanes[selected]])
        self._lane_frame[lanes[selected]] = next_frame
        for part, values in next_obs.items():
            self._lane_words[part][lanes[selected]] = _as_words(values)
        return self._numbered(rows, frame, next_frame, selected)

    def intern_apart(self, rows: Rows) -> Rows:
        """Intern rows that do not continue previous ones: both observations of each are stored."""
        frames = [self._place(self._leaves(rows, role)) for role in ("obs", "next_obs")]
        return self._numbered(rows, frames[0], frames[1], slice(None))

    def contents_of(self, frames: np.ndarray) -> dict[str, Any]:
        """Return the contents of frames [k], ascending, as plain data for `intern_numbered` of another store."""
        parts = {"/".join(part): self._take(part, frames).cpu() for part in self.fields}
        return {"numbers": torch.from_numpy(frames), "parts": parts}

    def intern_numbered(self, rows: Rows, images: Mapping[str, Any]) -> Rows:
        """Place the frames that rows of another store refer to, each once; return the rows with this store's numbers.

        The caller holds a reference for each number of the result, as after `intern`.
        """
        theirs = images["numbers"].numpy()
        is_image, placed = theirs > 0, np.zeros(len(theirs), np.int64)  # the empty frame has number 0 everywhere
        placed[is_image] = self._place(
            {part: images["parts"]["/".join(part)].numpy()[is_image] for part in self.fields}
        )
        ours = {path: placed[np.searchsorted(theirs, rows[path].reshape(-1))] for path in (FRAME, NEXT_FRAME)}
        out = {**rows, **ours}
        self.retain(frames_in(out))
        self.release(placed[is_image])
        return out

    def retain(self, frames: np.ndarray) -> None:
        """Add one reference to each of `frames` [k], counting duplicates."""
        np.add.at(self._references, frames, 1)

    def release(self, frames: np.ndarray) -> None:
        """Remove one reference from each of `frames` [k], counting duplicates; unreferenced frames are freed."""
        np.subtract.at(self._references, frames, 1)
        self._references[0] = 1
        dead = frames[self._references[frames] == 0]
        if len(dead):
            self._free += np.unique(dead).tolist()

    def savepoint(self) -> None:
        """See `Block.savepoint`."""
        for blocks, start in ((self._main, 0), (self._side, self.capacity + 1)):
            for block in blocks.values():
                block.savepoint(min(max(self._used - start, 0), len(block.tensor)))

    # -- out ---------------------------------------------------------------------------------------------------------

    def expand(self, data: dict[Path, Any]) -> None:
        """Replace the frame numbers [..., 1] of both observations by copies of the images, as tensors."""
        for role, path in (("obs", FRAME), ("next_obs", NEXT_FRAME)):
            frames = data.pop(path)[..., 0]
            for part in self.fields:
                data[(role, *part)] = self._take(part, frames)

    def _take(self, part: Path, frames: object) -> Tensor:
        frames = np.asarray(frames) if self.device.type == "cpu" else torch.as_tensor(frames, device=self.device)
        is_aside = frames > self.capacity
        out = self._main[part].take(frames.clip(max=self.capacity))
        if is_aside.any():
            target: Any = out.numpy() if self.device.type == "cpu" else out  # torch takes seven times as long here
            target[is_aside] = self._side[part].take(frames[is_aside] - self.capacity - 1)
        return out

    # -- in pieces, for a log: what was placed since an epoch ----------------------------------------------------------

    def next_epoch(self) -> int:
        """Start an epoch for subsequently placed frames and return its number."""
        self._epoch += 1
        return self._epoch

    def oldest_epoch(self) -> int:
        """Return the epoch of the oldest referenced frame."""
        alive = np.flatnonzero(self._references[1:] > 0) + 1
        return int(self._epochs[alive].min(initial=self._epoch))

    def placed_since(self, epoch: int) -> dict[str, Any]:
        """Return the referenced frames placed in `epoch` or later: their numbers, epochs and contents."""
        alive = np.flatnonzero((self._references > 0) & (self._epochs >= epoch))
        alive = alive[alive > 0]
        parts = {"/".join(part): self._take(part, alive).cpu() for part in self.fields}
        return {"numbers": torch.from_numpy(alive), "epochs": torch.from_numpy(self._epochs[alive]), "parts": parts}

    def load_placed(self, placed: Mapping[str, Any]) -> None:
        """Restore the contents returned by `placed_since` into frames that are known from this store's state."""
        numbers = placed["numbers"].numpy()
        current = (self._epochs[numbers] == placed["epochs"].numpy()) & (numbers < self._used)
        self._fill(numbers[current], {part: placed["parts"]["/".join(part)].numpy()[current] for part in self.fields})

    def whole(self, placed: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """Return [frames] bool: frames whose contents are in one of these pieces (including the empty frame)."""
        is_whole = np.zeros(len(self._references), dtype=bool)
        is_whole[0] = True
        for piece in placed:
            numbers = piece["numbers"].numpy()
            is_whole[numbers[self._epochs[numbers] == piece["epochs"].numpy()]] = True
        return is_whole

    def recount(self, frames: np.ndarray) -> None:
        """Set the reference counts from all referenced frames [k], counting duplicates; lanes are reset."""
        self._references[:] = 0
        self._make_lanes(0, keep=True)
        self.retain(frames)
        self._references[0] = 1
        self._free = np.flatnonzero(self._references[: self._used] == 0).tolist()

    # -- state -------------------------------------------------------------------------------------------------------

    def state(self, *, contents: bool = True) -> dict[str, Any]:
        """Return a copy of the state as plain data; without images unless `contents`."""
        split = min(self._used, self.capacity + 1)
        main, side = (split, self._used - split) if contents else (0, 0)
        return {
            "fields": [field.state() for field in self.fields.values()],
            "used": self._used,
            "main": {"/".join(part): block.tensor[:main].clone() for part, block in self._main.items()},
            "side": {"/".join(part): block.tensor[:side].clone() for part, block in self._side.items()},
            "references": _copy(self._references[: self._used]),
            "epochs": _copy(self._epochs[: self._used]),
            "epoch": self._epoch,
            "free": torch.tensor(self._free, dtype=torch.int64),
            "lane_frame": _copy(self._lane_frame),
            "lane_words": {"/".join(part): _copy(values) for part, values in self._lane_words.items()},
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], capacity: int, device: torch.device) -> FrameStore:
        """Restore a store from `state`; `capacity` must be unchanged."""
        store = cls([Field.from_state(entry) for entry in state["fields"]], capacity, device)
        used = int(state["used"])
        store._grow(used)
        for part in store.fields:
            for block, saved in ((store._main, state["main"]), (store._side, state["side"])):
                values = saved["/".join(part)]
                block[part].put(np.arange(len(values)), values)
        store._references[:used] = state["references"].cpu().numpy()
        store._epochs[:used] = state["epochs"].cpu().numpy()
        store._epoch = int(state["epoch"])
        store._used, store._free = used, state["free"].tolist()
        store._lane_frame = state["lane_frame"].cpu().numpy().copy()
        store._lane_words = {part: state["lane_words"]["/".join(part)].cpu().numpy().copy() for part in store.fields}
        return store

    # -- inside ------------------------------------------------------------------------------------------------------

    def _leaves(self, rows: Rows, role: str) -> Leaves:
        return {
            part: np.ascontiguousarray(rows[(role, *part)], dtype=numpy_dtype(field.dtype)).reshape(-1, *field.shape)
            for part, field in self.fields.items()  # a scalar part is passed as [K]
        }

    def _numbered(self, rows: Rows, frame: np.ndarray, next_frame: np.ndarray, selected: Any) -> Rows:
        shared = {(role, *part) for role in ("obs", "next_obs") for part in self.fields}
        out = {path: values[selected] for path, values in rows.items() if path not in shared}
        out[FRAME], out[NEXT_FRAME] = frame, next_frame
        return out

    def _make_lanes(self, count: int, keep: bool) -> None:
        """Resize to `count` lanes; previous ones are discarded unless `keep`."""
        if not keep:
            self.release(self._lane_frame)
        frames, words = self._lane_frame[:count], self._lane_words
        self._lane_frame = np.zeros(count, dtype=np.int64)
        self._lane_words = {
            part: _as_words(np.zeros((count, *field.shape), numpy_dtype(field.dtype)))
            for part, field in self.fields.items()
        }
        if keep:
            self._lane_frame[: len(frames)] = frames
            for part, values in self._lane_words.items():
                values[: len(frames)] = words[part][:count]

    def _is_known(self, obs: Leaves, lanes: np.ndarray) -> np.ndarray:
        """Return [K]: whether the observation is bit-identical to the last s' of its lane."""
        is_known: np.ndarray = self._lane_frame[lanes] > 0
        is_all = len(lanes) == len(self._lane_frame)  # increasing lanes: then all of them, in order
        for part, values in obs.items():
            words = self._lane_words[part]
            is_known &= (_as_words(values) == (words if is_all else words[lanes])).all(axis=1)
        return is_known

    def _place(self, leaves: Leaves) -> np.ndarray:
        """Allocate frames for the values `leaves` [k, ...], one reference each; return their numbers [k]."""
        count = len(next(iter(leaves.values())))
        reused = self._free[len(self._free) - min(count, len(self._free)) :]
        del self._free[len(self._free) - len(reused) :]
        fresh = range(self._used, self._used + count - len(reused))
        self._used = fresh.stop
        self._grow(self._used)
        frames = np.array([*reused, *fresh], dtype=np.int64)
        self._fill(frames, leaves)
        self._references[frames] = 1
        self._epochs[frames] = self._epoch
        return frames

    def _fill(self, frames: np.ndarray, leaves: Leaves) -> None:
        """Write the values `leaves` [k, ...] into `frames` [k]."""
        is_aside = frames > self.capacity
        for part, values in leaves.items():
            for block, chosen, shift in ((self._main, ~is_aside, 0), (self._side, is_aside, self.capacity + 1)):
                if chosen.any():
                    block[part].put(frames[chosen] - shift, values if chosen.all() else values[chosen])

    def _grow(self, used: int) -> None:
        """Make room for `used` frames; the side store grows by at least half, to keep reallocation rare."""
        have = len(self._references)
        if used <= have:
            return
        aside = max(used - self.capacity - 1, (have - self.capacity - 1) * 3 // 2)
        before, self._side = self._side, self._allocate(aside)
        for part, block in before.items():
            self._side[part].tensor[: len(block.tensor)] = block.tensor
        fresh = np.zeros(self.capacity + 1 + aside - have, dtype=np.int64)
        self._references, self._epochs = (np.concatenate([x, fresh]) for x in (self._references, self._epochs))


def frames_in(rows: Mapping[Path, np.ndarray]) -> np.ndarray:
    """Return every frame number in `rows`, [2k]: of obs, then of next_obs."""
    return np.concatenate([rows[FRAME].reshape(-1), rows[NEXT_FRAME].reshape(-1)])


def _bytes(field: Field) -> int:
    return math.prod(field.shape) * field.dtype.itemsize


def _as_words(values: np.ndarray) -> np.ndarray:
    """View contiguous rows [k, ...] as [k, W] integers, wide ones if possible, for faster comparison."""
    rows = values.reshape(len(values), math.prod(values.shape[1:]))
    return rows.view(np.int64 if rows.shape[1] * rows.itemsize % 8 == 0 else np.uint8)


def _copy(values: np.ndarray) -> Tensor:
    return torch.from_numpy(values.copy())
