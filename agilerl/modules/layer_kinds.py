"""The layers that a `LayeredModule` is made of, as data."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agilerl.errors import ConfigError
from agilerl.modules.activations import activation
from agilerl.modules.layered import Axis, Initial, Layer, length
from agilerl.modules.layers import Linear, init_linear

CONVOLUTIONS: dict[str, type[nn.Module]] = {"Conv1d": nn.Conv1d, "Conv2d": nn.Conv2d, "Conv3d": nn.Conv3d}


def zeros(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Zeros; draws nothing."""
    return torch.zeros(tuple(shape))


def ones(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Ones; draws nothing."""
    return torch.ones(tuple(shape))


def orthogonal(gain: float) -> Initial:
    """Rows of the flattened weight orthogonal (Saxe et al. 2014, arXiv:1312.6120), scaled by `gain`."""

    def draw(shape: Sequence[int], generator: torch.Generator) -> Tensor:
        return init_linear(shape[0], math.prod(shape[1:]), generator, gain=gain).reshape(tuple(shape))

    return draw


def he_normal(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """N(0, 2 / fan-in) (He et al. 2015, arXiv:1502.01852, eq. 10)."""
    return torch.randn(tuple(shape), generator=generator) * math.sqrt(2 / math.prod(shape[1:]))


def uniform(bound: float) -> Initial:
    """Uniform within ±`bound`."""

    def draw(shape: Sequence[int], generator: torch.Generator) -> Tensor:
        return (torch.rand(tuple(shape), generator=generator) * 2 - 1) * bound

    return draw


def linear(rows: Axis, columns: Axis, weight: Initial, bias: Initial = zeros) -> Layer:
    """A dense layer from `columns` to `rows`."""
    return Layer(
        lambda: Linear(length(columns), length(rows)),
        ("linear",),
        {"weight": (rows, columns), "bias": (rows,)},
        {"weight": weight, "bias": bias},
    )


def convolution(
    kind: str,
    rows: Axis,
    columns: Axis,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    name: str,
    weight: Initial,
) -> Layer:
    """A convolution from channels `columns` to channels `rows`; `name` makes its kernel axes known to changes."""
    make: Any = unset(CONVOLUTIONS[kind])
    taps: tuple[Axis, ...] = tuple(((f"{name}_axis_{i}", size),) for i, size in enumerate(kernel))
    return Layer(
        lambda: make(length(columns), length(rows), tuple(kernel), tuple(stride), tuple(padding)),
        (kind, tuple(kernel), tuple(stride), tuple(padding)),
        {"weight": (rows, columns, *taps), "bias": (rows,)},
        {"weight": weight, "bias": zeros},
    )


def layer_norm(units: Axis, eps: float = 1e-5) -> Layer:
    """An affine LayerNorm over the last axis."""
    return Layer(
        lambda: nn.LayerNorm(length(units), eps),
        ("layer_norm", eps),
        {"weight": (units,), "bias": (units,)},
        {"weight": ones, "bias": zeros},
    )


def image_norm(channels: Axis) -> Layer:
    """LayerNorm over channels and pixels with one scale and shift a channel (GroupNorm with a single group)."""
    return Layer(
        lambda: nn.GroupNorm(1, length(channels)),
        ("image_norm",),
        {"weight": (channels,), "bias": (channels,)},
        {"weight": ones, "bias": zeros},
    )


def activation_layer(name: str | None, *, hidden: bool) -> Layer:
    """An activation by name."""
    return Layer(activation(name, hidden=hidden).module, ("activation", name))


def unset(kind: type[nn.Module]) -> Callable[..., nn.Module]:
    """Makes modules of a class of torch's without drawing their weights from torch's global generator."""

    def make(*arguments: Any) -> nn.Module:
        made: nn.Module = nn.utils.skip_init(kind, *arguments)  # type: ignore[no-untyped-call]
        return made

    return make


def as_widths(value: Any, what: str) -> list[int]:
    """A list of positive layer widths from a sequence of integers."""
    widths = [int(v) for v in value] if isinstance(value, (list, tuple, np.ndarray)) else None
    if not widths or min(widths) < 1:
        raise ConfigError(f"{what} must be a non-empty list of positive integers (layer widths); got {value!r}.")
    return widths


def whole(value: Any, what: str, least: int = 1) -> int:
    """An integer of at least `least`, or ConfigError that names it."""
    number = value if isinstance(value, int) and not isinstance(value, bool) else None
    if number is None and hasattr(value, "__index__") and not isinstance(value, bool):
        number = value.__index__()
    if number is None or number < least:
        raise ConfigError(f"{what} must be an integer of at least {least}; got {value!r}.")
    return int(number)
