"""Selection and construction of encoders by observation space, and the options shared by all networks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from gymnasium import spaces

from agilerl.core.signatures import constructor_arguments
from agilerl.core.spaces import channels_first, flat_size, is_image, is_small, parts_of, short_form
from agilerl.errors import ConfigError, unknown_choice
from agilerl.modules import configs
from agilerl.modules.base import EvolvableModule, MutationType
from agilerl.modules.cnn import EvolvableCNN, with_usual_layers
from agilerl.modules.cnn_lstm import EvolvableCnnLstm
from agilerl.modules.configs import NetConfig, checked_config
from agilerl.modules.layered import LayeredModule
from agilerl.modules.lstm import EvolvableLSTM
from agilerl.modules.mlp import EvolvableMLP
from agilerl.modules.multi_input import EvolvableMultiInput
from agilerl.modules.resnet import EvolvableResNet
from agilerl.modules.simba import EvolvableSimBa
from agilerl.networks.observations import InputForm

# Typed configurations determine their encoder.
ENCODER_OF_CONFIG: dict[type, type[EvolvableModule]] = {
    configs.MlpNetConfig: EvolvableMLP,
    configs.CnnNetConfig: EvolvableCNN,
    configs.ResNetNetConfig: EvolvableResNet,
    configs.MultiInputNetConfig: EvolvableMultiInput,
    configs.SimBaNetConfig: EvolvableSimBa,
    configs.LstmNetConfig: EvolvableLSTM,
}
ENCODERS = {cls.__name__: cls for cls in (*ENCODER_OF_CONFIG.values(), EvolvableCnnLstm)}
AXES = {"Conv1d": 2, "Conv2d": 3, "Conv3d": 4}  # axes of an observation, including channels
MLP_DEFAULTS: dict[str, Any] = {"hidden_size": [64, 64]}
LSTM_DEFAULTS: dict[str, Any] = {"hidden_state_size": 128, "num_layers": 2}  # if nothing is given


def class_named(encoder: object) -> Any:
    """Return the encoder class of a name such as "EvolvableMLP"; other values are unchanged."""
    if not isinstance(encoder, str):
        return encoder
    if encoder not in ENCODERS:
        raise ConfigError(unknown_choice("encoder_cls", encoder, ENCODERS))
    return ENCODERS[encoder]


def encoder_named(config: Mapping[str, Any]) -> Any:
    """Return the encoder specified in a `net_config` by `encoder_cls`, a switch or its type; None if unspecified."""
    if config.get("encoder_cls") is not None:
        return class_named(config["encoder_cls"])
    switched = _switched(bool(config.get("simba")), bool(config.get("recurrent")))
    return switched or ENCODER_OF_CONFIG.get(type(config.get("encoder_config")))


def asks_for_memory(config: Mapping[str, Any]) -> bool:
    """Whether a `net_config` specifies a recurrent encoder, or has keys only used by one."""
    named = encoder_named(config)
    if named is None:
        return any(_names(config.get("encoder_config"), key) for key in configs.OF_MEMORY)
    return isinstance(named, type) and issubclass(named, EvolvableLSTM)


def _switched(simba: bool, recurrent: bool) -> type[EvolvableModule] | None:
    return EvolvableSimBa if simba else EvolvableLSTM if recurrent else None


def encoder_class(
    space: spaces.Space[Any], encoder_cls: type[EvolvableModule] | None, config: Mapping[str, Any] | NetConfig | None,
    simba: bool = False, recurrent: bool = False,
) -> type[EvolvableModule]:  # fmt: skip
    """Select the encoder class: the given one, else the configuration's, else by the space.

    A Box with three axes is an image for an `EvolvableCNN`, or for an `EvolvableResNet` if the configuration has
    `num_blocks` or is a `ResNetNetConfig`; with `hidden_size` it is flattened for an `EvolvableMLP` (for example a
    small board). A Box with two or four axes is read by an `EvolvableCNN` if the configuration has a `block_type`
    (Conv1d, Conv3d); otherwise a Box with two axes is flattened. Dict and Tuple spaces get an `EvolvableMultiInput`; an
    `MlpNetConfig`, a configuration with `hidden_size`, `simba` and `recurrent` concatenate all their parts instead.
    Other typed configurations determine their encoder too. Recurrent encoders of images are an `EvolvableCnnLstm`.

    Raises:
        TypeError: `encoder_cls` is not an `EvolvableModule` class.
        ConfigError: the switches contradict each other or do not fit the space.
    """
    if encoder_cls is not None:
        if not (isinstance(encoder_cls, type) and issubclass(encoder_cls, EvolvableModule)):
            raise TypeError(f"encoder_cls must be a subclass of EvolvableModule; got {encoder_cls!r}")
        return encoder_cls
    if simba and recurrent:
        raise ConfigError("simba=True and recurrent=True exclude each other. fix: choose one of the two encoders.")
    usual: type[EvolvableModule] = EvolvableCNN if is_image(space) or _names(config, "block_type") else EvolvableMLP
    if parts_of(space):
        usual = EvolvableMLP if _names(config, "hidden_size") else EvolvableMultiInput
    elif is_image(space) and _names(config, "num_blocks"):
        usual = EvolvableResNet
    elif is_image(space) and _names(config, "hidden_size"):
        usual = EvolvableMLP
    switched, typed = _switched(simba, recurrent), ENCODER_OF_CONFIG.get(type(config))
    has_memory = is_image(space) and (switched or typed) is EvolvableLSTM
    if switched and typed and switched is not typed and not (has_memory and typed is EvolvableCNN):
        switch = "simba" if simba else "recurrent"
        raise ConfigError(
            f"{switch}=True takes an {switched.__name__}; got the encoder_config of an {typed.__name__}, a "
            f"{type(config).__name__}. fix: one of the two."
        )
    if has_memory:
        return EvolvableCnnLstm
    chosen = switched or typed or usual
    _check_fits(space, chosen, config)
    return chosen


def _names(config: Mapping[str, Any] | NetConfig | None, key: str) -> bool:
    return isinstance(config, Mapping) and key in config


def _check_fits(
    space: spaces.Space[Any], cls: type[EvolvableModule], config: Mapping[str, Any] | NetConfig | None
) -> None:
    """Raise ConfigError if a built-in encoder cannot read the space."""
    axes = len(space.shape or ()) if isinstance(space, spaces.Box) else 0
    if cls in (EvolvableLSTM, EvolvableSimBa) and parts_of(space):  # concatenated, as for dense layers
        if not _has_small_images(space):
            raise ConfigError(
                f"{cls.__name__} reads the parts of {short_form(space)} side by side, and they are too large for that. "
                "fix: images of at most 16 x 16 pixels, or pass encoder_cls=."
            )
        return
    if bool(parts_of(space)) != (cls is EvolvableMultiInput) and cls is not EvolvableMLP:
        fix = "leave the encoder to the space (EvolvableMultiInput for Dict and Tuple), or pass encoder_cls="
        raise ConfigError(f"{cls.__name__} cannot read {space}. fix: {fix}.")
    if cls is EvolvableCNN:
        kind = dict(config if isinstance(config, Mapping) else vars(config) if config else {}).get("block_type")
        kind = kind or "Conv2d"
        needed = AXES.get(kind, axes)  # the encoder reports an unknown kind itself
        if axes != needed and (axes, kind) != (3, "Conv3d"):  # see `cnn.planar`
            raise ConfigError(
                f"a {kind} encoder reads observations of {needed} axes, channels included; got {_seen(axes, space)}. "
                f"fix: {_fix(space)}"
            )
    elif cls is EvolvableResNet:
        if axes != 3:
            raise ConfigError(f"EvolvableResNet reads images of 3 axes; got {_seen(axes, space)}. fix: {_fix(space)}")
    elif axes > 2 and not (cls is EvolvableMLP and axes == 3 and _names(config, "hidden_size")):
        fix = "recurrent=False, or flatten the observations." if cls is EvolvableLSTM else _fix(space)
        raise ConfigError(f"{cls.__name__} reads vectors; got images, {space}. fix: {fix}")


def _has_small_images(space: spaces.Space[Any]) -> bool:
    """Whether all images in the space are small enough for dense layers; vectors may have any length."""
    parts = parts_of(space)
    return all(map(_has_small_images, parts.values())) if parts else is_small(space)


def _seen(axes: int, space: spaces.Space[Any]) -> str:
    return f"vectors, {space}" if axes < 2 else str(space)


def volume_encoder(shape: tuple[int, ...]) -> dict[str, Any]:
    """Return a configuration of one convolutional layer that reads observations of four axes, channels first."""
    kernel = [min(3, length) for length in shape[1:]]
    return {"block_type": "Conv3d", "channel_size": [16], "kernel_size": [kernel], "stride_size": [1]}


def _fix(space: spaces.Space[Any]) -> str:
    axes = len(space.shape or ()) if isinstance(space, spaces.Box) else 0
    if axes == 4:
        return f"encoder_config={volume_encoder(space.shape or ())}, or flatten the observations."
    if axes < 2:
        return "encoder_config=MlpNetConfig(hidden_size=[64, 64]): vectors need dense layers."
    kind = next((name for name, count in AXES.items() if count == axes), None)
    if kind is None:
        return "flatten the observations (gymnasium.wrappers.FlattenObservation), or pass encoder_cls=."
    return f'encoder_config={{"block_type": "{kind}"}}, or flatten the observations.'


def input_form(space: spaces.Space[Any], cls: type[EvolvableModule]) -> InputForm:
    """Return the input form of an encoder class, by its constructor's arguments; flat by default."""
    taken = constructor_arguments(cls)
    if parts_of(space):
        return InputForm.NESTED if "observation_space" in taken else InputForm.FLAT
    is_array = isinstance(space, spaces.Box) and len(space.shape) > 1
    return InputForm.IMAGE if is_array and "input_shape" in taken else InputForm.FLAT


