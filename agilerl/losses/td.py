"""Temporal-difference targets and losses. Leading axes are free: members [N], batch [B]; the last one is the batch."""

from __future__ import annotations

import torch
from torch import Tensor


def take(values: Tensor, index: Tensor) -> Tensor:
    """values[..., index]: one entry of the last axis per row; [..., A] and int64 [...] give [...]."""
    return values.gather(-1, index.unsqueeze(-1)).squeeze(-1)


def q_learning_target(reward: Tensor, discount: Tensor, next_q: Tensor, next_q_selector: Tensor | None) -> Tensor:
    """One-step target of Q-learning, y = r + γ(1 − terminated) · Q⁻(s', a*).

    a* = argmax Q⁻(s', ·) (Mnih et al. 2015, Nature 518, algorithm 1), or argmax Q(s', ·) where a selector is given
    (double Q-learning: van Hasselt et al. 2016, arXiv:1509.06461, eq. 4).

    Args:
        reward: [..., B].
        discount: [..., B] γ of that member · (1 − terminated); a truncated step keeps its γ.
        next_q: [..., B, A] target network's values of s', the FINAL observation where an episode was cut.
        next_q_selector: [..., B, A] evaluation network's values of s', or None.

    Returns:
        [..., B].
    """
    if next_q_selector is None:
        return torch.addcmul(reward, discount, next_q.amax(-1))
    best = next_q_selector.max(-1).indices  # several times faster than argmax where the actions are not adjacent
    return torch.addcmul(reward, discount, take(next_q, best))


def squared_td_error(values: Tensor, action: Tensor, target: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """L = Σ_b w_b (Q(s_b, a_b) − y_b)², the mean squared TD error where w_b = 1/B, and its gradient in closed form.

    ∂L/∂Q(s_b, a) = 2 w_b (Q(s_b, a_b) − y_b) for a = a_b and 0 for every other action. Rows beyond a member's own
    batch size carry weight 0 and neither count nor get a gradient.

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
