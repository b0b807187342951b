"""Published stand-alone layers, with their own weights and noise generators."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from agilerl.modules import layers
from agilerl.modules.base import next_seed

__all__ = ["GumbelSoftmax", "NoisyLinear"]


class _Drawing:
    """Mixin with generators for a layer that draws its own noise."""

    def __init__(self) -> None:
        self.seed, self.draws = next_seed(), 0

    def next(self) -> torch.Generator:
        generator = torch.Generator()
        generator.manual_seed((self.seed + 7919 * self.draws) % 2**63)
        self.draws += 1
        return generator


class NoisyLinear(layers.NoisyLinear):
    """`modules.layers.NoisyLinear`, ready to use: weights uniform in ±1/sqrt(in_features), noise drawn once.

    Args:
        std_init: initial scale of the noise, divided by sqrt(in_features).
    """

    def __init__(
        self, in_features: int, out_features: int, std_init: float = 0.5, device: str | torch.device = "cpu"
    ) -> None:
        super().__init__(in_features, out_features, std_init)
        self._drawing, limit = _Drawing(), 1 / math.sqrt(in_features)
        with torch.no_grad():
            for parameter in (self.weight, self.bias):
                parameter.uniform_(-limit, limit, generator=self._drawing.next())
        self.reset_noise()
        self.to(device)

    def reset_noise(self, generator: torch.Generator | None = None) -> None:
        """Resample the noise in place; by default from the layer's own generator."""
        super().reset_noise(self._drawing.next() if generator is None else generator)


class GumbelSoftmax(nn.Module):
    """softmax((x + g) / τ) over the last axis, g standard Gumbel noise: a differentiable sample of a category
    (Jang et al. 2017, Maddison et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self._drawing = _Drawing()

    def forward(self, logits: Tensor, tau: float = 1.0, eps: float = 1e-20) -> Tensor:
        """Return weights [..., A] that sum to 1, from logits [..., A]. tau: above 0; smaller is closer to one-hot."""
        uniform = torch.rand(logits.shape, generator=self._drawing.next()).to(logits)
        gumbel = -torch.log(-torch.log(uniform + eps) + eps)
        return torch.softmax((logits + gumbel) / tau, dim=-1)
