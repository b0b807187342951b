"""Losses over the tokens of texts, of which some are the policy's own and the others an environment's.

A network reads a text [B, L] from left to right: its output at t is of the state after token t, and says of token
t + 1. The policy's own tokens are marked by `completion_mask` [B, L]; token p is an action taken in state
p − 1. Other tokens, and padding on the right, are part of states alone: no loss is over them. Leading axes are free.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def token_weights(completion_mask: Tensor, weight: Tensor, mean_of: Callable[[Tensor], Tensor] = lambda x: x) -> Tensor:
    """w_b m_bt / Σ w_b m_bt [..., B, L]: every one of the policy's own tokens counts alike, those of long texts too.

    Args:
        completion_mask: [..., B, L] bool. weight: [..., B] of the rows. Without any token all are 0.
        mean_of: the mean over processes, where several of them share a batch.
    """
    each = weight.unsqueeze(-1) * completion_mask.to(weight.dtype)
    total = mean_of(each.sum((-2, -1), keepdim=True))
    return each / total.clamp_min(torch.finfo(weight.dtype).tiny)


def token_values(values: Tensor, tokens: Tensor) -> Tensor:
    """[..., L] what the numbers [..., L, V] of each state say of the token that follows on it: at p of token p.

    The first token follows on nothing: 0. Of a token that is none of the V, which is not the policy's own, it is that
    of the last one, and of no meaning.
    """
    index = tokens[..., 1:].clamp_max(values.shape[-1] - 1).unsqueeze(-1)
    taken = values[..., :-1, :].gather(-1, index).squeeze(-1)
    return torch.cat((torch.zeros_like(taken[..., :1]), taken), -1)


def state_before(values: Tensor) -> Tensor:
    """[..., L] at p the number of state p − 1, in which token p was said; 0 at the first."""
    return torch.cat((torch.zeros_like(values[..., :1]), values[..., :-1]), -1)


def state_after(values: Tensor, completion_mask: Tensor, length: Tensor) -> Tensor:
    """[..., L] at p the value of the state in which the policy speaks next after token p.

    That is the state before its next own token, behind what the environment has answered; where it has none, the one at
    the end of the text. (Snell et al. 2022, arXiv:2206.11871, section 4: "the next action token".)

    Args:
        values: [..., L] of states. completion_mask: [..., L] bool. length: [...] int64, tokens of each text.
    """
    size = completion_mask.shape[-1]
    place = torch.arange(size, device=completion_mask.device).expand(completion_mask.shape)
    positions = torch.where(completion_mask, place, size)
    later = positions.flip(-1).cummin(-1).values.flip(-1)  # the next own token at p or behind it
    following = torch.cat((later[..., 1:], torch.full_like(later[..., :1], size)), -1)
    index = torch.where(following < size, following, length.unsqueeze(-1)) - 1
    return values.gather(-1, index)


def perturbed_logits(logits: Tensor, value: Tensor, state_value: Tensor, inverse_temperature: Tensor) -> Tensor:
    """log π_β(a|h) + β (Q(h, a) − V(h)) [..., V], the policy's logits (arXiv:2206.11871, section 4.3).

    Args:
        logits: [..., V] of the cloned policy π_β. value: [..., V] Q. state_value: [...] V.
        inverse_temperature: β, a scalar: 0 is the cloned policy.
    """
    return logits.log_softmax(-1) + inverse_temperature * (value - state_value.unsqueeze(-1))
