"""Evolvable residual network for images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from agilerl.modules.activations import activation as known_activation
from agilerl.modules.base import MutationType, Refused, mutation
from agilerl.modules.cnn import ConvGeometry, check_fits, image_shape, probe_count
from agilerl.modules.layered import OUTPUT, Range, ResidualModule, check_limits
from agilerl.modules.layers import Axis, Layer, activation_layer, convolution, linear, orthogonal, whole

CHANNEL_STEPS = (8, 16, 32)
GAIN = 2**0.5
LAST_GAIN = 0.5  # of a block's last convolution: each block then adds little variance to the trunk


class EvolvableResNet(ResidualModule):
    """A convolution, residual blocks, and one dense layer, with evolving blocks and channels.

    A block is z ← z + conv(act(conv(act(z)))) with 3 x 3 kernels and as many channels as the trunk: the pre-activation
    order of He et al. 2016 (arXiv:1603.05027, figure 4e) without normalisation, as in the residual blocks of IMPALA
    (Espeholt et al. 2018, arXiv:1802.01561, figure 3). Growth is exact: a new block ends in zeros, and old channels do
    not read new ones.

    Args:
        input_shape: (channels, height, width). num_outputs: width of the output.
        channel_size: channels of the trunk.
        kernel_size, stride_size: of the first convolution, which has no padding.
        num_blocks: residual blocks.
        activation, output_activation: names in `modules.activations.ACTIVATIONS`.
        min_blocks, max_blocks, min_channel_size, max_channel_size: limits of the mutations, inclusive.
    """

    ranges: ClassVar = {
        "block": Range("num_blocks", "blocks"), "channel": Range("channel_size", "channel_size", CHANNEL_STEPS)
    }  # fmt: skip
    stem, last, trunk = "conv_input", "conv_1", "channels"

    def __init__(
        self, input_shape: Sequence[int], num_outputs: int,
        channel_size: int = 32, kernel_size: int = 3, stride_size: int = 2, num_blocks: int = 2,
        output_activation: str | None = None, *, activation: str | None = "ReLU",
        min_blocks: int = 1, max_blocks: int = 4, min_channel_size: int = 16, max_channel_size: int = 256,
        device: str | torch.device = "cpu", name: str = "resnet", random_seed: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(device, random_seed)
        self.input_shape = image_shape(input_shape, None, 2)
        self.num_outputs = whole(num_outputs, "num_outputs")
        self.channel_size = whole(channel_size, "channel_size of EvolvableResNet (channels of the trunk)")
        self.kernel_size, self.stride_size = whole(kernel_size, "kernel_size"), whole(stride_size, "stride_size")
        self.num_blocks = whole(num_blocks, "num_blocks")
        known_activation(activation, hidden=True)
        check_limits({"blocks": (min_blocks, max_blocks), "channels": (min_channel_size, max_channel_size)})
        self.activation, self.output_activation, self.name = activation, output_activation, name
        self.min_blocks, self.max_blocks = min_blocks, max_blocks
        self.min_channel_size, self.max_channel_size = min_channel_size, max_channel_size
        check_fits(self.geometry)
        self.build()

    @property
    def geometry(self) -> ConvGeometry:
        """Geometry of the first convolution; the blocks keep its size."""
        kernel, stride = (self.kernel_size,) * 2, (self.stride_size,) * 2
        return ConvGeometry(tuple(self.input_shape[1:]), (kernel,), (stride,), ((0, 0),))

    def layers(self) -> dict[str, Layer]:
        """Return `conv_input`; per block `act_0`, `conv_0`, `act_1`, `conv_1`; `act_features`, `linear_output`."""
        trunk: Axis = (("channels", self.channel_size),)
        stem = self.geometry
        taps = stem.kernels[0], stem.strides[0], stem.paddings[0]
        columns: Axis = (("input", self.input_shape[0]),)
        layers = {"conv_input": convolution("Conv2d", trunk, columns, *taps, "conv_input", orthogonal(GAIN))}
        for k in range(self.num_blocks):
            inner: Axis = ((f"inner_{k}", self.channel_size),)
            for i, (rows, read, gain) in enumerate(((inner, trunk, GAIN), (trunk, inner, LAST_GAIN))):
                name = f"block_{k}_conv_{i}"
                layers[f"block_{k}_act_{i}"] = activation_layer(self.activation, hidden=True)
                layers[name] = convolution("Conv2d", rows, read, (3, 3), (1, 1), (1, 1), name, orthogonal(gain))
        layers["act_features"] = activation_layer(self.activation, hidden=True)
        pixels = tuple((f"pixel_{axis}", size) for axis, size in enumerate(stem.sizes[0]))
        layers[OUTPUT] = linear((("output", self.num_outputs),), (*trunk, *pixels), orthogonal(GAIN))
        layers["act_output"] = activation_layer(self.output_activation, hidden=False)
        return layers

    def output_features(self, x: Tensor) -> Tensor:
        """Return the flattened trunk after its last activation [B, F]."""
        return cast(Tensor, self.model["act_features"](self.after_blocks(x))).flatten(1)

    def inside(self, block: int, z: Tensor) -> Tensor:
        y = self.model[f"block_{block}_conv_0"](self.model[f"block_{block}_act_0"](z))
        return cast(Tensor, self.model[f"block_{block}_act_1"](y))

    def forward(self, x: Tensor) -> Tensor:
        """Map images [..., C, H, W] -> [..., O]; one image gives [1, O]."""
        x = self.as_input(x)
        lead = x.shape[:-3] or (1,)
        return self.finish(self.output_features(x.reshape(-1, *self.input_shape))).reshape(*lead, self.num_outputs)

    def probe(self, inputs: Any) -> None:
        """Store the first images [B, ...], as many as memory allows; None clears them."""
        height, width = self.geometry.sizes[0]
        count = probe_count((2 * self.num_blocks + 1) * self.channel_size * height * width)
        super().probe(None if inputs is None else inputs[:count])

    def short(self) -> str:
        return f"resnet {self.channel_size}x{self.num_blocks}"

    @mutation(MutationType.NODE)
    def add_channel(self, numb_new_channels: int | None = None) -> dict[str, int]:
        """Widen the trunk (by 8, 16 or 32 if not given) and every block with it; exact.
        Returns {"numb_new_channels": channels added}; 0 if the limit left no room."""
        count = self.widen("channel", numb_new_channels)
        return {"numb_new_channels": count} if count else Refused(numb_new_channels=0)

    @mutation(MutationType.NODE)
    def remove_channel(self, numb_new_channels: int | None = None) -> dict[str, int]:
        """Remove channels from the trunk and from every block, see `narrow`. Argument and result as `add_channel`."""
        count = self.narrow("channel", numb_new_channels)
        return {"numb_new_channels": count} if count else Refused(numb_new_channels=0)

    @torch.no_grad()
    def importance(self) -> list[Tensor]:
        weights = {n: layer.weight for n, layer in self.model.items() if hasattr(layer, "weight") and n != "conv_input"}
        norms = {n: w.reshape(w.shape[0], self.channel_size, -1).norm(dim=(0, 2)) for n, w in weights.items()}
        blocks = range(self.num_blocks)
        inner: list[Tensor] = [norms[f"block_{k}_conv_1"] for k in blocks]
        if self.probe_inputs is None:
            return [sum((norms[f"block_{k}_conv_0"] for k in blocks), norms[OUTPUT]), *inner]
        z, trunk = self.model["conv_input"](self.as_input(self.probe_inputs)), torch.zeros_like(norms[OUTPUT])
        for k in blocks:  # measured where a channel is read: it may be inactive at the end but active in a block
            trunk = trunk + norms[f"block_{k}_conv_0"] * _size(self.model[f"block_{k}_act_0"](z))
            hidden = self.inside(k, z)
            inner[k] = inner[k] * _size(hidden)
            z = z + self.model[f"block_{k}_conv_1"](hidden)
        return [trunk + norms[OUTPUT] * _size(self.model["act_features"](z)), *inner]


def _size(maps: Tensor) -> Tensor:
    """Return the mean |activation| of each channel [C] over images and pixels [B, C, H, W]."""
    return maps.abs().mean((0, 2, 3))
