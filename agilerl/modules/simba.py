"""Evolvable SimBa network: residual blocks with LayerNorm (Lee et al. 2024, arXiv:2410.09754)."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from agilerl.core import foreign
from agilerl.modules.activations import activation as known_activation
from agilerl.modules.base import MutationType, Refused, mutation
from agilerl.modules.layered import OUTPUT, Range, ResidualModule, check_limits
from agilerl.modules.layers import Layer, activation_layer, he_normal, layer_norm, linear, orthogonal, whole
from agilerl.modules.morph import same

NODE_STEPS = (16, 32, 64)
EPS_TIMES_WIDTH = 128e-5  # 1e-5 at the default width; see `norm_eps`


class EvolvableSimBa(ResidualModule):
    """SimBa (section 4 of the paper): z = W x; z ← z + MLP(LayerNorm(z)) for every block; output = V LayerNorm(z).

    A block's MLP is `scale_factor` times as wide as the trunk. The paper's running normalisation of observations is a
    wrapper here, not part of the network.

    Growth is exact. A new block starts with a zero last layer. A new trunk unit starts as the mean of the old ones:
    LayerNorm's mean is unchanged, its variance shrinks by old width / new width, and its weights and epsilon
    compensate.

    Args:
        num_inputs, num_outputs: widths of input and output.
        hidden_size: width of the trunk.
        num_blocks: residual blocks.
        scale_factor: width of a block / width of the trunk.
        activation: inside the blocks. output_activation: name, or None for the identity.
        min_blocks, max_blocks, min_mlp_nodes, max_mlp_nodes: limits of the mutations, inclusive; they do not apply to
            the initial sizes.
    """

    ranges: ClassVar = {"block": Range("num_blocks", "blocks"), "node": Range("hidden_size", "mlp_nodes", NODE_STEPS)}
    stem, last, trunk = "linear_input", "linear_1", "hidden"

    def __init__(
        self, num_inputs: int, num_outputs: int, hidden_size: int = 128, num_blocks: int = 2,
        output_activation: str | None = None, scale_factor: int = 4,
        min_blocks: int = 1, max_blocks: int = 4, min_mlp_nodes: int = 16, max_mlp_nodes: int = 500,
        device: str | torch.device = "cpu", name: str = "simba", random_seed: int | None = None,
        *, activation: str | None = "ReLU",
    ) -> None:  # fmt: skip
        super().__init__(device, random_seed)
        self.num_inputs, self.num_outputs = whole(num_inputs, "num_inputs"), whole(num_outputs, "num_outputs")
        self.hidden_size = whole(hidden_size, "hidden_size of EvolvableSimBa (width of the trunk)")
        self.num_blocks = whole(num_blocks, "num_blocks")
        self.scale_factor = whole(scale_factor, "scale_factor")
        check_limits({"blocks": (min_blocks, max_blocks), "nodes": (min_mlp_nodes, max_mlp_nodes)})
        known_activation(activation, hidden=True)
        self.activation, self.output_activation, self.name = activation, output_activation, name
        self.min_blocks, self.max_blocks = min_blocks, max_blocks
        self.min_mlp_nodes, self.max_mlp_nodes = min_mlp_nodes, max_mlp_nodes
        self.build()

    @property
    def norm_eps(self) -> float:
        """Epsilon of every LayerNorm; decreases with the width, so that growth can be exact (`add_node`)."""
        return EPS_TIMES_WIDTH / self.hidden_size

    def layers(self) -> dict[str, Layer]:
        """Return `linear_input`; per block `norm`, `linear_0`, `act`, `linear_1`; `norm_output`, `linear_output`."""
        trunk = (("hidden", self.hidden_size),)
        layers = {"linear_input": linear(trunk, (("input", self.num_inputs),), orthogonal(1.0))}
        for k in range(self.num_blocks):
            inner = ((f"inner_{k}", self.scale_factor * self.hidden_size),)
            layers[f"block_{k}_norm"] = layer_norm(trunk, self.norm_eps)
            layers[f"block_{k}_linear_0"] = linear(inner, trunk, he_normal)
            layers[f"block_{k}_act"] = activation_layer(self.activation, hidden=True)
            layers[f"block_{k}_linear_1"] = linear(trunk, inner, he_normal)
        layers["norm_output"] = layer_norm(trunk, self.norm_eps)
        layers[OUTPUT] = linear((("output", self.num_outputs),), trunk, orthogonal(1.0))
        layers["act_output"] = activation_layer(self.output_activation, hidden=False)
        return layers

    def output_features(self, x: Tensor) -> Tensor:
        """Return the LayerNorm of the trunk after the last block [..., H]."""
        return cast(Tensor, self.model["norm_output"](self.after_blocks(x)))

    def forward(self, x: Tensor) -> Tensor:
        """Map x [..., I] -> [..., O], one input [I] -> [1, O]."""
        x = self.as_input(x)
        return self.finish(self.output_features(x if x.dim() > 1 else x.unsqueeze(0)))

    @property
    def expansion(self) -> int:  # type: ignore[override]
        return self.scale_factor

    def inside(self, block: int, z: Tensor) -> Tensor:
        normed = self.model[f"block_{block}_norm"](z)
        return cast(Tensor, self.model[f"block_{block}_act"](self.model[f"block_{block}_linear_0"](normed)))

    def short(self) -> str:
        return f"simba {self.hidden_size}x{self.num_blocks}"

    @mutation(MutationType.NODE)
    def add_node(self, numb_new_nodes: int | None = None) -> dict[str, int]:
        """Widen the trunk (by 16, 32 or 64 if not given) and every block with it; exact.
        Returns {"numb_new_nodes": units added}; 0 if the limit left no room."""
        count = self.widen("node", numb_new_nodes)
        if count and self.fresh == "preserve":
            self._start_at_the_mean(self.hidden_size - count, count)
        return {"numb_new_nodes": count} if count else Refused(numb_new_nodes=0)

    @mutation(MutationType.NODE)
    def remove_node(self, numb_new_nodes: int | None = None) -> dict[str, int]:
        """Remove units from the trunk and from every block, see `narrow`. Argument and result as `add_node`."""
        count = self.narrow("node", numb_new_nodes)
        return {"numb_new_nodes": count} if count else Refused(numb_new_nodes=0)

    def recreate_network(self, **kwargs: Any) -> None:
        """Rebuild the layers; then the LayerNorms of a grown trunk compensate the change of the variance."""
        index = self._change.groups.get("hidden", same(self.hidden_size))
        old = int((index >= 0).sum())
        super().recreate_network(**kwargs)
        if self.fresh == "preserve" and old < self.hidden_size:
            with torch.no_grad():
                for name, layer in self.model.items():
                    if "norm" in name:
                        norm: Any = layer
                        norm.weight[:old] *= (old / self.hidden_size) ** 0.5
            self.last_refit = True  # kept entries have changed

    @torch.no_grad()
    def _start_at_the_mean(self, width: int, count: int) -> None:
        """Set new trunk units to the mean of the old ones; LayerNorm maps them to 0, so their readers are random."""
        initial, total, wide = self._change.initial, width + count, self.scale_factor * width
        writers = [("linear_input", self.num_inputs, self.num_inputs)]
        writers += [(f"block_{k}_linear_1", wide, self.scale_factor * total) for k in range(self.num_blocks)]
        for name, columns, new_columns in writers:
            layer: Any = self.model[name]
            like = layer.weight.detach().cpu()
            weight, bias = like.new_zeros(total, new_columns), like.new_zeros(total)
            weight[width:, :columns] = layer.weight.mean(0).cpu()
            bias[width:] = layer.bias.mean().cpu()
            initial[f"{name}.weight"], initial[f"{name}.bias"] = weight, bias
        for k in range(self.num_blocks):
            shape = (self.scale_factor * total, total)
            initial[f"block_{k}_linear_0.weight"] = he_normal(shape, self.generator())
        initial[f"{OUTPUT}.weight"] = orthogonal(1.0)((self.num_outputs, total), self.generator())

    @torch.no_grad()
    def importance(self) -> list[Tensor]:
        weights: Any = {name: foreign.weight(layer) for name, layer in self.model.items()}
        trunk = weights[OUTPUT].norm(dim=0) * weights["norm_output"].abs()
        inner = [weights[f"block_{k}_linear_1"].norm(dim=0) for k in range(self.num_blocks)]
        if self.probe_inputs is None:
            return [trunk, *inner]
        z = self.model["linear_input"](self.as_input(self.probe_inputs))
        for k in range(self.num_blocks):
            activity = self.model[f"block_{k}_norm"](z).abs().mean(0)
            trunk = trunk + activity * weights[f"block_{k}_linear_0"].norm(dim=0)
            hidden = self.inside(k, z)
            inner[k] = inner[k] * hidden.abs().mean(0)
            z = z + self.model[f"block_{k}_linear_1"](hidden)
        return [trunk, *inner]
