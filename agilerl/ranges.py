"""Number types with ranges, their descriptions in messages, and the scales of hyperparameters."""

from __future__ import annotations

import os
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np
from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, BeforeValidator, Field
from pydantic.fields import FieldInfo

from agilerl.core import foreign


def _no_bool(value: Any) -> Any:
    # YAML turns yes/no/on/off into booleans, and pydantic would take True as 1
    if isinstance(value, bool):
        raise ValueError("a boolean is not a number")
    return value


def _whole(value: Any) -> Any:
    """Accept 2e5 and "2e5" (a string in YAML 1.1) for integers."""
    value = _no_bool(value)
    if isinstance(value, (str, float)):
        try:
            number = float(value)
        except ValueError:
            return value
        return int(number) if number == number and abs(number) < 2**63 and number == int(number) else value
    return value


_WHOLE, _NUMBER = BeforeValidator(_whole), BeforeValidator(_no_bool)

Whole = Annotated[int, _WHOLE]
Count = Annotated[int, _WHOLE, Field(ge=1)]
Atoms = Annotated[int, _WHOLE, Field(ge=2)]
GroupSize = Annotated[int, _WHOLE, Field(ge=2)]
CountOrZero = Annotated[int, _WHOLE, Field(ge=0)]
Number = Annotated[float, _NUMBER, Field(allow_inf_nan=False)]
Positive = Annotated[float, _NUMBER, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, _NUMBER, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, _NUMBER, Field(ge=0, le=1)]
BelowOne = Annotated[float, _NUMBER, Field(ge=0, lt=1)]
PositiveFraction = Annotated[float, _NUMBER, Field(gt=0, le=1)]


def _whole_from_one(value: float) -> float:
    """Return numbers of at least 1 as integers."""
    if value >= 1 and value != int(value):
        raise ValueError(f"a whole number, or a fraction below 1; got {value:g}")
    return int(value) if value >= 1 else value


WHOLE_FROM_ONE = AfterValidator(_whole_from_one)
StepsPerUpdate = Annotated[float, _NUMBER, Field(gt=0, allow_inf_nan=False), WHOLE_FROM_ONE]
"""Environment steps per update: a whole number, or a fraction below 1 for several updates per step."""


def _text(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _settings(value: Any) -> Any:
    """Reduce a PEFT configuration to its non-default fields; a mapping is unchanged."""
    if not foreign.has_methods(value, "to_dict"):
        return value
    usual, required = type(value)().to_dict(), ("peft_type", "r", "lora_alpha")
    changed = {k: v for k, v in value.to_dict().items() if v != usual.get(k) or k in required}
    plain = {k: sorted(v) if isinstance(v, set | frozenset) else foreign.value(v) for k, v in changed.items()}
    return {k: v for k, v in plain.items() if v is not None}


ModelName = Annotated[str | None, BeforeValidator(_text)]
"""The folder or hub id of a language model."""
AdapterSettings = Annotated[dict[str, Any] | None, BeforeValidator(_settings)]
"""Fields of a configuration of PEFT."""

_NOUNS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", dict: "a mapping"}


def describe(annotation: Any, metadata: tuple[Any, ...] | list[Any] = ()) -> str:
    """Describe accepted values: "a whole number >= 1", "a number > 0 and <= 1 or null"."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return describe(arguments[0], [*arguments[1:], *metadata])
    if origin in (Union, types.UnionType):
        return " or ".join("null" if a is type(None) else describe(a) for a in arguments)
    if origin is Literal:
        return "one of " + ", ".join(repr(a) for a in arguments)
    if origin in (list, tuple):
        return f"a list, each {describe(arguments[0])}"
    if WHOLE_FROM_ONE in metadata:
        return "a whole number, or a fraction above 0 and below 1"
    described = [item.description for item in metadata if isinstance(item, FieldInfo) and item.description]
    noun = "a mapping" if origin is dict else [*described, _NOUNS.get(annotation, "a mapping")][0]
    bounds = " and ".join(_bounds(metadata))
    return f"{noun} {bounds}" if bounds else noun


def _bounds(metadata: tuple[Any, ...] | list[Any]) -> list[str]:
    bounds = []
    for item in metadata:
        for part in foreign.marks(item):  # `Field(...)` inside Annotated holds a list of marks
            for kind, sign in ((Gt, ">"), (Ge, ">="), (Lt, "<"), (Le, "<=")):
                if isinstance(part, kind):
                    bounds.append(f"{sign} {getattr(part, kind.__name__.lower())}")
    return bounds


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
