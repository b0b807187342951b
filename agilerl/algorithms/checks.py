"""Checks of constructor arguments: what, where, expected, got and the fix, in one place."""

from __future__ import annotations

from typing import Any

import numpy as np

from agilerl.errors import AlgorithmError, ShapeError
from agilerl.modules.base import EvolvableModule


def check_count(algo: str, **values: Any) -> None:
    """AlgorithmError for anything but an integer of at least 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise AlgorithmError(f"{algo}: {name} must be an integer of at least 1; got {value!r}. fix: {name}=1.")


def check_positive(algo: str, **values: Any) -> None:
    """AlgorithmError for a number that is not above 0."""
    for name, value in values.items():
        if not (value > 0 and np.isfinite(value)):
            raise AlgorithmError(f"{algo}: {name} must be above 0; got {value!r}. fix: 1e-3 is usual for a rate.")


def check_not_negative(algo: str, **values: Any) -> None:
    """AlgorithmError for a number below 0 (or, of an array, any such entry)."""
    for name, value in values.items():
        if not (np.asarray(value) >= 0).all():
            raise AlgorithmError(f"{algo}: {name} must be at least 0; got {value!r}. fix: 0 turns it off.")


def check_discount(algo: str, gamma: float, tau: float) -> None:
    """AlgorithmError for a discount outside [0, 1] or a target share outside (0, 1]."""
    if not 0 <= gamma <= 1:
        raise AlgorithmError(f"{algo}: gamma must be in [0, 1]; got {gamma!r}. fix: 0.99.")
    if not 0 < tau <= 1:
        raise AlgorithmError(f"{algo}: tau must be in (0, 1]; got {tau!r}. fix: 0.005.")


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
