"""Checks of the arguments of constructors and published functions, by their signatures."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeVar, cast, get_origin

from agilerl.core import signatures
from agilerl.core.ranges import check, usual_of, without_none
from agilerl.errors import ConfigError

Function = TypeVar("Function", bound=Callable[..., Any])


@functools.lru_cache(maxsize=64)
def _ranges(functions: tuple[Any, ...]) -> dict[str, Any]:
    """Return the checked types of arguments: numbers with a range, choices, integers and booleans."""
    hints = {name: hint for function in reversed(functions) for name, hint in signatures.hints_of(function).items()}
    kinds = Annotated, Literal
    return {k: v for k, v in hints.items() if signatures.is_simple(v) or get_origin(without_none(v)[0]) in kinds}


def check_call(
    title: str, signature: inspect.Signature, functions: Sequence[Any], args: Sequence[Any], kwargs: Mapping[str, Any],
    error: type[Exception] = ConfigError,
) -> None:  # fmt: skip
    """Raise ArgumentError for wrong names (`signatures.bind`), and the error for values that the functions' types
    exclude."""
    arguments, ranges = signatures.bind(title, signature, args, kwargs), _ranges(tuple(functions))
    for name in arguments.keys() & ranges.keys():
        default = signature.parameters[name].default
        usual = usual_of(ranges[name]) if default in (None, inspect.Parameter.empty) else default
        check(f"{title}: {name}", arguments[name], ranges[name], usual, error)


class Checked:
    """Base of classes whose constructor arguments are checked; `argument_error` is that of a value out of range."""

    argument_error: type[Exception] = ConfigError

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        functions, signature = signatures.constructors(cls), signatures.constructor_signature(cls)
        ours = list(filter(signatures.is_ours, functions))
        if ours == functions and not signatures.takes_any_name(inspect.signature(functions[-1]).parameters):
            named = [p for p in signature.parameters.values() if p.kind not in signatures.VARIADIC]  # no other names
            signature = signature.replace(parameters=named)
        check_call(cls.__name__, signature, ours, (None, *args), kwargs, cls.argument_error)
        return super().__new__(cls)


def checked(function: Function) -> Function:
    """Decorate a function to check its arguments; see `check_call`."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        check_call(function.__name__, signature, (function,), args, kwargs)
        return function(*args, **kwargs)

    return cast(Function, call)
