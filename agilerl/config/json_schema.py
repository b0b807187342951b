"""The manifest as a JSON schema (draft 2020-12): keys, types, ranges, units, defaults and meanings.

Rules over several keys, such as `eps_end <= eps_start`, are those of the loader alone (`config.check`).
"""

from __future__ import annotations

import types
import typing
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen
from pydantic import BaseModel, StringConstraints
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from agilerl.algorithms import available, find_algorithm
from agilerl.algorithms.base.declared import hyperparameters
from agilerl.config.keys import KEY_ALIASES, RANGES, SECTION_ALIASES, TOP_LEVEL_ALIASES, section_of
from agilerl.config.meanings import arguments_of, meanings, title_of, unit_of
from agilerl.config.schema import Algorithm, HyperparameterRange, Manifest, algorithm_model
from agilerl.core import foreign
from agilerl.core.ranges import WHOLE_FROM_ONE, describe

DRAFT = "https://json-schema.org/draft/2020-12/schema"
# Numbers that YAML 1.1 reads as texts (1e-4), and the loader as numbers.
NUMBER_TEXT = r"^[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?$"
_BOUNDS = ((Ge, "ge", "minimum"), (Gt, "gt", "exclusiveMinimum"), (Le, "le", "maximum"), (Lt, "lt", "exclusiveMaximum"))


def manifest_schema() -> dict[str, Any]:
    """Return the schema of a manifest's file: every key is optional, and so is every section."""
    defs: dict[str, Any] = {"range": _object(HyperparameterRange)}
    defs["range"]["required"] = ["min", "max"]
    properties: dict[str, Any] = {}
    for name, field in Manifest.model_fields.items():
        section = section_of(field.annotation)
        properties[name] = _value(field.annotation, field.metadata) if section is None else _section(name, section)
    properties["environment"] = {"anyOf": [{"type": "string", "description": "Its name."}, properties["environment"]]}
    for alias, name in SECTION_ALIASES.items():
        properties[alias] = {**properties[name], "description": f"The same as {name}."}
    for alias, (section_name, key) in TOP_LEVEL_ALIASES.items():
        properties[alias] = {"description": f"The same as {section_name}.{key}."}
    return {
        "$schema": DRAFT,
        "title": "agilerl manifest",
        "description": "Settings of a run. What is left out comes from a preset, of the environment or the algorithm.",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "allOf": [_of_algorithm(name, defs) for name in available()],
        "$defs": defs,
    }


def _section(name: str, model: type[BaseModel]) -> dict[str, Any]:
    """Return the schema of a section of a manifest; null is an empty one."""
    if model is Algorithm:
        names = {"type": "string", "enum": available(), "description": "The algorithm."}
        named = {"type": ["object", "null"], "properties": {"name": names}, "description": title_of(model)}
        return {"anyOf": [names, named]}
    schema = _object(model)
    schema["type"] = ["object", "null"]
    for (section, alias), key in KEY_ALIASES.items():
        if section == name and key in schema["properties"]:
            schema["properties"][alias] = {**schema["properties"][key], "description": f"The same as {key}."}
    return schema


def _object(model: type[BaseModel]) -> dict[str, Any]:
    texts = meanings(model)
    properties = {name: _field(name, field, texts.get(name, "")) for name, field in model.model_fields.items()}
    return {
        "type": "object",
        "description": title_of(model),
        "properties": properties,
        "additionalProperties": False,
    }


def _field(name: str, field: FieldInfo, meaning: str) -> dict[str, Any]:
    section = section_of(field.annotation)
    if name in RANGES:
        schema: dict[str, Any] = {"type": "object", "additionalProperties": {"$ref": "#/$defs/range"}}
    elif section is not None:
        schema = _object(section)
        if type(None) in get_args(field.annotation):
            schema["type"] = ["object", "null"]
        return schema
    else:
        schema = _value(field.annotation, field.metadata)
    return _described(schema, name, meaning, field.get_default(call_default_factory=True), field)


def _described(schema: dict[str, Any], name: str, meaning: str, default: object, field: FieldInfo) -> dict[str, Any]:
    """Add meaning, values in words, unit and default."""
    values = describe(field.annotation, field.metadata)
    schema["description"] = f"{meaning.rstrip('.')}. Values: {values}." if meaning else f"Values: {values}."
    if (unit := unit_of(name)) is not None:
        schema["x-unit"] = unit
    plain = _plain(default)
    if plain is not PydanticUndefined:
        schema["default"] = plain
    return schema


