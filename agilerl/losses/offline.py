"""Losses of offline algorithms; see `conservative` for conservative Q-learning.

The last axis is the batch [B]; leading axes are arbitrary, such as members [N]. Per-member hyperparameters are [N, 1]
or scalars. Losses are sums over the batch with row weights, of shape [N].
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

MIN_SCALE = 1e-6  # minimum mean |Q| in the normalisation of the value term


# --- cloning ----------------------------------------------------------------------------------------------------------


def cloning_error(action: Tensor, taken: Tensor, weight: Tensor) -> Tensor:
    """Σ_b w_b · mean_i (μ_i(s_b) − a_bi)² [...]: behaviour cloning of raw actions by mean squared error.

    Args:
        action: [..., B, A], from the policy. taken: [..., B, A], from the data. weight: [..., B].
    """
    return (weight * (action - taken).square().mean(-1)).sum(-1)


def cloning_likelihood(log_prob: Tensor, weight: Tensor) -> Tensor:
    """−Σ_b w_b log π(a_b|s_b) [...]: behaviour cloning by maximum likelihood; cross-entropy for discrete actions.

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

    λ is detached. As in the authors' released code, its mean is over the policy's actions, and the squared difference
    is averaged over components.

    Args:
        value: [..., B] critic values, differentiable in the policy's action. action: [..., B, A], the policy's action.
        taken: [..., B, A], from the data. alpha: scalar or [..., 1] per member. weight: [..., B].
        mean_of: mean over processes that share a batch.
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
    """min(exp(β (Q(s, a) − V(s))), limit) [..., B]: weight of an action in the policy loss (arXiv:2110.06169, eq. 7).

    Clipped as in the authors' released code, before the exponential, which therefore cannot overflow.

    Args:
        advantage: [..., B], detached. inverse_temperature, limit: scalars or [..., 1] per member.
    """
    return torch.minimum(inverse_temperature * advantage, limit.log()).exp()
