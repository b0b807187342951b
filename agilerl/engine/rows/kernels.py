"""The seam for native speed: forward and backward of a stack of dense layers over flat rows.

A population's parameters are one array `[N, D]`. Four functions touch it in a hot path: `mlp_forward` and
`mlp_backward` here, the optimiser step and the move of targets of `engine.rows.optim`. They are handed to the engine as
`Kernels`; another back end replaces these four and no more. Products and closed-form derivatives run outside of
autograd; `engine.rows.units` joins them to it.

Inside, a batch lies as `[N, features, B]`: with the batch as the fast axis every product of a small layer is about a
fifth cheaper than with `[N, B, features]`, and so are sums over features. Callers see `[N, B, features]`, as views.

`mlp_backward` follows from the chain rule layer by layer; it is checked against autograd in float64 by
`tests/differential/test_kernels.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agilerl.engine.rows.optim import Columns, OptimizerRule, step_live, track_rows
from agilerl.modules.activations import Activation

LAYER_NORM_EPS = 1e-5  # torch.nn.LayerNorm's default


@dataclass(frozen=True, slots=True)
class NoiseViews:
    """What makes a layer noisy (Fortunato et al. 2018, arXiv:1706.10295, equation 9), as views of the rows.

    Attributes:
        weight_sigma: [N, out, in]; bias_sigma: [N, out, 1].
        noise_in: [N, 1, in]; noise_out: [N, out, 1]; zero in padding.
    """

    weight_sigma: Tensor
    bias_sigma: Tensor
    noise_in: Tensor
    noise_out: Tensor


@dataclass(frozen=True, slots=True)
class LayerViews:
    """One dense layer of N members, as views of the rows.

    Attributes:
        weight: [N, out, in]; bias: [N, out, 1].
        norm_weight, norm_bias: [N, out, 1], or None without LayerNorm.
        activation: None for the identity.
        mask: [N, out, 1], 1 for a real unit and 0 for padding; None where all members have the full width.
        averaging: [N, 1, out], 1 / width for a real unit and 0 for padding; needed under LayerNorm only.
    """

    weight: Tensor
    bias: Tensor
    norm_weight: Tensor | None
    norm_bias: Tensor | None
    activation: Activation | None
    mask: Tensor | None = None
    averaging: Tensor | None = None
    noise: NoiseViews | None = None


@dataclass(slots=True)
class Saved:
    """What one layer's backward needs.

    Attributes:
        inputs: [N, in, B]; weight: [N, out, in] that multiplied them.
        activated: what the activation's backward takes.
        normalised, inverse_std: of LayerNorm.
        noise: [N, out, in] ε_out εᵢₙᵀ of a noisy layer.
    """

    inputs: Tensor
    weight: Tensor
    activated: Tensor | None
    normalised: Tensor | None = None
    inverse_std: Tensor | None = None
    noise: Tensor | None = None


def mlp_forward(layers: list[LayerViews], x: Tensor, save: bool, noisy: bool = True) -> tuple[Tensor, list[Saved]]:
    """Outputs [N, B, out] for inputs x [N, B, in], and what `mlp_backward` needs (empty unless `save`).

    Without `noisy` the noise of noisy layers is left out.
    """
    saved: list[Saved] = []
    x = x.mT
    for layer in layers:
        inputs, weight, bias, noise = x, layer.weight, layer.bias, None
        if layer.noise is not None and noisy:
            noise = layer.noise.noise_out * layer.noise.noise_in
            weight = torch.addcmul(weight, layer.noise.weight_sigma, noise)
            bias = torch.addcmul(bias, layer.noise.bias_sigma, layer.noise.noise_out)
        x = torch.baddbmm(bias, weight, x)
        normalised = inverse_std = None
        if layer.norm_weight is not None:
            assert layer.norm_bias is not None
            normalised, inverse_std = _normalise(x, layer)
            x = (normalised * layer.norm_weight).add_(layer.norm_bias)
        act = layer.activation
        kept = None
        if act is not None:
            if act.needs_input and save:
                kept, x = x, act.function(x)
            else:
                x = kept = act.in_place(x)
            if layer.mask is not None and not act.zero_at_zero:
                x = x * layer.mask
        if save:
            saved.append(Saved(inputs, weight, kept, normalised, inverse_std, noise))
    return x.mT, saved


def mlp_backward(
    layers: list[LayerViews], saved: list[Saved], grad: Tensor, parameters: bool = True, inputs: bool = False
) -> tuple[list[Tensor], Tensor | None]:
    """Gradients of the parameters and of the input.

    Args:
        layers: the layers that ran.
        saved: from `mlp_forward(..., save=True)`.
        grad: [N, B, out] gradient of the summed losses with respect to the outputs.
        parameters, inputs: which gradients are wanted.

    Returns:
        The parameters' gradients, [N, numel] each, in the order of the rows' columns (empty without `parameters`),
        and the input's, [N, B, in] or None.
    """
    blocks: list[list[Tensor]] = []
    grad = grad.mT
    for index in range(len(layers) - 1, -1, -1):
        layer, keep = layers[index], saved[index]
        if layer.activation is not None:
            assert keep.activated is not None
            if layer.mask is not None and not layer.activation.zero_at_zero:
                grad = grad * layer.mask
            grad = layer.activation.backward(grad, keep.activated)
        norm: list[Tensor] = []
        if layer.norm_weight is not None:
            assert keep.normalised is not None
            assert keep.inverse_std is not None
            if parameters:
                norm = [(grad * keep.normalised).sum(2), grad.sum(2)]
            grad = _normalise_backward(grad * layer.norm_weight, keep.normalised, keep.inverse_std, layer)
        if parameters:
            of_weight, of_bias = torch.bmm(grad, keep.inputs.mT), grad.sum(2)
            sigma = _sigma_gradients(of_weight, of_bias, keep, layer.noise) if layer.noise is not None else ()
            blocks.append([of_weight.flatten(1), of_bias, *norm, *sigma])
        if index > 0 or inputs:
            grad = torch.bmm(keep.weight.mT, grad)
    return [part for block in reversed(blocks) for part in block], grad.mT if inputs else None


def _sigma_gradients(of_weight: Tensor, of_bias: Tensor, keep: Saved, noise: NoiseViews) -> list[Tensor]:
    """∂L/∂σ of a noisy layer: the gradients of weight and bias times the noise that multiplied σ."""
    if keep.noise is None:  # it ran without noise
        return [torch.zeros_like(of_weight).flatten(1), torch.zeros_like(of_bias)]
    return [(of_weight * keep.noise).flatten(1), of_bias * noise.noise_out.squeeze(2)]


def _normalise(x: Tensor, layer: LayerViews) -> tuple[Tensor, Tensor]:
    """LayerNorm without its affine part (Ba et al. 2016, arXiv:1607.06450, eq. 4), over the real width only.

    Overwrites `x` [N, out, B]. Padding holds exact zeros in it, so the mean needs no mask; the centred values do.
    """
    assert layer.averaging is not None
    x.sub_(torch.bmm(layer.averaging, x))
    if layer.mask is not None:
        x.mul_(layer.mask)
    inverse_std = torch.bmm(layer.averaging, x * x).add_(LAYER_NORM_EPS).rsqrt_()
    return x.mul_(inverse_std), inverse_std


def _normalise_backward(grad: Tensor, normalised: Tensor, inverse_std: Tensor, layer: LayerViews) -> Tensor:
    """Gradient of `_normalise`'s input: rstd · (g − mean(g) − x̂ · mean(g · x̂)), means over the real width.

    The averaging row masks the padding in both means: otherwise the gradient would leak into it through them.
    Overwrites `grad` [N, out, B].
    """
    assert layer.averaging is not None
    slope = torch.bmm(layer.averaging, grad * normalised)
    grad.sub_(torch.bmm(layer.averaging, grad)).sub_(normalised * slope).mul_(inverse_std)
    return grad if layer.mask is None else grad.mul_(layer.mask)


@dataclass(frozen=True, slots=True)
class Kernels:
    """One back end: what runs and moves rows.

    Attributes:
        name: as records of a run show it.
        forward: as `mlp_forward`. backward: as `mlp_backward`.
        step: as `optim.step_live`. track: as `optim.track_rows`.
    """

    name: str
    forward: Callable[[list[LayerViews], Tensor, bool, bool], tuple[Tensor, list[Saved]]]
    backward: Callable[[list[LayerViews], list[Saved], Tensor, bool, bool], tuple[list[Tensor], Tensor | None]]
    step: Callable[[Columns, Tensor, OptimizerRule, Sequence[bool] | None], None]
    track: Callable[[Sequence[tuple[Tensor, Tensor]], Tensor], None]


TORCH = Kernels("torch", mlp_forward, mlp_backward, step_live, track_rows)
