"""Group sequence policy optimisation (Zheng et al. 2025, arXiv:2507.18071): a variant of GRPO by its name."""

from __future__ import annotations

from agilerl.algorithms.grpo import GRPO
from agilerl.core.signatures import with_defaults


class GSPO(GRPO):
    """`GRPO(variant="gspo")` by its published name; the arguments are those of `GRPO`."""

    __init__ = with_defaults(GRPO.__init__, variant="gspo")
