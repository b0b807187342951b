"""Layers as functions, with or without a leading member axis, as `nn.Module` classes, and as data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agilerl.errors import ConfigError
from agilerl.modules.activations import activation

Factor = tuple[str, int]  # a group of units and its size
Axis = tuple[Factor, ...]  # one dimension of a parameter, slowest factor first: ((gate, 4), (hidden, H))
Initial = Callable[[Sequence[int], torch.Generator], Tensor]
CONVOLUTIONS: dict[str, type[nn.Module]] = {"Conv1d": nn.Conv1d, "Conv2d": nn.Conv2d, "Conv3d": nn.Conv3d}


def dense(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Affine map [..., O] for one member, or [N, B, O] for a stack of members.

    Args:
        x: [..., I], or [N, B, I] if `weight` has a member axis.
        weight: [O, I] or [N, O, I].
        bias: [O] or [N, O], or None.
    """
    if weight.dim() == 2:
        return F.linear(x, weight, bias)
    if bias is None:
        return torch.bmm(x, weight.transpose(1, 2))
    return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))


class Linear(nn.Linear):
    """`nn.Linear` with uninitialised weights: the owner samples them from its own generator."""

    def reset_parameters(self) -> None:
        """No-op: `init_linear` fills the weights."""


def init_linear(
    rows: int, columns: int, generator: torch.Generator, *, orthogonal: bool = True, gain: float = math.sqrt(2)
) -> Tensor:
    """Return initial weights [rows, columns] in float32 on the CPU.

    Orthogonal with `gain` (Saxe et al. 2014, arXiv:1312.6120), or torch's default for `nn.Linear`
    (uniform within 1/sqrt(columns)), in which case `gain` is not used.
    """
    weight = torch.empty(rows, columns)
    if weight.numel() == 0:
        return weight
    if orthogonal:
        return _orthogonal(weight.normal_(generator=generator)).mul_(gain)
    return nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)


def _orthogonal(normal: Tensor) -> Tensor:
    """Return a semi-orthogonal matrix from standard normal numbers [rows, columns] (Mezzadri 2007,
    arXiv:math-ph/0609050, sec. 5).

    Q of Z = QR with the signs of R's diagonal, which makes it uniform. Factorised in float64: LAPACK's rounding depends
    on vector instructions, and in float32 a seed gave different weights on different processors.
    """
    rows, columns = normal.shape
    tall = normal.T if rows < columns else normal
    q, r = torch.linalg.qr(tall.double())
    uniform: Tensor = (q * r.diagonal().sign()).to(normal.dtype)
    return (uniform.T if rows < columns else uniform).contiguous()


# -- learned factorised Gaussian noise (Fortunato et al. 2018, arXiv:1706.10295) ------------------------------------


def noisy_dense(
    x: Tensor, weight: Tensor, bias: Tensor, weight_sigma: Tensor, bias_sigma: Tensor,
    noise_in: Tensor, noise_out: Tensor,
) -> Tensor:  # fmt: skip
    """(w + σ_w ⊙ ε_out εᵢₙᵀ)·x + b + σ_b ⊙ ε_out, with or without a member axis.
    x: [..., I] or [N, B, I]; weight, weight_sigma: [O, I] or [N, O, I]; bias, bias_sigma: [O] or [N, O].
    noise_in: [I] or [N, I]; noise_out: [O] or [N, O], both already passed through f."""
    noise = noise_out.unsqueeze(-1) * noise_in.unsqueeze(-2)
    return dense(x, weight + weight_sigma * noise, bias + bias_sigma * noise_out)


def noisy_layers(module: nn.Module) -> list[NoisyLinear]:
    """Return the noisy layers of a network, in module order."""
    return [child for _, child in module.named_modules() if isinstance(child, NoisyLinear)]


def noise_size(module: nn.Module) -> int:
    """Return the number of values that `set_noise` takes."""
    return sum(layer.in_features + layer.out_features for layer in noisy_layers(module))


def layer_noise(module: nn.Module, rng: np.random.Generator, count: int) -> np.ndarray:
    """Draw a network's noise `count` times [count, noise_size], for `set_noise`."""
    draws = rng.standard_normal((count, noise_size(module)))
    return np.sign(draws) * np.sqrt(np.abs(draws))  # f(x) = sgn(x)·sqrt(|x|), equation 11 of the paper


