"""A Llama decoder with LoRA adapters, and how it writes, in plain torch and float64: nothing of the package is used.

Texts are lists of token numbers without padding; rows are padded on the right here, where a causal decoder cannot see
it. The package pads prompts on the left, shares prefixes and stacks members: its results must be the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

Adapter = dict[str, Tensor]


@dataclass
class Row:
    """One text: its tokens, which of them the policy chose, and whether it ended by itself."""

    tokens: list[int]
    own: list[bool]
    ended: bool = True

    @classmethod
    def of(cls, prompt: Sequence[int], completion: Sequence[int]) -> Row:
        return cls([*prompt, *completion], [False] * len(prompt) + [True] * len(completion))

    @property
    def completion(self) -> list[int]:
        return [token for token, own in zip(self.tokens, self.own, strict=True) if own]


class Decoder:
    """Llama (Touvron et al. 2023, arXiv:2302.13971) with W x + α/r · B A x in its linear layers (arXiv:2106.09685)."""

    def __init__(self, folder: Path, layers: int, heads: int, scale: float) -> None:
        self.w = {name: value.double() for name, value in load_file(str(folder / "model.safetensors")).items()}
        self.layers, self.heads, self.scale = layers, heads, scale

    def dense(self, adapter: Adapter, name: str, x: Tensor) -> Tensor:
        out = x @ self.w[f"{name}.weight"].T
        saved = f"base_model.model.{name}"
        if f"{saved}.lora_A.weight" in adapter:
            out = out + self.scale * (x @ adapter[f"{saved}.lora_A.weight"].T) @ adapter[f"{saved}.lora_B.weight"].T
        return out

    def norm(self, name: str, x: Tensor) -> Tensor:
        return self.w[f"{name}.weight"] * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()

    def hidden(self, adapter: Adapter, texts: Sequence[Sequence[int]]) -> Tensor:
        """[R, L, H] states after each token; what follows on a text's last token means nothing."""
        length = max(len(text) for text in texts)
        tokens = torch.tensor([[*text, *[0] * (length - len(text))] for text in texts])
        later = torch.ones(length, length).triu(1).bool()
        z = self.w["model.embed_tokens.weight"][tokens]
        for k in range(self.layers):
            layer = f"model.layers.{k}"
            x = self.norm(f"{layer}.input_layernorm", z)
            parts = [self.dense(adapter, f"{layer}.self_attn.{name}_proj", x) for name in "qkv"]
            q, k_, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
            q, k_ = rotated(q), rotated(k_)
            share = (q @ k_.mT / math.sqrt(q.shape[-1])).masked_fill(later, -math.inf).softmax(-1)
            z = z + self.dense(adapter, f"{layer}.self_attn.o_proj", (share @ v).transpose(1, 2).flatten(-2))
            x = self.norm(f"{layer}.post_attention_layernorm", z)
            gate = self.dense(adapter, f"{layer}.mlp.gate_proj", x)
            up = self.dense(adapter, f"{layer}.mlp.up_proj", x)
            z = z + self.dense(adapter, f"{layer}.mlp.down_proj", gate * gate.sigmoid() * up)
        return self.norm("model.norm", z)

    def log_probs(self, adapter: Adapter, rows: Sequence[Row], temperature: float = 1.0) -> Tensor:
        """[R, L] log π(token p | tokens before p) at p; 0 at tokens that are not the policy's own."""
        texts, own = [row.tokens for row in rows], own_tokens(rows)
        shares = (self.hidden(adapter, texts) @ self.w["lm_head.weight"].T / temperature).log_softmax(-1)
        index = torch.tensor([[*text, *[0] * (own.shape[1] - len(text))] for text in texts])
        found = shares[:, :-1].gather(-1, index[:, 1:, None]).squeeze(-1)
        return torch.where(own, torch.cat((found.new_zeros(len(rows), 1), found), 1), 0)

    def values(self, adapter: Adapter, rows: Sequence[Row]) -> Tensor:
        """[R, L] the value, before token p, of the critic's adapter with its head, at p; 0 at tokens not its own."""
        found = (self.hidden(adapter, [row.tokens for row in rows]) @ adapter["value_head"].T).squeeze(-1)
        return torch.where(own_tokens(rows), torch.cat((found.new_zeros(len(rows), 1), found[:, :-1]), 1), 0)

    @torch.no_grad()
    def write(
        self, adapter: Adapter, prompts: Sequence[Sequence[int]], numbers: np.ndarray, end: int, *,
        temperature: float, top_k: int = 0, top_p: float = 1.0, least: int = 0,
    ) -> list[Row]:  # fmt: skip
        """A completion of each prompt: token t is drawn by the inverse distribution at the uniform number [R, T]."""
        rows = [Row(list(prompt), [False] * len(prompt), False) for prompt in prompts]
        for step in range(numbers.shape[1]):
            going = [k for k, row in enumerate(rows) if not row.ended]
            if not going:
                break
            states = self.hidden(adapter, [rows[k].tokens for k in going])
            for state, k in zip(states, going, strict=True):
                scores = state[len(rows[k].tokens) - 1] @ self.w["lm_head.weight"].T / temperature
                if step < least:
                    scores[end] = -math.inf
                token = drawn(scores.softmax(-1).numpy(), numbers[k, step], top_k, top_p)
                rows[k].tokens.append(token)
                rows[k].own.append(True)
                rows[k].ended = token == end
        return rows


def drawn(share: np.ndarray, number: float, top_k: int, top_p: float) -> int:
    """A token by the inverse of the distribution over the k most probable, then over the smallest set of mass p.

    Holtzman et al. 2020, arXiv:1904.09751: both of the probabilities that are drawn from, at the temperature.
    """
    order = sorted(range(len(share)), key=lambda token: -share[token])
    kept = order[:top_k] if top_k else order
    mass, nucleus = 0.0, []
    for token in kept:
        if mass >= top_p * share[kept].sum():
            break
        nucleus.append(token)
        mass += share[token]
    total, running = sum(share[token] for token in nucleus), 0.0
    for token in sorted(nucleus):
        running += share[token]
        if running > number * total:
            return token
    return max(nucleus)


def rotated(x: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021, arXiv:2104.09864) of [R, heads, L, d], halves as pairs; θ = 10,000."""
    half = x.shape[-1] // 2
    rate = 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * rate
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


def own_tokens(rows: Sequence[Row]) -> Tensor:
    """[R, L] bool."""
    length = max(len(row.tokens) for row in rows)
    return torch.tensor([[*row.own, *[False] * (length - len(row.own))] for row in rows])