def encoder_config(
    cls: type[EvolvableModule], config: Mapping[str, Any] | NetConfig | None, space: spaces.Space[Any] | None = None
) -> dict[str, Any]:
    """Return constructor arguments from a mapping, a net config or None, with an encoder's defaults.

    Convolutional layers are chosen by the image size of `space` if `config` specifies none.
    """
    defaults = MLP_DEFAULTS if issubclass(cls, EvolvableMLP) else {}
    if config is None and issubclass(cls, EvolvableLSTM):
        defaults = LSTM_DEFAULTS
    if cls is EvolvableCnnLstm and isinstance(config, Mapping | configs.NetConfig):  # keys of both parts side by side
        of_images = set(constructor_arguments(EvolvableCNN)) - set(constructor_arguments(cls)) - {"sample_input"}
        layers = {key: config[key] for key in of_images if key in config}
        rest = {key: value for key, value in config.items() if key not in of_images}
        config = {**rest, "cnn_config": {**(rest.get("cnn_config") or {}), **layers}}
    options = checked_config(config, cls, "encoder_config", defaults)
    if cls is EvolvableCNN and space is not None and is_image(space):
        options = with_usual_layers(options, channels_first(space).shape or ())
    hidden = options.get("activation", "ReLU")
    if issubclass(cls, EvolvableMLP):  # LayerNorm on latent features follows the hidden layers
        normed = bool(options.get("layer_norm", False))
        return {"output_activation": hidden, "output_layernorm": normed, "output_vanish": False, **options}
    # Without an activation the encoder's last layer and the head's first one would form a single linear map.
    return {"output_activation": hidden, **options} if issubclass(cls, LayeredModule) else options


