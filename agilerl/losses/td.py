"""Temporal-difference targets and losses for values and categorical return distributions.

Leading axes are arbitrary, such as members [N], followed by the batch [B] and, for distributions, atoms [K].
"""

from __future__ import annotations

import torch
from torch import Tensor


def take(values: Tensor, index: Tensor) -> Tensor:
    """Return values[..., index], one entry of the last axis per row; [..., A] and int64 [...] give [...]."""
    return values.gather(-1, index.unsqueeze(-1)).squeeze(-1)


def q_learning_target(reward: Tensor, discount: Tensor, next_q: Tensor, next_q_selector: Tensor | None) -> Tensor:
    """One-step target of Q-learning [..., B], y = r + γ(1 − terminated) · Q⁻(s', a*).

    a* = argmax Q⁻(s', ·) (Mnih et al. 2015, Nature 518, algorithm 1), or argmax Q(s', ·) with a selector (double
    Q-learning: van Hasselt et al. 2016, arXiv:1509.06461, eq. 4).

    Args:
        reward: [..., B].
        discount: [..., B] γ of the member · (1 − terminated); a truncated step keeps its γ.
        next_q: [..., B, A] target network's values of s', the FINAL observation if the step was truncated.
        next_q_selector: [..., B, A] evaluation network's values of s', or None.
    """
    if next_q_selector is None:
        return torch.addcmul(reward, discount, next_q.amax(-1))
    best = next_q_selector.max(-1).indices  # several times faster than argmax if actions are not contiguous
    return torch.addcmul(reward, discount, take(next_q, best))


def squared_td_error(values: Tensor, action: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return L = Σ_b w_b (Q(s_b, a_b) − y_b)², the mean squared TD error for w_b = 1/B, and its closed-form gradient.

    ∂L/∂Q(s_b, a) = 2 w_b (Q(s_b, a_b) − y_b) for a = a_b, else 0. Rows beyond a member's batch size have weight 0 and
    are ignored.

    Args:
        values: [..., B, A]. action: [..., B] int64. target, weight: [..., B].

    Returns:
        (loss [...], gradient [..., B, A], TD errors Q(s_b, a_b) − y_b [..., B]).
    """
    index = action.unsqueeze(-1)
    error = values.gather(-1, index).squeeze(-1) - target
    weighted = error * weight
    grad = torch.zeros_like(values).scatter_(-1, index, (weighted + weighted).unsqueeze(-1))
    return (weighted * error).sum(-1), grad, error


# --- categorical distributions of returns -----------------------------------------------------------------------------


def expected_index(logits: Tensor) -> Tensor:
    """Σ_k k · softmax(logits)_k: logits [..., K] -> [...].

    The expected return is v_min + Δ · this, with Δ > 0, so both rank actions equally for any support.
    """
    index = torch.arange(logits.shape[-1], dtype=logits.dtype, device=logits.device)
    return (logits.softmax(-1) * index).sum(-1)


def take_atoms(values: Tensor, action: Tensor) -> Tensor:
    """Return the atoms of one action per row: [..., A, K] and int64 [...] give [..., K]."""
    index = action[..., None, None].expand(*action.shape, 1, values.shape[-1])
    return values.gather(-2, index).squeeze(-2)


def project(probabilities: Tensor, reward: Tensor, discount: Tensor, v_min: Tensor, v_max: Tensor) -> Tensor:
    """Project the target distribution onto the atoms (Bellemare et al. 2017, arXiv:1707.06887, eq. 7).

    T z_j = r + γ z_j, clipped to [v_min, v_max], distributes its probability p_j to the two neighbouring atoms:
    m_i = Σ_j [1 − |T z_j − z_i| / Δ]₀¹ · p_j with z_i = v_min + i · Δ, Δ = (v_max − v_min) / (K − 1).

    Args:
        probabilities: [..., B, K] of the next state and its chosen action.
        reward: [..., B] (the discounted sum of n rewards after n steps).
        discount: [..., B] γⁿ · (1 − terminated); with 0 all probability is at the reward.
        v_min, v_max: scalars, or [..., 1] per member.

    Returns:
        [..., B, K] with the same sum as `probabilities`; call without gradients.
    """
    atoms = probabilities.shape[-1]
    low, high = v_min.unsqueeze(-1), v_max.unsqueeze(-1)  # [..., 1, 1], or [1]
    spacing = (high - low) / (atoms - 1)
    support = low + torch.arange(atoms, dtype=probabilities.dtype, device=probabilities.device) * spacing
    moved = torch.addcmul(reward.unsqueeze(-1), discount.unsqueeze(-1), support)
    moved = torch.minimum(torch.maximum(moved, low), high)
    place = ((moved - low) / spacing).clamp_(0, atoms - 1)
    lower = place.floor()
    share = place - lower
    below = lower.long().clamp_(0, atoms - 1)  # clamped for NaN, so that one member does not break the others
    above = (below + 1).clamp_(max=atoms - 1)  # exactly on an atom its share is 0, so nothing is counted twice
    if probabilities.is_cuda:
        return spread_in_order(probabilities, below, above, share)
    projected = torch.zeros_like(probabilities)
    projected.scatter_add_(-1, below, probabilities * (1 - share))
    projected.scatter_add_(-1, above, probabilities * share)
    return projected


def spread_in_order(probabilities: Tensor, below: Tensor, above: Tensor, share: Tensor) -> Tensor:
    """Return the projection of `project` with sums in a fixed order, for equal bits in equal runs.

    On CUDA `scatter_add_` adds colliding numbers in whatever order its threads reach them. Here every number has its
    own place in [..., B, K, K]: the share that atom i gets of the probability of atom j.

    Args:
        below, above: int64 [..., B, K], neighbours of each moved atom. share: [..., B, K], that of the upper one.
    """
    shares = probabilities.new_zeros(*probabilities.shape, probabilities.shape[-1])
    shares.scatter_(-1, below.unsqueeze(-1), (1 - share).unsqueeze(-1))
    shares.scatter_add_(-1, above.unsqueeze(-1), share.unsqueeze(-1))  # one number per j: no collisions
    return (probabilities.unsqueeze(-1) * shares).sum(-2)


def categorical_divergence(logits: Tensor, target: Tensor) -> Tensor:
    """D_KL(target ‖ softmax(logits)) [...], at least 0 up to rounding: Hessel et al. 2018, arXiv:1710.02298, section 3.

    Its gradient in `logits` is softmax(logits) − target, as for the cross-entropy.

    Args:
        logits: [..., K]. target: [..., K] probabilities, detached.
    """
    divergence: Tensor = (torch.special.xlogy(target, target) - target * logits.log_softmax(-1)).sum(-1)
    return divergence
