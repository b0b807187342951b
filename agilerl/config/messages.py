"""Pydantic's findings as one line in our words: where, what was expected, what was given, the nearest key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from agilerl.algorithms import USUAL
from agilerl.config.algorithms import algorithm_model
from agilerl.config.schema import Algorithm, HyperparameterRange, Manifest
from agilerl.errors import nearest
from agilerl.ranges import describe


def explain(error: ValidationError, source: str, data: dict[str, Any]) -> str:
    """Every problem of a manifest in one line that starts with its source."""
    algorithm = data.get("algorithm")
    name = algorithm.get("name", USUAL) if isinstance(algorithm, dict) else USUAL
    problems = dict.fromkeys(_problem(e["type"], e["loc"], e, str(name)) for e in error.errors(include_url=False))
    return f"{source}: " + " ".join(problems)


def unknown_key(path: str, known: Sequence[str]) -> str:
    """One sentence for an unknown key. `path` is dotted; `known` are the keys of its section."""
    section, _, leaf = path.rpartition(".")
    close = nearest(leaf, known, limit=1)
    hint = f"Did you mean {close[0]!r}?" if close else f"(known: {', '.join(known)})"
    where = "" if section else " at the top level"
    return f"{path} is not a known key{where}. {hint}"


def section_fields(model: type[BaseModel], algorithm: str) -> dict[str, FieldInfo]:
    """The fields of a section; for the algorithm those that it publishes, and its name."""
    fields = dict(model.model_fields)
    if model is Algorithm:
        fields |= algorithm_model(algorithm).model_fields
    return fields


def _problem(kind: str, loc: tuple[int | str, ...], error: Any, algorithm: str) -> str:
    path, field, siblings = _locate(loc, algorithm)
    message = str(error.get("ctx", {}).get("error", ""))
    if kind == "extra_forbidden":
        return unknown_key(".".join(str(p) for p in loc), siblings)
    if kind == "missing":
        return f"{path} is missing. fix: add it."
    if kind == "value_error" and field is None:  # a rule of ours over several keys
        return f"{path}: {message}" if path else message
    if kind == "model_type" or field is None:
        return f"{path} must be a section of keys; got {error['input']!r}."
    return f"{path} must be {describe(field.annotation, field.metadata)}; got {error['input']!r}."


def _locate(loc: tuple[int | str, ...], algorithm: str) -> tuple[str, FieldInfo | None, list[str]]:
    """(dotted path, the field there or None for a section, the keys of the last section met)."""
    model: type[BaseModel] = Manifest
    path: list[str] = []
    for position, part in enumerate(loc):
        fields = section_fields(model, algorithm)
        if part not in fields:
            break
        path.append(str(part))
        annotation = fields[str(part)].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
        elif part == "rl_hp_selection" and position + 1 < len(loc):
            path.append(str(loc[position + 1]))
            return _locate_range(path, loc[position + 2 :])
        else:
            return ".".join(path), fields[str(part)], list(fields)
    return ".".join(path), None, list(section_fields(model, algorithm))


def _locate_range(path: list[str], rest: tuple[int | str, ...]) -> tuple[str, FieldInfo | None, list[str]]:
    fields = HyperparameterRange.model_fields
    if rest and rest[0] in fields:
        return ".".join([*path, str(rest[0])]), fields[str(rest[0])], list(fields)
    return ".".join(path), None, list(fields)