def make_encoder(
    space: spaces.Space[Any], cls: type[EvolvableModule], config: Mapping[str, Any], num_outputs: int,
    device: str | torch.device, random_seed: int, name: str,
) -> Any:  # fmt: skip
    """Build the encoder from observations of `space` (as `Preprocessor` returns them) to `num_outputs` features.

    A user-defined class gets those of `num_inputs`, `input_size`, `input_shape`, `observation_space` and `name` that
    its constructor takes; `num_inputs` counts the flattened observation.
    """
    taken = constructor_arguments(cls)
    turned = channels_first(space)
    sizes: dict[str, Any] = dict.fromkeys(("num_inputs", "input_size"), flat_size(space))
    sizes |= {"input_shape": turned.shape, "observation_space": turned, "name": name}
    arguments = {key: value for key, value in sizes.items() if key in taken}
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values()) and set(arguments) <= {"name"}:
        arguments["num_inputs"] = sizes["num_inputs"]
    arguments |= {"num_outputs": num_outputs, "device": device, "random_seed": random_seed, **config}
    encoder: Any = cls(**arguments)
    encoder.disable_mutations(MutationType.LAYER)
    return encoder


# -- options shared by all networks, and their check -------------------------------------------------------------------


@dataclass(frozen=True)
class NetworkOptions:
    """Options of every network for its encoder and head; see `EvolvableNetwork` for their meaning."""

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
    encoder_name: str = "encoder"


