"""Network configurations, typed or as dictionaries with the same keys: validation and constructor arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any, ClassVar, Self

from agilerl.core.signatures import constructor_arguments, ignored_arguments
from agilerl.errors import ConfigError, unknown_choice, unknown_name
from agilerl.modules.activations import activation
from agilerl.modules.base import SURROUNDINGS
from agilerl.modules.cnn import EvolvableCNN, dims_of, per_axis
from agilerl.modules.layers import as_widths, whole
from agilerl.modules.lstm import EvolvableLSTM
from agilerl.modules.mlp import EvolvableMLP
from agilerl.modules.resnet import EvolvableResNet
from agilerl.modules.simba import EvolvableSimBa


def option(module: object, name: str) -> Any:
    """Declare a field with the default of the module's constructor, which counts as not set."""
    return dataclass_field(default=constructor_arguments(module)[name].default, metadata={"is_option": True})


def is_set(field: dataclasses.Field[Any], value: object) -> bool:
    """Whether a field's value differs from the module's default."""
    return value is not None and not ("is_option" in field.metadata and value == field.default)


class NetConfig:
    """Base class of typed configurations: validation and mapping interface.

    Fields have the defaults of their module. `config["activation"]` and `get()` read any field; `in`, `keys()`,
    `items()`, `values()` and `len()` include only fields that differ from the module's default, so that `dict(config)`
    and `**config` are constructor arguments.
    """

    labels: ClassVar[Mapping[str, str]] = {}  # field -> its description in errors, if different from its name

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            if field.type == "int":
                whole(vars(self)[field.name], self.labels.get(field.name, field.name))
        activation(vars(self).get("activation"), hidden=True)
        activation(vars(self).get("output_activation"))

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> Self:
        """Create a configuration from a mapping of its fields. ConfigError for an unknown key."""
        names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        for key in config:
            if key not in names:
                raise ConfigError(unknown_choice(f"key of {cls.__name__}", str(key), names))
        return cls(**config)

    def _set(self) -> dict[str, Any]:
        """Return the fields that are set, by name."""
        fields = {field.name: field for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        values = {name: vars(self)[name] for name in fields}
        return {name: value for name, value in values.items() if is_set(fields[name], value)}

    def _field(self, name: str) -> dataclasses.Field[Any]:
        fields = {field.name: field for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        if name not in fields:
            raise KeyError(unknown_choice(f"key of {type(self).__name__}", str(name), fields))
        return fields[name]

    def __getitem__(self, name: str) -> Any:
        return vars(self)[self._field(name).name]

    def __setitem__(self, name: str, value: object) -> None:
        changed = dataclasses.replace(self, **{self._field(name).name: value})  # type: ignore[type-var]
        object.__setattr__(self, name, vars(changed)[name])

    def pop(self, key: str, default: object = dataclasses.MISSING) -> Any:
        """Return a field and reset it to the module's default; `default` for an unknown key."""
        if default is not dataclasses.MISSING and not hasattr(self, key):
            return default
        value = self[key]
        object.__setattr__(self, key, self._field(key).default)
        return value

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

    def get(self, key: str, default: object = None) -> Any:
        """Return the field if it has a value, else `default`."""
        value = self[key] if key in {field.name for field in dataclasses.fields(self)} else None  # type: ignore[arg-type]
        return default if value is None else value


@dataclass(frozen=True)
class MlpNetConfig(NetConfig):
    """Options of an `EvolvableMLP` used as encoder or head, with its defaults."""

    hidden_size: tuple[int, ...] | list[int] = (64, 64)
    activation: str | None = option(EvolvableMLP, "activation")
    output_activation: str | None = option(EvolvableMLP, "output_activation")
    min_hidden_layers: int = option(EvolvableMLP, "min_hidden_layers")
    max_hidden_layers: int = option(EvolvableMLP, "max_hidden_layers")
    min_mlp_nodes: int = option(EvolvableMLP, "min_mlp_nodes")
    max_mlp_nodes: int = option(EvolvableMLP, "max_mlp_nodes")
    layer_norm: bool = option(EvolvableMLP, "layer_norm")
    output_layernorm: bool | None = None
    output_vanish: bool | None = None
    init_layers: bool = option(EvolvableMLP, "init_layers")
    noisy: bool = option(EvolvableMLP, "noisy")
    noise_std: float = option(EvolvableMLP, "noise_std")

    def __post_init__(self) -> None:
        as_widths(list(self.hidden_size), "hidden_size")
        super().__post_init__()


@dataclass(frozen=True)
class CnnNetConfig(NetConfig):
    """Options of an `EvolvableCNN` used as encoder, with its defaults. `sample_input` is ignored: the space decides."""

    channel_size: tuple[int, ...] | list[int] = (32, 32)
    kernel_size: Any = 3
    stride_size: Any = 1
    padding_size: Any = option(EvolvableCNN, "padding_size")
    block_type: str = option(EvolvableCNN, "block_type")
    activation: str | None = option(EvolvableCNN, "activation")
    output_activation: str | None = option(EvolvableCNN, "output_activation")
    min_hidden_layers: int = option(EvolvableCNN, "min_hidden_layers")
    max_hidden_layers: int = option(EvolvableCNN, "max_hidden_layers")
    min_channel_size: int = option(EvolvableCNN, "min_channel_size")
    max_channel_size: int = option(EvolvableCNN, "max_channel_size")
    layer_norm: bool = option(EvolvableCNN, "layer_norm")
    init_layers: bool = option(EvolvableCNN, "init_layers")
    sample_input: Any = dataclass_field(default=None, compare=False)

    def __post_init__(self) -> None:
        channels = as_widths(list(self.channel_size), "channel_size")
        axes = dims_of(self.block_type or "Conv2d")
        for what, value in (("kernel_size", self.kernel_size), ("stride_size", self.stride_size)):
            per_axis(value, len(channels), axes, what)
        super().__post_init__()


@dataclass(frozen=True)
class ResNetNetConfig(NetConfig):
    """Options of an `EvolvableResNet` used as encoder, with its defaults."""

    channel_size: int = 32
    kernel_size: int = 3
    stride_size: int = 2
    num_blocks: int = 2
    activation: str | None = option(EvolvableResNet, "activation")
    output_activation: str | None = option(EvolvableResNet, "output_activation")
    min_blocks: int = option(EvolvableResNet, "min_blocks")
    max_blocks: int = option(EvolvableResNet, "max_blocks")
    min_channel_size: int = option(EvolvableResNet, "min_channel_size")
    max_channel_size: int = option(EvolvableResNet, "max_channel_size")


@dataclass(frozen=True)
class LstmNetConfig(NetConfig):
    """Options of an `EvolvableLSTM` used as encoder, with its defaults."""

    hidden_state_size: int = 128
    num_layers: int = 1
    output_activation: str | None = option(EvolvableLSTM, "output_activation")
    min_hidden_state_size: int = option(EvolvableLSTM, "min_hidden_state_size")
    max_hidden_state_size: int = option(EvolvableLSTM, "max_hidden_state_size")
    min_layers: int = option(EvolvableLSTM, "min_layers")
    max_layers: int = option(EvolvableLSTM, "max_layers")
    cell: str = option(EvolvableLSTM, "cell")
    max_seq_len: int | None = option(EvolvableLSTM, "max_seq_len")


@dataclass(frozen=True)
class MultiInputNetConfig(NetConfig):
    """Options of an `EvolvableMultiInput` used as encoder, with its defaults.

    `cnn_config` and `mlp_config` are dicts, or a `CnnNetConfig` and an `MlpNetConfig`.
    """

    latent_dim: int = 32
    vector_space_mlp: bool = False
    cnn_config: Any = None
    mlp_config: Any = None
    init_dicts: Any = None
    activation: str | None = dataclass_field(default="ReLU", metadata={"is_option": True})
    output_activation: str | None = None
    min_latent_dim: int = dataclass_field(default=8, metadata={"is_option": True})
    max_latent_dim: int = dataclass_field(default=128, metadata={"is_option": True})


@dataclass(frozen=True)
class SimBaNetConfig(NetConfig):
    """Options of an `EvolvableSimBa` used as encoder, with its defaults."""

    hidden_size: int = 128
    num_blocks: int = 2
    activation: str | None = option(EvolvableSimBa, "activation")
    output_activation: str | None = option(EvolvableSimBa, "output_activation")
    scale_factor: int = option(EvolvableSimBa, "scale_factor")
    min_blocks: int = option(EvolvableSimBa, "min_blocks")
    max_blocks: int = option(EvolvableSimBa, "max_blocks")
    min_mlp_nodes: int = option(EvolvableSimBa, "min_mlp_nodes")
    max_mlp_nodes: int = option(EvolvableSimBa, "max_mlp_nodes")
    labels: ClassVar = {"hidden_size": "hidden_size of SimBaNetConfig (width of the trunk)"}


# Keys specific to one encoder, and the network option that selects it.
OF_MEMORY = (
    "hidden_state_size", "num_layers", "cell", "max_seq_len", "min_hidden_state_size", "max_hidden_state_size",
    "min_layers", "max_layers",
)  # fmt: skip
SWITCHES = {**dict.fromkeys(OF_MEMORY, "recurrent"), **dict.fromkeys(("num_blocks", "scale_factor"), "simba")}
_KEYS = {
    frozenset(field.name for field in dataclasses.fields(kind)): kind
    for kind in (MlpNetConfig, CnnNetConfig, ResNetNetConfig, LstmNetConfig, MultiInputNetConfig, SimBaNetConfig)
}


def checked_config(config: Any, owner: type, label: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `config` (a mapping, a net config or None) over `defaults`; unknown keys raise ConfigError.

    A mapping with all the keys of a net config is treated as one converted by `dataclasses.asdict`: values equal to the
    module's defaults are not set there either. `sample_input` is ignored: the space determines the input; so
    are published arguments without an effect.
    """
    options = _set_values({} if config is None else config)
    if not isinstance(options, Mapping):
        raise ConfigError(f"{label} must be a mapping or a net config; got {type(config).__name__}. fix: {{}}.")
    kind = _KEYS.get(frozenset(options)) if options is config else None
    if kind is not None:
        fields = {field.name: field for field in dataclasses.fields(kind)}
        options = {key: value for key, value in config.items() if is_set(fields[key], value)}
    valid_names = set(constructor_arguments(owner)) - SURROUNDINGS
    ignored = {"sample_input", *ignored_arguments(owner)}
    options = {key: value for key, value in options.items() if key not in ignored}
    for key in options:
        if key not in valid_names:
            sentence = unknown_name("key", str(key), valid_names).removeprefix(f"unknown key {str(key)!r}.")
            switch = f" fix: {SWITCHES[key]}=True, beside encoder_config." if key in SWITCHES else ""
            raise ConfigError(f"{label}: {str(key)!r} is not a known key.{sentence}{switch}")
    return {**defaults, **options}


def _set_values(config: object) -> Any:
    """Return the values set in a net config, including nested ones; other values are unchanged."""
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        return config
    fields = {field.name: field for field in dataclasses.fields(config)}
    values = {name: vars(config)[name] for name in fields}
    return {name: _set_values(value) for name, value in values.items() if is_set(fields[name], value)}
