"""Checks of constructor arguments: what, where, expected, got and the fix, in one place."""

from __future__ import annotations

from typing import Any

import numpy as np

from agilerl.errors import ShapeError
from agilerl.modules.base import EvolvableModule


def check_network(name: str, network: Any) -> EvolvableModule:
    """The network, where it is one that evolution can carry.

    Raises:
        TypeError: anything but an `EvolvableModule`.
    """
    if not isinstance(network, EvolvableModule):
        raise TypeError(
            f"{name!r} must be an EvolvableModule; got {type(network).__name__}. "
            "fix: subclass agilerl.modules.base.EvolvableModule."
        )
    return network


def legal_actions(owner: str, mask: Any, shape: tuple[int, int]) -> np.ndarray | None:
    """`action_mask` [A] or [E, A] as an array [E, A], 1 = legal; None stays None.

    Vector environments give one mask per lane in an array of objects.

    Raises:
        ShapeError: some row allows nothing, or the mask does not fit.
    """
    if mask is None:
        return None
    if np.ndim(mask) == 0:
        raise ShapeError(f"{owner} got action_mask={mask!r}; expected [A] or [E, A]. fix: epsilon=... by its name.")
    rows = np.stack([np.asarray(row) for row in mask])
    try:
        legal = np.array(np.broadcast_to(rows, shape))
    except ValueError:
        raise ShapeError(
            f"{owner} got an action_mask of shape {rows.shape} for {shape[0]} observations and {shape[1]} actions. "
            f"fix: [{shape[1]}] or [{shape[0]}, {shape[1]}], 1 = legal."
        ) from None
    if not legal.any(axis=-1).all():
        raise ShapeError(f"{owner} got an action_mask that allows no action in some row. fix: 1 for what is legal.")
    return legal
