"""Mutable hyperparameters: their range, and one step within it."""

from __future__ import annotations

import copy
from collections.abc import ItemsView, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from agilerl.core import foreign
from agilerl.errors import ConfigError, unknown_choice
from agilerl.modules.base import single_draw


class UnsetValueError(ConfigError, AssertionError):
    """A hyperparameter to mutate has no value yet."""


def step(value: object, low: float, high: float, factor: float, integer: bool) -> Any:
    """Multiply `value` by `factor`, clipped to [low, high].

    Integers are rounded and change by at least one (`int(v · 1.2)` would never change 1 to 4). Where no factor changes
    a value, as at 0.0, it moves by the share `factor` - 1 of the range instead. Arrays change element by element and
    keep shape and dtype.
    """
    array = np.asarray(value)
    product = array * factor
    moved = product
    if integer or np.issubdtype(array.dtype, np.integer):
        moved = np.rint(moved)
        moved = np.maximum(moved, array + 1) if factor > 1 else np.minimum(moved, array - 1) if factor < 1 else moved
    moved = np.clip(moved, low, high)
    stuck = (product == array) & (moved == array)
    if not integer and np.any(stuck):
        moved = np.where(stuck, np.clip(array + (factor - 1) * (high - low), low, high), moved)
    if isinstance(value, np.ndarray):
        return moved.astype(value.dtype)
    return int(moved) if integer else float(moved)


@dataclass
class RLParameter:
    """Range and step of one hyperparameter.

    Attributes:
        min, max: inclusive limits.
        shrink_factor, grow_factor: the two steps, equally likely.
        dtype: int, float or np.ndarray; an attribute of type int always stays an integer.
        value: starting value of `mutate`; evolution sets it from the agent's live attribute each time.
    """

    min: float
    max: float
    shrink_factor: float = 0.8
    grow_factor: float = 1.2
    dtype: type = float
    value: Any = None

    def __post_init__(self) -> None:
        if not self.min <= self.max:
            raise ConfigError(f"RLParameter: min must not exceed max; got {self.min} and {self.max}. fix: swap them.")
        if not 0 < self.shrink_factor <= 1 <= self.grow_factor:
            what = f"RLParameter: expected 0 < shrink_factor <= 1 <= grow_factor; got {self.shrink_factor} and"
            raise ConfigError(f"{what} {self.grow_factor}. fix: shrink_factor=0.8, grow_factor=1.2.")

    def mutate(self, rng: np.random.Generator | None = None) -> Any:
        """Make one step up or down, reversed at a limit; store and return the new value.
        `rng`: any object with numpy's `choice`; a new generator if None."""
        if self.value is None:
            raise UnsetValueError("Hyperparameter value is not set. fix: set .value, or mutate through an agent.")
        rng = np.random.default_rng() if rng is None else rng
        integer = self.dtype is int or (isinstance(self.value, (int, np.integer)) and not isinstance(self.value, bool))
        factors = [self.shrink_factor, self.grow_factor]
        drawn = float(single_draw(rng.choice(factors)))
        other = factors[1] if drawn == factors[0] else factors[0]
        new = step(self.value, self.min, self.max, drawn, integer)
        if np.array_equal(new, self.value):
            new = step(self.value, self.min, self.max, other, integer)
        self.value = new
        return new


