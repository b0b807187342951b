"""Sizes of stacked convolutions: what fits, what follows, and where pixels go when a kernel changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from agilerl.errors import ConfigError, unknown_name
from agilerl.modules.layer_kinds import CONVOLUTIONS, whole
from agilerl.modules.morph import FRESH, Index

PROBE_IMAGES, PROBE_VALUES = (32, 256), 2**25  # images to judge by, and activations that they may fill (128 MiB)
Sizes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ConvGeometry:
    """Convolutions one after another.

    Attributes:
        input_size: pixels along each axis of the input.
        kernels, strides, paddings: per layer, one per axis.
    """

    input_size: tuple[int, ...]
    kernels: Sizes
    strides: Sizes
    paddings: Sizes

    @property
    def sizes(self) -> Sizes:
        """Pixels of every layer's output: floor((n + 2·padding − kernel) / stride) + 1, layer after layer."""
        found, size = [], self.input_size
        for kernel, stride, padding in zip(self.kernels, self.strides, self.paddings, strict=True):
            size = tuple((n + 2 * p - k) // s + 1 for n, k, s, p in zip(size, kernel, stride, padding, strict=True))
            found.append(size)
        return tuple(found)

    def input_of(self, layer: int) -> tuple[int, ...]:
        """Pixels that a layer reads."""
        return self.sizes[layer - 1] if layer > 0 else self.input_size

    @property
    def fits(self) -> bool:
        """True if every layer has at least one output pixel along every axis."""
        return all(size >= 1 for layer in self.sizes for size in layer)

    def with_kernel(self, layer: int, kernel: int) -> ConvGeometry | None:
        """The same with another kernel size in one layer, padded so that it looks at the same centre; None if it
        does not fit. `kernel` is that of the first axis; the others change by as much."""
        change = kernel - self.kernels[layer][0]
        new = tuple(k + change for k in self.kernels[layer])
        padding = tuple(max(p + change // 2, 0) for p in self.paddings[layer])
        if min(new) < 1:
            return None
        kernels = (*self.kernels[:layer], new, *self.kernels[layer + 1 :])
        paddings = (*self.paddings[:layer], padding, *self.paddings[layer + 1 :])
        changed = replace(self, kernels=kernels, paddings=paddings)
        return changed if changed.fits else None


def centred(old_size: int, new_size: int) -> Index:
    """Old position of each new one when both are laid upon each other by their centres; -1 beyond the old rim."""
    index = np.arange(new_size, dtype=np.int64) + (old_size - new_size) // 2
    return np.where((index >= 0) & (index < old_size), index, FRESH)


def dims_of(block_type: str) -> int:
    """Axes that a convolution slides along."""
    if block_type not in CONVOLUTIONS:
        raise ConfigError("Invalid block type: " + unknown_name("block_type", str(block_type), CONVOLUTIONS))
    return int(block_type[4])


def image_shape(input_shape: Sequence[int], sample_input: Any, dims: int) -> tuple[int, ...]:
    """(channels, pixels along each axis) from the shape given or, where there is one, from a sample [B, ...]."""
    shape = tuple(int(n) for n in (input_shape if sample_input is None else sample_input.shape[1:]))
    if len(shape) != dims + 1 or min(shape) < 1:
        hint = " fix: give sample_input, a tensor [B, channels, depth, height, width]." if dims == 3 else ""
        raise ConfigError(
            f"input_shape of a Conv{dims}d network must be (channels, {dims} sizes), all positive; got {shape}.{hint}"
        )
    return shape


def listed(value: Any, what: str) -> list[Any]:
    """A non-empty list."""
    if not isinstance(value, list | tuple | np.ndarray) or len(value) == 0:
        raise ConfigError(f"{what} must be a non-empty list with one entry per layer; got {value!r}.")
    return list(value)


def per_axis(value: Any, layers: int, dims: int, what: str, least: int = 1) -> Sizes:
    """One tuple of `dims` integers per layer, from one integer, a list of integers, or a list of tuples."""
    if isinstance(value, list | tuple | np.ndarray):
        given = listed(value, what)
    else:
        given = [value] * layers
    if len(given) != layers:
        raise ConfigError(f"{what} must have one entry per layer, {layers} as channel_size has; got {value!r}.")
    found = []
    for i, entry in enumerate(given):
        axes = list(entry) if isinstance(entry, list | tuple | np.ndarray) else [entry] * dims
        if len(axes) != dims:
            raise ConfigError(f"{what} of layer {i} must have a length of {dims}, one per axis; got {entry!r}.")
        found.append(tuple(whole(n, f"{what} of layer {i}", least) for n in axes))
    return tuple(found)


def plain(sizes: Sizes) -> list[Any]:
    """Per layer an integer where all axes agree, else a list: as a user writes it, and as JSON keeps it."""
    return [layer[0] if len(set(layer)) == 1 else list(layer) for layer in sizes]


def check_fits(geometry: ConvGeometry) -> None:
    """Raise ConfigError that names the first layer whose kernel is larger than what it reads."""
    for layer, size in enumerate(geometry.sizes):
        if min(size) < 1:
            raise ConfigError(
                f"layer {layer} has a kernel of {geometry.kernels[layer]} for an input of {geometry.input_of(layer)} "
                "pixels. fix: smaller kernel_size or stride_size, or fewer layers."
            )


def probe_count(values: int) -> int:
    """How many probe images to keep where one image makes so many activations."""
    return int(min(max(PROBE_VALUES // max(values, 1), PROBE_IMAGES[0]), PROBE_IMAGES[1]))
