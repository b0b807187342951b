"""Confidence of neural bandits: gradients of the last layer, widths, and the design matrix.

Both papers use the gradient g(x; θ) of a network f(x; θ) = √m · w·φ(x) of width m, and divide g gᵀ by m. The networks
here have the factor inside their weights, f(x; θ) = w·h(x) + b, and only the last layer counts, so that
g(x)/√m = (h(x), 1)/√m. Leading axes are arbitrary, such as members [N] and arms [A].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def scaled_gradient(hidden: Tensor) -> Tensor:
    """Return g/√m = (h, 1)/√m [..., m + 1] for the inputs h [..., m] of the output layer."""
    ones = hidden.new_ones(*hidden.shape[:-1], 1)
    return torch.cat((hidden, ones), -1) / math.sqrt(hidden.shape[-1])


def squared_width(gradient: Tensor, inverse: Tensor) -> Tensor:
    """Return gᵀ Z⁻¹ g / m [..., A]: Zhou et al. 2020 (arXiv:1911.04462), algorithm 1, without γ and the root.

    Args:
        gradient: [..., A, p] result of `scaled_gradient`. inverse: [..., p, p] inverse design matrix.
    """
    return ((gradient @ inverse) * gradient).sum(-1).clamp_(min=0)


def with_choice(inverse: Tensor, gradient: Tensor) -> Tensor:
    """Return the inverse of Z + g gᵀ / m [..., p, p], the update of both algorithms (arXiv:1911.04462 and
    arXiv:2010.00827, algorithm 1), by the formula of Sherman and Morrison: Z⁻¹ − Z⁻¹g gᵀZ⁻¹ / (m + gᵀZ⁻¹g).

    Args:
        inverse: [..., p, p]. gradient: [..., p] result of `scaled_gradient` for the chosen arm.
    """
    along = (inverse @ gradient.unsqueeze(-1)).squeeze(-1)
    scale = 1 + (along * gradient).sum(-1)
    return inverse - along.unsqueeze(-1) * along.unsqueeze(-2) / scale[..., None, None]


def inverse_design(gradients: Tensor, lamb: float) -> Tensor:
    """Return (λI + Σ g gᵀ / m)⁻¹ [p, p] over rows [R, p] of `scaled_gradient`; I/λ without rows."""
    size = gradients.shape[-1]
    design = lamb * torch.eye(size, dtype=gradients.dtype, device=gradients.device) + gradients.mT @ gradients
    return torch.cholesky_inverse(torch.linalg.cholesky(design))
