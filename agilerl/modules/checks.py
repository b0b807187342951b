"""Checks of modules and of their sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from agilerl.errors import ConfigError


def is_untouched(module: nn.Module) -> bool:
    """True if calling `module` does what its class says: no hooks, parametrizations, compilation or patched forward."""
    hooks: Sequence[str] = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    for part in (m for _, m in module.named_modules()):
        state = part.__dict__
        if any(state.get(name) for name in hooks) or "forward" in state or "parametrizations" in part._modules:
            return False
        if state.get("_compiled_call_impl") is not None:
            return False
    return True


def as_widths(value: Any, what: str) -> list[int]:
    """A list of positive layer widths from a sequence of integers."""
    widths = [int(v) for v in value] if isinstance(value, (list, tuple, np.ndarray)) else None
    if not widths or min(widths) < 1:
        raise ConfigError(f"{what} must be a non-empty list of positive integers (layer widths); got {value!r}.")
    return widths
