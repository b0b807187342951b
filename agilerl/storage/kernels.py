"""The seam for native speed: forward, backward and nothing else of a stack of dense layers over flat rows.

A population's parameters are one array `[N, D]`. Three functions touch it in a hot path: `mlp_forward` and
`mlp_backward` here, and the optimiser step of `storage.optim`. Another back end replaces these three and no more.
Products and closed-form derivatives run outside of autograd; `storage.stacked` joins them to it.

`mlp_backward` follows from the chain rule layer by layer; it is checked against autograd in float64 by
`tests/differential/test_kernels.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

aten = torch.ops.aten
LAYER_NORM_EPS = 1e-5  # torch.nn.LayerNorm's default


@dataclass(frozen=True)
class Activation:
    """An activation in closed form.

    Attributes:
        forward: in place where torch can (the argument is never read again unless `needs_input`).
        backward: (grad of the output, saved tensor) -> grad of the input; the saved tensor is the input where
            `needs_input`, else the output.
        zero_at_zero: True where act(0) = 0, so that a zero-padded unit stays exactly zero.
    """

    forward: Callable[[Tensor], Tensor]
    backward: Callable[[Tensor, Tensor], Tensor]
    needs_input: bool
    zero_at_zero: bool


ACTIVATIONS: dict[str, Activation] = {
    "ReLU": Activation(torch.relu_, lambda g, y: aten.threshold_backward(g, y, 0), False, True),
    "Tanh": Activation(torch.tanh_, aten.tanh_backward, False, True),
    "Sigmoid": Activation(torch.sigmoid_, aten.sigmoid_backward, False, False),
    "ELU": Activation(torch.nn.functional.elu_, lambda g, y: aten.elu_backward(g, 1.0, 1.0, 1.0, True, y), False, True),
    "LeakyReLU": Activation(
        torch.nn.functional.leaky_relu_, lambda g, y: aten.leaky_relu_backward(g, y, 0.01, True), False, True
    ),
    "GELU": Activation(torch.nn.functional.gelu, aten.gelu_backward, True, True),
    "SiLU": Activation(torch.nn.functional.silu, aten.silu_backward, True, True),
    "Mish": Activation(torch.nn.functional.mish, aten.mish_backward, True, True),
    "Softplus": Activation(
        torch.nn.functional.softplus, lambda g, x: aten.softplus_backward(g, x, 1.0, 20.0), True, False
    ),
    "Softsign": Activation(torch.nn.functional.softsign, lambda g, x: g / (1 + x.abs()).square(), True, True),
}


@dataclass(frozen=True, slots=True)
class LayerViews:
    """One dense layer of N members, as views of the rows.

    Attributes:
        weight: [N, out, in]; bias: [N, 1, out].
        norm_weight, norm_bias: [N, 1, out], or None without LayerNorm.
        activation: None for the identity.
        mask: [N, 1, out], 1 for a real unit and 0 for padding; None where all members have the full width.
        width: [N, 1, 1], the real widths; None where all members have the full width.
    """

    weight: Tensor
    bias: Tensor
    norm_weight: Tensor | None
    norm_bias: Tensor | None
    activation: Activation | None
    mask: Tensor | None = None
    width: Tensor | None = None


@dataclass(slots=True)
class Saved:
    """What one layer's backward needs: its input, what its activation needs, and the normalised values."""

    inputs: Tensor
    activated: Tensor | None
    normalised: Tensor | None = None
    inverse_std: Tensor | None = None


def mlp_forward(layers: list[LayerViews], x: Tensor, save: bool) -> tuple[Tensor, list[Saved]]:
    """Outputs [N, B, out] for inputs x [N, B, in], and what `mlp_backward` needs (empty unless `save`)."""
    saved: list[Saved] = []
    for layer in layers:
        inputs = x
        x = torch.baddbmm(layer.bias, x, layer.weight.mT)
        normalised = inverse_std = None
        if layer.norm_weight is not None:
            normalised, inverse_std = _normalise(x, layer)
            assert layer.norm_bias is not None
            x = torch.addcmul(layer.norm_bias, normalised, layer.norm_weight)
        act = layer.activation
        kept = None
        if act is not None:
            before = x
            x = act.forward(x)
            kept = before if act.needs_input else x
            if layer.mask is not None and not act.zero_at_zero:
                x = x * layer.mask
        if save:
            saved.append(Saved(inputs, kept, normalised, inverse_std))
    return x, saved


def mlp_backward(
    layers: list[LayerViews], grads: list[LayerViews], saved: list[Saved], grad: Tensor, input_grad: bool
) -> Tensor | None:
    """Add the parameters' gradients to `grads` and return that of the input.

    Args:
        layers: the layers that ran. grads: views of the gradient rows, laid out alike; added to, in place.
        saved: from `mlp_forward(..., save=True)`.
        grad: [N, B, out] gradient of the summed losses with respect to the outputs.
        input_grad: whether the gradient of the input is wanted.

    Returns:
        [N, B, in], or None.
    """
    for index in range(len(layers) - 1, -1, -1):
        layer, into, keep = layers[index], grads[index], saved[index]
        if layer.activation is not None:
            assert keep.activated is not None
            if layer.mask is not None and not layer.activation.zero_at_zero:
                grad = grad * layer.mask
            grad = layer.activation.backward(grad, keep.activated)
        if layer.norm_weight is not None:
            assert into.norm_weight is not None
            assert into.norm_bias is not None
            assert keep.normalised is not None
            assert keep.inverse_std is not None
            into.norm_bias.add_(grad.sum(1, keepdim=True))
            into.norm_weight.add_((grad * keep.normalised).sum(1, keepdim=True))
            grad = _normalise_backward(grad * layer.norm_weight, keep.normalised, keep.inverse_std, layer)
        into.bias.add_(grad.sum(1, keepdim=True))
        into.weight.baddbmm_(grad.mT, keep.inputs)
        if index > 0 or input_grad:
            grad = torch.bmm(grad, layer.weight)
    return grad if input_grad else None


def _normalise(x: Tensor, layer: LayerViews) -> tuple[Tensor, Tensor]:
    """LayerNorm without its affine part (Ba et al. 2016, arXiv:1607.06450, eq. 4), over the real width only.

    Padding holds exact zeros in `x`, so sums need no mask; the centred values do.
    """
    if layer.mask is None:
        normalised, _, inverse_std = aten.native_layer_norm(x, [x.shape[-1]], None, None, LAYER_NORM_EPS)
        return normalised, inverse_std
    assert layer.width is not None
    centred = (x - x.sum(-1, keepdim=True) / layer.width) * layer.mask
    inverse_std = torch.rsqrt(centred.square().sum(-1, keepdim=True) / layer.width + LAYER_NORM_EPS)
    return centred * inverse_std, inverse_std


def _normalise_backward(grad: Tensor, normalised: Tensor, inverse_std: Tensor, layer: LayerViews) -> Tensor:
    """Gradient of `_normalise`'s input: rstd · (g − mean(g) − x̂ · mean(g · x̂)), means over the real width.

    The mask comes before the mean too: otherwise the gradient would leak into the padding through the mean.
    """
    if layer.mask is None:
        mean = grad.mean(-1, keepdim=True)
        slope = (grad * normalised).mean(-1, keepdim=True)
        return (grad - mean).addcmul_(normalised, slope, value=-1).mul_(inverse_std)
    assert layer.width is not None
    grad = grad * layer.mask
    mean = grad.sum(-1, keepdim=True) / layer.width
    slope = (grad * normalised).sum(-1, keepdim=True) / layer.width
    return (grad - mean - normalised * slope) * inverse_std * layer.mask
