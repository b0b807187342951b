"""Left padding of token rows, and position ids."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def positions_of(attention: Tensor) -> Tensor:
    """Position ids [R, L] int64 of left-padded tokens; padding is not counted."""
    return (attention.long().cumsum(-1) - 1).clamp_min(0)


def pad_left(rows: Sequence[Sequence[int]], pad: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Token rows of unequal length as (tokens, attention) [R, P], padded on the left."""
    width = max(len(row) for row in rows)
    tokens = torch.full((len(rows), width), pad, dtype=torch.long)
    attention = torch.zeros((len(rows), width), dtype=torch.bool)
    for number, row in enumerate(rows):
        if len(row):
            tokens[number, width - len(row) :] = torch.tensor(list(row))
            attention[number, width - len(row) :] = True
    return tokens.to(device), attention.to(device)
