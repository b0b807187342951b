"""PPO with recurrent encoders by its published name (Schulman et al. 2017, arXiv:1707.06347)."""

from __future__ import annotations

from agilerl.algorithms.ppo import PPO
from agilerl.core.signatures import with_defaults


class RecurrentPPO(PPO):
    """`PPO(recurrent=True)` by its published name, with the published rollout of 8192 steps.

    The arguments are those of `PPO`.
    """

    always_recurrent = True
    __init__ = with_defaults(PPO.__init__, recurrent=True, learn_step=8192)
