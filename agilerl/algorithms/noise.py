"""Exploration noise of deterministic policies: drawn ahead, because no path of it depends on the actions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def ornstein_uhlenbeck(
    start: np.ndarray, numbers: np.ndarray, mean: Any, theta: float, std: Any, dt: float
) -> np.ndarray:
    """x_{t+1} = x_t + θ(μ − x_t)·dt + σ·√dt·ε_t: the process of Uhlenbeck and Ornstein (1930), by Euler's method.

    Used for exploration by Lillicrap et al. 2016, arXiv:1509.02971, section 3 and appendix 7.

    Args:
        start: [E, A] x_0. numbers: [T, E, A] standard normal.
        mean, std: μ and σ, numbers or [A]. theta: θ. dt: time of one vector step.

    Returns:
        [T, E, A] x_1 .. x_T.
    """
    path = np.empty_like(numbers, dtype=np.float64)
    pushes = numbers * (np.asarray(std) * math.sqrt(dt))
    x = np.asarray(start, np.float64)
    for t in range(len(numbers)):
        x = x + theta * (np.asarray(mean) - x) * dt + pushes[t]
        path[t] = x
    return path


def gaussian(numbers: np.ndarray, mean: Any, std: Any) -> np.ndarray:
    """μ + σ·ε, independent in every vector step: numbers [..., A] standard normal; mean, std numbers or [A]."""
    noise: np.ndarray = np.asarray(mean) + np.asarray(std) * numbers
    return noise
