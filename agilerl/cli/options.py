"""Arguments and options shared by the commands, parsing of numbers, and examples below the help."""

from __future__ import annotations

import contextlib
import inspect
import math
import os
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer

from agilerl.cli.messages import remember_command
from agilerl.runs.request import Option, RunRequest, options_of


def whole(text: Any, option: str = "--steps", example: str = "100000", least: float = -math.inf) -> int:
    """A whole number as users type it: 100000, 100_000, 1e5.

    Args:
        option, example: named in the fix of an error. least: the smallest number.

    Raises:
        BadParameter: anything else.
    """
    try:
        number: int | None = int(text)  # exact: a float rounds above 2**53
    except ValueError:
        number = _rounded(text)
    if number is not None and least <= number < 2**63:
        return number
    limit = "" if least == -math.inf else f" >= {least}"
    raise typer.BadParameter(f"must be a whole number{limit}; got {text!r}. fix: {option} {example}.")


def _rounded(text: str) -> int | None:
    """The whole number in a text such as 1e5; None if it is not one."""
    try:
        number = float(text)
        return int(number) if number == int(number) else None
    except (ValueError, OverflowError):
        return None


def whole_option(text: str, *names: str, example: str, least: float = -math.inf) -> Any:
    """An option that takes a whole number."""
    parser = partial(whole, option=names[0], example=example, least=least)
    return typer.Option(*names, metavar="N", parser=parser, help=text)


def real(text: Any, option: str, example: str, least: float = -math.inf) -> float:
    """A number, at least `least`.

    Raises:
        BadParameter: anything else; see `whole`.
    """
    with contextlib.suppress(ValueError):
        if not (number := float(text)) < least:  # NaN is refused where it is read
            return number
    limit = "" if least == -math.inf else f" >= {least}"
    raise typer.BadParameter(f"must be a number{limit}; got {text!r}. fix: {option} {example}.")


def real_option(text: str, name: str, metavar: str, example: str, least: float = -math.inf) -> Any:
    """An option that takes a number."""
    parser = partial(real, option=name, example=example, least=least)
    return typer.Option(name, metavar=metavar, parser=parser, help=text)


def examples(*lines: str) -> str:
    """Example commands, as the last part of a help text, shown line by line."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def steps_option(text: str, *names: str) -> Any:
    """An option that takes a number of steps."""
    return whole_option(text, *names, example="100000")


def requested(name: str, kind: object, option: Option) -> Any:
    """Return the annotation of a parameter for a field of a request.

    Args:
        kind: type of the parameter.
    """
    flag, types = option.flag or f"--{name.replace('_', '-')}", set(get_args(kind)) or {kind}
    least = -math.inf if option.least is None else option.least
    if float in types:
        return Annotated[kind, real_option(option.text, flag, option.metavar or "", option.example, least)]
    if int in types and str not in types:
        return Annotated[kind, whole_option(option.text, flag, example=option.example, least=least)]
    kind = str | None if int in types else Path | None if os.PathLike[str] in types else kind
    return Annotated[kind, typer.Option(flag, metavar=option.metavar, help=option.text)]


Debug = Annotated[bool, typer.Option("--debug", callback=remember_command, help="Show the traceback of an error.")]
RunPath = Annotated[
    Path, typer.Argument(metavar="RUN", show_default=False, help="The directory of a run: runs/<env>/<algo>-<nnnn>.")
]
RunOrAddress = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        show_default=False,
        help="The directory of a run: runs/<env>/<algo>-<nnnn>; or hf://user/name[@revision], on the Hugging Face Hub.",
    ),
]
RunPaths = Annotated[list[Path], typer.Argument(metavar="RUN", help="The directories of one or more runs.")]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="FILE|MODULE",
        help="Import this code first, which registers environments or algorithms; may be repeated.",
    ),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print the closing lines only.")]
_OPTIONS = options_of(RunRequest)
TestEpisodes = requested("test_episodes", int | None, _OPTIONS["test_episodes"])
Device = requested("device", str, _OPTIONS["device"])
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change one setting, such as training.pop_size=6 or lr=1e-3; may be repeated.",
    ),
]
Seed = Annotated[
    int | None, whole_option("Seed of every random stream; default: the one of the manifest.", "--seed", example="1")
]
EpisodeSeed = Annotated[
    int | None, whole_option("Seed of the episodes; default: the one of the run.", "--seed", example="1", least=0)
]
Episodes = Annotated[int, whole_option("Whole episodes, played greedily.", "--episodes", example="100", least=1)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object, on one line.")]


def takes(options: type[Any], request: type[RunRequest]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the fields of a dataclass and the declared options of a request, after its own parameters.

    A field without an annotation of Typer is the option of the request with its name; it states its place in the help.
    The other options of the request follow the last of these. The command receives an object of both as its last two
    arguments; the request has no value for an option that was left out.
    """
    hints = get_type_hints(request, include_extras=True)
    declared = {
        name: option for name, option in options_of(request).items() if option.on_resume or request is RunRequest
    }

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        names = list(inspect.signature(command).parameters)[:-2]
        types = {**get_type_hints(command, include_extras=True), **get_type_hints(options, include_extras=True)}
        placed = {field.name: field.default for field in fields(options)}
        last = max(index for index, name in enumerate(placed) if name in declared)
        others = {name: vars(request())[name] for name in declared if name not in placed}
        order = list(placed.items())
        defaults = dict([*order[: last + 1], *others.items(), *order[last + 1 :]])
        types |= {name: get_args(hints[name])[0] for name in others}
        for name, option in declared.items():
            if not hasattr(types[name], "__metadata__"):
                types[name] = requested(name, types[name], option)

        def typed(**values: Any) -> None:
            asked = {name: values[name] for name in hints if values.get(name) is not None}
            arguments = [values[name] for name in names]
            command(*arguments, options(**{name: values[name] for name in placed}), request(**asked))

        parameters = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=types[name])
            for name, default in {**dict.fromkeys(names, inspect.Parameter.empty), **defaults}.items()
        ]
        typed.__name__, typed.__doc__ = command.__name__, command.__doc__
        typed.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        vars(typed)["__signature__"] = inspect.Signature(parameters)
        return typed

    return decorate


def is_typed(context: typer.Context, name: str) -> bool:
    """Whether the command line has the option, rather than its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name not in ("DEFAULT", "DEFAULT_MAP")
