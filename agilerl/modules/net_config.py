"""Net configurations as constructor arguments of a module, checked key by key."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from agilerl.errors import ConfigError, unknown_name
from agilerl.modules.evolvable import SURROUNDINGS

NOT_CONFIGURABLE = SURROUNDINGS | {"self"}


def checked_config(config: Any, owner: type, label: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """`config` (a mapping, a dataclass or None) over `defaults`; unknown keys raise ConfigError."""
    if config is None:
        given: dict[str, Any] = {}
    elif dataclasses.is_dataclass(config) and not isinstance(config, type):
        given = _given(config)
    elif isinstance(config, Mapping):
        given = dict(config)
    else:
        raise ConfigError(f"{label} must be a mapping or a net config; got {type(config).__name__}")
    known = set(inspect.signature(owner).parameters) - NOT_CONFIGURABLE
    for key in given:
        if key not in known:
            sentence = unknown_name("key", str(key), known).removeprefix(f"unknown key {str(key)!r}.")
            raise ConfigError(f"{label}: {str(key)!r} is not a known key.{sentence}")
    return {**defaults, **given}


def _given(config: Any) -> dict[str, Any]:
    """What a net config sets, configurations inside it too."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {
        key: _given(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value
        for key, value in values.items()
        if value is not None
    }
