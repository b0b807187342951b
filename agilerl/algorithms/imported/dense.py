"""Dense layers of other libraries in networks of encoder and head, without changing their function.

A network here has at least one hidden layer before and one after its latent features. Missing layers are identities:
linear, or ReLU after ReLU, whose output is not negative. Every product with an identity is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from agilerl.algorithms.imported.files import Layout
from agilerl.modules.activations import activation as known_activation
from agilerl.modules.mlp import IDEMPOTENT, EvolvableMLP
from agilerl.networks.encoders import NetworkOptions

MAX_LAYERS = 32  # of one network


@dataclass(frozen=True)
class Dense:
    """One layer: weight [out, in], bias [out], and the activation after it (None: identity)."""

    weight: Tensor
    bias: Tensor
    activation: str | None = None

    @property
    def width(self) -> int:
        """Number of outputs."""
        return int(self.weight.shape[0])

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        return int(self.weight.shape[1])


def layer(layout: Layout, name: str, activation: str | None = None) -> Dense:
    """Take `<name>.weight` and `<name>.bias`; RunError if they are no dense layer."""
    weight, bias = layout.take(f"{name}.weight", 2), layout.take(f"{name}.bias", 1)
    if len(bias) != len(weight):
        raise layout.unknown(f"{name} has {len(weight)} rows and {len(bias)} biases")
    return Dense(weight, bias, activation)


def sequence(layout: Layout, prefix: str, activation: str | None) -> list[Dense]:
    """Take the layers of a `torch.nn.Sequential` of dense layers and activations: <prefix>0, <prefix>2, ...

    Every layer gets the activation, the last one too; the list is empty without a first layer. An activation has no
    tensors but takes a number, so that any other module in between leaves tensors that `Layout.finish` reports.
    """
    layers: list[Dense] = []
    while f"{prefix}{2 * len(layers)}.weight" in layout:
        if len(layers) == MAX_LAYERS:
            raise layout.unknown(f"{prefix} has more than {MAX_LAYERS} layers")
        layers.append(layer(layout, f"{prefix}{2 * len(layers)}", activation))
    return layers


def connected(layout: Layout, layers: Sequence[Dense], what: str) -> list[Dense]:
    """Return the layers; RunError if the inputs of one differ from the outputs of the one before it."""
    for before, after in pairwise(layers):
        if before.width != after.inputs:
            raise layout.unknown(f"{what} has a layer of {before.width} units before one of {after.inputs} inputs")
    return list(layers)


def checked_activation(name: str) -> str:
    """Return the exact name of a hidden activation, case ignored; ConfigError for an unknown one."""
    exact = {"relu": "ReLU", "tanh": "Tanh", "elu": "ELU", "gelu": "GELU", "silu": "SiLU", "leakyrelu": "LeakyReLU"}
    name = exact.get(name.lower(), name)
    known_activation(name, hidden=True)
    return name


def identity(width: int, activation: str | None = None) -> Dense:
    """A layer that changes nothing, for inputs that the activation leaves as they are."""
    return Dense(torch.eye(width), torch.zeros(width), activation)


@dataclass(frozen=True)
class Split:
    """Layers of an encoder and of a head, each at least two."""

    encoder: list[Dense]
    head: list[Dense]

    def options(self, output_activation: str | None = None) -> NetworkOptions:
        """Return the arguments of a network with these layers."""
        latent = self.encoder[-1]
        encoder = {**_config(self.encoder), "output_activation": latent.activation or "Identity"}
        return NetworkOptions(
            encoder_config=encoder,
            head_config={**_config(self.head), "output_activation": output_activation},
            latent_dim=latent.width,
            max_latent_dim=max(NetworkOptions.max_latent_dim, latent.width),
        )

    def fill(self, network: Any) -> None:
        """Copy the weights into a network made with `options`."""
        _fill(network.encoder, self.encoder)
        _fill(network.head_net, self.head)


def _config(layers: Sequence[Dense]) -> dict[str, Any]:
    hidden = [one.width for one in layers[:-1]]
    limits = {"min_mlp_nodes": 16, "max_mlp_nodes": max(500, *hidden), "max_hidden_layers": max(3, len(hidden))}
    return {"hidden_size": hidden, "activation": layers[0].activation or "Identity", **limits}


def _fill(module: EvolvableMLP, layers: Sequence[Dense]) -> None:
    stack = module.dense_stack()
    assert stack is not None  # made of dense layers alone
    with torch.no_grad():
        for (weight, bias), one in zip(stack.parameters, layers, strict=True):
            weight.copy_(one.weight)
            bias.copy_(one.bias)


def split(layers: Sequence[Dense]) -> Split:
    """Divide the layers of a network that reads observations; the last one is its output.

    Identities follow the first layer: encoder and head then keep the activation of the file for layers that evolution
    adds.
    """
    *hidden, output = layers
    width, act = (hidden[0].width, hidden[0].activation) if hidden else (output.inputs, None)
    idempotent = act if act in IDEMPOTENT else None
    while len(hidden) < 3:
        hidden.insert(min(1, len(hidden)), identity(width, idempotent))
    return Split(hidden[:-1], [hidden[-1], replace(output, activation=None)])


def split_critic(layers: Sequence[Dense], num_actions: int) -> Split:
    """Divide the layers of a network that reads observation and action side by side.

    The encoder passes the observation on, so that the head reads both, as in the file.
    """
    *hidden, output = layers
    inputs = (hidden or [output])[0].inputs
    passed = identity(inputs - num_actions)
    return Split([passed, passed], [*(hidden or [identity(inputs)]), replace(output, activation=None)])
