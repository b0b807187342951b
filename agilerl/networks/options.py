"""The options that every network takes, written once, and their check."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch

from agilerl.errors import ConfigError, unknown_name
from agilerl.modules.base import EvolvableModule
from agilerl.modules.configs import checked_config

__all__ = ["USUAL", "NetworkOptions", "checked_arguments", "checked_config", "takes_options"]


@dataclass(frozen=True)
class NetworkOptions:
    """What every network is told about its encoder and its head; `EvolvableNetwork` says what each option means."""

    encoder_cls: type[EvolvableModule] | None = None
    encoder_config: Any = None
    head_config: Any = None
    min_latent_dim: int = 8
    max_latent_dim: int = 128
    latent_dim: int = 64
    simba: bool = False
    recurrent: bool = False
    device: str | torch.device = "cpu"
    random_seed: int | None = None
    scale_observations: bool = False


USUAL = NetworkOptions()
_ARGUMENTS = {
    field.name: inspect.Parameter(
        field.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=field.default, annotation=field.type
    )
    for field in fields(NetworkOptions)
}


def takes_options(init: Callable[..., None]) -> Callable[..., None]:
    """Let a constructor's argument `options` be given as the fields of `NetworkOptions`, one by one in its place.

    `inspect.signature` shows those, so that a network reads and is called as if it had written them itself.
    """
    written = inspect.signature(init)
    taken = [written.parameters[name] for name in written.parameters]
    place = next(i for i, parameter in enumerate(taken) if parameter.name == "options")
    shown = written.replace(parameters=[*taken[:place], *_ARGUMENTS.values(), *taken[place + 1 :]])

    @functools.wraps(init)
    def run(*args: Any, **kwargs: Any) -> None:
        given = shown.bind(*args, **kwargs).arguments
        options = {name: given.pop(name) for name in _ARGUMENTS if name in given}
        init(**given, options=NetworkOptions(**options))

    run.__signature__ = shown  # type: ignore[attr-defined]
    return run


def checked_arguments(config: Any, owner: type) -> dict[str, Any]:
    """`net_config` as constructor arguments of `owner`; unknown keys raise ConfigError."""
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(f"net_config must be a mapping; got {type(config).__name__}. fix: {{'encoder_config': ...}}.")
    known = set(inspect.signature(owner).parameters) - {"observation_space", "action_space", "device", "random_seed"}
    for key in config or {}:
        if key not in known:
            raise ConfigError(unknown_name("net_config key", str(key), known))
    return dict(config or {})