def set_noise(module: nn.Module, values: Tensor) -> None:
    """Set the noise of every noisy layer, inputs before outputs: `values` [noise_size] of `layer_noise`."""
    position = 0
    for layer in noisy_layers(module):
        for noise in (layer.noise_in, layer.noise_out):
            noise.copy_(values[position : position + len(noise)])
            position += len(noise)


class NoisyLinear(nn.Module):
    """A dense layer with learned noise on its weights; noise-free in evaluation mode.

    `reset_noise(generator)` resamples the noise; the layer never does so itself. Weights are uninitialised (the owner
    fills them), the noise scales start at `noise_std`/sqrt(in_features), section 3.2 of the paper.
    """

    def __init__(self, in_features: int, out_features: int, noise_std: float = 0.5) -> None:
        super().__init__()
        self.in_features, self.out_features, self.noise_std = in_features, out_features, noise_std
        scale = noise_std / math.sqrt(in_features)
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features))
        self.weight_sigma = nn.Parameter(torch.full((out_features, in_features), scale))
        self.bias_sigma = nn.Parameter(torch.full((out_features,), scale))
        self.register_buffer("noise_in", torch.zeros(in_features))
        self.register_buffer("noise_out", torch.zeros(out_features))
        self.noise_in: Tensor
        self.noise_out: Tensor

    def reset_noise(self, generator: torch.Generator) -> None:
        """Resample the noise, in place, from a CPU generator."""
        for noise in (self.noise_in, self.noise_out):
            x = torch.randn(len(noise), generator=generator)
            noise.copy_(x.sign() * x.abs().sqrt())  # equation 11 of the paper

    def forward(self, x: Tensor) -> Tensor:
        """x [..., I] -> [..., O]."""
        if not self.training:
            return dense(x, self.weight, self.bias)
        return noisy_dense(x, self.weight, self.bias, self.weight_sigma, self.bias_sigma, self.noise_in, self.noise_out)


# -- purely dense networks as data ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Window:
    """Sizes of a 2D convolution: channels and pixels of its input; kernel, stride and padding along each axis."""

    channels: int
    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]


@dataclass(frozen=True)
class DenseLayer:
    """One layer: linear map, then (optional) affine LayerNorm, then (optional) activation.

    Attributes:
        in_features, out_features: widths; of a convolution channels times pixels.
        activation: name in `modules.activations.ACTIVATIONS`, or None for the identity.
        layer_norm: True if an affine LayerNorm over `out_features` stands between the linear map and the activation.
        noisy: True for a `modules.layers.NoisyLinear`.
        window: of a convolution, whose weight is [out channels, channels, *kernel]; None for a fully connected layer.
    """

    in_features: int
    out_features: int
    activation: str | None = None
    layer_norm: bool = False
    noisy: bool = False
    window: Window | None = None


@dataclass(frozen=True)
class DenseStack:
    """A network of convolutions and dense layers, so that a population of them can run as batched products.

    Attributes:
        layers: the layers, input to output; convolutions come first.
        parameters: per layer (weight [out, in], bias [out]), with LayerNorm followed by (norm weight [out], norm bias
            [out]), for a noisy layer by (weight sigma [out, in], bias sigma [out]): the network's `nn.Parameter`
            objects.
        noise: per layer the network's buffers (noise_in [in], noise_out [out]) of a noisy layer, else ().
        is_cell: the recurrence of a cell: one plain layer, run once per step of a sequence.
    """

    layers: tuple[DenseLayer, ...]
    parameters: tuple[tuple[nn.Parameter, ...], ...]
    noise: tuple[tuple[Tensor, ...], ...] = ()
    is_cell: bool = False

    @property
    def buffers(self) -> tuple[tuple[Tensor, ...], ...]:
        """`noise`, with one entry per layer."""
        return self.noise or ((),) * len(self.layers)


# -- layers of a `LayeredModule` as data ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """One layer as data.

    Attributes:
        make: creates the module, with uninitialised parameters.
        key: properties other than parameter shapes (stride, activation); unchanged layers are kept.
        axes: parameter name -> its dimensions, starting with the layer's own units.
        initial: parameter name -> its initial values.
    """

    make: Callable[[], nn.Module]
    key: tuple[Any, ...]
    axes: Mapping[str, tuple[Axis, ...]] = field(default_factory=dict)
    initial: Mapping[str, Initial] = field(default_factory=dict)


def length(axis: Axis) -> int:
    """Return the number of entries along one dimension."""
    return int(np.prod([size for _, size in axis], dtype=np.int64))


def zeros(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Zeros; uses no random numbers."""
    return torch.zeros(tuple(shape))


