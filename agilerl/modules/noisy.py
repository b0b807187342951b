"""Linear layer with learned factorised Gaussian noise (Fortunato et al. 2018, arXiv:1706.10295)."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from agilerl.modules.layers import dense


def scaled_noise(size: int, generator: torch.Generator) -> Tensor:
    """f(x) = sgn(x)·sqrt(|x|) of standard Gaussian draws [size] (equation 11 of the paper)."""
    x = torch.randn(size, generator=generator)
    return x.sign() * x.abs().sqrt()


def noisy_dense(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    weight_sigma: Tensor,
    bias_sigma: Tensor,
    noise_in: Tensor,
    noise_out: Tensor,
) -> Tensor:
    """(w + σ_w ⊙ ε_out εᵢₙᵀ)·x + b + σ_b ⊙ ε_out, with or without a member axis.

    Args:
        x: [..., I] or [N, B, I]; weight, weight_sigma: [O, I] or [N, O, I]; bias, bias_sigma: [O] or [N, O].
        noise_in: [I] or [N, I]; noise_out: [O] or [N, O], both already passed through f.
    """
    noise = noise_out.unsqueeze(-1) * noise_in.unsqueeze(-2)
    return dense(x, weight + weight_sigma * noise, bias + bias_sigma * noise_out)


def factorised(draws: np.ndarray) -> np.ndarray:
    """f(x) = sgn(x)·sqrt(|x|) of standard Gaussian draws [...] (equation 11 of the paper)."""
    scaled: np.ndarray = np.sign(draws) * np.sqrt(np.abs(draws))
    return scaled


def noisy_layers(module: nn.Module) -> list[NoisyLinear]:
    """The noisy layers of a network, in the order of its modules."""
    return [child for _, child in module.named_modules() if isinstance(child, NoisyLinear)]


def noise_size(module: nn.Module) -> int:
    """How many numbers `set_noise` takes."""
    return sum(layer.in_features + layer.out_features for layer in noisy_layers(module))


def layer_noise(module: nn.Module, rng: np.random.Generator, count: int) -> np.ndarray:
    """`count` draws of a network's noise [count, noise_size], for `set_noise`."""
    return factorised(rng.standard_normal((count, noise_size(module))))


def set_noise(module: nn.Module, values: Tensor) -> None:
    """Give every noisy layer its noise, inputs before outputs: `values` [noise_size] as `layer_noise` draws them."""
    position = 0
    for layer in noisy_layers(module):
        for noise in (layer.noise_in, layer.noise_out):
            noise.copy_(values[position : position + len(noise)])
            position += len(noise)


class NoisyLinear(nn.Module):
    """A dense layer whose weights carry learned noise; without noise in evaluation mode.

    `reset_noise(generator)` draws new noise; the layer never draws by itself. Weights start unset (the owner fills
    them), the noise scales start at `noise_std`/sqrt(in_features), section 3.2 of the paper.
    """

    def __init__(self, in_features: int, out_features: int, noise_std: float = 0.5) -> None:
        super().__init__()
        self.in_features, self.out_features, self.noise_std = in_features, out_features, noise_std
        scale = noise_std / math.sqrt(in_features)
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features))
        self.weight_sigma = nn.Parameter(torch.full((out_features, in_features), scale))
        self.bias_sigma = nn.Parameter(torch.full((out_features,), scale))
        self.register_buffer("noise_in", torch.zeros(in_features))
        self.register_buffer("noise_out", torch.zeros(out_features))
        self.noise_in: Tensor
        self.noise_out: Tensor

    def reset_noise(self, generator: torch.Generator) -> None:
        """Draw the noise anew, in place, from a CPU generator."""
        self.noise_in.copy_(scaled_noise(self.in_features, generator))
        self.noise_out.copy_(scaled_noise(self.out_features, generator))

    def forward(self, x: Tensor) -> Tensor:
        """x [..., I] -> [..., O]."""
        if not self.training:
            return dense(x, self.weight, self.bias)
        return noisy_dense(x, self.weight, self.bias, self.weight_sigma, self.bias_sigma, self.noise_in, self.noise_out)