def _plain(value: object) -> Any:
    """Return a default as JSON holds it."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else PydanticUndefined


def _value(annotation: object, metadata: typing.Sequence[Any] = ()) -> dict[str, Any]:
    """Return the schema of a plain value."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _value(arguments[0], [*arguments[1:], *metadata])
    if origin in (Union, types.UnionType):
        return _union([_value(part, metadata if part is not type(None) else ()) for part in arguments])
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is list:
        longest = next((mark.max_length for mark in _marks(metadata) if isinstance(mark, MaxLen)), None)
        return {"type": "array", "items": _value(arguments[0])} | ({} if longest is None else {"maxItems": longest})
    if origin is tuple:
        items = [_value(part) for part in arguments if part is not Ellipsis]
        if Ellipsis in arguments:
            return {"type": "array", "items": items[0]}
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    if annotation is type(None):
        return {"type": "null"}
    if annotation in (int, float):
        kind = "number" if annotation is float else "integer"
        bounds = {
            word: getattr(mark, name)
            for mark in _marks(metadata)
            for cls, name, word in _BOUNDS
            if isinstance(mark, cls)
        }
        if WHOLE_FROM_ONE in metadata:
            whole = {"type": "integer", "minimum": 1}
            return {"anyOf": [whole, {"type": "number", **bounds, "exclusiveMaximum": 1}, _text()]}
        return {"type": [kind, "string"], **bounds, "pattern": NUMBER_TEXT}
    names = {bool: "boolean", str: "string"}
    if annotation in names:
        patterns = [("pattern", mark.pattern) for mark in metadata if isinstance(mark, StringConstraints)]
        return {"type": names[annotation], **dict(patterns)}
    return {"type": "object"} if origin is dict or annotation is dict else {}


def _text() -> dict[str, Any]:
    return {"type": "string", "pattern": NUMBER_TEXT}


def _union(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one schema with several types where that says the same as `anyOf`."""
    nulls = [part for part in parts if part == {"type": "null"}]
    rest = [part for part in parts if part not in nulls]
    if not nulls or len(rest) != 1:
        return {"anyOf": parts}
    (one,) = rest
    if "enum" in one:
        return {"enum": [*one["enum"], None]}
    if "type" in one:
        kinds = one["type"] if isinstance(one["type"], list) else [one["type"]]
        return {**one, "type": [*kinds, "null"]}
    return {"anyOf": [*one.get("anyOf", [one]), *nulls]}


def _marks(metadata: typing.Sequence[Any]) -> list[Any]:
    """Return the bounds in the annotations; `Field(...)` holds a list of them."""
    return [part for item in metadata for part in foreign.marks(item)]


def _of_algorithm(name: str, defs: dict[str, Any]) -> dict[str, Any]:
    """Return the rule that an algorithm's name brings its hyperparameters; their schema goes to `defs`."""
    cls, texts = find_algorithm(name), arguments_of(name)
    declared = hyperparameters(cls)
    keys: dict[str, Any] = {"name": {"const": name}}
    for key, field in algorithm_model(name).model_fields.items():
        keys[key] = _described(_value(field.annotation, field.metadata), key, texts.get(key, ""), field.default, field)
        if declared[key].because:
            keys[key]["x-why-default"] = declared[key].because
    for (section, alias), key in KEY_ALIASES.items():
        if section == "algorithm" and key in keys:
            keys[alias] = {**keys[key], "description": f"The same as {key}."}
    defs[name] = {
        "type": "object", "description": title_of(cls), "properties": keys, "additionalProperties": False,
    }  # fmt: skip
    numbers = [key for key, each in declared.items() if each.is_number]
    names = [*numbers, *(["learning_rate"] if "lr" in numbers else [])]
    ranges = {"propertyNames": {"enum": names}}
    is_named = {"properties": {"name": {"const": name}}, "required": ["name"], "type": "object"}
    chosen = {"properties": {"algorithm": {"anyOf": [{"const": name}, is_named]}}, "required": ["algorithm"]}
    then = {
        "algorithm": {"anyOf": [{"const": name}, {"$ref": f"#/$defs/{name}"}]},
        "mutation": {"properties": {"rl_hp_selection": ranges}},
        "evolution": {"properties": {"restart_ranges": ranges}},
    }
    return {"if": chosen, "then": {"properties": then}}
