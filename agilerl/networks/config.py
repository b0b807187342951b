"""Net configurations as constructor arguments, checked key by key."""

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
        given = {k: v for k, v in dataclasses.asdict(config).items() if v is not None}
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


def checked_arguments(config: Any, owner: type) -> dict[str, Any]:
    """`net_config` as constructor arguments of `owner`; unknown keys raise ConfigError."""
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(f"net_config must be a mapping; got {type(config).__name__}. fix: {{'encoder_config': ...}}.")
    known = set(inspect.signature(owner).parameters) - {"observation_space", "action_space", "device", "random_seed"}
    for key in config or {}:
        if key not in known:
            raise ConfigError(unknown_name("net_config key", str(key), known))
    return dict(config or {})