class HyperparameterConfig:
    """Attributes of an agent that evolution may change: `HyperparameterConfig(lr=RLParameter(1e-4, 1e-2))`."""

    def __init__(self, **parameters: RLParameter) -> None:
        for name, parameter in parameters.items():
            if not isinstance(parameter, RLParameter):
                got, fix = type(parameter).__name__, f"{name}=RLParameter(1e-4, 1e-2)"
                raise TypeError(f"Expected RLParameter object for {name!r}; got {got}. fix: {fix}.")
        self.config: dict[str, RLParameter] = parameters

    def names(self) -> list[str]:
        """Names of the hyperparameters."""
        return list(self.config)

    def items(self) -> ItemsView[str, RLParameter]:
        """(name, parameter) pairs."""
        return self.config.items()

    def sample(self, rng: np.random.Generator | None = None) -> tuple[str, RLParameter]:
        """Draw one hyperparameter uniformly."""
        if not self.config:
            raise ConfigError("this HyperparameterConfig is empty. fix: lr=RLParameter(1e-4, 1e-2), say.")
        rng = np.random.default_rng() if rng is None else rng
        name = str(single_draw(rng.choice(self.names())))
        return name, self.config[name]

    def copy(self) -> HyperparameterConfig:
        """Return an independent copy, as each agent needs its own."""
        return copy.deepcopy(self)

    def __getitem__(self, name: str) -> RLParameter:
        if name not in self.config:
            raise KeyError(unknown_choice("hyperparameter", name, self.config))
        return self.config[name]

    def __contains__(self, name: object) -> bool:
        return name in self.config

    def __iter__(self) -> Iterator[str]:
        return iter(self.config)

    def __len__(self) -> int:
        return len(self.config)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HyperparameterConfig) and self.config == other.config

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"HyperparameterConfig({', '.join(f'{k}={v!r}' for k, v in self.config.items())})"


# -- keywords of the first published versions of `Mutations`, as a configuration --------------------------------------

# Keyword stem -> attributes that an agent may have for it, if not of the same name.
ATTRIBUTES: dict[str, tuple[str, ...]] = {"lr": ("lr", "lr_actor", "lr_critic")}
BOUNDS: dict[str, tuple[float, float]] = {"lr": (1e-4, 1e-2), "learn_step": (1, 120), "batch_size": (8, 1024)}


@dataclass(frozen=True)
class Selection:
    """`rl_hp_selection` and its bounds (legacy arguments).

    Attributes:
        names: hyperparameters that may change; None leaves the choice to each agent's `hp_config`.
        bounds: (min, max) by stem, used if the agent's `hp_config` has no entry.
    """

    names: tuple[str, ...] | None
    bounds: dict[str, tuple[float, float]]

    @classmethod
    def of(cls, names: Sequence[str] | None, **limits: float | None) -> Selection:
        """Parse the keywords min_lr, max_lr, min_learn_step, ... (None: the default of the first versions)."""
        set_limits = {name: limit for name, limit in limits.items() if limit is not None}
        bounds = {
            s: (set_limits.get(f"min_{s}", low), set_limits.get(f"max_{s}", high)) for s, (low, high) in BOUNDS.items()
        }
        return cls(None if names is None else tuple(names), bounds)

    def highest(self, name: str) -> float:
        """Upper bound of a selected hyperparameter, 0 if it is not selected."""
        return self.bounds[name][1] if self.names is not None and name in self.names and name in self.bounds else 0.0

    def within(self, name: str, most: float) -> Selection:
        """Clip the upper bound of one hyperparameter to `most`."""
        if name not in self.bounds:
            return self
        low, high = self.bounds[name]
        return replace(self, bounds={**self.bounds, name: (min(low, most), min(high, most))})

    def config_for(self, agent: foreign.Agent, own: HyperparameterConfig | None) -> HyperparameterConfig:
        """Return the configuration for this agent: its own, or the selected part of it, completed by defaults."""
        if self.names is None:
            return own if own is not None else HyperparameterConfig()
        chosen: dict[str, RLParameter] = {}
        for name in self.names:
            for attribute in ATTRIBUTES.get(name, (name,)):
                if own is not None and attribute in own:
                    chosen[attribute] = own[attribute]
                elif name in self.bounds and hasattr(agent, attribute):
                    low, high = self.bounds[name]
                    chosen[attribute] = RLParameter(low, high, dtype=float if name == "lr" else int)
        return HyperparameterConfig(**chosen)
