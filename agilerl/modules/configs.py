"""Network configurations, typed or as dictionaries with the same keys: checked, and as constructor arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass
from typing import Any, ClassVar

from agilerl.errors import ConfigError, unknown_name
from agilerl.modules.activations import activation
from agilerl.modules.base import SURROUNDINGS, constructor_arguments
from agilerl.modules.cnn import dims_of, per_axis
from agilerl.modules.layers import as_widths, whole


class NetConfig:
    """Base of the typed configurations: what all of them check, and how they are read like a mapping.

    `config["activation"]` is a field, None where it is not set; `in`, `keys()`, `items()`, `values()`, `len()` and
    `get()` know the fields that are set, so that `dict(config)` and `**config` are constructor arguments.
    """

    labels: ClassVar[Mapping[str, str]] = {}  # field -> what an error calls it, where that is more than its name

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            if field.type == "int":
                whole(getattr(self, field.name), self.labels.get(field.name, field.name))
        activation(getattr(self, "activation", None), hidden=True)
        activation(getattr(self, "output_activation", None))

    def _set(self) -> dict[str, Any]:
        """The fields that are set, by name."""
        found = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {name: value for name, value in found.items() if value is not None}

    def __getitem__(self, name: str) -> Any:
        fields = {field.name for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        if name not in fields:
            raise KeyError(unknown_name(f"key of {type(self).__name__}", str(name), fields))
        return getattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in self._set()

    def __iter__(self) -> Iterator[str]:
        return iter(self._set())

    def __len__(self) -> int:
        return len(self._set())

    def keys(self) -> KeysView[str]:
        """Names of the fields that are set."""
        return self._set().keys()

    def values(self) -> ValuesView[Any]:
        """Values of the fields that are set."""
        return self._set().values()

    def items(self) -> ItemsView[str, Any]:
        """(name, value) of the fields that are set."""
        return self._set().items()

    def get(self, name: str, default: Any = None) -> Any:
        """The field, where it is set; else `default`."""
        return self._set().get(name, default)


@dataclass(frozen=True)
class MlpNetConfig(NetConfig):
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
        super().__post_init__()


@dataclass(frozen=True)
class CnnNetConfig(NetConfig):
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
        super().__post_init__()


@dataclass(frozen=True)
class ResNetNetConfig(NetConfig):
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


@dataclass(frozen=True)
class LstmNetConfig(NetConfig):
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


@dataclass(frozen=True)
class MultiInputNetConfig(NetConfig):
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


@dataclass(frozen=True)
class SimBaNetConfig(NetConfig):
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
    labels: ClassVar = {"hidden_size": "hidden_size of SimBaNetConfig (width of the trunk)"}


OF_MEMORY = ("hidden_state_size", "cell", "max_seq_len")  # keys of recurrent encoders alone
_KEYS = {
    frozenset(field.name for field in dataclasses.fields(kind))
    for kind in (MlpNetConfig, CnnNetConfig, ResNetNetConfig, LstmNetConfig, MultiInputNetConfig, SimBaNetConfig)
}


def checked_config(config: Any, owner: type, label: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """`config` (a mapping, a net config or None) over `defaults`; unknown keys raise ConfigError.

    A mapping with all the keys of a net config is one that became a dictionary (`dataclasses.asdict`): there None
    stands for the default, as in the net config.
    """
    given = _given({} if config is None else config)
    if not isinstance(given, Mapping):
        raise ConfigError(f"{label} must be a mapping or a net config; got {type(config).__name__}")
    if given is config:
        was_typed = frozenset(config) in _KEYS
        given = {key: value for key, value in config.items() if value is not None or not was_typed}
    known = set(constructor_arguments(owner)) - SURROUNDINGS
    for key in given:
        if key not in known:
            sentence = unknown_name("key", str(key), known).removeprefix(f"unknown key {str(key)!r}.")
            memory = " fix: recurrent=True, beside encoder_config." if key in OF_MEMORY else ""
            raise ConfigError(f"{label}: {str(key)!r} is not a known key.{sentence}{memory}")
    return {**defaults, **given}


def _given(config: Any) -> Any:
    """What a net config sets, configurations inside it too; anything else as it is."""
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        return config
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {key: _given(value) for key, value in values.items() if value is not None}
