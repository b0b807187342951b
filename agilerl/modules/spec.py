"""What a network is, as data: dense layers, and the parameters that carry them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class DenseLayer:
    """One fully connected layer: linear map, then (optional) affine LayerNorm, then (optional) activation.

    Attributes:
        in_features, out_features: widths.
        activation: name in `modules.activations.ACTIVATIONS`, or None for the identity.
        layer_norm: True if an affine LayerNorm over `out_features` stands between the linear map and the activation.
        noisy: True for a `modules.noisy.NoisyLinear`.
    """

    in_features: int
    out_features: int
    activation: str | None = None
    layer_norm: bool = False
    noisy: bool = False


@dataclass(frozen=True)
class DenseStack:
    """A network that is nothing but dense layers, so that a population of them can run as one batched product.

    Attributes:
        layers: the layers, input to output.
        parameters: per layer (weight [out, in], bias [out]), under LayerNorm followed by (norm weight [out], norm bias
            [out]), for a noisy layer by (weight sigma [out, in], bias sigma [out]): the live `nn.Parameter` objects.
        noise: per layer the live buffers (noise_in [in], noise_out [out]) of a noisy layer, else ().
        is_cell: the recurrence of a cell: one plain layer, which runs once for every step of a sequence.
    """

    layers: tuple[DenseLayer, ...]
    parameters: tuple[tuple[nn.Parameter, ...], ...]
    noise: tuple[tuple[Tensor, ...], ...] = ()
    is_cell: bool = False

    @property
    def buffers(self) -> tuple[tuple[Tensor, ...], ...]:
        """`noise`, with one entry per layer."""
        return self.noise or ((),) * len(self.layers)
