"""Evolvable bidirectional transformer encoder (Devlin et al. 2019, arXiv:1810.04805)."""

from __future__ import annotations

from agilerl.modules.gpt import TokenTransformer


class EvolvableBERT(TokenTransformer):
    """An encoder: each position attends to all present tokens, before and after it.

    Arguments and mutations are those of `EvolvableGPT`: learned positions, LayerNorm before each sub-layer. Departs
    from the paper, which applies LayerNorm after each sub-layer, because only then can `add_layer` be exact; there are
    no segments, as it reads a single text.

    `forward(tokens, present)` returns outputs [B, L, O]; `present` [B, L] bool marks tokens that are not padding.
    """

    causal = False
