"""`net_config` as constructor arguments of a network, checked key by key."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from agilerl.errors import ConfigError, unknown_name
from agilerl.modules.net_config import checked_config

__all__ = ["checked_arguments", "checked_config"]


def checked_arguments(config: Any, owner: type) -> dict[str, Any]:
    """`net_config` as constructor arguments of `owner`; unknown keys raise ConfigError."""
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(f"net_config must be a mapping; got {type(config).__name__}. fix: {{'encoder_config': ...}}.")
    known = set(inspect.signature(owner).parameters) - {"observation_space", "action_space", "device", "random_seed"}
    for key in config or {}:
        if key not in known:
            raise ConfigError(unknown_name("net_config key", str(key), known))
    return dict(config or {})
