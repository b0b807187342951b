"""What a network is, as data: dense layers, and the parameters that carry them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class DenseLayer:
    """One fully connected layer: linear map, then (optional) affine LayerNorm, then (optional) activation.

    Attributes:
        in_features, out_features: widths.
        activation: name in `modules.activations.ACTIVATIONS`, or None for the identity.
        layer_norm: True if an affine LayerNorm over `out_features` stands between the linear map and the activation.
    """

    in_features: int
    out_features: int
    activation: str | None = None
    layer_norm: bool = False


@dataclass(frozen=True)
class DenseStack:
    """A network that is nothing but dense layers, so that a population of them can run as one batched product.

    Attributes:
        layers: the layers, input to output.
        parameters: per layer (weight [out, in], bias [out]) or, under LayerNorm, (weight, bias, norm weight [out],
            norm bias [out]): the live `nn.Parameter` objects of the module.
    """

    layers: tuple[DenseLayer, ...]
    parameters: tuple[tuple[nn.Parameter, ...], ...]