DEFAULT_OPTIONS = NetworkOptions()
_KIND = inspect.Parameter.POSITIONAL_OR_KEYWORD
_ARGUMENTS = {
    f.name: inspect.Parameter(f.name, _KIND, default=f.default, annotation=f.type) for f in fields(NetworkOptions)
}
# Published order of positional arguments after the spaces.
BY_POSITION = (
    "encoder_cls", "encoder_config", "head_config", "min_latent_dim", "max_latent_dim", "latent_dim", "simba",
    "recurrent", "device", "random_seed",
)  # fmt: skip


def takes_options(*by_position: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Let a constructor with an argument `options` accept the fields of `NetworkOptions` as separate arguments.

    `inspect.signature` shows these fields, as if the network had declared them itself.

    Args:
        by_position: names of the arguments that may be positional, in the published order, without `self`; all others
            are keyword-only.
    """

    def decorate(init: Callable[..., None]) -> Callable[..., None]:
        written = inspect.signature(init)
        declared = {name: parameter for name, parameter in written.parameters.items() if name != "options"}
        parameters = {**declared, **_ARGUMENTS}
        first = [parameters.pop("self"), *(parameters.pop(name) for name in by_position)]
        others = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters.values()]
        shown = written.replace(parameters=[*first, *others])

        @functools.wraps(init)
        def run(*args: Any, **kwargs: Any) -> None:
            arguments = shown.bind(*args, **kwargs).arguments
            options = {name: arguments.pop(name) for name in _ARGUMENTS if name in arguments}
            init(**arguments, options=NetworkOptions(**options))

        run.__signature__ = shown  # type: ignore[attr-defined]
        return run

    return decorate


def mapping_of(config: Mapping[str, Any] | NetConfig | None) -> dict[str, Any]:
    """Return `net_config` as a dictionary, None as an empty one; ConfigError unless it is a mapping."""
    if config is None or isinstance(config, Mapping):
        return dict(config or {})
    kind = type(config).__name__
    message, part = f"net_config must be a mapping; got {kind}", "..."
    if isinstance(config, configs.NetConfig):
        message, part = f"{message}, the configuration of one encoder", f"{kind}(...)"
    raise ConfigError(f"{message}. fix: net_config={{'encoder_config': {part}}}.")


def checked_arguments(config: Mapping[str, Any] | NetConfig | None, owner: type) -> dict[str, Any]:
    """Return `net_config` as constructor arguments of `owner`; unknown keys raise ConfigError."""
    arguments = mapping_of(config)
    valid_names = set(constructor_arguments(owner)) - {"observation_space", "action_space", "device", "random_seed"}
    for key in arguments:
        if key not in valid_names:
            raise ConfigError(unknown_choice("net_config key", str(key), valid_names))
    return arguments
