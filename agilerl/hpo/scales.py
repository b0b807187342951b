"""Scales on which hyperparameters are spread and changed."""

from __future__ import annotations

import numpy as np

# Hyperparameters x in (0, 1) for which 1 - x has the natural scale: a horizon is 1 / (1 - gamma) steps, and noise
# persists for 1 / (1 - noise_persistence).
DECAYS = ("gamma", "gae_lambda", "noise_persistence")


def to_scale(name: str, value: float) -> float:
    """Map a hyperparameter to log scale, or to the log of 1 - x for those in `DECAYS`.

    Identity for ranges without a logarithm: those that start at or below 0 (for `DECAYS`: end at or above 1).
    """
    return float(np.log(1.0 - value) if name in DECAYS else np.log(value))


def from_scale(name: str, place: float) -> float:
    """Inverse of `to_scale`."""
    return float(1.0 - np.exp(place) if name in DECAYS else np.exp(place))


def has_scale(name: str, low: float, high: float) -> bool:
    """Whether `to_scale` is defined on all of [low, high]."""
    return high < 1.0 if name in DECAYS else low > 0.0
