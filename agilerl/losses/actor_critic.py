"""Targets and losses of actor-critic methods. Leading axes are free: members [N]; the last one is the batch [B].

Per-member numbers come as [N, 1], or as scalars; losses are sums over the batch under row weights and give [N].
"""

from __future__ import annotations

import torch
from torch import Tensor


def bootstrap(reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """y = r + γ(1 − terminated) · v(s') [..., B] (Lillicrap et al. 2016, arXiv:1509.02971, eq. 5).

    Args:
        reward: [..., B]. discount: [..., B] γ · (1 − terminated), or γⁿ · (1 − terminated) after n steps.
        next_value: [..., B] of the FINAL observation where an episode was cut.
    """
    return torch.addcmul(reward, discount, next_value)


def smoothed_action(
    action: Tensor, noise: Tensor, std: Tensor, limit: Tensor, low: float = -1.0, high: float = 1.0
) -> Tensor:
    """clip(a + clip(σ·ε, −c, c), low, high): target policy smoothing (Fujimoto et al. 2018, arXiv:1802.09477, eq. 15).

    Args:
        action: [..., B, A] of the target policy. noise: [..., B, A] standard normal.
        std, limit: σ and c, scalars or [..., 1] per member, in units of raw actions.
        low, high: bounds of raw actions.
    """
    limit = limit.unsqueeze(-1)
    disturbance = torch.maximum(torch.minimum(noise * std.unsqueeze(-1), limit), -limit)
    return (action + disturbance).clamp(low, high)


def twin_target(reward: Tensor, discount: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """y = r + γ(1 − terminated) · min(Q₁, Q₂) [..., B]: clipped double Q-learning (arXiv:1802.09477, eq. 10).

    Args:
        reward, discount: [..., B]. first, second: [..., B] of both target critics.
    """
    return torch.addcmul(reward, discount, torch.minimum(first, second))


def weighted_squared_error(value: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_b w_b (v_b − y_b)², the mean squared error where w_b = 1/B.

    Args:
        value: [..., B]. target, weight: [..., B], constants.

    Returns:
        (loss [...], errors v − y [..., B]).
    """
    error = value - target
    return (weight * error.square()).sum(-1), error


def deterministic_policy_loss(value: Tensor, weight: Tensor) -> Tensor:
    """−Σ_b w_b Q(s_b, μ(s_b)) [...]: its gradient is the deterministic policy gradient (arXiv:1509.02971, eq. 6).

    Args:
        value: [..., B] the critic as a function of the policy's action. weight: [..., B].
    """
    return -(weight * value).sum(-1)


# --- maximum entropy -------------------------------------------------------------------------------------------------


def soft_value(first: Tensor, second: Tensor, log_prob: Tensor, alpha: Tensor) -> Tensor:
    """V(s) = min(Q₁, Q₂)(s, a) − α log π(a|s), a ~ π [..., B] (Haarnoja et al. 2018, arXiv:1812.05905, eq. 3).

    Args:
        first, second, log_prob: [..., B]. alpha: scalar or [..., 1] per member.
    """
    return torch.minimum(first, second) - alpha * log_prob


def soft_policy_loss(first: Tensor, second: Tensor, log_prob: Tensor, alpha: Tensor, weight: Tensor) -> Tensor:
    """Σ_b w_b (α log π(a_b|s_b) − min(Q₁, Q₂)(s_b, a_b)) [...], a_b reparametrised (arXiv:1812.05905, eq. 9)."""
    return -(weight * soft_value(first, second, log_prob, alpha)).sum(-1)


def discrete_soft_value(first: Tensor, second: Tensor, log_prob: Tensor, alpha: Tensor) -> Tensor:
    """V(s) = Σ_a π(a|s) (min(Q₁, Q₂)(s, a) − α log π(a|s)) [..., B] (Christodoulou 2019, arXiv:1910.07207, eq. 10).

    Args:
        first, second, log_prob: [..., B, A]; illegal actions have a probability of exactly 0.
        alpha: scalar or [..., 1] per member.
    """
    probability = log_prob.exp()
    value = torch.minimum(first, second) - alpha.unsqueeze(-1) * log_prob
    return (probability * value).sum(-1)


def temperature_loss(log_alpha: Tensor, entropy: Tensor, target_entropy: Tensor, weight: Tensor) -> Tensor:
    """J(α) = Σ_b w_b α (H_b − H̄) [...], with H_b = −log π(a_b|s_b) (arXiv:1812.05905, eq. 18).

    In log α its gradient is α Σ_b w_b (H_b − H̄): the temperature falls while the policy is more random than asked.

    Args:
        log_alpha: [..., 1] per member, or [1]: the learned number. entropy: [..., B], a constant.
        target_entropy: H̄ in nats, scalar or [..., 1] per member. weight: [..., B].
    """
    return (weight * (log_alpha.exp() * (entropy - target_entropy))).sum(-1)
