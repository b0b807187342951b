"""Performance-critical kernels: stacks of layers over flat rows, and updates of the rows.

A population's parameters are one array `[N, D]`. Four functions access it in hot paths: `mlp_forward`, `mlp_backward`,
the optimiser step `step_live` and the target update `track_rows`. The engine gets them as `Kernels`; another back end
replaces only these four. Products and closed-form derivatives run outside of autograd; `engine.rows.rows_engine`
connects them to it.

Internally a batch is `[N, features, B]`: with the batch as the fast axis products of small layers, and sums over
features, are about a fifth cheaper than with `[N, B, features]`. Callers see `[N, B, features]`, as views.

`mlp_backward` applies the chain rule layer by layer; `tests/differential/test_kernels.py` checks it against autograd in
float64.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from agilerl.modules.activations import Activation
from agilerl.modules.layers import Window
from agilerl.native.library import ABI

LAYER_NORM_EPS = 1e-5  # torch.nn.LayerNorm's default


@dataclass(frozen=True, slots=True)
class NoiseViews:
    """Parameters and noise of a noisy layer (Fortunato et al. 2018, arXiv:1706.10295, equation 9), as views of rows.

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
    """One layer of N members, as views of the rows.

    Attributes:
        weight: [N, out, in]; bias: [N, out, 1]. Of a convolution `in` are the pixels of a patch, `out` channels.
        norm_weight, norm_bias: [N, out, 1], or None without LayerNorm.
        activation: None for the identity.
        mask: [N, out, 1], 1 for a real unit and 0 for padding; None if all members have the full width.
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
    window: Window | None = None


@dataclass(slots=True)
class Saved:
    """Saved tensors of one layer for its backward pass.

    Attributes:
        inputs: [N, in, B]; weight: [N, out, in] that multiplied them.
        activated: argument of the activation's backward function.
        normalised, inverse_std: of LayerNorm.
        noise: [N, out, in] ε_out εᵢₙᵀ of a noisy layer.
        beside: [N, K·B, A] further inputs, for K of which the inputs are the same; see `mlp_forward`.
    """

    inputs: Tensor
    weight: Tensor
    activated: Tensor | None
    normalised: Tensor | None = None
    inverse_std: Tensor | None = None
    noise: Tensor | None = None
    beside: Tensor | None = None


def mlp_forward(
    layers: list[LayerViews], x: Tensor, save: bool, noisy: bool = True, beside: Tensor | None = None
) -> tuple[Tensor, list[Saved]]:
    """Return outputs [N, B, out] for inputs x [N, B, in], and tensors for `mlp_backward` (empty unless `save`).

    Without `noisy` noisy layers run without noise. With `beside` [N, K·B, A], K batches one after another, the inputs
    are x and these columns: outputs [N, K·B, out]. The product of x in the first layer is computed once.
    """
    saved: list[Saved] = []
    x, beside = x.mT, None if beside is None else beside.to(x.dtype)
    for layer in layers:
        inputs, weight, bias, noise = x, layer.weight, layer.bias, None
        if layer.noise is not None and noisy:
            noise = layer.noise.noise_out * layer.noise.noise_in
            weight = torch.addcmul(weight, layer.noise.weight_sigma, noise)
            bias = torch.addcmul(bias, layer.noise.bias_sigma, layer.noise.noise_out)
        if layer.window is not None:
            inputs = patches(x, layer.window)
            x = torch.baddbmm(bias, weight, inputs).reshape(len(x), -1, x.shape[2])
        elif beside is None:
            x = torch.baddbmm(bias, weight, x)
        else:
            once = torch.baddbmm(bias, weight[..., : x.shape[1]], x).repeat(1, 1, beside.shape[1] // x.shape[2])
            x = once.baddbmm_(weight[..., x.shape[1] :], beside.mT)
        normalised = inverse_std = None
        if layer.norm_weight is not None:
            assert layer.norm_bias is not None
            normalised, inverse_std = _normalise(x, layer)
            x = (normalised * layer.norm_weight).add_(layer.norm_bias)
        act = layer.activation
        activated = None
        if act is not None:
            if act.needs_input and save:
                activated, x = x, act.function(x)
            else:
                x = activated = act.in_place(x)
            if layer.mask is not None and not act.zero_at_zero:
                x = x * layer.mask
        if save:
            saved.append(Saved(inputs, weight, activated, normalised, inverse_std, noise, beside))
        beside = None
    return x.mT, saved


def mlp_backward(
    layers: list[LayerViews], saved: list[Saved], grad: Tensor, parameters: bool = True, inputs: bool = False
) -> tuple[list[Tensor], Any]:
    """Compute the gradients of the parameters and of the input.

    Args:
        layers: the layers that ran.
        saved: from `mlp_forward(..., save=True)`.
        grad: [N, B, out] gradient of the summed losses with respect to the outputs.
        parameters, inputs: gradients to compute.

    Returns:
        The parameters' gradients, [N, numel] each, in the order of the rows' columns (empty without `parameters`),
        and the input's, [N, B, in] or None; with `beside` a pair, of the inputs and of what is beside them.
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
        batch = grad.shape[2]
        if layer.window is not None:
            grad = grad.reshape(*layer.bias.shape[:2], -1)
        beside, of_beside = keep.beside, grad
        if beside is not None:  # of inputs that K columns share
            grad = grad.reshape(*grad.shape[:2], -1, keep.inputs.shape[2]).sum(2)
        if parameters:
            of_weight, of_bias = torch.bmm(grad, keep.inputs.mT), grad.sum(2)
            if beside is not None:
                of_weight = torch.cat((of_weight, torch.bmm(of_beside, beside)), 2)
            sigma = _sigma_gradients(of_weight, of_bias, keep, layer.noise) if layer.noise is not None else ()
            blocks.append([of_weight.flatten(1), of_bias, *norm, *sigma])
        if beside is not None and inputs:
            width = keep.inputs.shape[1]
            both = torch.bmm(keep.weight[..., :width].mT, grad), torch.bmm(keep.weight[..., width:].mT, of_beside)
            return [part for block in reversed(blocks) for part in block], (both[0].mT, both[1].mT)
        if index > 0 or inputs:
            grad = torch.bmm(keep.weight.mT, grad)
            if layer.window is not None:
                grad = images(grad, layer.window, batch)
    return [part for block in reversed(blocks) for part in block], grad.mT if inputs else None


