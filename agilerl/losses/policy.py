"""Losses of proximal policy optimisation. Leading axes are free: members [N]; the last one is the batch [B].

Per-member numbers come as [N, 1], or as scalars; losses are sums over the batch under row weights and give [N].
"""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_surrogate(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """L = −Σ_b w_b min(ρ_b Â_b, clip(ρ_b, 1 − ε, 1 + ε) Â_b), ρ = π/π_old (arXiv:1707.06347, eq. 7), and ∂L/∂log π.

    The gradient is −w ρ Â where the first term is the smaller one (or both are equal), else 0.

    Args:
        log_prob, old_log_prob, advantage: [..., B]. clip: ε, scalar or [..., 1].
        weight: [..., B], 1/B in the rows that count and 0 elsewhere.

    Returns:
        (loss [...], gradient with respect to `log_prob` [..., B]).
    """
    ratio = (log_prob - old_log_prob).exp()
    free = ratio * advantage
    clipped = torch.minimum(torch.maximum(ratio, 1 - clip), 1 + clip) * advantage
    loss = -(weight * torch.minimum(free, clipped)).sum(-1)
    return loss, -(weight * free).masked_fill_(free > clipped, 0)


def clipped_value_loss(
    value: Tensor, old_value: Tensor, target: Tensor, clip: Tensor | None, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """L = ½ Σ_b w_b max((v − R)², (v_old + clip(v − v_old, −ε, ε) − R)²), and ∂L/∂v.

    The value loss of the authors' released code (openai/baselines, ppo2/model.py); eq. 9 of arXiv:1707.06347 without
    the clip, which is what `clip=None` gives.

    Args:
        value, old_value, target: [..., B]. clip: ε, scalar or [..., 1]. weight: [..., B].

    Returns:
        (loss [...], gradient with respect to `value` [..., B]).
    """
    error = value - target
    squared = error.square()
    if clip is None:
        return 0.5 * (weight * squared).sum(-1), weight * error
    moved = value - old_value
    kept = torch.minimum(torch.maximum(moved, -clip), clip)
    other = old_value + kept - target
    # Where the clipped error is the larger one, the loss moves with v only as long as v is within the clip.
    fixed = (other.square() > squared) & (kept != moved)
    loss = 0.5 * (weight * torch.maximum(squared, other.square())).sum(-1)
    return loss, (weight * error).masked_fill_(fixed, 0)


def approximate_kl(log_prob: Tensor, old_log_prob: Tensor, weight: Tensor) -> Tensor:
    """KL(π_old ‖ π) ≈ Σ_b w_b (ρ_b − 1 − log ρ_b) [...], never negative (Schulman 2020, "Approximating KL", k₃).

    Args:
        log_prob, old_log_prob, weight: [..., B].
    """
    log_ratio = log_prob - old_log_prob
    return (weight * (log_ratio.expm1() - log_ratio)).sum(-1)


def categorical_gradient(logits: Tensor, action: Tensor, of_log_prob: Tensor, of_entropy: Tensor) -> Tensor:
    """∂L/∂logits [..., B, A], from ∂L/∂log π(a) and ∂L/∂H [..., B] of a softmax policy.

    ∂log π(a)/∂x = 1[a] − π;   ∂H/∂x = −π (log π + H).

    Args:
        logits: [..., B, A], illegal ones already at their floor. action: int64 [..., B].
    """
    log_probabilities = logits.log_softmax(-1)
    probabilities = log_probabilities.exp()
    entropy = -(probabilities * log_probabilities).sum(-1, keepdim=True)
    slope = (log_probabilities + entropy) * of_entropy.unsqueeze(-1) + of_log_prob.unsqueeze(-1)
    gradient = -probabilities * slope
    return gradient.scatter_add_(-1, action.unsqueeze(-1), of_log_prob.unsqueeze(-1))
