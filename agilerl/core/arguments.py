"""Checks of the arguments of constructors and published functions, by their signatures."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeVar, cast, get_origin

from agilerl.core.ranges import check, usual_of, without_none
from agilerl.core.signatures import (
    VARIADIC,
    bind,
    constructor_signature,
    constructors,
    hints_of,
    is_ours,
    is_simple,
    takes_any_name,
)
from agilerl.errors import ConfigError

Function = TypeVar("Function", bound=Callable[..., Any])


@functools.lru_cache(maxsize=64)
def _ranges(functions: tuple[Any, ...]) -> dict[str, Any]:
    """Return the checked types of arguments: numbers with a range, choices, integers and booleans."""
    hints = {name: hint for function in reversed(functions) for name, hint in hints_of(function).items()}
    kinds = Annotated, Literal
    return {k: v for k, v in hints.items() if is_simple(v) or get_origin(without_none(v)[0]) in kinds}


def check_call(
    title: str, signature: inspect.Signature, functions: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any],
    error: type[Exception] = ConfigError,
) -> None:  # fmt: skip
    """Check the names of arguments, and those with a range by the types of the functions that take them.

    Raises:
        ArgumentError: see `bind`. error: out of range, with the range, the value and a fix.
    """
    arguments, ranges = bind(title, signature, args, kwargs), _ranges(tuple(functions))
    for name in arguments.keys() & ranges.keys():
        default = signature.parameters[name].default
        usual = usual_of(ranges[name]) if default in (None, inspect.Parameter.empty) else default
        check(f"{title}: {name}", arguments[name], ranges[name], usual, error)


class Checked:
    """Base of classes whose constructor arguments are checked, names and ranges; see `check_call`.

    Attributes:
        argument_error: raised for a value out of range.
    """

    argument_error: type[Exception] = ConfigError

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        functions, signature = constructors(cls), constructor_signature(cls)
        if all(map(is_ours, functions)) and not takes_any_name(inspect.signature(functions[-1]).parameters):
            named = [p for p in signature.parameters.values() if p.kind not in VARIADIC]  # all names are known
            signature = signature.replace(parameters=named)
        checked_ones = list(filter(is_ours, functions))
        check_call(cls.__name__, signature, checked_ones, (None, *args), kwargs, cls.argument_error)
        return super().__new__(cls)


def checked(function: Function) -> Function:
    """Decorate a function to check its arguments, names and ranges; see `check_call`."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        check_call(function.__name__, signature, (function,), args, kwargs)
        return function(*args, **kwargs)

    return cast(Function, call)