def patches(x: Tensor, window: Window) -> Tensor:
    """Return the pixels that each position of a kernel meets: images [N, C·H·W, B] -> [N, C·kernel, positions·B]."""
    (high, wide), (down, right) = window.padding, window.stride
    planes = x.view(len(x), window.channels, *window.size, x.shape[2])
    padded = nn.functional.pad(planes, (0, 0, wide, wide, high, high))
    windows = padded.unfold(2, window.kernel[0], down).unfold(3, window.kernel[1], right)
    return windows.permute(0, 1, 5, 6, 2, 3, 4).flatten(1, 3).flatten(2)


def images(grad: Tensor, window: Window, batch: int) -> Tensor:
    """Return the gradient [N, C·H·W, B] of images, given that of their `patches` [N, C·kernel, positions·B]."""
    (high, wide), (down, right), (height, width) = window.padding, window.stride, window.size
    rows, columns = (
        (n + 2 * p - k) // s + 1
        for n, p, k, s in zip(window.size, window.padding, window.kernel, window.stride, strict=True)
    )
    of_patches = grad.view(len(grad), window.channels, *window.kernel, rows, columns, batch)
    padded = grad.new_zeros(len(grad), window.channels, height + 2 * high, width + 2 * wide, batch)
    for y, x in itertools.product(*map(range, window.kernel)):
        padded[:, :, y : y + down * rows : down, x : x + right * columns : right] += of_patches[:, :, y, x]
    return padded[:, :, high : high + height, wide : wide + width].flatten(1, 3)


def _sigma_gradients(of_weight: Tensor, of_bias: Tensor, keep: Saved, noise: NoiseViews) -> list[Tensor]:
    """Return ∂L/∂σ of a noisy layer: the gradients of weight and bias times the noise that multiplied σ."""
    if keep.noise is None:  # it ran without noise
        return [torch.zeros_like(of_weight).flatten(1), torch.zeros_like(of_bias)]
    return [(of_weight * keep.noise).flatten(1), of_bias * noise.noise_out.squeeze(2)]


