"""Copies between host and accelerator, and numbers that must be on one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from agilerl.errors import ConfigError


def as_device(device: Any) -> torch.device:
    """Return a device by its name; ConfigError for an unknown one."""
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        text = f"device must be one of PyTorch's, such as 'cuda:1'; got {device!r}. fix: device='cpu'."
        raise ConfigError(text) from None


def to_device(values: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Move a tensor; from the host to CUDA through pinned memory and without waiting for the copy.

    Later operations on the same stream wait for the copy. `values` may be changed at once, as the pinned block is a
    copy of its own. Elsewhere this is `values.to(device, dtype)`.
    """
    if device.type != "cuda" or values.device.type != "cpu":
        return values.to(device, dtype)
    converted = values if dtype is None else values.to(dtype)  # on the host: a conversion on the way would wait
    return converted.pin_memory().to(device, non_blocking=True)


def step_tensor(count: float, parameter: Tensor, group: Mapping[str, Any]) -> Tensor:
    """Return the step count of a torch optimiser for one parameter, on the device where that optimiser needs it.

    That is the parameter's with `fused` or `capturable`, whose kernels read the count there, else the CPU.

    Args:
        group: the optimiser's parameter group with its options.
    """
    on_device = group.get("fused") or group.get("capturable")
    return torch.full((), count, dtype=torch.float32, device=parameter.device if on_device else "cpu")
