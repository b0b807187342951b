"""Networks as data: what they are made of as JSON, a network of that, and what two encoders have in common."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from agilerl.errors import AlgorithmError, ConfigError
from agilerl.modules.mlp import EvolvableMLP
from agilerl.networks.encoders import ENCODERS, encoder_named
from agilerl.spaces import space_from_json, space_to_json

# Options that are attributes of every network, whether its class takes them as arguments or not.
OPTIONS: dict[str, Any] = {"normalize_images": True, "encoder_name": "encoder", "normalize_observations": False}
BORROWED = "of the lender"  # stands for the encoder in the spec of a network that has none


class EncoderMismatchError(AlgorithmError, KeyError):
    """Networks that are to share an encoder have different ones."""

    def __str__(self) -> str:
        """The message as it is; a KeyError would show its quoted form."""
        return str(self.args[0])


def spec_of(network: Any) -> dict[str, Any]:
    """Architecture of an `EvolvableNetwork` as JSON-able data, see `from_spec` there."""
    data: dict[str, Any] = network.get_init_dict()
    if network.lender is not None:
        data.pop("encoder_config")
    for name in ("device", "random_seed", "encoder_cls"):
        data.pop(name, None)
    for name in ("observation_space", "action_space"):
        data[name] = None if data.get(name) is None else space_to_json(data[name])
    kind = type(network.encoder)
    if network.lender is not None:
        data["encoder_cls"] = BORROWED
    elif kind is not EvolvableMLP:
        known = ENCODERS.get(kind.__name__) is kind
        data["encoder_cls"] = kind.__name__ if known else f"{kind.__module__}.{kind.__qualname__}"
    for name, usual in OPTIONS.items():  # a subclass need not take them as arguments
        data[name] = getattr(network, name)
        if data[name] == usual:
            del data[name]
    return {"class": type(network).__name__, **data}


def made_of_spec(cls: Any, spec: Mapping[str, Any], arguments: dict[str, Any]) -> Any:
    """A network of class `cls` with the architecture of `spec`; see `EvolvableNetwork.from_spec`."""
    data = dict(spec)
    if data.pop("class", cls.__name__) != cls.__name__:
        raise ConfigError(f"this is the spec of a {spec['class']}, not of a {cls.__name__}")
    encoder = data.pop("encoder_cls", None)
    if encoder == BORROWED and "encoder_cls" not in arguments:
        raise ConfigError(
            f"this {cls.__name__} reads the features of another network, which the spec does not hold. "
            "fix: network.rebuilt(spec, device) of one that reads it, or load the whole agent."
        )
    if encoder is not None and "encoder_cls" not in arguments:
        if encoder not in ENCODERS:
            raise ConfigError(f"the encoder is a {encoder}: pass encoder_cls=")
        arguments["encoder_cls"] = encoder_named(encoder)
    for name in ("observation_space", "action_space"):
        if data.get(name) is not None:
            data[name] = space_from_json(data[name])
        elif name in data:
            del data[name]
    taken = inspect.signature(cls).parameters
    later = {name: data.pop(name) for name in OPTIONS if name in data and name not in taken}
    network = cls(**{**data, **arguments})
    for name, value in later.items():
        setattr(network, name, value)
    return network


def stand_in(lender: Any) -> dict[str, Any]:
    """Constructor arguments for a network that will read `lender`: those of an encoder that is given up at once.

    It has no LayerNorm: critics would warn of one that they never have.
    """
    config = {k: v for k, v in lender.encoder.net_config.items() if k not in ("layer_norm", "output_layernorm")}
    return {"encoder_cls": type(lender.encoder), "encoder_config": config, "latent_dim": lender.latent_dim}


def architecture(encoder: Any) -> str:
    """What two encoders must have in common to stand for each other: class, activation, shapes of the weights."""
    shapes = {name: tuple(p.shape) for name, p in encoder.named_parameters()}
    return f"{type(encoder).__name__}({getattr(encoder, 'activation', None)}, {shapes})"
