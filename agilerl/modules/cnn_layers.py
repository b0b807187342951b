"""Layers of the evolvable CNN: declaring them, running them, and looking inside."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from agilerl.modules.convolution import ConvGeometry, dims_of, per_axis, probe_count
from agilerl.modules.layer_kinds import activation_layer, convolution, image_norm, linear, orthogonal, uniform, zeros
from agilerl.modules.layered import OUTPUT, Axis, Layer, LayeredModule

FEATURES = "features"  # channels of the last layer, as the output layer reads them
GAIN = 2**0.5


class CnnLayers(LayeredModule):
    """What `EvolvableCNN` is below its mutations. The subclass sets the attributes below, then calls `build`."""

    input_shape: tuple[int, ...]
    block_type: str
    channel_size: list[int]
    kernel_size: list[Any]
    stride_size: list[Any]
    padding_size: list[Any]
    layer_norm: bool
    init_layers: bool

    @property
    def geometry(self) -> ConvGeometry:
        """Kernels, strides and paddings per layer and axis, with the sizes that follow from them."""
        dims, depth = dims_of(self.block_type), len(self.channel_size)
        return ConvGeometry(
            tuple(self.input_shape[1:]),
            per_axis(self.kernel_size, depth, dims, "kernel_size"),
            per_axis(self.stride_size, depth, dims, "stride_size"),
            per_axis(self.padding_size, depth, dims, "padding_size", least=0),
        )

    def layers(self) -> dict[str, Layer]:
        """Per layer `conv`, `norm`, `act`; then `linear_output`."""
        shape, found = self.geometry, {}
        rows: Axis
        columns: Axis
        widths = [self.input_shape[0], *self.channel_size]
        for i in range(len(self.channel_size)):
            rows, columns = ((channels(i), widths[i + 1]),), ((channels(i - 1), widths[i]),)
            fan_in = widths[i] * int(np.prod(shape.kernels[i]))
            weight = orthogonal(GAIN) if self.init_layers else uniform(fan_in**-0.5)
            found[f"conv_{i}"] = convolution(
                self.block_type,
                rows,
                columns,
                shape.kernels[i],
                shape.strides[i],
                shape.paddings[i],
                f"conv_{i}",
                weight,
            )
            if self.layer_norm:
                found[f"norm_{i}"] = image_norm(rows)
            found[f"act_{i}"] = activation_layer(self.activation, hidden=True)
        pixels = tuple((f"pixel_{axis}", size) for axis, size in enumerate(shape.sizes[-1]))
        columns = ((FEATURES, widths[-1]), *pixels)
        inputs = widths[-1] * int(np.prod(shape.sizes[-1]))
        weight, bias = (orthogonal(GAIN), zeros) if self.init_layers else (uniform(inputs**-0.5),) * 2
        found[OUTPUT] = linear((("output", self.num_outputs),), columns, weight, bias)
        found["act_output"] = activation_layer(self.output_activation, hidden=False)
        return found

    def feature_maps(self, x: Tensor, depth: int | None = None) -> Tensor:
        """Output of layer `depth` - 1 (of the last one by default) [B, C, ...] for images [B, C, ...]."""
        for i in range(len(self.channel_size) if depth is None else depth):
            x = self.model[f"conv_{i}"](x)
            if self.layer_norm:
                x = self.model[f"norm_{i}"](x)
            x = self.model[f"act_{i}"](x)
        return x

    def output_features(self, x: Any) -> Tensor:
        """Channels and pixels of the last layer side by side [B, F]."""
        return self.feature_maps(self.as_input(x)).flatten(1)

    def forward(self, x: Any) -> Tensor:
        """Images [..., C, H, W] (as many axes as `input_shape`) -> [..., O]."""
        x = self.as_input(x)
        lead = x.shape[: x.dim() - len(self.input_shape)]
        features = self.output_features(x.reshape(-1, *self.input_shape))
        return self.finish(features).reshape(*lead, self.num_outputs)

    def probe(self, inputs: Any) -> None:
        """Remember the first images [B, ...], as many as memory allows; None forgets them."""
        sizes = zip(self.channel_size, self.geometry.sizes, strict=True)
        count = probe_count(sum(c * int(np.prod(size)) for c, size in sizes))
        super().probe(None if inputs is None else inputs[:count])

    @torch.no_grad()
    def importance(self, layer: int) -> Tensor:
        """How much each channel of a layer matters to the layer above [C]."""
        own: Any = self.model[f"conv_{layer}"]
        if self.probe_inputs is None:
            strength = own.weight.flatten(1).norm(dim=1)
        else:
            maps = self.feature_maps(self.as_input(self.probe_inputs), layer + 1)
            strength = maps.abs().flatten(2).mean((0, 2))
        is_last = layer == len(self.channel_size) - 1
        above: Any = self.model[OUTPUT if is_last else f"conv_{layer + 1}"]
        read = above.weight.reshape(above.weight.shape[0], len(strength), -1)
        return cast(Tensor, strength * read.norm(dim=(0, 2)))


def channels(layer: int) -> str:
    """Group of the channels that a layer makes; -1 is the input."""
    return f"channels_{layer}"
