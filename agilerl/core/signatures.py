"""Constructor arguments of classes, including those that `**kwargs` passes on to the constructor of a base class."""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, get_type_hints

from agilerl.core import foreign
from agilerl.errors import AgileRLError, ArgumentError, nearest, warn_once

OF_POPULATIONS = ("index", "seed", "hp_config", "net_config", "device")  # arguments that populations are made with
SYNONYMS: dict[str, tuple[str, ...]] = {  # argument names in other libraries, the most common first
    "learning_rate": ("lr", "lr_actor", "lr_critic"), "train_freq": ("learn_step",), "n_steps": ("learn_step",),
    "n_epochs": ("update_epochs",), "clip_range": ("clip_coef",),
}  # fmt: skip
VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def takes_any_name(parameters: Any) -> bool:
    """Whether a mapping of parameters has `**kwargs`."""
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def constructors(cls: Any) -> list[Any]:
    """Return the constructors that arguments of `cls` reach by name, the most derived first.

    A constructor with `**kwargs` passes names on, so the next one in the method resolution order takes them too.
    """
    reached = []
    for base in cls.__mro__:
        if base is not object and "__init__" in vars(base):
            reached.append(base.__init__)
            if not takes_any_name(inspect.signature(base.__init__).parameters):
                break
    return reached


