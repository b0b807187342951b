"""Evolvable transformers over tokens: shared base class, and the autoregressive decoder."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agilerl.errors import ConfigError, NotAvailableYetError
from agilerl.modules.activations import activation as known_activation
from agilerl.modules.base import MutationType, Refused, mutation
from agilerl.modules.layered import OUTPUT, LayeredModule, Range, check_limits
from agilerl.modules.layers import Axis, Layer, activation_layer, layer_norm, linear, normal, whole
from agilerl.modules.morph import grown

NODE_STEPS = (16, 32, 64)
DEVIATION = 0.02  # standard deviation of initial weights, as in GPT-2 (Radford et al. 2019)


@dataclass(frozen=True)
class Cache:
    """Attention cache: keys and values [B, heads, T, D] per block, written in place by position.

    Positions that a row has not reached yet are never read.
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]


def embedding(entries: Axis, units: Axis) -> Layer:
    """Embedding table."""
    sizes = [math.prod(size for _, size in axis) for axis in (entries, units)]
    make: Any = nn.utils.skip_init  # does not use torch's global generator
    axes = {"weight": (entries, units)}
    return Layer(lambda: make(nn.Embedding, *sizes), ("embedding",), axes, {"weight": normal(DEVIATION)})


class TokenTransformer(LayeredModule):
    """A transformer over token ids (Vaswani et al. 2017, arXiv:1706.03762), pre-normalised as in GPT-2 (Radford et al.
    2019):

        z = E[token] + P[position]
        z ← z + Attention(LayerNorm(z));  z ← z + W₂ f(W₁ LayerNorm(z))      in each block
        output = V LayerNorm(z)

    `add_layer` and `add_node` preserve the function: outputs added to the trunk start at zero. The width of the trunk
    does not mutate. A subclass determines whether positions attend to later ones.
    """

    ranges: ClassVar = {"layer": Range("n_layer", "layers"), "node": Range("dim_feedfwd", "mlp_nodes", NODE_STEPS)}
    causal: ClassVar[bool]

    def __init__(
        self, n_layer: int = 12, vocab_size: int = 50257, n_embd: int = 768, n_head: int = 12, dim_feedfwd: int = 3072,
        block_size: int = 1024, dropout: float = 0.0, activation: str = "GELU", layer_norm_eps: float = 1e-5,
        min_layers: int = 8, max_layers: int = 16, bias: bool = True, device: str | torch.device = "cpu",
        random_seed: int | None = None, *, num_outputs: int | None = None, tied: bool = False, min_mlp_nodes: int = 16,
        max_mlp_nodes: int = 8192, name: str = "transformer",
    ) -> None:  # fmt: skip
        super().__init__(device, random_seed)
        if dropout != 0.0:
            raise NotAvailableYetError(
                f"{type(self).__name__}: dropout={dropout} draws from no named stream, so a run could not be resumed. "
                "fix: dropout=0.0."
            )
        if not bias:
            raise NotAvailableYetError(f"{type(self).__name__} has biases everywhere. fix: bias=True.")
        self.n_layer, self.vocab_size = whole(n_layer, "n_layer"), whole(vocab_size, "vocab_size", 2)
        self.n_embd, self.n_head = whole(n_embd, "n_embd"), whole(n_head, "n_head")
        self.dim_feedfwd, self.block_size = whole(dim_feedfwd, "dim_feedfwd"), whole(block_size, "block_size")
        if self.n_embd % self.n_head:
            raise ConfigError(
                f"n_embd (width of the trunk) must be a multiple of n_head (heads of attention); got {n_embd} and "
                f"{n_head}. fix: n_embd={-(-self.n_embd // self.n_head) * self.n_head}."
            )
        self.num_outputs = self.vocab_size if num_outputs is None else whole(num_outputs, "num_outputs")
        if tied and self.num_outputs != self.vocab_size:
            raise ConfigError(
                f"tied=True takes the table of tokens for the last layer; got num_outputs={num_outputs} for "
                f"vocab_size={vocab_size}. fix: tied=False."
            )
        check_limits({"layers": (min_layers, max_layers), "nodes": (min_mlp_nodes, max_mlp_nodes)})
        known_activation(activation, hidden=True)
        self.dropout, self.bias, self.tied, self.name = 0.0, True, bool(tied), name
        self.activation, self.output_activation, self.layer_norm_eps = activation, None, float(layer_norm_eps)
        self.min_layers, self.max_layers = int(min_layers), int(max_layers)
        self.min_mlp_nodes, self.max_mlp_nodes = int(min_mlp_nodes), int(max_mlp_nodes)
        self.build()

    def layers(self) -> dict[str, Layer]:
        """Return `tokens`, `positions`; per block `norm_1`, `qkv`, `mix`, `norm_2`, `mlp_0`, `act`, `mlp_1`;
        `norm_output`, and unless tied `linear_output`."""
        trunk: Axis = (("trunk", self.n_embd),)
        into = normal(DEVIATION / math.sqrt(2 * self.n_layer))  # for layers that write to the trunk, as in GPT-2
        layers = {
            "tokens": embedding((("tokens", self.vocab_size),), trunk),
            "positions": embedding((("positions", self.block_size),), trunk),
        }
        for k in range(self.n_layer):
            inner: Axis = ((f"inner_{k}", self.dim_feedfwd),)
            layers[f"block_{k}_norm_1"] = layer_norm(trunk, self.layer_norm_eps)
            layers[f"block_{k}_qkv"] = linear((("qkv", 3), *trunk), trunk, normal(DEVIATION))
            layers[f"block_{k}_mix"] = linear(trunk, (("heads", self.n_embd),), into)
            layers[f"block_{k}_norm_2"] = layer_norm(trunk, self.layer_norm_eps)
            layers[f"block_{k}_mlp_0"] = linear(inner, trunk, normal(DEVIATION))
            layers[f"block_{k}_act"] = activation_layer(self.activation, hidden=True)
            layers[f"block_{k}_mlp_1"] = linear(trunk, inner, into)
        layers["norm_output"] = layer_norm(trunk, self.layer_norm_eps)
        if not self.tied:
            layers[OUTPUT] = linear((("output", self.num_outputs),), trunk, normal(DEVIATION))
        layers["act_output"] = activation_layer(None, hidden=False)
        return layers

    # -- running -------------------------------------------------------------------------------------------------

    def forward(self, tokens: Tensor, present: Tensor | None = None) -> Tensor:
        """Return outputs [B, L, O] for token ids [B, L].

        Args:
            present: [B, L] bool, tokens that can be attended to; None: all.
        """
        mask = None if present is None else present[:, None, None, :]
        return self.finish(self.output_features(tokens, mask))

    def output_features(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the LayerNorm of the trunk [B, L, C] for token ids [B, L].

        `mask`, broadcast to [B, heads, L, L], is the attention mask.
        """
        tokens = self._numbers(x)
        z = self._embedded(tokens, torch.arange(tokens.shape[1], device=tokens.device))
        if self.causal and mask is not None:
            size = tokens.shape[1]
            mask = mask & torch.ones(size, size, dtype=torch.bool, device=tokens.device).tril()
        for k in range(self.n_layer):
            query, key, value = self._projected(k, z)
            attended = F.scaled_dot_product_attention(query, key, value, mask, is_causal=self.causal and mask is None)
            z = self._after(k, z, attended)
        return cast(Tensor, self.model["norm_output"](z))

    def finish(self, features: Tensor) -> Tensor:
        """Apply the last layer: [..., C] -> [..., O]."""
        if self.tied:
            return F.linear(features, self.model["tokens"].weight)
        return super().finish(features)

    def _numbers(self, x: Tensor) -> Tensor:
        """Return token ids [B, L] int64; ConfigError if there are more than `block_size`, or ids out of range."""
        tokens = torch.as_tensor(x, device=self._like().device)
        if tokens.dtype != torch.int64:
            tokens = tokens.long()
        if tokens.dim() != 2 or tokens.shape[1] > self.block_size:
            raise ConfigError(
                f"{type(self).__name__} takes token numbers [batch, length], of at most block_size={self.block_size}; "
                f"got {list(tokens.shape)}. fix: shorter texts, or a larger block_size."
            )
        return tokens

    def _embedded(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return cast(Tensor, self.model["tokens"](tokens) + self.model["positions"](positions))

    def _projected(self, block: int, z: Tensor) -> Sequence[Tensor]:
        """Return queries, keys and values [B, heads, L, D] of the trunk [B, L, C]."""
        rows, length, _ = z.shape
        qkv: Tensor = self.model[f"block_{block}_qkv"](self.model[f"block_{block}_norm_1"](z))
        return qkv.view(rows, length, 3, self.n_head, -1).permute(2, 0, 3, 1, 4).unbind(0)

    def _after(self, block: int, z: Tensor, attended: Tensor) -> Tensor:
        """Return the trunk [B, L, C] after a block, given the attention output [B, heads, L, D]."""
        z = z + self.model[f"block_{block}_mix"](attended.transpose(1, 2).flatten(2))
        return z + self.model[f"block_{block}_mlp_1"](self._inside(block, z))  # type: ignore[no-any-return]

    def _inside(self, block: int, z: Tensor) -> Tensor:
        """Return the hidden units [B, L, F] of a block's dense part."""
        normed = self.model[f"block_{block}_norm_2"](z)
        return cast(Tensor, self.model[f"block_{block}_act"](self.model[f"block_{block}_mlp_0"](normed)))

    # -- mutations -----------------------------------------------------------------------------------------------

    @mutation(MutationType.LAYER)
    def add_layer(self) -> dict[str, int]:
        """Append a block; exact, because its contribution to the trunk starts at zero."""
        if not self.can_apply("add_layer"):
            return Refused()
        if self.fresh == "preserve":
            sizes = {"mix": self.n_embd, "mlp_1": self.dim_feedfwd}
            for name, columns in sizes.items():
                self._change.initial[f"block_{self.n_layer}_{name}.weight"] = torch.zeros(self.n_embd, columns)
        self.n_layer += 1
        return {}

    @mutation(MutationType.LAYER)
    def remove_layer(self) -> dict[str, int]:
        """Remove the last block; with probe inputs the output layer, unless tied, is refitted."""
        if not self.can_apply("remove_layer"):
            return Refused()
        self._change.target = self.output_target()
        self.n_layer -= 1
        return {}

    @mutation(MutationType.NODE)
    def add_node(self, numb_new_nodes: int | None = None) -> dict[str, int]:
        """Widen the dense part of every block (by 16, 32 or 64 if not given); exact.
        Returns {"numb_new_nodes": units added}; 0 if the limit left no room."""
        count = self.drawn("node", numb_new_nodes)
        if not count:
            return Refused(numb_new_nodes=0)
        self._change.groups = {f"inner_{k}": grown(self.dim_feedfwd, count) for k in range(self.n_layer)}
        self.dim_feedfwd += count
        return {"numb_new_nodes": count}

    @mutation(MutationType.NODE)
    def remove_node(self, numb_new_nodes: int | None = None) -> dict[str, int]:
        """Remove the least important units from the dense part of every block, and refit the output layer, unless tied.

        Importance of a unit is its mean size over the probe inputs times the norm of its outgoing weights; without
        probe inputs only the norm. Argument and result as `add_node`.
        """
        count = self.drawn("node", numb_new_nodes, -1)
        if not count:
            return Refused(numb_new_nodes=0)
        self._change.target = self.output_target()
        scores = self.importance()
        self._change.groups = {
            f"inner_{k}": self.remaining(block_scores, count) for k, block_scores in enumerate(scores)
        }
        self.dim_feedfwd -= count
        return {"numb_new_nodes": count}

    @torch.no_grad()
    def importance(self) -> list[Tensor]:
        """Return scores [F] of the hidden units of each block."""
        scores = [self.model[f"block_{k}_mlp_1"].weight.norm(dim=0) for k in range(self.n_layer)]
        if self.probe_inputs is None:
            return scores
        tokens = self._numbers(self.probe_inputs)
        z = self._embedded(tokens, torch.arange(tokens.shape[1], device=tokens.device))
        for k in range(self.n_layer):
            query, key, value = self._projected(k, z)
            attended = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
            z = z + self.model[f"block_{k}_mix"](attended.transpose(1, 2).flatten(2))
            hidden = self._inside(k, z)
            scores[k] = scores[k] * hidden.abs().mean((0, 1))
            z = z + self.model[f"block_{k}_mlp_1"](hidden)
        return scores

    @torch.no_grad()
    def output_target(self) -> Tensor | None:
        """See `LayeredModule.output_target`; None for a tied last layer, which cannot be refitted alone."""
        return None if self.tied else super().output_target()

    def short(self) -> str:
        return f"{self.n_layer}x({self.n_embd}, {self.dim_feedfwd})"

    describe = short


class EvolvableGPT(TokenTransformer):
    """A decoder: each position attends to itself and earlier ones.

    Args:
        n_layer: blocks. vocab_size: number of tokens. n_embd: width of the trunk. n_head: attention heads.
        dim_feedfwd: width of the dense part of a block. block_size: maximum text length, in tokens.
        dropout, bias: published; only 0.0 and True are supported.
        activation: activation of the dense parts. layer_norm_eps: epsilon of every LayerNorm.
        min_layers, max_layers, min_mlp_nodes, max_mlp_nodes: limits of the mutations, inclusive; they do not apply to
            the initial sizes.
        num_outputs: outputs per position; `vocab_size` by default, the logits of the next token.
        tied: use the token embeddings as the last layer (Press & Wolf 2017, arXiv:1608.05859).
    """

    causal = True

    # -- generation with a cache ------------------------------------------------------------------------------------

    def new_cache(self, rows: int, length: int) -> Cache:
        """Create an empty cache for texts of at most `length` tokens."""
        like = self._like().detach()
        shape = (rows, self.n_head, length, self.n_embd // self.n_head)
        keys, values = (tuple(like.new_zeros(shape) for _ in range(self.n_layer)) for _ in range(2))
        return Cache(keys, values)

    @torch.no_grad()
    def read_on(self, tokens: Tensor, positions: Tensor, cache: Cache) -> Tensor:
        """Return the LayerNorm of the trunk [B, S, C] for further tokens [B, S] at `positions` [B, S].

        `cache` contains the earlier positions, and is extended in place.
        """
        rows = torch.arange(len(tokens), device=tokens.device)[:, None]
        visible = (torch.arange(cache.keys[0].shape[2], device=tokens.device) <= positions[..., None])[:, None]
        z = self._embedded(tokens, positions)
        for k in range(self.n_layer):
            query, key, value = self._projected(k, z)
            cache.keys[k][rows, :, positions] = key.transpose(1, 2)
            cache.values[k][rows, :, positions] = value.transpose(1, 2)
            z = self._after(k, z, F.scaled_dot_product_attention(query, cache.keys[k], cache.values[k], visible))
        return cast(Tensor, self.model["norm_output"](z))

    @torch.no_grad()
    def generate(
        self, tokens: Tensor, max_new_tokens: int, temperature: float = 1.0, top_k: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:  # fmt: skip
        """Generate texts [B, L + max_new_tokens] that continue the tokens [B, L].

        Args:
            temperature: divisor of the logits; 0 is greedy.
            top_k: sample among the k most probable tokens; None: all. generator: required for sampling.
        """
        if temperature and generator is None:
            raise ConfigError("generate draws from a generator. fix: generator=torch.Generator(), temperature=0.")

        def choose(outputs: Sequence[Tensor]) -> Tensor:
            (logits,) = outputs
            if not temperature:
                return logits.argmax(-1)
            if top_k is not None:
                least = logits.topk(min(int(top_k), logits.shape[-1])).values[..., -1:]
                logits = logits.masked_fill(logits < least, -torch.inf)
            return torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)[:, 0]

        start = self._numbers(tokens)
        lengths = torch.full((len(start),), start.shape[1], device=start.device)
        return torch.cat((start, write_on([self], start, lengths, max_new_tokens, choose)), 1)


@torch.no_grad()
def write_on(
    networks: Sequence[EvolvableGPT],
    tokens: Tensor,
    lengths: Tensor,
    count: int,
    choose: Callable[[Sequence[Tensor]], Tensor],
) -> Tensor:
    """Generate `count` further tokens [B, count] of texts, one at a time, each pass reading only new tokens.

    Args:
        networks: networks that read the texts in parallel.
        tokens: [B, L], of which the first `lengths` [B] (at least 1) are the text; others are ignored.
        choose: returns the next tokens [B] from the networks' outputs [B, O] at the last ones.

    Raises:
        ConfigError: the texts would exceed the networks' maximum length.
    """
    longest = int(lengths.max())
    room = min(network.block_size for network in networks)
    if longest + count - 1 > room:
        raise ConfigError(
            f"a text of {longest} tokens cannot go on for {count} more: block_size is {room}. fix: block_size="
            f"{longest + count}."
        )
    tokens = tokens[:, :longest]
    rows = torch.arange(len(tokens), device=tokens.device)
    caches = [network.new_cache(len(tokens), longest + count) for network in networks]
    place = torch.arange(longest, device=tokens.device).expand(len(tokens), -1)
    written: list[Tensor] = []
    while True:
        outputs = []
        for network, cache in zip(networks, caches, strict=True):
            features = network.read_on(tokens, place, cache)
            last = features[rows, lengths - 1] if not written else features[:, 0]
            outputs.append(network.finish(last))
        written.append(choose(outputs))
        if len(written) == count:
            return torch.stack(written, 1)
        tokens, place = written[-1][:, None], (lengths + len(written) - 1)[:, None]
