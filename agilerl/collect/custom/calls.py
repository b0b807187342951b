"""Check that overridden methods accept the arguments with which training calls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from agilerl.algorithms.base.wrapped import unwrapped
from agilerl.core import foreign
from agilerl.errors import AlgorithmError

BY_POSITION: Mapping[str, tuple[str, ...]] = {
    "update": ("engine", "batch"),
    "greedy": ("outputs", "mask"),
    "explore": ("outputs", "draws", "epsilon", "mask"),
    "get_action": ("obs",),
    "learn": ("experiences",),
    "test": ("env",),
}
"""Method -> arguments that training passes by position."""
BY_NAME: Mapping[str, Mapping[str, Any]] = {"test": {"swap_channels": False, "max_steps": None, "loop": 1}}
"""Method -> arguments that training passes by name, with their defaults."""
REQUIRED = ("get_action", "learn", "test")  # called on agents that derive from nothing, too


def check_calls(agent: Any, *methods: str) -> None:
    """Check the signatures of methods that are not those of this package.

    Raises:
        AlgorithmError: a method cannot be called the way training calls it.
    """
    inner = unwrapped(agent)
    for name in methods:
        method = foreign.method(inner, name)
        if method is None or not (name in REQUIRED or foreign.replaces(type(inner), name)):
            continue
        positional, named = BY_POSITION[name], BY_NAME.get(name, {})
        reason = foreign.misfit(method, positional, named)
        if reason is not None:
            arguments = ", ".join(("self", *positional, *(f"{key}={value}" for key, value in named.items())))
            raise AlgorithmError(
                f"{type(inner).__name__}.{name} does not take the arguments of training: {reason}. "
                f"fix: def {name}({arguments})."
            )


def reported_loss(result: Any) -> float | None:
    """Return the loss to record from the output of `learn`; None if it reports none.

    Args:
        result: None, a number, a one-element tensor or array, (actor loss or None, critic loss), of which the last
            that is not None is used, or a mapping of these by group, which is averaged.
    """
    if isinstance(result, Mapping):
        losses = [loss for value in result.values() if (loss := reported_loss(value)) is not None]
        return float(np.mean(losses)) if losses else None
    if isinstance(result, tuple | list):
        losses = [loss for value in result if (loss := reported_loss(value)) is not None]
        return losses[-1] if losses else None
    if isinstance(result, torch.Tensor):
        result = result.detach().cpu().numpy()
    if result is None or isinstance(result, str | bytes) or np.size(result) != 1:
        return None
    return float(np.ravel(result)[0])
