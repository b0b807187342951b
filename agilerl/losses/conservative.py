"""Conservative terms that lower the values of out-of-distribution actions."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def conservative_penalty(
    values: Tensor, action: Tensor, weight: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return R = Σ_b w_b (log Σ_a exp Q(s_b, a) − Q(s_b, a_b)) and its closed-form gradient.

    The regulariser of CQL(H) (Kumar et al. 2020, arXiv:2006.04779, eq. 4) for discrete actions:
    ∂R/∂Q(s_b, a) = w_b (softmax(Q(s_b, ·))_a − 1[a = a_b]). Rows of weight 0 are ignored.

    Args:
        values: [..., B, A]. action: [..., B] int64, from the data. weight: [..., B].
        mask: [..., B, A] bool; illegal actions are excluded from the sum. None: all are legal.

    Returns:
        (R [...], gradient [..., B, A]).
    """
    legal = values if mask is None else values.masked_fill(~mask, -torch.inf)
    index = action.unsqueeze(-1)
    excess = legal.logsumexp(-1) - values.gather(-1, index).squeeze(-1)
    grad = legal.softmax(-1)
    grad.scatter_add_(-1, index, -torch.ones_like(index, dtype=grad.dtype))
    return (weight * excess).sum(-1), grad * weight.unsqueeze(-1)


def sampled_conservative_penalty(values: Tensor, log_density: Tensor, of_data: Tensor, weight: Tensor) -> Tensor:
    """R = Σ_b w_b (log ∫ exp Q(s_b, a) da − Q(s_b, a_b)) [...], with the integral estimated from samples.

    The regulariser of CQL(H) (arXiv:2006.04779, eq. 4) for continuous actions, by importance sampling (appendix F):
    log ∫ exp Q(s, a) da ≈ log (1/M Σ_m exp(Q(s, a_m) − log p_m)).

    Args:
        values: [..., B, M] of sampled actions. log_density: [..., B, M], under their proposal distributions.
        of_data: [..., B], values of the data's actions. weight: [..., B].
    """
    integral = (values - log_density).logsumexp(-1) - math.log(values.shape[-1])
    return (weight * (integral - of_data)).sum(-1)


def multiplier_loss(log_multiplier: Tensor, gap: Tensor, threshold: Tensor) -> Tensor:
    """−α (R − τ) [...] in log α: the weight of the term grows while R > τ (arXiv:2006.04779, appendix F).

    Args:
        log_multiplier: learned parameter, [1] or [..., 1] per member. gap: R [...], detached.
        threshold: τ, scalar or [..., 1] per member.
    """
    return -(log_multiplier.exp() * (gap.unsqueeze(-1) - threshold)).sum(-1)
