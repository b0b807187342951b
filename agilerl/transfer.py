"""Copies between host and accelerator."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device(values: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Move a tensor; from the host to CUDA through pinned memory and without waiting for the copy.

    Later operations on the same stream wait for the copy. `values` may be changed at once, as the pinned block is a
    copy of its own. Elsewhere this is `values.to(device, dtype)`.
    """
    if device.type != "cuda" or values.device.type != "cpu":
        return values.to(device, dtype)
    converted = values if dtype is None else values.to(dtype)  # on the host: a conversion on the way would wait
    return converted.pin_memory().to(device, non_blocking=True)
