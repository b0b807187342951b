"""Published helpers for networks: plain torch modules with the layers of the evolvable ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from gymnasium import spaces
from torch import nn

from agilerl.core.spaces import is_image
from agilerl.modules.activations import activation as known_activation
from agilerl.modules.custom_components import GumbelSoftmax
from agilerl.modules.mlp import EvolvableMLP
from agilerl.modules.simba import EvolvableSimBa
from agilerl.networks.encoders import encoder_class, encoder_config

__all__ = ["create_mlp", "create_simba", "get_activation", "get_default_encoder_config", "is_image_space"]


def is_image_space(space: spaces.Space[Any]) -> bool:
    """True for a Box of three axes."""
    return is_image(space)


def get_activation(activation_name: str | None, new_gelu: bool = False) -> nn.Module:
    """A new module of the activation; None is the identity. ConfigError for an unknown name.
    new_gelu: GELU with the tanh approximation. "GumbelSoftmax", which draws noise, is for custom networks only."""
    if activation_name == "GumbelSoftmax":
        return GumbelSoftmax()
    if activation_name == "GELU" and new_gelu:
        return nn.GELU(approximate="tanh")
    return known_activation(activation_name).module()


def get_default_encoder_config(
    observation_space: spaces.Space[Any], simba: bool = False, recurrent: bool = False, layer_norm: bool = True
) -> dict[str, Any]:
    """The default `encoder_config` of this space.

    Args:
        simba: residual blocks. recurrent: an LSTM.
        layer_norm: of dense encoders; on, as published. Networks without a configuration have no layer norm here.
    """
    cls = encoder_class(observation_space, None, None, simba, recurrent)
    return encoder_config(cls, {"layer_norm": layer_norm} if cls is EvolvableMLP else None, observation_space)


def create_mlp(
    input_size: int,
    output_size: int,
    hidden_size: Sequence[int],
    output_vanish: bool = False,
    output_activation: str | None = None,
    noisy: bool = False,
    init_layers: bool = True,
    layer_norm: bool = False,
    output_layernorm: bool = False,
    activation: str = "ReLU",
    noise_std: float = 0.5,
    device: str | torch.device = "cpu",
    name: str = "mlp",
) -> nn.Sequential:
    """Dense layers from [..., input_size] to [..., output_size] as a plain `nn.Sequential`; see `EvolvableMLP`."""
    mlp = EvolvableMLP(
        input_size, output_size, list(hidden_size), activation, output_activation, layer_norm=layer_norm,
        output_layernorm=output_layernorm, output_vanish=output_vanish, init_layers=init_layers, noisy=noisy,
        noise_std=noise_std, device=device, name=name, min_mlp_nodes=1,
    )  # fmt: skip
    layers: nn.Sequential = mlp.model
    return layers


def create_simba(
    input_size: int,
    output_size: int,
    hidden_size: int,
    num_blocks: int,
    output_activation: str | None = None,
    scale_factor: int = 4,
    device: str | torch.device = "cpu",
    name: str = "simba",
) -> nn.Module:
    """Residual blocks under LayerNorm from [..., input_size] to [..., output_size]; see `EvolvableSimBa`."""
    simba = EvolvableSimBa(
        input_size, output_size, hidden_size, num_blocks, output_activation=output_activation,
        scale_factor=scale_factor, device=device, name=name,
    )  # fmt: skip
    simba.disable_mutations()
    return simba
