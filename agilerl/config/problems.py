"""Validation errors of a manifest as messages, each with its fix."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from agilerl.algorithms import canonical_name, find_algorithm
from agilerl.algorithms.base.declared import hyperparameters
from agilerl.config.keys import RANGES, beside_sections, located, unknown_key
from agilerl.config.schema import Manifest, no_hyperparameter
from agilerl.core.ranges import describe


def explain(errors: Iterable[Any], source: str, algorithm: str, before: Mapping[str, Any] | None = None) -> str:
    """Validation errors of a manifest as pydantic lists them, each on a line that starts with its source.

    Args:
        before: the settings before the change, whose values the fix names; None: the fix names defaults.
    """
    problems = dict.fromkeys(problem_of(e["type"], e["loc"], e, algorithm, before or {}) for e in errors)
    return "\n".join(f"{source}: {problem}" for problem in problems)


def errors_of(data: Mapping[str, Any]) -> list[Any]:
    """The validation errors of a plain manifest, as pydantic lists them."""
    try:
        Manifest.model_validate(data)
    except ValidationError as error:
        return list(error.errors(include_url=False))
    return []


def errors_of_keys(data: Mapping[str, Any], algorithm: str) -> list[Any]:
    """The validation errors of a plain manifest without those of rules, which the values of a preset may satisfy."""
    return [error for error in errors_of(data) if not is_rule(error, algorithm)]


def is_rule(error: Mapping[str, Any], algorithm: str) -> bool:
    """Whether a validation error is of a rule over several keys."""
    return error["type"] == "value_error" and located(error["loc"], algorithm)[1] is None


def problem_of(
    kind: str, loc: tuple[int | str, ...], error: Mapping[str, Any], algorithm: str, before: Mapping[str, Any]
) -> str:
    """One message for a validation error of pydantic; `before`: see `explain`."""
    path, field, siblings = located(loc, algorithm)
    message = str(error.get("ctx", {}).get("error", ""))
    if kind == "extra_forbidden":
        name = ".".join(str(p) for p in loc)
        return (beside_sections(name, algorithm) if len(loc) == 1 else "") or unknown_key(name, siblings, algorithm)
    if kind == "missing" and isinstance(loc[-1], str):  # a number: an item of a list that is too short
        return _no_range(loc, algorithm) or f"{path} is missing. fix: add it."
    if is_rule(error, algorithm):
        return f"{path}: {message}" if path else message
    if kind == "model_type" or field is None:
        return (
            f"{path} must be a section of keys; got {error['input']!r}. fix: a key of it, such as {path}.{siblings[0]}."
        )
    fix = _usual_value(path, field, before)
    return f"{path} must be {describe(field.annotation, field.metadata)}; got {error['input']!r}. fix: {fix}."


def _usual_value(path: str, field: FieldInfo, before: Mapping[str, Any]) -> str:
    """A valid setting as `key=value`: the previous value, else the default, else advice to leave the key out."""
    value: Any = before
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    value = field.get_default(call_default_factory=False) if value is None else value
    value = next(iter(_literals(field.annotation)), None) if value is None or value is PydanticUndefined else value
    if value is None or isinstance(value, Mapping):
        return f"correct {path}" if field.is_required() else f"leave {path} out"
    value = list(value) if isinstance(value, tuple) else value
    return f"{path}={str(value).lower() if isinstance(value, bool) else value}".replace(" ", "")


def _literals(annotation: object) -> tuple[Any, ...]:
    """The values of a Literal annotation, nullable ones included; empty for any other annotation."""
    if typing.get_origin(annotation) is typing.Literal:
        return typing.get_args(annotation)
    return tuple(value for part in typing.get_args(annotation) for value in _literals(part))


def _no_range(loc: tuple[int | str, ...], algorithm: str) -> str:
    """The message for a missing bound whose range names no hyperparameter of the algorithm; else empty."""
    if len(loc) < 3 or loc[1] not in RANGES:
        return ""
    names = [key for key, each in hyperparameters(find_algorithm(algorithm)).items() if each.is_number]
    path = ".".join(map(str, loc[:3]))
    return "" if loc[2] in names else no_hyperparameter(path, canonical_name(algorithm), names)
