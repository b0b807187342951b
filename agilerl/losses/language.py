"""Losses over tokens of texts written by a policy and an environment.

A network reads a text [B, L] from left to right. Its output at t belongs to the state after token t and predicts token
t + 1. `completion_mask` [B, L] marks the policy's own tokens; token p is an action taken in state p − 1. Other tokens
and right padding are only part of states and excluded from losses. Leading axes are arbitrary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def token_weights(completion_mask: Tensor, weight: Tensor, mean_of: Callable[[Tensor], Tensor] = lambda x: x) -> Tensor:
    """w_b m_bt / Σ w_b m_bt [..., B, L]: equal weight for all of the policy's own tokens, regardless of text length.

    Args:
        completion_mask: [..., B, L] bool; all weights are 0 without own tokens. weight: [..., B], row weights.
        mean_of: mean over processes that share a batch.
    """
    each = weight.unsqueeze(-1) * completion_mask.to(weight.dtype)
    total = mean_of(each.sum((-2, -1), keepdim=True))
    return each / total.clamp_min(torch.finfo(weight.dtype).tiny)


def token_values(values: Tensor, tokens: Tensor) -> Tensor:
    """Select from values [..., L, V] of each state the entry of the following token: [..., L], at p that of token p.

    0 for the first token. Tokens outside of the V, which are never the policy's own, get the last entry; ignore it.
    """
    index = tokens[..., 1:].clamp_max(values.shape[-1] - 1).unsqueeze(-1)
    taken = values[..., :-1, :].gather(-1, index).squeeze(-1)
    return torch.cat((torch.zeros_like(taken[..., :1]), taken), -1)


def state_before(values: Tensor) -> Tensor:
    """Shift state values [..., L]: entry p is that of state p − 1, in which token p was generated; 0 at the first."""
    return torch.cat((torch.zeros_like(values[..., :1]), values[..., :-1]), -1)


def state_after(values: Tensor, completion_mask: Tensor, length: Tensor) -> Tensor:
    """Return [..., L], at p the value of the state in which the policy acts next after token p.

    This is the state before its next own token, after the environment's reply, or the state at the end of the text.
    (Snell et al. 2022, arXiv:2206.11871, section 4: "the next action token".)

    Args:
        values: [..., L] of states. completion_mask: [..., L] bool. length: [...] int64, tokens of each text.
    """
    size = completion_mask.shape[-1]
    place = torch.arange(size, device=completion_mask.device).expand(completion_mask.shape)
    positions = torch.where(completion_mask, place, size)
    later = positions.flip(-1).cummin(-1).values.flip(-1)  # the next own token at or after p
    following = torch.cat((later[..., 1:], torch.full_like(later[..., :1], size)), -1)
    index = torch.where(following < size, following, length.unsqueeze(-1)) - 1
    return values.gather(-1, index)


def perturbed_logits(logits: Tensor, value: Tensor, state_value: Tensor, inverse_temperature: Tensor) -> Tensor:
    """log π_β(a|h) + β (Q(h, a) − V(h)) [..., V], the policy's logits (arXiv:2206.11871, section 4.3).

    Args:
        logits: [..., V] of the cloned policy π_β. value: [..., V] Q. state_value: [...] V.
        inverse_temperature: β, a scalar; 0 is the cloned policy.
    """
    return logits.log_softmax(-1) + inverse_temperature * (value - state_value.unsqueeze(-1))
