"""Clipped importance-sampling policy optimisation (MiniMax 2025, arXiv:2506.13585): a variant of GRPO by its name."""

from __future__ import annotations

from agilerl.algorithms.grpo import GRPO
from agilerl.core.signatures import with_defaults


class CISPO(GRPO):
    """`GRPO(variant="cispo")` by its published name; the arguments are those of `GRPO`."""

    __init__ = with_defaults(GRPO.__init__, variant="cispo")
