"""Targets and losses of actor-critic methods and of proximal policy optimisation.

The last axis is the batch [B]; leading axes are arbitrary, such as members [N]. Per-member hyperparameters are [N, 1]
or scalars. Losses are sums over the batch with row weights, of shape [N].
"""

from __future__ import annotations

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0  # bound of log π/π_old: far beyond any clip, and its exp squared is finite in float32


def bootstrap(reward: Tensor, discount: Tensor, next_value: Tensor) -> Tensor:
    """y = r + γ(1 − terminated) · v(s') [..., B] (Lillicrap et al. 2016, arXiv:1509.02971, eq. 5).

    Args:
        reward: [..., B]. discount: [..., B] γ · (1 − terminated), or γⁿ · (1 − terminated) after n steps.
        next_value: [..., B], of the FINAL observation if the step was truncated.
    """
    return torch.addcmul(reward, discount, next_value)


def smoothed_action(
    action: Tensor, noise: Tensor, std: Tensor, limit: Tensor, low: float = -1.0, high: float = 1.0
) -> Tensor:
    """clip(a + clip(σ·ε, −c, c), low, high): target policy smoothing (Fujimoto et al. 2018, arXiv:1802.09477, eq. 15).

    Args:
        action: [..., B, A] of the target policy. noise: [..., B, A] standard normal.
        std, limit: σ and c in units of raw actions, scalars or [..., 1] per member.
        low, high: bounds of raw actions.
    """
    limit = limit.unsqueeze(-1)
    disturbance = torch.maximum(torch.minimum(noise * std.unsqueeze(-1), limit), -limit)
    return (action + disturbance).clamp(low, high)


def weighted_squared_error(value: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σ_b w_b (v_b − y_b)² [...], the mean squared error for w_b = 1/B, and the errors v − y [..., B].

    Args:
        value: [..., B]. target, weight: [..., B], constants.
    """
    error = value - target
    return (weight * error.square()).sum(-1), error


def deterministic_policy_loss(value: Tensor, weight: Tensor) -> Tensor:
    """−Σ_b w_b Q(s_b, μ(s_b)) [...]: its gradient is the deterministic policy gradient (arXiv:1509.02971, eq. 6).

    Args:
        value: [..., B] critic values, differentiable in the policy's action. weight: [..., B].
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

    Its gradient in log α is α Σ_b w_b (H_b − H̄): the temperature falls while the entropy is above the target.

    Args:
        log_alpha: learned parameter, [1] or [..., 1] per member. entropy: [..., B], detached.
        target_entropy: H̄ in nats, scalar or [..., 1] per member. weight: [..., B].
    """
    return (weight * (log_alpha.exp() * (entropy - target_entropy))).sum(-1)


# --- proximal policy optimisation ------------------------------------------------------------------------------------


def clipped_surrogate(
    log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """L = −Σ_b w_b min(ρ_b Â_b, clip(ρ_b, 1 − ε, 1 + ε) Â_b), ρ = π/π_old (arXiv:1707.06347, eq. 7), and ∂L/∂log π.

    The loss is [...]; its gradient [..., B] is −w ρ Â if the first term is the smaller one (or both are equal), else 0.

    For Â < 0 the clip does not bound ρ from above, and exp(89) is infinite in float32: one such row would make all
    weights NaN, even with gradient clipping. So log ρ is clamped to `MAX_LOG_RATIO`.

    Args:
        log_prob, old_log_prob, advantage: [..., B]. clip: ε, scalar or [..., 1].
        weight: [..., B], 1/B for included rows, else 0.
    """
    ratio = (log_prob - old_log_prob).clamp(max=MAX_LOG_RATIO).exp()
    free = ratio * advantage
    clipped = torch.minimum(torch.maximum(ratio, 1 - clip), 1 + clip) * advantage
    loss = -(weight * torch.minimum(free, clipped)).sum(-1)
    return loss, -(weight * free).masked_fill_(free > clipped, 0)


def clipped_value_loss(
    value: Tensor, old_value: Tensor, target: Tensor, clip: Tensor | None, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """L = ½ Σ_b w_b max((v − R)², (v_old + clip(v − v_old, −ε, ε) − R)²) [...], and ∂L/∂v [..., B].

    The value loss of the authors' released code (openai/baselines, ppo2/model.py). `clip=None` is the unclipped loss of
    arXiv:1707.06347, eq. 9.

    Args:
        value, old_value, target: [..., B]. clip: ε, scalar or [..., 1]. weight: [..., B].
    """
    error = value - target
    squared = error.square()
    if clip is None:
        return 0.5 * (weight * squared).sum(-1), weight * error
    moved = value - old_value
    clipped = torch.minimum(torch.maximum(moved, -clip), clip)
    other = old_value + clipped - target
    # If the clipped error is the larger one, the loss depends on v only within the clip range.
    fixed = (other.square() > squared) & (clipped != moved)
    loss = 0.5 * (weight * torch.maximum(squared, other.square())).sum(-1)
    return loss, (weight * error).masked_fill_(fixed, 0)


def approximate_kl(log_prob: Tensor, old_log_prob: Tensor, weight: Tensor) -> Tensor:
    """KL(π_old ‖ π) ≈ Σ_b w_b (ρ_b − 1 − log ρ_b) [...], never negative (Schulman 2020, "Approximating KL", k₃).

    Args:
        log_prob, old_log_prob, weight: [..., B].
    """
    log_ratio = log_prob - old_log_prob
    return (weight * (log_ratio.clamp(max=MAX_LOG_RATIO).expm1() - log_ratio)).sum(-1)


def categorical_gradient(logits: Tensor, action: Tensor, of_log_prob: Tensor, of_entropy: Tensor) -> Tensor:
    """Return ∂L/∂logits [..., B, A] from ∂L/∂log π(a) and ∂L/∂H [..., B] of a softmax policy.

    ∂log π(a)/∂x = 1[a] − π;   ∂H/∂x = −π (log π + H).

    Args:
        logits: [..., B, A], masked for illegal actions. action: int64 [..., B].
    """
    log_probabilities = logits.log_softmax(-1)
    probabilities = log_probabilities.exp()
    entropy = -(probabilities * log_probabilities).sum(-1, keepdim=True)
    slope = (log_probabilities + entropy) * of_entropy.unsqueeze(-1) + of_log_prob.unsqueeze(-1)
    gradient = -probabilities * slope
    return gradient.scatter_add_(-1, action.unsqueeze(-1), of_log_prob.unsqueeze(-1))
