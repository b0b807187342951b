"""The evolvable transformer that reads a whole text at once (Devlin et al. 2019, arXiv:1810.04805)."""

from __future__ import annotations

from agilerl.modules.gpt import TokenTransformer


class EvolvableBERT(TokenTransformer):
    """An encoder: each position sees all tokens that are there, before it and after it.

    The body is that of `EvolvableGPT`, whose arguments and mutations it has: learned positions, LayerNorm before each
    part. Departs from the paper, whose LayerNorm comes after each part, because only so `add_layer` can be exact; there
    are no segments, for it reads one text.

    `forward(tokens, present)` gives outputs [B, L, O]; `present` [B, L] bool says which tokens are no padding.
    """

    causal = False