def _normalise(x: Tensor, layer: LayerViews) -> tuple[Tensor, Tensor]:
    """LayerNorm without its affine part (Ba et al. 2016, arXiv:1607.06450, eq. 4), over the real width only.

    Overwrites `x` [N, out, B]. Its padding is exactly zero, so the mean needs no mask; the centred values do.
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


# --- optimisers -------------------------------------------------------------------------------------------------------
#
# One call updates every parameter of every member. Each rule repeats the arithmetic of the `torch.optim` class of the
# same name, with learning rate and step count per member, so that rows and torch optimisers agree to rounding
# (`tests/differential/test_flat_optimisers.py`).


@dataclass(frozen=True)
class OptimizerRule:
    """Update rule of one optimiser.

    Attributes:
        kind: key of `RULES`.
        options: hashable (name, value) pairs of the rule's options.
    """

    kind: str
    options: tuple[tuple[str, Any], ...]


Batch = tuple[float, tuple[tuple[Tensor, ...], ...]]


@dataclass(slots=True)
class Columns:
    """Columns of one optimiser; every tensor is a view of the rows.

    Attributes:
        value, grad: [N, C] parameters and gradients.
        first, second: [N, C] first and second moments (momentum buffer and square average for SGD and RMSprop).
        step: [N, 1] float64, optimiser steps taken by each member.
        rows: per member the [C] rows of the first four and the [1] step count.
        batches: (tensor of rates, [(rate, rows of its members) per learning rate]); see `adam`.
    """

    value: Tensor
    grad: Tensor
    first: Tensor
    second: Tensor
    step: Tensor
    rows: list[tuple[Tensor, ...]] = field(init=False)
    batches: tuple[Tensor, list[Batch]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        tensors = (self.value, self.grad, self.first, self.second, self.step)
        self.rows = list(zip(*(x.unbind() for x in tensors), strict=True))


def step_live(columns: Columns, lr: Tensor, rule: OptimizerRule, live: Sequence[bool] | None = None) -> None:
    """Make one step of the rule for the members that are `live` [N] (None: all); the others are unchanged.

    A zero gradient would not suffice: momentum would still change the parameters.
    """
    if live is None or all(live):
        RULES[rule.kind].step(columns, lr, rule)
        return
    if not any(live):
        return
    if columns.value.device.type == "cpu" and RULES[rule.kind].step is adam:
        adam(columns, lr, rule, live)
        return
    rest = [row for row, goes in enumerate(live) if not goes]
    moved = (columns.value, columns.first, columns.second, columns.step)
    before = [x[rest] for x in moved]  # indexing copies
    RULES[rule.kind].step(columns, lr, rule)
    for x, previous in zip(moved, before, strict=True):
        x[rest] = previous


def adam(columns: Columns, lr: Tensor, rule: OptimizerRule, live: Sequence[bool] | None = None) -> None:
    """Adam (Kingma and Ba 2015, arXiv:1412.6980, algorithm 1); `lr` [N, 1]. AdamW (arXiv:1711.05101) decays first.

    On the CPU this is torch's fused kernel, one call for all members of one learning rate: a third of the time. The
    grouping by rate is cached until another tensor of rates is passed; its values are not compared.

    Args:
        live: [N], members to update; on the CPU only.
    """
    options = dict(rule.options)
    (beta1, beta2), decay, eps = options["betas"], options["weight_decay"], options["eps"]
    if columns.value.device.type == "cpu":
        if live is not None:
            columns.step[[row for row, goes in enumerate(live) if goes]] += 1
            batches = _by_rate(columns, lr, live)
        else:
            columns.step.add_(1)
            if columns.batches is None or columns.batches[0] is not lr:
                columns.batches = lr, _by_rate(columns, lr, [True] * len(columns.rows))
            batches = columns.batches[1]
        fused = torch._fused_adamw_ if rule.kind == "AdamW" else torch._fused_adam_
        for rate, (value, grads, first, second, step) in batches:
            numbers = {"lr": rate, "beta1": beta1, "beta2": beta2, "weight_decay": decay, "eps": eps}
            fused(value, grads, first, second, [], step, **numbers, amsgrad=False, maximize=False)
        return
    columns.step.add_(1)
    grad = columns.grad
    if decay:
        if rule.kind == "AdamW":
            columns.value.mul_(1 - lr * decay)
        else:
            grad = grad.add(columns.value, alpha=decay)
    columns.first.lerp_(grad, 1 - beta1)
    columns.second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    step_size = (lr / (1 - beta1**columns.step)).to(lr.dtype)
    root = (1 - beta2**columns.step).rsqrt_().to(lr.dtype)
    denominator = columns.second.sqrt().mul_(root).add_(eps)
    columns.value.sub_((columns.first * step_size).div_(denominator))


def _by_rate(columns: Columns, lr: Tensor, live: Sequence[bool]) -> list[Batch]:
    """Return (learning rate, rows of its live members: values, gradients, moments, step counts) per rate."""
    rows_by_rate: dict[float, list[tuple[Tensor, ...]]] = {}
    for row, rate, goes in zip(columns.rows, lr.flatten().tolist(), live, strict=True):
        if goes:
            rows_by_rate.setdefault(rate, []).append(row)
    return [(rate, tuple(zip(*rows, strict=True))) for rate, rows in rows_by_rate.items()]


def sgd(columns: Columns, lr: Tensor, rule: OptimizerRule) -> None:
    """Gradient descent with momentum as in `torch.optim.SGD` (dampening 0): buf = mu·buf + g; p -= lr·buf."""
    options = dict(rule.options)
    momentum, decay = options["momentum"], options["weight_decay"]
    grad = columns.grad.add(columns.value, alpha=decay) if decay else columns.grad
    columns.step.add_(1)
    if momentum:
        columns.first.mul_(momentum).add_(grad)
        grad = grad.add(columns.first, alpha=momentum) if options["nesterov"] else columns.first
    columns.value.sub_(grad * lr)


def rmsprop(columns: Columns, lr: Tensor, rule: OptimizerRule) -> None:
    """RMSprop (Hinton 2012, lecture 6e) as in `torch.optim.RMSprop` without centring; momentum is allowed."""
    options = dict(rule.options)
    alpha, eps, momentum, decay = (options[name] for name in ("alpha", "eps", "momentum", "weight_decay"))
    grad = columns.grad.add(columns.value, alpha=decay) if decay else columns.grad
    columns.step.add_(1)
    columns.second.mul_(alpha).addcmul_(grad, grad, value=1 - alpha)
    moved = grad / columns.second.sqrt().add_(eps)
    if momentum:
        moved = columns.first.mul_(momentum).add_(moved)
    columns.value.sub_(moved * lr)


@dataclass(frozen=True)
class _Kind:
    step: Callable[[Columns, Tensor, OptimizerRule], None]
    options: tuple[str, ...]
    moments: tuple[str | None, str | None]  # names of (first, second) in the torch optimiser's state
    refused: Mapping[str, Any]  # option values that the flat rule does not support


_ADAM = _Kind(adam, ("betas", "eps", "weight_decay"), ("exp_avg", "exp_avg_sq"), {"amsgrad": True, "maximize": True})
RULES: dict[str, _Kind] = {
    "Adam": _ADAM,
    "AdamW": _ADAM,
    "SGD": _Kind(sgd, ("momentum", "weight_decay", "nesterov"), ("momentum_buffer", None), {"maximize": True}),
    "RMSprop": _Kind(
        rmsprop,
        ("alpha", "eps", "weight_decay", "momentum"),
        ("momentum_buffer", "square_avg"),
        {"centered": True, "maximize": True},
    ),
}


def rule_of(optimizer: torch.optim.Optimizer) -> OptimizerRule | None:
    """Return the flat rule equivalent to `optimizer`, or None if the optimiser itself must run."""
    cls = type(optimizer)
    kind = RULES.get(cls.__name__)
    if kind is None or cls is not vars(torch.optim)[cls.__name__]:
        return None
    group = optimizer.param_groups[0]
    if any(group.get(name) == value for name, value in kind.refused.items()) or group.get("dampening"):
        return None
    options = tuple((name, group[name]) for name in kind.options)
    same = all(tuple((name, g[name]) for name in kind.options) == options for g in optimizer.param_groups)
    return OptimizerRule(cls.__name__, options) if same else None


def clip_rows(grad: Tensor, max_norm: Tensor) -> None:
    """Scale each member's gradient row [N, C] in place so that its 2-norm is at most `max_norm` [N, 1].

    Pascanu et al. 2013, arXiv:1211.5063, algorithm 1, with the 1e-6 of `torch.nn.utils.clip_grad_norm_`.
    """
    norm = torch.linalg.vector_norm(grad, dim=1, keepdim=True)
    grad.mul_((max_norm / (norm + 1e-6)).clamp_(max=1))


def track_rows(pairs: Sequence[tuple[Tensor, Tensor]], share: Tensor) -> None:
    """Soft-update targets in place: θ⁻ ← τ·θ + (1 − τ)·θ⁻ (Lillicrap et al. 2016, arXiv:1509.02971, algorithm 1).

    Args:
        pairs: (targets, values), views [N, C] of rows. share: τ, [N, 1] or a scalar.
    """
    for target, value in pairs:
        target.lerp_(value, share)


@dataclass(frozen=True, slots=True)
class Kernels:
    """Functions of one back end that run and update rows.

    Attributes:
        name: for records of a run.
        forward: see `mlp_forward`. backward: see `mlp_backward`.
        step: see `step_live`. track: see `track_rows`.
        whole: dtypes for which recipes run in C (`engine.rows.native`); updates of others run in torch.
    """

    name: str
    forward: Callable[..., tuple[Tensor, list[Saved]]]
    backward: Callable[[list[LayerViews], list[Saved], Tensor, bool, bool], tuple[list[Tensor], Any]]
    step: Callable[[Columns, Tensor, OptimizerRule, Sequence[bool] | None], None]
    track: Callable[[Sequence[tuple[Tensor, Tensor]], Tensor], None]
    whole: tuple[torch.dtype, ...] = ()


TORCH = Kernels("torch", mlp_forward, mlp_backward, step_live, track_rows)
NATIVE = replace(TORCH, name=f"native-{ABI}", whole=(torch.float32,))  # another version has other kernels
