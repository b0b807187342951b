"""Network specifications: conversion to and from JSON, and compatibility of encoders."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from agilerl.core import foreign
from agilerl.core.signatures import constructor_arguments, taken_by
from agilerl.core.spaces import space_from_json
from agilerl.errors import AlgorithmError, ConfigError, RunError
from agilerl.modules.base import wrong_class
from agilerl.modules.configs import NetConfig
from agilerl.networks.encoders import ENCODERS

# Options that are attributes of every network, whether or not its class takes them as arguments.
OPTIONS: dict[str, Any] = {"normalize_images": True, "encoder_name": "encoder", "normalize_observations": False,
                           "blocks": 1}  # fmt: skip
FREE = 2**22  # numbers in one layer allowed without checking the weights
MAX_LAYERS = 64  # layers of one part
BORROWED = "of the lender"  # replaces the encoder in the spec of a network without one


class EncoderMismatchError(AlgorithmError, KeyError):
    """Networks that should share an encoder have different ones."""

    def __str__(self) -> str:
        """Return the plain message; a KeyError would show it quoted."""
        return str(self.args[0])


def made_of_spec(cls: Any, spec: Mapping[str, Any], arguments: dict[str, Any]) -> Any:
    """Build a network of class `cls` with the architecture of `spec`; see `EvolvableNetwork.from_spec`."""
    data = dict(spec)
    if data.pop("class", cls.__name__) != cls.__name__:
        raise ConfigError(wrong_class(cls, spec))
    encoder = data.pop("encoder_cls", None)
    if encoder == BORROWED and "encoder_cls" not in arguments:
        raise ConfigError(
            f"this {cls.__name__} reads the features of another network, which the spec does not hold. "
            "fix: network.rebuilt(spec, device) of one that reads it, or load the whole agent."
        )
    if encoder is not None and "encoder_cls" not in arguments:
        if encoder not in ENCODERS:
            raise ConfigError(f"the encoder is a {encoder}. fix: encoder_cls={encoder}.")
        arguments["encoder_cls"] = ENCODERS[encoder]
    for name in ("observation_space", "action_space"):
        if data.get(name) is not None:
            data[name] = space_from_json(data[name])
        elif name in data:
            del data[name]
    taken = constructor_arguments(cls)
    later = {name: data.pop(name) for name in OPTIONS if name in data and name not in taken}
    network = cls(**{**data, **taken_by(cls, arguments)})
    for name, value in later.items():
        setattr(network, name, value)
    return network.to(arguments.get("device", network.device))


def stand_in(encoder_source: Any) -> dict[str, Any]:
    """Return constructor arguments of a stand-in encoder, for a network that will read `encoder_source`.

    It has no LayerNorm, to avoid the critics' warning about a layer that they will not have.
    """
    config = {k: v for k, v in encoder_source.encoder.net_config.items() if k not in ("layer_norm", "output_layernorm")}
    return {
        "encoder_cls": type(encoder_source.encoder),
        "encoder_config": config,
        "latent_dim": encoder_source.latent_dim,
    }


def architecture(encoder: Any) -> str:
    """Describe the properties that interchangeable encoders share: class, activation, shapes of the weights."""
    shapes = {name: tuple(p.shape) for name, p in encoder.named_parameters()}
    return f"{type(encoder).__name__}({foreign.activation(encoder)}, {shapes})"


# -- size check of networks in a file before anything is allocated -----------------------------------------------------


def check_sizes(networks: Mapping[str, Any], source: str) -> None:
    """Raise RunError if a specification asks for layers far larger than its weights.
    `networks`: name -> {"spec": result of `spec()`, "weights": name -> tensor}. source: for the message."""
    for name, spec, weights in ((k, spec, v["weights"]) for k, v in networks.items() for spec in _specs(v["spec"])):
        stored = sum(w.numel() for w in weights.values() if isinstance(w, Tensor))
        limit = max(FREE, 4 * stored)
        lists = _lists(spec)
        widths = [width for sizes in lists for width in sizes]
        space = spec.get("observation_space") or {}
        latent = int(spec.get("latent_dim", 1))
        inputs = _features(space)
        outputs = _features(spec.get("action_space") or {}) * int(spec.get("num_quantiles", spec.get("num_atoms")) or 1)
        pairs = [a * b for sizes in lists for a, b in itertools.pairwise(sizes)]
        largest = max([1, *widths])
        asked = max([largest * latent, largest * outputs, latent * outputs, *pairs])
        # An image encoder has far fewer weights than pixels; a dense one has at least one per input.
        size = inputs * (widths[0] if widths and "encoder_cls" not in spec and len(space.get("shape") or ()) < 3 else 1)
        asked = max(asked, _of_transformer(spec.get("gpt_config")))
        if any(len(sizes) > MAX_LAYERS for sizes in lists) or min([1, latent, *widths]) < 1:
            raise RunError(f"{source}: {name} has widths that no network has. fix: do not use this file.")
        if asked > limit or size > max(limit, 2**24):
            raise RunError(
                f"{source}: {name} asks for layers of {max(asked, size)} weights, but {stored} are stored with it. "
                "fix: do not use this file."
            )


def _specs(spec: object, is_whole: bool = True) -> Iterator[Mapping[str, Any]]:
    """Iterate over a specification and those of the modules in its arguments."""
    if isinstance(spec, Mapping):
        if is_whole or "class" in spec:
            yield spec
        for value in spec.values():
            yield from _specs(value, False)


def _of_transformer(config: Mapping[str, Any] | NetConfig | None) -> int:
    """Return the weights of the largest layer, or of all blocks together, of a transformer's keys."""
    if not isinstance(config, Mapping):
        return 0
    width, inner, blocks = (int(config.get(name, 1)) for name in ("n_embd", "dim_feedfwd", "n_layer"))
    if min(width, inner, blocks) < 1:
        return sys.maxsize
    return blocks * width * (4 * width + 2 * inner)


def _lists(spec: object) -> list[list[int]]:
    """Return every list of layer sizes in a specification."""
    sizes = []
    for key, value in spec.items() if isinstance(spec, Mapping) else ():
        if key in ("hidden_size", "channel_size", "hidden_state_size"):
            sizes.append([int(v) for v in (value if isinstance(value, list | tuple) else [value])])
        elif key not in ("observation_space", "action_space"):
            sizes += _lists(value)
    return sizes


def _features(space: Mapping[str, Any]) -> int:
    """Return the size of an observation or action of a described space, one-hot for discrete ones."""
    kind = space.get("type")
    if kind == "Box":
        return math.prod(int(n) for n in space["shape"])
    if kind in ("Discrete", "MultiBinary"):
        return math.prod(_flat(space["n"]))
    if kind == "MultiDiscrete":
        return sum(_flat(space["nvec"]))
    if kind in ("Dict", "Tuple"):
        parts = space["spaces"]
        return sum(_features(part) for part in (parts.values() if isinstance(parts, Mapping) else parts))
    return 1


def _flat(values: Any) -> list[int]:
    return [n for part in values for n in _flat(part)] if isinstance(values, list) else [int(values)]
