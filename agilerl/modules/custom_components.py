"""Published layers that stand alone: with weights of their own, and noise that they draw by themselves."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from agilerl.modules import layers
from agilerl.modules.base import next_seed

__all__ = ["GumbelSoftmax", "NoisyLinear"]


class _Drawing:
    """Generators, one after another, of a layer that draws by itself."""

    def __init__(self) -> None:
        self.seed, self.draws = next_seed(), 0

    def next(self) -> torch.Generator:
        generator = torch.Generator()
        generator.manual_seed((self.seed + 7919 * self.draws) % 2**63)
        self.draws += 1
        return generator


class NoisyLinear(layers.NoisyLinear):
    """As `modules.layers.NoisyLinear`, ready to use: weights uniform in ±1/sqrt(in_features), noise drawn once.

    Args:
        std_init: scale of the noise at the start, divided by sqrt(in_features).
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
        """Draw the noise anew, in place; from a generator of its own where none is given."""
        super().reset_noise(self._drawing.next() if generator is None else generator)


class GumbelSoftmax(nn.Module):
    """softmax((x + g) / τ) over the last axis, g standard Gumbel noise: a differentiable sample of a category
    (Jang et al. 2017, Maddison et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self._drawing = _Drawing()

    def forward(self, logits: Tensor, tau: float = 1.0, eps: float = 1e-20) -> Tensor:
        """Weights [..., A] that sum to 1, from logits [..., A]. tau: above 0; smaller is nearer to one category."""
        uniform = torch.rand(logits.shape, generator=self._drawing.next()).to(logits)
        gumbel = -torch.log(-torch.log(uniform + eps) + eps)
        return torch.softmax((logits + gumbel) / tau, dim=-1)
