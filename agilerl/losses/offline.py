"""Losses of policies and values that are learned from data alone; `conservative` has those of conservative Q-learning.

Leading axes are free: members [N]; the last one is the batch [B]. Per-member numbers come as [N, 1], or as scalars;
losses are sums over the batch under row weights and give [N].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

MIN_SCALE = 1e-6  # of values, below which a policy is not made to follow them any more


# --- cloning ----------------------------------------------------------------------------------------------------------


def cloning_error(action: Tensor, taken: Tensor, weight: Tensor) -> Tensor:
    """Σ_b w_b · mean_i (μ_i(s_b) − a_bi)² [...]: behaviour cloning of raw actions, by the mean squared error.

    Args:
        action: [..., B, A] of the policy. taken: [..., B, A] of the data. weight: [..., B].
    """
    return (weight * (action - taken).square().mean(-1)).sum(-1)


def cloning_likelihood(log_prob: Tensor, weight: Tensor) -> Tensor:
    """−Σ_b w_b log π(a_b|s_b) [...]: behaviour cloning by maximum likelihood; of choices the cross-entropy.

    Args:
        log_prob, weight: [..., B].
    """
    return -(weight * log_prob).sum(-1)


def cloning_policy_loss(
    value: Tensor,
    action: Tensor,
    taken: Tensor,
    alpha: Tensor,
    weight: Tensor,
    mean_of: Callable[[Tensor], Tensor] = lambda x: x,
) -> Tensor:
    """−λ Σ_b w_b Q(s_b, μ(s_b)) + cloning error [...], λ = α / mean |Q| (arXiv:2106.06860, eq. 3 and 5).

    λ is a constant. As in the authors' released code its mean is over the policy's own actions, and the squared
    difference is averaged over components.

    Args:
        value: [..., B] the critic as a function of the policy's action. action: [..., B, A] that action.
        taken: [..., B, A] of the data. alpha: scalar or [..., 1] per member. weight: [..., B].
        mean_of: the mean over processes, where several of them share a batch.
    """
    scale = mean_of((weight * value.detach().abs()).sum(-1)) / mean_of(weight.sum(-1))
    return cloning_error(action, taken, weight) - alpha.squeeze(-1) / scale.clamp_min(MIN_SCALE) * (weight * value).sum(
        -1
    )


# --- implicit Q-learning ---------------------------------------------------------------------------------------------


def expectile_loss(advantage: Tensor, expectile: Tensor, weight: Tensor) -> Tensor:
    """Σ_b w_b |τ − 1(u_b < 0)| u_b² [...], u = Q(s, a) − V(s) (Kostrikov et al. 2021, arXiv:2110.06169, eq. 5).

    Args:
        advantage: [..., B], differentiable in V. expectile: τ, scalar or [..., 1] per member. weight: [..., B].
    """
    share = torch.where(advantage < 0, 1 - expectile, expectile)
    return (weight * share * advantage.square()).sum(-1)


def advantage_weight(advantage: Tensor, inverse_temperature: Tensor, limit: Tensor) -> Tensor:
    """min(exp(β (Q(s, a) − V(s))), limit) [..., B]: what an action counts for the policy (arXiv:2110.06169, eq. 7).

    Clipped as in the authors' released code. Above the limit nothing overflows.

    Args:
        advantage: [..., B], a constant. inverse_temperature, limit: scalars or [..., 1] per member.
    """
    return torch.minimum(inverse_temperature * advantage, limit.log()).exp()
