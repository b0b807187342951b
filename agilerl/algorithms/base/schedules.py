"""Hyperparameters that change over the budget of a training function."""

from __future__ import annotations

from typing import Literal, get_args

from agilerl.errors import ConfigError, unknown_name

Schedule = Literal["constant", "linear"]


def check_schedules(*names: Schedule) -> tuple[Schedule, ...]:
    """The names as they are; ConfigError for a schedule that there is not."""
    for name in names:
        if name not in get_args(Schedule):
            raise ConfigError(unknown_name("schedule", str(name), get_args(Schedule)))
    return names


def scheduled(value: float, schedule: str, progress: float) -> float:
    """The value at a share `progress` of the budget: "linear" goes from it to 0."""
    return value * max(0.0, 1 - progress) if schedule == "linear" else value
