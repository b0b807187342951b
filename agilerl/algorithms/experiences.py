"""Two batches as one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from agilerl.engine.protocol import TransitionBatch
from agilerl.tree import concatenate


def side_by_side(first: TransitionBatch, second: TransitionBatch) -> TransitionBatch:
    """Both batches as one, each with its own weights: their losses add."""
    joined: dict[str, Any] = {
        name: concatenate((value, getattr(second, name))) if getattr(second, name) is not None else None
        for name, value in vars(first).items()
        if isinstance(value, Tensor) or name in ("obs", "next_obs")  # nested for Dict and Tuple spaces
    }
    return replace(first, **joined)
