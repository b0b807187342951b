"""NeuralUCB (Zhou, Li and Gu 2020, Neural contextual bandits with UCB-based exploration, arXiv:1911.04462)."""

from __future__ import annotations

from torch import Tensor

from agilerl.algorithms.base.bandit import NeuralBandit
from agilerl.engine.protocol import Draws


class NeuralUCB(NeuralBandit):
    """Choose the arm of the highest upper confidence bound of the reward (algorithm 1 of the paper).

    U(x) = f(x; θ) + γ √(g(x; θ)ᵀ Z⁻¹ g(x; θ) / m), and Z ← Z + g gᵀ/m for the chosen arm. γ is constant, where the γ_t
    of the analysis grows by a bound whose constants are unknown in practice. Arguments as `NeuralBandit`.
    """

    def arm_scores(self, mean: Tensor, width: Tensor, draws: Draws) -> Tensor:
        """Return the upper confidence bounds f + γ √(gᵀ Z⁻¹ g / m) [..., A]."""
        return mean + width
