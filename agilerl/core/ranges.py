"""Number types with ranges, their descriptions in messages, and the scales of hyperparameters."""

from __future__ import annotations

import math
import types
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np
from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator, BeforeValidator, Field
from pydantic.fields import FieldInfo

from agilerl.core import foreign
from agilerl.errors import ConfigError, nearest


def _no_bool(value: object) -> Any:
    # YAML turns yes/no/on/off into booleans, and pydantic would take True as 1
    if isinstance(value, bool):
        raise ValueError("a boolean is not a number")
    return value


def _whole(value: object) -> Any:
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
InnerFraction = Annotated[float, _NUMBER, Field(gt=0, lt=1)]
AnyNumber = Annotated[float, _NUMBER]  # infinities too


def _whole_from_one(value: float) -> float:
    """Return numbers of at least 1 as integers."""
    if value >= 1 and value != int(value):
        raise ValueError(f"a whole number, or a fraction below 1; got {value:g}")
    return int(value) if value >= 1 else value


WHOLE_FROM_ONE = AfterValidator(_whole_from_one)
StepsPerUpdate = Annotated[float, _NUMBER, Field(gt=0, allow_inf_nan=False), WHOLE_FROM_ONE]
"""Environment steps per update: a whole number, or a fraction below 1 for several updates per step."""


@dataclass(frozen=True)
class Range:
    """Numbers that an annotated type accepts; all are finite unless the type says no more than `AnyNumber`.

    Attributes:
        base: int or float. low, high: bounds, infinite without one; open_low, open_high: whether they are excluded.
        finite: whether infinities are excluded. whole_from_one: whether numbers of at least 1 must be whole.
    """

    base: type
    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    finite: bool = True
    whole_from_one: bool = False

    @classmethod
    def of(cls, values: object) -> Range | None:
        """Return the range of `T` or `T | None`; None for types other than numbers."""
        kind, _ = without_none(values)
        base, metadata = (get_args(kind)[0], get_args(kind)[1:]) if get_origin(kind) is Annotated else (kind, ())
        if base not in (int, float):
            return None
        marks = [part for item in metadata for part in foreign.marks(item)]  # `Field(...)` holds a list of marks
        bounds: dict[str, Any] = {}
        for mark in marks:
            if isinstance(mark, Ge | Gt):
                bounds |= {"low": mark.ge if isinstance(mark, Ge) else mark.gt, "open_low": isinstance(mark, Gt)}
            elif isinstance(mark, Le | Lt):
                bounds |= {"high": mark.le if isinstance(mark, Le) else mark.lt, "open_high": isinstance(mark, Lt)}
        return cls(base, **bounds, finite=kind != AnyNumber, whole_from_one=WHOLE_FROM_ONE in metadata)

    def holds(self, value: Any) -> bool:
        """Whether a number, or each one of an array, lies within the bounds."""
        x = np.asarray(value)
        above = x > self.low if self.open_low else x >= self.low
        return bool((above & (x < self.high if self.open_high else x <= self.high)).all())

    def accepts(self, value: object) -> bool:
        """Whether it is a number, or an array of numbers, of this kind; booleans are none."""
        x = np.asarray(value)
        if x.dtype.kind not in ("iuf" if self.base is float else "iu") or isinstance(value, bool) or not self.holds(x):
            return False
        fits = np.isfinite(x) if self.finite else ~np.isnan(x)
        return bool((fits & ((x < 1) | (x == np.rint(x))) if self.whole_from_one else fits).all())

    def __str__(self) -> str:
        """As in "must be an integer of at least 1", "must be in (0, 1]"."""
        if self.whole_from_one:
            return "a whole number, or a fraction above 0 and below 1"
        if math.isfinite(self.high):
            return f"in {'(' if self.open_low else '['}{self.low}, {self.high}{')' if self.open_high else ']'}"
        if not math.isfinite(self.low):
            return "an integer" if self.base is int else f"a {'finite ' if self.finite else ''}number"
        noun = "an integer of " if self.base is int else ""
        return f"above {self.low}" if self.open_low else f"{noun}at least {self.low}"


def misfit(value: Any, values: object, *, arrays: bool = False) -> str:
    """Return what a value must be by its type, of numbers, booleans or `Literal`; empty if it is, or for other types.

    arrays: whether an array of numbers is as good as one.
    """
    kind, or_none = without_none(values)
    if or_none and value is None:
        return ""
    if get_origin(kind) is Literal:
        *others, last = map(repr, get_args(kind))
        choices = f"{', '.join(others)} or {last}" if others else last
        return "" if value in get_args(kind) else f"{choices}{' or None' if or_none else ''}"
    if kind is bool:
        is_boolean = isinstance(value, bool | np.bool_ | int | np.integer) and value in (0, 1)
        return "" if is_boolean else f"True or False{' or None' if or_none else ''}"
    numbers = Range.of(kind)
    if numbers is None or ((arrays or np.ndim(value) == 0) and numbers.accepts(value)):
        return ""
    is_infinite = numbers.base is float and isinstance(value, float) and value == math.inf == numbers.high
    return f"{'finite' if is_infinite else numbers}{' or None' if or_none else ''}"


def check(
    name: str, value: object, values: object, usual: object, error: type[Exception] = ConfigError, *, unit: str = "",
    arrays: bool = False,
) -> None:  # fmt: skip
    """Raise the error unless a value is of its annotated type; see `misfit`.

    Args:
        usual: a value for the fix. unit: of the value, or what it is.
    """
    if expected := misfit(value, values, arrays=arrays):
        fix = closest(value, values, usual)
        text = f"{name} must be {expected}{unit and f' ({unit})'}; got {value!r}."
        raise error(f"{text} fix: {name.rpartition(': ')[2]}={fix!r}.")


def closest(value: object, values: object, usual: object) -> Any:
    """Return the choice of a `Literal` whose name is most like a wrong value's; the usual value without one."""
    kind, _ = without_none(values)
    choices = [str(choice) for choice in get_args(kind)] if get_origin(kind) is Literal else []
    return next(iter(nearest(str(value), choices, limit=1)), usual)


def usual_of(values: object) -> Any:
    """Return an example of an annotated type, for the fix."""
    numbers = Range.of(values)
    return True if numbers is None else numbers.base(min(max(1, numbers.low), numbers.high))


def without_none(values: object) -> tuple[Any, bool]:
    """Return (the type, whether None is allowed) of `T | None`."""
    if get_origin(values) in (Union, types.UnionType):
        rest = [part for part in get_args(values) if part is not type(None)]
        return rest[0], len(rest) < len(get_args(values))
    return values, False


_NOUNS = {bool: "true or false", str: "a text", dict: "a mapping"}


def describe(annotation: Any, metadata: tuple[Any, ...] | list[Any] = ()) -> str:
    """Describe the values that a key of a manifest accepts: "an integer of at least 1", "in [0, 1] or null"."""
    annotation = Annotated[(annotation, *metadata)] if metadata else annotation
    numbers, origin, arguments = Range.of(annotation), get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join("null" if a is type(None) else describe(a) for a in arguments)
    if numbers is not None:
        return str(numbers)
    if origin is Annotated:
        described = [item.description for item in arguments if isinstance(item, FieldInfo) and item.description]
        return described[0] if described else describe(arguments[0])
    if origin is Literal:
        return "one of " + ", ".join(repr(a) for a in arguments)
    if origin in (list, tuple):
        return f"a list, each {describe(arguments[0])}"
    return _NOUNS.get(origin or annotation, "a mapping")
