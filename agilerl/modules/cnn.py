"""Evolvable convolutional network, and the geometry of stacked convolutions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from agilerl.core.tree import Tree
from agilerl.errors import ConfigError, unknown_choice
from agilerl.modules import layers
from agilerl.modules.activations import activation as known_activation
from agilerl.modules.base import MutationType, Refused, is_untouched, mutation, single_draw
from agilerl.modules.layered import OUTPUT, LayeredModule, check_limits, drawn_step
from agilerl.modules.layers import Axis, DenseStack, Layer, whole
from agilerl.modules.mlp import FEATURES, IDEMPOTENT
from agilerl.modules.morph import FRESH, Index, Transfer, fresh, grown, leading, same

GAIN = 2**0.5
CHANNEL_STEPS = (8, 16, 32)
NEW_KERNELS = (3, 5, 7)
LARGEST_KERNEL = 9
MUTABLE_LAYERS = 3  # change_kernel applies to layers 1..3, as published
PROBE_IMAGES, PROBE_VALUES = (32, 256), 2**25  # maximum probe images, and activations (128 MiB)
RUN_BY = ("forward", "output_features", "feature_maps", "finish")  # methods by which a subclass may change how it runs
Sizes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class ConvGeometry:
    """A sequence of convolutions.

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
        """Return the output pixels of every layer: floor((n + 2·padding − kernel) / stride) + 1."""
        sizes, size = [], self.input_size
        for kernel, stride, padding in zip(self.kernels, self.strides, self.paddings, strict=True):
            size = tuple((n + 2 * p - k) // s + 1 for n, k, s, p in zip(size, kernel, stride, padding, strict=True))
            sizes.append(size)
        return tuple(sizes)

    def input_of(self, layer: int) -> tuple[int, ...]:
        """Return the input pixels of a layer."""
        return self.sizes[layer - 1] if layer > 0 else self.input_size

    def with_kernel(self, layer: int, kernel: int) -> ConvGeometry | None:
        """Return a copy with another kernel size in one layer, padded to keep the same centre; None if it does not
        fit. `kernel` refers to the first axis; the others change by the same amount."""
        change = kernel - self.kernels[layer][0]
        new = tuple(k + change for k in self.kernels[layer])
        padding = tuple(max(p + change // 2, 0) for p in self.paddings[layer])
        if min(new) < 1:
            return None
        kernels = (*self.kernels[:layer], new, *self.kernels[layer + 1 :])
        paddings = (*self.paddings[:layer], padding, *self.paddings[layer + 1 :])
        changed = replace(self, kernels=kernels, paddings=paddings)
        return changed if all(min(size) >= 1 for size in changed.sizes) else None


def centred(old_size: int, new_size: int) -> Index:
    """Map new positions to old ones, aligned at their centres; -1 beyond the old range."""
    index = np.arange(new_size, dtype=np.int64) + (old_size - new_size) // 2
    return np.where((index >= 0) & (index < old_size), index, FRESH)


def dims_of(block_type: str) -> int:
    """Return the number of spatial axes of a convolution."""
    if block_type not in layers.CONVOLUTIONS:
        raise ConfigError("Invalid block type: " + unknown_choice("block_type", str(block_type), layers.CONVOLUTIONS))
    return int(block_type[4])


def image_shape(input_shape: Sequence[int], sample_input: Tensor | None, dims: int) -> tuple[int, ...]:
    """Return (channels, pixels along each axis) from the given shape, or from a sample [B, ...] if there is one."""
    shape = tuple(int(n) for n in (input_shape if sample_input is None else sample_input.shape[1:]))
    if len(shape) != dims + 1 or min(shape) < 1:
        hint = " fix: give sample_input, a tensor [B, channels, depth, height, width]." if dims == 3 else ""
        raise ConfigError(f"input_shape of a Conv{dims}d is (channels, {dims} sizes), all above 0; got {shape}.{hint}")
    return shape


def listed(value: object, what: str) -> list[Any]:
    """Return a non-empty list."""
    if not isinstance(value, list | tuple | np.ndarray) or len(value) == 0:
        raise ConfigError(f"{what} must be a non-empty list with one entry per layer; got {value!r}. fix: {what}=[3].")
    return list(value)


def per_axis(value: object, layers: int, dims: int, what: str, least: int = 1, first: Sequence[int] = ()) -> Sizes:
    """Return `dims` integers per layer, from an integer, integers, or tuples; integers may be `first` on one axis."""
    entries = listed(value, what) if isinstance(value, list | tuple | np.ndarray) else [value] * layers
    if len(entries) != layers:
        raise ConfigError(f"{what} must have one entry per layer, {layers}; got {value!r}. fix: {layers} entries.")
    sizes = []
    for i, entry in enumerate(entries):
        axes = entry if isinstance(entry, list | tuple | np.ndarray) else [*first[i : i + 1], *[entry] * dims][:dims]
        if len(axes) != dims:
            raise ConfigError(f"{what} of layer {i} must have a length of {dims}, one per axis; got {entry!r}.")
        sizes.append(tuple(whole(n, f"{what} of layer {i}", least) for n in axes))
    return tuple(sizes)


def plain(sizes: Sizes) -> list[Any]:
    """Return an integer per layer if all axes agree, else a list: the form used by users and in JSON."""
    return [layer[0] if len(set(layer)) == 1 else list(layer) for layer in sizes]


GEOMETRY = ("channel_size", "kernel_size", "stride_size", "padding_size")
LARGE, MIDDLE = 40, 12  # thresholds of the shorter side, in pixels, for different default layers
WIDEST_MAP = 10  # maximum side of the last layer's output, which a dense layer reads
MAX_LAYERS = 6  # of a network without explicit limits
MAX_PIXELS = 32 * 32  # of images whose networks run over rows: beyond, patches are slower than torch's convolution


def usual_layers(input_shape: Sequence[int]) -> dict[str, Any]:
    """Return default channels, kernels and strides for images [C, H, W] of this size.

    From `LARGE` pixels those of Mnih et al. 2015 (methods), followed by layers of stride 2 until at most `WIDEST_MAP`
    pixels are left along each side; from `MIDDLE` two layers of stride 2; below that two of stride 1, with kernels no
    larger than the image. The following dense layer dominates the parameter count: at most WIDEST_MAP² * 64 inputs for
    square images.
    """
    sides = [int(n) for n in input_shape[1:]]
    if min(sides) >= LARGE:
        channels, kernels, strides = [32, 64, 64], [8, 4, 3], [4, 2, 1]
    elif min(sides) >= MIDDLE:
        channels, kernels, strides = [32, 64], [4, 3], [2, 2]
    else:
        channels, kernels, strides = [32, 32], [], [1, 1]
        side = min(sides)
        for _ in channels:
            kernels.append(min(3, side))
            side -= kernels[-1] - 1
    for kernel, stride in zip(kernels, strides, strict=True):
        sides = [(n - kernel) // stride + 1 for n in sides]
    while max(sides) > WIDEST_MAP and min(sides) >= 3:
        channels, kernels, strides = [*channels, 64], [*kernels, 3], [*strides, 2]
        sides = [(n - 3) // 2 + 1 for n in sides]
    config: dict[str, Any] = {"channel_size": channels, "kernel_size": kernels, "stride_size": strides}
    return {**config, "max_hidden_layers": len(channels)} if len(channels) > MAX_LAYERS else config


def planar(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return Conv2d options for Conv3d ones, which read single images as published: as volumes of depth 1."""
    if options.get("block_type") != "Conv3d":
        return options
    layers = {name: options[name] for name in ("kernel_size", "stride_size", "padding_size") if name in options}
    for name, sizes in layers.items():
        if isinstance(sizes, list | tuple):
            layers[name] = [size[-2:] if isinstance(size, list | tuple) else size for size in sizes]
    return {**options, **layers, "block_type": "Conv2d"}


def with_usual_layers(config: Mapping[str, Any], input_shape: Sequence[int]) -> dict[str, Any]:
    """Fill in `usual_layers` of images unless `config` specifies any layer option; see also `planar`."""
    if len(input_shape) != 3:
        return dict(config)
    config = planar(config)
    is_set = any(config.get(name) is not None for name in GEOMETRY) or config.get("block_type") not in (None, "Conv2d")
    return dict(config) if is_set else {**usual_layers(input_shape), **config}


def check_fits(geometry: ConvGeometry) -> None:
    """Raise ConfigError naming the first layer whose kernel is larger than its input."""
    for layer, size in enumerate(geometry.sizes):
        if min(size) < 1:
            raise ConfigError(
                f"layer {layer} has a kernel of {geometry.kernels[layer]} for an input of {geometry.input_of(layer)} "
                "pixels. fix: smaller kernel_size or stride_size, or fewer layers."
            )


def probe_count(values: int) -> int:
    """Return the number of probe images to store, given the activations per image."""
    return int(min(max(PROBE_VALUES // max(values, 1), PROBE_IMAGES[0]), PROBE_IMAGES[1]))


class EvolvableCNN(LayeredModule):
    """A convolutional network with evolving depth, channels and kernels: convolutions, then one dense output layer.

    Layer i is `conv_i`, `norm_i` (with `layer_norm`), `act_i`; the output layer is `linear_output`. Growth is exact for
    new channels without normalisation, for new layers after ReLU (a padded identity convolution), and for larger
    kernels (a ring of zeros and one more pixel of padding). Other mutations are approximate: with probe inputs the
    output layer is refitted.

    Args:
        input_shape: (channels, length), (channels, height, width) or (channels, depth, height, width).
        num_outputs: width of the output.
        channel_size: channels of each layer.
        kernel_size, stride_size, padding_size: per layer an integer or one per axis; a single value applies to all.
        sample_input: an input [B, ...] that defines the shape; with Conv3d also the depth of kernels that are numbers.
        block_type: "Conv1d", "Conv2d" or "Conv3d".
        activation, output_activation: names in `modules.activations.ACTIVATIONS`.
        min_hidden_layers, max_hidden_layers, min_channel_size, max_channel_size: limits of the mutations, inclusive.
        layer_norm: normalise every layer's output over channels and pixels; growth is then approximate.
        init_layers: orthogonal weights with gain sqrt(2), else torch's default.

    Raises:
        ValueError: unknown block type, wrong number of kernel axes, or layers that do not fit the input.
    """

    def __init__(
        self, input_shape: Sequence[int], num_outputs: int,
        channel_size: Sequence[int] = (32, 32), kernel_size: object = 3, stride_size: object = 1,
        sample_input: Tensor | None = None, block_type: str = "Conv2d",
        activation: str | None = "ReLU", output_activation: str | None = None,
        min_hidden_layers: int = 1, max_hidden_layers: int = 6, min_channel_size: int = 16, max_channel_size: int = 256,
        layer_norm: bool = False, init_layers: bool = True,
        device: str | torch.device = "cpu", name: str = "cnn", random_seed: int | None = None,
        *, padding_size: object = 0,
    ) -> None:  # fmt: skip
        super().__init__(device, random_seed)
        dims = dims_of(block_type)
        self.block_type = block_type
        self.input_shape = image_shape(input_shape, sample_input, dims)
        self.sample_input = None  # only its shape is needed
        self.num_outputs = whole(num_outputs, "num_outputs")
        self.channel_size = [whole(c, "channel_size, of each layer,") for c in listed(channel_size, "channel_size")]
        depth = len(self.channel_size)
        depths = [self.input_shape[1], *[1] * depth] if dims == 3 and sample_input is not None else []  # as published
        self.kernel_size = plain(per_axis(kernel_size, depth, dims, "kernel_size", first=depths))
        self.stride_size = plain(per_axis(stride_size, depth, dims, "stride_size"))
        self.padding_size = plain(per_axis(padding_size, depth, dims, "padding_size", least=0))
        limits = (min_hidden_layers, max_hidden_layers), (min_channel_size, max_channel_size)
        check_limits(dict(zip(("layers", "channels"), limits, strict=True)))
        known_activation(activation, hidden=True)
        self.activation, self.output_activation = activation, output_activation
        self.min_hidden_layers, self.max_hidden_layers = min_hidden_layers, max_hidden_layers
        self.min_channel_size, self.max_channel_size = min_channel_size, max_channel_size
        self.layer_norm, self.init_layers, self.name = bool(layer_norm), bool(init_layers), name
        check_fits(self.geometry)
        self.build()

    @property
    def geometry(self) -> ConvGeometry:
        """Kernels, strides and paddings per layer and axis, and the resulting sizes."""
        dims, depth = dims_of(self.block_type), len(self.channel_size)
        least = {"kernel_size": 1, "stride_size": 1, "padding_size": 0}
        values = (per_axis(getattr(self, name), depth, dims, name, n) for name, n in least.items())
        return ConvGeometry(tuple(self.input_shape[1:]), *values)

    def layers(self) -> dict[str, Layer]:
        """Return per layer `conv`, `norm`, `act`; then `linear_output`."""
        shape, specs = self.geometry, {}
        rows: Axis
        columns: Axis
        widths = [self.input_shape[0], *self.channel_size]
        for i in range(len(self.channel_size)):
            rows, columns = ((channels(i), widths[i + 1]),), ((channels(i - 1), widths[i]),)
            fan_in = widths[i] * int(np.prod(shape.kernels[i]))
            weight = layers.orthogonal(GAIN) if self.init_layers else layers.uniform(fan_in**-0.5)
            taps = shape.kernels[i], shape.strides[i], shape.paddings[i]
            specs[f"conv_{i}"] = layers.convolution(self.block_type, rows, columns, *taps, f"conv_{i}", weight)
            if self.layer_norm:
                specs[f"norm_{i}"] = layers.image_norm(rows)
            specs[f"act_{i}"] = layers.activation_layer(self.activation, hidden=True)
        pixels = tuple((f"pixel_{axis}", size) for axis, size in enumerate(shape.sizes[-1]))
        columns = ((FEATURES, widths[-1]), *pixels)
        inputs = widths[-1] * int(np.prod(shape.sizes[-1]))
        usual = layers.uniform(inputs**-0.5)
        weight, bias = (layers.orthogonal(GAIN), layers.zeros) if self.init_layers else (usual, usual)
        specs[OUTPUT] = layers.linear((("output", self.num_outputs),), columns, weight, bias)
        specs["act_output"] = layers.activation_layer(self.output_activation, hidden=False)
        return specs

    def feature_maps(self, x: Tensor, depth: int | None = None) -> Tensor:
        """Return the output of layer `depth` - 1 (the last one by default) [B, C, ...] for images [B, C, ...]."""
        for i in range(len(self.channel_size) if depth is None else depth):
            x = self.model[f"conv_{i}"](x)
            if self.layer_norm:
                x = self.model[f"norm_{i}"](x)
            x = self.model[f"act_{i}"](x)
        return x

    def output_features(self, x: Tensor) -> Tensor:
        """Return the flattened output of the last convolutional layer [B, F]."""
        return self.feature_maps(self.as_input(x)).flatten(1)

    def dense_stack(self) -> DenseStack | None:
        """Return layers and parameters of plain 2D convolutions of at most `MAX_PIXELS`; None if a hook or a subclass
        adds to them."""
        names = (self.activation, self.output_activation)
        kinds = itertools.takewhile(lambda kind: kind is not EvolvableCNN, type(self).__mro__)
        is_plain = not any(name in vars(kind) for kind in kinds for name in RUN_BY)
        is_plain = is_plain and self.block_type == "Conv2d" and not self.layer_norm and is_untouched(self)
        is_small = math.prod(self.input_shape[1:]) <= MAX_PIXELS  # the same in all members, whatever evolution adds
        if not is_plain or not is_small or not all(known_activation(name).pointwise for name in names):
            return None
        shape, widths, stack = self.geometry, [self.input_shape[0], *self.channel_size], []
        act, output_act = (None if name == "Identity" else name for name in names)
        for i, (below, above) in enumerate(itertools.pairwise(widths)):
            taps: Any = shape.kernels[i], shape.strides[i], shape.paddings[i]
            sizes: Any = shape.input_of(i), shape.sizes[i]
            inputs, outputs = (c * math.prod(n) for c, n in zip((below, above), sizes, strict=True))
            stack.append(layers.DenseLayer(inputs, outputs, act, window=layers.Window(below, sizes[0], *taps)))
        stack.append(layers.DenseLayer(stack[-1].out_features, self.num_outputs, output_act))
        modules = [self.model[f"conv_{i}"] for i in range(len(self.channel_size))] + [self.model[OUTPUT]]
        parameters: Any = tuple((module.weight, module.bias) for module in modules)
        return DenseStack(tuple(stack), parameters)

    def forward(self, x: Tree) -> Tensor:
        """Images [..., C, H, W] (as many axes as `input_shape`) -> [..., O]; one image gives [1, O]."""
        x = self.as_input(x)
        lead = x.shape[: x.dim() - len(self.input_shape)] or (1,)
        return self.finish(self.output_features(x.reshape(-1, *self.input_shape))).reshape(*lead, self.num_outputs)

    def probe(self, inputs: Any) -> None:
        """Store the first images [B, ...], as many as memory allows; None clears them."""
        maps = zip(self.channel_size, self.geometry.sizes, strict=True)
        count = probe_count(sum(c * int(np.prod(size)) for c, size in maps))
        super().probe(None if inputs is None else inputs[:count])

    @torch.no_grad()
    def importance(self, layer: int) -> Tensor:
        """Return the importance of each channel of a layer for the following layer [C]."""
        conv: Any = self.model[f"conv_{layer}"]
        if self.probe_inputs is None:
            strength = conv.weight.flatten(1).norm(dim=1)
        else:
            maps = self.feature_maps(self.as_input(self.probe_inputs), layer + 1)
            strength = maps.abs().flatten(2).mean((0, 2))
        is_last = layer == len(self.channel_size) - 1
        above: Any = self.model[OUTPUT if is_last else f"conv_{layer + 1}"]
        read = above.weight.reshape(above.weight.shape[0], len(strength), -1)
        return cast(Tensor, strength * read.norm(dim=(0, 2)))

    @property
    def mut_kernel_size(self) -> list[Any]:
        """Current kernel sizes per layer."""
        return list(self.kernel_size)

    def short(self) -> str:
        return " ".join(["cnn", *(f"{c}k{k}" for c, k in zip(self.channel_size, self.kernel_size, strict=True))])

    # -- mutations -----------------------------------------------------------------------------------------------

    def can_apply(self, name: str) -> bool:
        depth = len(self.channel_size)
        room = {
            "add_layer": depth < self.max_hidden_layers and min(self.geometry.sizes[-1]) > 2,
            "remove_layer": depth > self.min_hidden_layers,
            "add_channel": any(self._can_add(c, CHANNEL_STEPS[0]) for c in self.channel_size),
            "remove_channel": any(self._can_remove(c, CHANNEL_STEPS[0]) for c in self.channel_size),
            "change_kernel": any(self._kernel_steps(i) for i in self._mutable_layers()),
        }
        return room.get(name, True)

    @mutation(MutationType.LAYER)
    def add_layer(self) -> dict[str, Any]:
        """Append a convolution of the last width: a padded identity, exact after ReLU without normalisation; with
        `fresh="random"` an unpadded one with a random kernel and stride, as published."""
        if not self.can_apply("add_layer"):
            return Refused()
        depth, width, smallest = len(self.channel_size), self.channel_size[-1], min(self.geometry.sizes[-1])
        if self.fresh == "random":
            kernel, stride = self._draw(range(2, min(smallest, NEW_KERNELS[-1]) + 1)), self._draw((1, 2))
            padding = 0
        else:
            kernel, stride = self._draw([k for k in NEW_KERNELS if k <= smallest]), 1
            padding = kernel // 2
            weight = torch.zeros(width, width, *[kernel] * len(self.geometry.input_size))
            weight[(torch.arange(width), torch.arange(width), *[kernel // 2] * len(self.geometry.input_size))] = 1.0
            self._change.initial[f"conv_{depth}.weight"] = weight
            if self.layer_norm or (self.activation or "Identity") not in IDEMPOTENT:
                self._change.target = self.output_target()
        self.channel_size = [*self.channel_size, width]
        self.kernel_size = [*self.kernel_size, kernel]
        self.stride_size = [*self.stride_size, stride]
        self.padding_size = [*self.padding_size, padding]
        return {}

    @mutation(MutationType.LAYER)
    def remove_layer(self) -> dict[str, Any]:
        """Remove the last convolution; the output layer is refitted to the features below it."""
        if not self.can_apply("remove_layer"):
            return Refused()
        self._change.target = self.output_target()
        old_channels, old_size = self.channel_size[-1], self.geometry.sizes[-1]
        self.channel_size, self.kernel_size = self.channel_size[:-1], self.kernel_size[:-1]
        self.stride_size, self.padding_size = self.stride_size[:-1], self.padding_size[:-1]
        if self.fresh == "preserve":  # the features differ, but their receptive fields are closest to the old ones
            new_channels, new_size = self.channel_size[-1], self.geometry.sizes[-1]
            output: Any = self.model[OUTPUT]
            old = output.weight.detach().reshape(self.num_outputs, old_channels, *old_size)
            pixels = (centred(o, n) for o, n in zip(old_size, new_size, strict=True))
            nearest = Transfer((same(self.num_outputs), leading(old_channels, new_channels), *pixels))
            values = nearest.apply(old, old.new_zeros(nearest.shape)).reshape(self.num_outputs, -1)
            self._change.initial[f"{OUTPUT}.weight"] = values
            self._change.groups[FEATURES] = fresh(new_channels)
        return {}

    @mutation(MutationType.NODE)
    def add_channel(self, hidden_layer: int | None = None, numb_new_channels: int | None = None) -> dict[str, int]:
        """Widen one layer (sampled if not given) by 8, 16 or 32 channels; exact without normalisation.
        Returns {"hidden_layer": number, "numb_new_channels": channels added}; 0 if the limit left no room."""
        layer, count = self._drawn(hidden_layer, numb_new_channels, self._can_add)
        if count == 0:
            return Refused(hidden_layer=layer, numb_new_channels=0)
        self._change.target = self.output_target() if self.layer_norm else None
        self._move_channels(layer, grown(self.channel_size[layer], count))
        self.channel_size[layer] += count
        return {"hidden_layer": layer, "numb_new_channels": count}

    @mutation(MutationType.NODE)
    def remove_channel(self, hidden_layer: int | None = None, numb_new_channels: int | None = None) -> dict[str, int]:
        """Remove the least important channels of one layer; the output layer is refitted.

        Importance is the mean |activation| over the probe images and pixels times the norm of the outgoing weights;
        without probe inputs the norm of the incoming weights replaces the activation. Arguments and result as
        `add_channel`.
        """
        layer, count = self._drawn(hidden_layer, numb_new_channels, self._can_remove)
        if count == 0:
            return Refused(hidden_layer=layer, numb_new_channels=0)
        self._change.target = self.output_target()
        self._move_channels(layer, self.remaining(self.importance(layer), count))
        self.channel_size[layer] -= count
        return {"hidden_layer": layer, "numb_new_channels": count}

    @mutation(MutationType.NODE)
    def change_kernel(self, kernel_size: int | None = None, hidden_layer: int | None = None) -> dict[str, Any]:
        """Change the kernel of one of the layers 1 to 3 by two taps (or to `kernel_size`).

        With a single layer a layer is added instead.

        A larger kernel is the old one in a ring of zeros with more padding: exact for an even difference. A smaller one
        loses its rim and, if there is any, padding.

        Returns {"hidden_layer": number, "kernel_size": the new size}; `Refused` if no other kernel fits."""
        if len(self.channel_size) == 1 and hidden_layer is None:
            return self.add_layer()
        open_layers = [i for i in self._mutable_layers() if self._kernel_steps(i)]
        if hidden_layer is not None:
            layer = min(int(hidden_layer), len(self.channel_size) - 1)
        elif open_layers:
            layer = self._draw(open_layers)
        else:
            return Refused(hidden_layer=0, kernel_size=self.kernel_size[0])
        old = self.geometry
        steps = self._kernel_steps(layer) if kernel_size is None else [old.with_kernel(layer, int(kernel_size))]
        new: ConvGeometry | None = self._draw(steps) if steps else None
        if new is None or new == old:
            return Refused(hidden_layer=layer, kernel_size=self.kernel_size[layer])
        self._change.target = self.output_target() if new.sizes != old.sizes or _loses_taps(old, new) else None
        if self.fresh == "preserve":
            for axis, (k, n) in enumerate(zip(old.kernels[layer], new.kernels[layer], strict=True)):
                self._change.groups[f"conv_{layer}_axis_{axis}"] = centred(k, n)
            for axis, (o, n) in enumerate(zip(old.sizes[-1], new.sizes[-1], strict=True)):
                self._change.groups[f"pixel_{axis}"] = centred(o, n)
        self.kernel_size, self.padding_size = plain(new.kernels), plain(new.paddings)
        return {"hidden_layer": layer, "kernel_size": self.kernel_size[layer]}

    def _move_channels(self, layer: int, index: Index) -> None:
        self._change.groups[channels(layer)] = index
        if layer == len(self.channel_size) - 1:
            self._change.groups[FEATURES] = index

    def _mutable_layers(self) -> range:
        """Return the layers whose kernel may change: all but the first one, as published."""
        return range(1, min(MUTABLE_LAYERS, len(self.channel_size) - 1) + 1)

    def _kernel_steps(self, layer: int) -> list[ConvGeometry]:
        """Return the geometries with two taps fewer or more in a layer, if they fit."""
        shape = self.geometry
        now, room = shape.kernels[layer][0], min(LARGEST_KERNEL, *shape.input_of(layer))
        sizes = [k for k in (now - 2, now + 2) if 2 <= k <= room]
        return [new for new in (shape.with_kernel(layer, k) for k in sizes) if new is not None]

    def _draw(self, options: Sequence[Any]) -> Any:
        return options[int(single_draw(self.rng.integers(0, len(options))))]

    def _drawn(self, layer: int | None, amount: int | None, fits: Callable[[int, int], bool]) -> tuple[int, int]:
        return drawn_step(self.rng, CHANNEL_STEPS, self.channel_size, layer, amount, fits)

    def _can_add(self, width: int, count: int) -> bool:
        return width + count <= self.max_channel_size

    def _can_remove(self, width: int, count: int) -> bool:
        return width - count >= self.min_channel_size


def _loses_taps(old: ConvGeometry, new: ConvGeometry) -> bool:
    """Whether a kernel shrinks, or grows by a ring that its padding does not compensate."""
    pairs = zip(old.kernels, new.kernels, old.paddings, new.paddings, strict=True)
    return any(n < k or n - k != 2 * (q - p) for layer in pairs for k, n, p, q in zip(*layer, strict=True))


def channels(layer: int) -> str:
    """Return the name of the group of a layer's output channels; -1 is the input."""
    return f"channels_{layer}"
