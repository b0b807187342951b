"""Images kept once, in pieces: what was placed since an epoch, for a log on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.components.row_store import Field, Path

Leaves = dict[Path, np.ndarray]  # parts of an observation by their path below "obs"


class FramePieces:
    """The part of a `FrameStore` that gives and takes its contents piece by piece."""

    fields: dict[Path, Field]
    _references: np.ndarray
    _epochs: np.ndarray  # in which epoch each frame was placed
    _epoch: int
    _used: int
    _free: list[int]

    def _take(self, part: Path, frames: Any) -> Tensor:
        raise NotImplementedError

    def _fill(self, frames: np.ndarray, leaves: Leaves) -> None:
        raise NotImplementedError

    def _make_lanes(self, count: int, keep: bool) -> None:
        raise NotImplementedError

    def next_epoch(self) -> int:
        """Begin an epoch: what is placed from now on belongs to it. Returns its number."""
        self._epoch += 1
        return self._epoch

    def oldest_epoch(self) -> int:
        """The epoch of the oldest frame that is still referred to."""
        alive = np.flatnonzero(self._references[1:] > 0) + 1
        return int(self._epochs[alive].min(initial=self._epoch))

    def placed_since(self, epoch: int) -> dict[str, Any]:
        """The frames placed in `epoch` or later that are still referred to: their numbers, epochs and contents."""
        alive = np.flatnonzero((self._references > 0) & (self._epochs >= epoch))
        alive = alive[alive > 0]
        parts = {"/".join(part): self._take(part, alive).cpu() for part in self.fields}
        return {"numbers": torch.from_numpy(alive), "epochs": torch.from_numpy(self._epochs[alive]), "parts": parts}

    def load_placed(self, placed: Mapping[str, Any]) -> None:
        """Put contents that `placed_since` returned back into frames that this store, by its state, knows."""
        numbers = placed["numbers"].numpy()
        current = (self._epochs[numbers] == placed["epochs"].numpy()) & (numbers < self._used)
        self._fill(numbers[current], {part: placed["parts"]["/".join(part)].numpy()[current] for part in self.fields})

    def whole(self, placed: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """[frames] bool: whose contents are in one of these pieces (and those of the frame of nothing)."""
        found = np.zeros(len(self._references), dtype=bool)
        found[0] = True
        for piece in placed:
            numbers = piece["numbers"].numpy()
            found[numbers[self._epochs[numbers] == piece["epochs"].numpy()]] = True
        return found

    def recount(self, holders: Sequence[np.ndarray]) -> None:
        """Exactly these references, each array [k] with one for each frame number in it; lanes begin anew."""
        self._references[:] = 0
        self._make_lanes(0, keep=True)
        for frames in holders:
            np.add.at(self._references, frames, 1)
        self._references[0] = 1
        self._free = np.flatnonzero(self._references[: self._used] == 0).tolist()
