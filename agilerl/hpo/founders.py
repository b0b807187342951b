"""Founders that differ: their hyperparameters are spread over the ranges that evolution may use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agilerl.hpo.operators import RLParameter
from agilerl.rng import Purpose, stream

# Hyperparameters x in (0, 1) of which 1 - x is the quantity that has a scale: a horizon is 1 / (1 - gamma) steps, and
# noise persists for 1 / (1 - noise_persistence).
DECAYS = ("gamma", "gae_lambda", "noise_persistence")


def to_scale(name: str, value: float) -> float:
    """The hyperparameter where equal steps matter equally: its logarithm, or that of 1 - x for what decays.

    A range that begins at or below 0 (of what decays: ends at or above 1) has no logarithm; values stay as they are.
    """
    return float(np.log(1.0 - value) if name in DECAYS else np.log(value))


def from_scale(name: str, place: float) -> float:
    """The inverse of `to_scale`."""
    return float(1.0 - np.exp(place) if name in DECAYS else np.exp(place))


def has_scale(name: str, low: float, high: float) -> bool:
    """Whether `to_scale` is defined on all of [low, high]."""
    return high < 1.0 if name in DECAYS else low > 0.0


def is_learning_rate(name: str) -> bool:
    return name == "lr" or name.startswith("lr_")


def spread(ranges: Mapping[str, RLParameter], count: int, seed: int) -> list[dict[str, float | int]]:
    """`count` draws of all hyperparameters, stratified: each range is cut into `count` parts of equal width (on the
    scale of `to_scale`), and each part is drawn from once (Latin hypercube sampling, McKay et al. 1979, section 2).

    A tenth of the range of one hyperparameter thus holds a founder if there are ten, which independent draws do not
    promise. Integers are rounded. The learning rates of a founder lie at the same share of their ranges: drawn one by
    one, few founders have an actor and a critic that both learn.
    """
    drawn: list[dict[str, float | int]] = [{} for _ in range(count)]
    names = sorted(ranges)
    first_rate = next((number for number, name in enumerate(names) if is_learning_rate(name)), 0)
    for number, name in enumerate(names):
        rng = stream(seed, Purpose.FOUNDERS, member=first_rate if is_learning_rate(name) else number)
        shares = (rng.permutation(count) + rng.random(count)) / count
        for founder, share in zip(drawn, shares.tolist(), strict=True):
            founder[name] = value_at(name, ranges[name], share)
    return drawn


def value_at(name: str, parameter: RLParameter, share: float) -> float | int:
    """The value that lies at a share in [0, 1] of the range, on the scale of `to_scale`."""
    low, high = float(parameter.min), float(parameter.max)
    if has_scale(name, low, high):
        ends = to_scale(name, low), to_scale(name, high)
        value = from_scale(name, ends[0] + share * (ends[1] - ends[0]))
    else:
        value = low + share * (high - low)
    value = min(max(value, low), high)
    return round(value) if parameter.dtype is int else value


def share_at(name: str, parameter: RLParameter, value: float) -> float:
    """The inverse of `value_at`; of a value outside of the range that of its nearer end."""
    low, high = float(parameter.min), float(parameter.max)
    value = min(max(value, low), high)
    if has_scale(name, low, high):
        low, high, value = to_scale(name, low), to_scale(name, high), to_scale(name, value)
    return 0.0 if low == high else (value - low) / (high - low)


def spread_founders(population: Sequence[Any], seed: int) -> None:
    """Give every founder but the first, who keeps what is configured, hyperparameters of its own."""
    if len(population) < 2:
        return
    ranges = dict(population[0].registry.hp_config.items())
    for agent, values in zip(population[1:], spread(ranges, len(population) - 1, seed), strict=True):
        for name, value in values.items():
            setattr(agent, name, value)
        agent.mutation_hook()
