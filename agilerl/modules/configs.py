"""Network configurations, typed or as dictionaries with the same keys: checked, and as constructor arguments."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agilerl.errors import ConfigError, unknown_name
from agilerl.modules.activations import activation
from agilerl.modules.convolution import dims_of, per_axis
from agilerl.modules.evolvable import SURROUNDINGS
from agilerl.modules.layer_kinds import as_widths, whole


@dataclass(frozen=True)
class MlpNetConfig:
    """Options of an `EvolvableMLP` used as encoder or head; see there for their meaning. None: the default there."""

    hidden_size: tuple[int, ...] | list[int] = (64, 64)
    activation: str | None = None
    output_activation: str | None = None
    min_hidden_layers: int | None = None
    max_hidden_layers: int | None = None
    min_mlp_nodes: int | None = None
    max_mlp_nodes: int | None = None
    layer_norm: bool | None = None
    output_layernorm: bool | None = None
    output_vanish: bool | None = None
    init_layers: bool | None = None
    noisy: bool | None = None
    noise_std: float | None = None

    def __post_init__(self) -> None:
        as_widths(list(self.hidden_size), "hidden_size")
        activation(self.activation, hidden=True)
        activation(self.output_activation)


@dataclass(frozen=True)
class CnnNetConfig:
    """Options of an `EvolvableCNN` used as encoder; see there for their meaning. None: the default there."""

    channel_size: tuple[int, ...] | list[int] = (32, 32)
    kernel_size: Any = 3
    stride_size: Any = 1
    padding_size: Any = None
    block_type: str | None = None
    activation: str | None = None
    output_activation: str | None = None
    min_hidden_layers: int | None = None
    max_hidden_layers: int | None = None
    min_channel_size: int | None = None
    max_channel_size: int | None = None
    layer_norm: bool | None = None
    init_layers: bool | None = None

    def __post_init__(self) -> None:
        channels = as_widths(list(self.channel_size), "channel_size")
        axes = dims_of(self.block_type or "Conv2d")
        for what, value in (("kernel_size", self.kernel_size), ("stride_size", self.stride_size)):
            per_axis(value, len(channels), axes, what)
        activation(self.activation, hidden=True)
        activation(self.output_activation)


@dataclass(frozen=True)
class ResNetNetConfig:
    """Options of an `EvolvableResNet` used as encoder; see there for their meaning. None: the default there."""

    channel_size: int = 32
    kernel_size: int = 3
    stride_size: int = 2
    num_blocks: int = 2
    activation: str | None = None
    output_activation: str | None = None
    min_blocks: int | None = None
    max_blocks: int | None = None
    min_channel_size: int | None = None
    max_channel_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("channel_size", "kernel_size", "stride_size", "num_blocks"):
            whole(getattr(self, name), name)
        activation(self.activation, hidden=True)
        activation(self.output_activation)


@dataclass(frozen=True)
class LstmNetConfig:
    """Options of an `EvolvableLSTM` used as encoder; see there for their meaning. None: the default there."""

    hidden_state_size: int = 128
    num_layers: int = 1
    output_activation: str | None = None
    min_hidden_state_size: int | None = None
    max_hidden_state_size: int | None = None
    min_layers: int | None = None
    max_layers: int | None = None
    cell: str | None = None
    max_seq_len: int | None = None

    def __post_init__(self) -> None:
        whole(self.hidden_state_size, "hidden_state_size")
        whole(self.num_layers, "num_layers")
        activation(self.output_activation)


@dataclass(frozen=True)
class MultiInputNetConfig:
    """Options of an `EvolvableMultiInput` used as encoder; see there for their meaning. None: the default there.

    `cnn_config` and `mlp_config` are dicts, or a `CnnNetConfig` and an `MlpNetConfig`.
    """

    latent_dim: int = 32
    vector_space_mlp: bool = False
    cnn_config: Any = None
    mlp_config: Any = None
    init_dicts: Any = None
    activation: str | None = None
    output_activation: str | None = None
    min_latent_dim: int | None = None
    max_latent_dim: int | None = None

    def __post_init__(self) -> None:
        whole(self.latent_dim, "latent_dim")
        activation(self.activation, hidden=True)
        activation(self.output_activation)


@dataclass(frozen=True)
class SimBaNetConfig:
    """Options of an `EvolvableSimBa` used as encoder; see there for their meaning. None: the default there."""

    hidden_size: int = 128
    num_blocks: int = 2
    activation: str | None = None
    output_activation: str | None = None
    scale_factor: int | None = None
    min_blocks: int | None = None
    max_blocks: int | None = None
    min_mlp_nodes: int | None = None
    max_mlp_nodes: int | None = None

    def __post_init__(self) -> None:
        whole(self.hidden_size, "hidden_size of SimBaNetConfig (width of the trunk)")
        whole(self.num_blocks, "num_blocks")
        activation(self.activation, hidden=True)
        activation(self.output_activation)


_KEYS = {
    frozenset(field.name for field in dataclasses.fields(kind))
    for kind in (MlpNetConfig, CnnNetConfig, ResNetNetConfig, LstmNetConfig, MultiInputNetConfig, SimBaNetConfig)
}


def checked_config(config: Any, owner: type, label: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """`config` (a mapping, a net config or None) over `defaults`; unknown keys raise ConfigError.

    A mapping with all the keys of a net config is one that became a dictionary (`dataclasses.asdict`): there None
    stands for the default, as in the net config.
    """
    if config is None:
        given: dict[str, Any] = {}
    elif dataclasses.is_dataclass(config) and not isinstance(config, type):
        given = _given(config)
    elif isinstance(config, Mapping):
        was_typed = frozenset(config) in _KEYS
        given = {key: value for key, value in config.items() if value is not None or not was_typed}
    else:
        raise ConfigError(f"{label} must be a mapping or a net config; got {type(config).__name__}")
    known = set(inspect.signature(owner).parameters) - SURROUNDINGS
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
