"""Diverse founders: hyperparameters spread over the ranges of evolution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agilerl.core.rng import Purpose, stream
from agilerl.hpo.operators import RLParameter
from agilerl.hpo.scales import from_scale, has_scale, to_scale


def is_learning_rate(name: str) -> bool:
    return name == "lr" or name.startswith("lr_")


def spread(ranges: Mapping[str, RLParameter], count: int, seed: int) -> list[dict[str, float | int]]:
    """Draw `count` values of all hyperparameters by Latin hypercube sampling (McKay et al. 1979, section 2).

    Each range is cut into `count` parts of equal width (on the scale of `to_scale`), and each part is drawn from once.
    With ten founders, every tenth of a range holds one, which independent draws do not guarantee. Integers are rounded.
    All learning rates of a founder share one position in their ranges: drawn independently, few founders would have
    both an actor and a critic that learn.
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
    """Return the value at a share in [0, 1] of the range, on the scale of `to_scale`."""
    low, high = float(parameter.min), float(parameter.max)
    if has_scale(name, low, high):
        ends = to_scale(name, low), to_scale(name, high)
        value = from_scale(name, ends[0] + share * (ends[1] - ends[0]))
    else:
        value = low + share * (high - low)
    value = min(max(value, low), high)
    return round(value) if parameter.dtype is int else value


def share_at(name: str, parameter: RLParameter, value: float) -> float:
    """Inverse of `value_at`; values outside the range are clipped."""
    low, high = float(parameter.min), float(parameter.max)
    value = min(max(value, low), high)
    if has_scale(name, low, high):
        low, high, value = to_scale(name, low), to_scale(name, high), to_scale(name, value)
    return 0.0 if low == high else (value - low) / (high - low)


def spread_founders(population: Sequence[Any], seed: int) -> None:
    """Assign spread hyperparameters to every founder except the first, which keeps the configured values."""
    if len(population) < 2:
        return
    ranges = dict(population[0].registry.hp_config.items())
    for agent, values in zip(population[1:], spread(ranges, len(population) - 1, seed), strict=True):
        for name, value in values.items():
            if name in agent.registry.hp_config:  # a founder of another algorithm may lack it
                setattr(agent, name, value)
        agent.mutation_hook()
