"""Batches of language algorithms: texts with token weights and advantages, split into optimiser steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.language.scoring import Texts
from agilerl.ranks import ONE, Ranks


@dataclass(frozen=True)
class TextBatch:
    """Texts of one optimiser step; tensors have a leading member axis if members are stacked.

    Attributes:
        texts: [..., R, P + T].
        weight: [..., R, T] loss weight of each token; the loss is the weighted sum. For preferences [..., R].
        advantage: [..., R, T]. old, reference: [..., R, T] log-probabilities under the generating policy and under the
            frozen reference; None: those of this step, and none.
        returns, values: [..., R, T] of a critic, None without one.
        live: per member whether there is anything to learn; None if all have.
        number: index of the optimiser step in the iteration.
    """

    texts: Texts
    weight: Tensor
    advantage: Tensor | None = None
    old: Tensor | None = None
    reference: Tensor | None = None
    returns: Tensor | None = None
    values: Tensor | None = None
    live: tuple[bool, ...] | None = None
    number: int = 0

    def parts(self, size: int | None) -> Iterator[TextBatch]:
        """Split the rows into parts of at most `size`, whose losses sum to that of the batch; None: one part."""
        rows = self.texts.tokens.shape[-2]
        if size is None or size >= rows:
            yield self if rows == 0 else self.rows(slice(0, rows))
            return
        for first in range(0, rows, size):
            yield self.rows(slice(first, first + size))

    def rows(self, index: object) -> TextBatch:
        """Select rows of every member and drop columns that are padding in all of them."""
        texts = self.texts.rows(index)
        trimmed = texts.trimmed()
        length = trimmed.completion_mask.shape[-1]
        changed: dict[str, Any] = {}
        for name in ("weight", "advantage", "old", "reference", "returns", "values"):
            value = vars(self)[name]
            if value is None:
                continue
            per_token = value.dim() == self.texts.completion_mask.dim()
            changed[name] = value[..., index, :length] if per_token else value[..., index]
        return replace(self, texts=trimmed, **changed)

    def taken(self, index: Tensor) -> TextBatch:
        """Select rows `index` [N, K] of each member, or [K] without a member axis."""

        def pick(x: Tensor) -> Tensor:
            if index.dim() == 1:
                return x[index]
            wide = index.view(*index.shape, *[1] * (x.dim() - 2)).expand(*index.shape, *x.shape[2:])
            return x.gather(1, wide)

        changed = {
            name: pick(value)
            for name in ("weight", "advantage", "old", "reference", "returns", "values")
            if (value := vars(self)[name]) is not None
        }
        texts = Texts(*(pick(x) for x in (self.texts.tokens, self.texts.attention, self.texts.completion_mask)))
        more: dict[str, Any] = {"texts": texts, **changed}
        return replace(self, **more)


def permutations(rngs: Sequence[np.random.Generator], rows: int) -> Tensor:
    """Return [N, rows], a random permutation for each member from its own stream."""
    return torch.from_numpy(np.stack([rng.permutation(rows) for rng in rngs]))


def without_silent_rows(batch: TextBatch, signal: Tensor, ranks: Ranks = ONE) -> TextBatch | None:
    """Drop rows without a gradient; return None if no member has any left, on any rank.

    Weights were computed before, so the loss and its gradient are unchanged. Members keep equally many rows: shorter
    ones are padded with rows of weight 0.

    Args:
        signal: [N, R] bool.
    """
    most, live = int(signal.sum(1).max()), tuple(signal.any(1).tolist())
    if ranks.size > 1:  # a member steps on all ranks or on none
        live = tuple(bool(x) for x in ranks.sum(np.array(live, float)) > 0)
        most = max(most, 1)  # a row without a signal for a rank that has none
    if not any(live):
        return None
    if most < signal.shape[1]:
        order = torch.argsort(~signal, dim=1, stable=True)[:, :most].sort(1).values
        batch = batch.taken(order)
    return replace(batch, live=None if all(live) else live)