def ones(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Ones; uses no random numbers."""
    return torch.ones(tuple(shape))


def orthogonal(gain: float) -> Initial:
    """Orthogonal rows of the flattened weight (Saxe et al. 2014, arXiv:1312.6120), scaled by `gain`."""

    def draw(shape: Sequence[int], generator: torch.Generator) -> Tensor:
        return init_linear(shape[0], math.prod(shape[1:]), generator, gain=gain).reshape(tuple(shape))

    return draw


def he_normal(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """N(0, 2 / fan-in) (He et al. 2015, arXiv:1502.01852, eq. 10)."""
    return torch.randn(tuple(shape), generator=generator) * math.sqrt(2 / math.prod(shape[1:]))


def normal(deviation: float) -> Initial:
    """N(0, `deviation`²)."""

    def draw(shape: Sequence[int], generator: torch.Generator) -> Tensor:
        return torch.randn(tuple(shape), generator=generator) * deviation

    return draw


def uniform(bound: float) -> Initial:
    """Uniform within ±`bound`."""

    def draw(shape: Sequence[int], generator: torch.Generator) -> Tensor:
        return (torch.rand(tuple(shape), generator=generator) * 2 - 1) * bound

    return draw


def linear(rows: Axis, columns: Axis, weight: Initial, bias: Initial = zeros) -> Layer:
    """A dense layer from `columns` to `rows`."""
    return _weighted(lambda: Linear(length(columns), length(rows)), ("linear",), (rows, columns), weight, bias)


def convolution(
    kind: str, rows: Axis, columns: Axis, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    name: str, weight: Initial,
) -> Layer:  # fmt: skip
    """A convolution from channels `columns` to channels `rows`; `name` identifies its kernel axes in changes."""
    taps: tuple[Axis, ...] = tuple(((f"{name}_axis_{i}", size),) for i, size in enumerate(kernel))
    sizes = tuple(kernel), tuple(stride), tuple(padding)
    make: Any = partial(nn.utils.skip_init, CONVOLUTIONS[kind])  # does not use torch's global generator
    return _weighted(
        lambda: make(length(columns), length(rows), *sizes), (kind, *sizes), (rows, columns, *taps), weight
    )


def layer_norm(units: Axis, eps: float = 1e-5) -> Layer:
    """An affine LayerNorm over the last axis."""
    return _weighted(lambda: nn.LayerNorm(length(units), eps), ("layer_norm", eps), (units,), ones)


def image_norm(channels: Axis) -> Layer:
    """LayerNorm over channels and pixels with one scale and shift per channel (GroupNorm with a single group)."""
    return _weighted(lambda: nn.GroupNorm(1, length(channels)), ("image_norm",), (channels,), ones)


def _weighted(
    make: Callable[[], nn.Module], key: tuple[Any, ...], axes: tuple[Axis, ...], weight: Initial, bias: Initial = zeros
) -> Layer:
    return Layer(make, key, {"weight": axes, "bias": axes[:1]}, {"weight": weight, "bias": bias})


def activation_layer(name: str | None, *, hidden: bool) -> Layer:
    """An activation by name."""
    return Layer(activation(name, hidden=hidden).module, ("activation", name))


def as_widths(value: object, what: str) -> list[int]:
    """A list of positive layer widths from a sequence of integers."""
    widths = [int(v) for v in value] if isinstance(value, (list, tuple, np.ndarray)) else None
    if not widths or min(widths) < 1:
        raise ConfigError(f"{what} must be a non-empty list of positive integers; got {value!r}. fix: {what}=[64].")
    return widths


def whole(value: object, what: str, least: int = 1, fix: str | None = None) -> int:
    """Return an integer of at least `least`; ConfigError, with the fix, otherwise."""
    number = value.__index__() if hasattr(value, "__index__") and not isinstance(value, bool) else None
    if number is None or number < least:
        raise ConfigError(f"{what} must be an integer of at least {least}; got {value!r}. fix: {fix or least}.")
    return int(number)