def constructor_signature(cls: Any) -> inspect.Signature:
    """Return the signature of a class's constructor, with `self`.

    Arguments that `**kwargs` passes on to a base class follow as keyword-only ones. `inspect.signature(cls)` shows
    `__new__` in some versions of Python.
    """
    outer, *inherited = [inspect.signature(init) for init in constructors(cls) or [cls.__init__]]
    parameters = dict(outer.parameters)
    for signature in inherited:
        for name, parameter in list(signature.parameters.items())[1:]:
            if parameter.kind not in VARIADIC:
                parameters.setdefault(name, parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    return outer.replace(parameters=sorted(parameters.values(), key=lambda parameter: parameter.kind))


def constructor_arguments(cls: Any) -> dict[str, inspect.Parameter]:
    """Return the arguments of `constructor_signature` by name, without `self`."""
    _, *arguments = constructor_signature(cls).parameters.items()
    return dict(arguments)


def taken_by(cls: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the arguments that the constructor of a class takes by name."""
    parameters = constructor_arguments(cls)
    return {k: v for k, v in arguments.items() if k in parameters or takes_any_name(parameters)}


def with_defaults(constructor: Callable[..., None], **defaults: Any) -> Any:
    """Return a constructor with other defaults, visible in its signature: for the published name of a variant."""
    signature = inspect.signature(constructor)

    @functools.wraps(constructor)
    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        arguments = signature.bind_partial(self, *args, **kwargs).arguments
        constructor(self, *args, **{**{k: v for k, v in defaults.items() if k not in arguments}, **kwargs})

    parameters = signature.parameters.values()
    changed = [p.replace(default=defaults[p.name]) if p.name in defaults else p for p in parameters]
    construct.__signature__ = signature.replace(parameters=changed)  # type: ignore[attr-defined]  # read by inspect
    return construct


def also_takes(**published: str | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a callable to take published arguments by name: another name of one of its own, or None to ignore it.

    Its signature stays that of the callable; the names are in its attribute `published`.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for name in published.keys() & kwargs.keys():
                value, own = kwargs.pop(name), published[name]
                if own is not None:
                    kwargs.setdefault(own, value)
            return function(*args, **kwargs)

        call.published = published  # type: ignore[attr-defined]
        return call

    return decorate


def ignored_arguments(cls: Any) -> set[str]:
    """Return the published arguments that a constructor takes by `also_takes`."""
    return set(vars(cls.__init__).get("published", ()))


def by_position_or_name(cls: Any, **arguments: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return (positional, named) arguments for a constructor: by name only if it has `**kwargs` and too few positions.

    A constructor may have other names for the first ones of its base class, or no positional argument at all.
    """
    declared = inspect.signature(cls.__init__).parameters
    kinds = [parameter.kind for parameter in declared.values()]
    positions = sum(kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD for kind in kinds) - 1  # without self
    if takes_any_name(declared) and inspect.Parameter.VAR_POSITIONAL not in kinds and positions < len(arguments):
        return (), arguments
    return tuple(arguments.values()), {}


def hints_of(function: Any) -> dict[str, Any]:
    """Return the types of a function's arguments, without those whose names exist for type checkers alone."""
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, AttributeError):
        scope = inspect.unwrap(function).__globals__
        hints: dict[str, Any] = {}
        for name, written in function.__annotations__.items():
            with suppress(NameError, AttributeError):
                hints |= get_type_hints(types.SimpleNamespace(__annotations__={name: written}), scope, None, True)
        return hints


def is_simple(hint: Any) -> bool:
    """Whether a type is a boolean or an integer, or one of them or None."""
    return hint in (bool, int, bool | None, int | None)


def is_ours(function: Any) -> bool:
    """Whether a function belongs to this package."""
    package = __name__.partition(".")[0]
    return inspect.isfunction(function) and str(function.__module__).partition(".")[0] == package


def bind(title: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments of a call by name; ArgumentError for unknown ones, with the nearest name, or too many."""
    names = [name for name in signature.parameters if name != "self"]
    unknown = [] if takes_any_name(signature.parameters) else [name for name in kwargs if name not in names]
    if unknown:
        raise ArgumentError(unexpected(title, unknown, names))
    try:
        return signature.bind_partial(*args, **kwargs).arguments
    except TypeError as error:  # too many, or a duplicate
        raise ArgumentError(f"{title} got {error}. fix: arguments by name, of: {', '.join(names)}.") from None


def unexpected(title: str, unknown: Sequence[str], names: Sequence[str]) -> str:
    """Build the message for unknown arguments: each with the nearest name, or all names."""
    words = {word: [name for name in meant if name in names] for word, meant in SYNONYMS.items()}
    close: dict[str, list[str]] = {}
    for name in unknown:
        best = [name] if words.get(name) else nearest(name, [*names, *(word for word in words if words[word])], limit=1)
        close[name] = [meant for word in best for meant in words.get(word, [word])]
    hints = [f"{name}: did you mean {' or '.join(meant)}?" for name, meant in close.items() if meant]
    listed = "" if all(close.values()) else f"; known: {', '.join(names)}"
    fix = "that name" if len(hints) == len(unknown) else "leave it out, or use a known name"
    what = f"{title} got an unexpected argument {', '.join(map(repr, unknown))}{listed}."
    return " ".join([what, *hints, f"fix: {fix}."])


def construct(cls: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Create an agent; a call that its constructor, which may be a user's, cannot take is named.

    Raises:
        ArgumentError: the constructor does not take these arguments.
    """
    parameters = constructor_signature(cls).parameters
    missing = [name for name in OF_POPULATIONS if name in kwargs and name not in parameters]
    if missing and not takes_any_name(parameters):
        raise ArgumentError(
            f"{foreign.name_of_function(cls, 'the agent')} cannot be made: its constructor takes no "
            f"{', '.join(missing)}, which a population needs. fix: **kwargs in its constructor, passed to "
            "super().__init__."
        )
    try:
        return construct_without_repeats(cls, args, kwargs)
    except TypeError as error:
        if isinstance(error, AgileRLError) or "__init__() " not in str(error):
            raise
        raise ArgumentError(
            f"{foreign.name_of_function(cls, 'the agent')} cannot be made: {error}. fix: def __init__(self, *args, "
            "**kwargs) that passes both to super().__init__, beside its own arguments, which have defaults."
        ) from error


def construct_without_repeats(cls: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Create an agent without the arguments that its constructor sets itself for its base class.

    After `super().__init__(*args, double=True, **kwargs)` a `double` in `kwargs` would be there twice. The value of the
    constructor holds, with a warning if it is another one.
    """
    try:
        return cls(*args, **kwargs)
    except TypeError as error:
        repeated = re.search(r"__init__\(\) got multiple values for keyword argument '(\w+)'", str(error))
        if repeated is None or repeated[1] not in kwargs:
            raise
    name, rest = repeated[1], dict(kwargs)
    value = rest.pop(name)
    agent = construct_without_repeats(cls, args, rest)
    if name in vars(agent) and vars(agent)[name] is not value and vars(agent)[name] != value:
        of = type(agent).__name__
        warn_once(
            f"{of} sets {name}",
            f"{of} sets {name} in its constructor, so that {name}={value!r} is ignored. "
            f"fix: kwargs.setdefault({name!r}, {vars(agent)[name]!r}) in its constructor.",
        )
    return agent
