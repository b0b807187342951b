"""Neural Thompson sampling (Zhang, Zhou, Li and Gu 2021, arXiv:2010.00827)."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.base.bandit import NeuralBandit
from agilerl.engine.protocol import Draws


class NeuralTS(NeuralBandit):
    """Choose the arm of the highest reward that is drawn from its posterior (algorithm 1 of the paper).

    r̃ ~ N(f(x; θ), ν² σ²) with σ² = λ g(x; θ)ᵀ U⁻¹ g(x; θ) / m, and U ← U + g gᵀ/m for the chosen arm. The published
    name of ν is `gamma`. Arguments as `NeuralBandit`.
    """

    def width_scale(self) -> float:
        """Return ν √λ, the factor of √(gᵀ U⁻¹ g / m)."""
        return float(self.gamma) * math.sqrt(self.lamb)

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Draws:
        """Draw a standard normal number for each arm, [*shape, A]."""
        return (rng.standard_normal((*shape, self.arms)),)

    def arm_scores(self, mean: Tensor, width: Tensor, draws: Draws) -> Tensor:
        """Return sampled rewards f + ν σ ε [..., A]."""
        return mean + width * torch.from_numpy(draws[0]).to(mean)
