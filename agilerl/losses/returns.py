"""Advantages and returns of rollouts [..., T, E]: T vector steps, E lanes, arbitrary leading axes (members [N])."""

from __future__ import annotations

import torch
from torch import Tensor


def following_values(value: Tensor, last_value: Tensor) -> Tensor:
    """Return v(s'ₜ) [..., T, E] of steps that did not end: the next row's value; `last_value` [..., E] for the last.

    If a step ended its episode, use the value of its FINAL observation instead: the next row is another episode.
    """
    return torch.cat((value[..., 1:, :], last_value.unsqueeze(-2)), -2)


def gae(
    reward: Tensor, discount: Tensor, value: Tensor, next_value: Tensor, cut: Tensor, lam: Tensor | float
) -> Tensor:
    """Generalised advantage estimate (Schulman et al. 2016, arXiv:1506.02438, eq. 16).

    δₜ = rₜ + γₜ·v(s'ₜ) − v(sₜ);   Âₜ = δₜ + γₜ·λ·(1 − cutₜ)·Âₜ₊₁

    Args:
        reward: [..., T, E] received AFTER acting at t.
        discount: [..., T, E] γ of the member · (1 − terminatedₜ).
        value, next_value: [..., T, E] v(sₜ) and v(s'ₜ); s'ₜ is the FINAL observation at a cut, never the reset one.
        cut: [..., T, E] terminated | truncated at t; stops the trace, not the bootstrap (Pardo et al. 2018,
            arXiv:1712.00378, eq. 6).
        lam: [..., 1, 1] or a number, λ in [0, 1]; 0 is one-step TD, 1 is Monte Carlo with a bootstrap at the end.

    Returns:
        [..., T, E] advantages, detached, in the dtype of `reward`.
    """
    with torch.no_grad():
        advantage = torch.addcmul(reward - value, discount, next_value)
        trace = (discount * lam).masked_fill(cut.bool(), 0)
        steps = list(zip(advantage.unbind(-2), trace.unbind(-2), strict=True))
        for (now, factor), (after, _) in zip(steps[-2::-1], steps[:0:-1], strict=True):
            now.addcmul_(factor, after)
        return advantage


def gae_of_agents(
    reward: Tensor,
    discount: Tensor,
    value: Tensor,
    final_value: Tensor,
    last_value: Tensor,
    cut: Tensor,
    acted: Tensor,
    present: Tensor,
    last_present: Tensor,
    lam: Tensor | float,
) -> tuple[Tensor, Tensor]:
    """Compute `gae` for agents that need not act in every step.

    A decision lasts until the agent is present again. Rewards received meanwhile and the value of its next observation
    are discounted by environment steps; λ is applied per decision. If an agent is present but did not decide, its value
    is used for bootstrapping. A decision whose outcome is not in the rollout (the agent is still absent after the last
    step) is not learned from. For an agent that acts in every step the result equals `gae`.

    Args:
        reward, discount, value, cut, lam: see `gae`; each agent is a separate lane.
        final_value: [..., T, E] of the FINAL observation, read where `cut`. last_value: [..., E] after the last step.
        acted: [..., T, E] bool, whether the agent decided. present: [..., T, E] bool, whether it was present.
        last_present: [..., E] bool, whether it is present after the last step.

    Returns:
        (advantages [..., T, E], rows to learn from [..., T, E] bool).
    """
    advantage, resolved_rows = torch.zeros_like(reward), acted.clone()
    after, trace, resolved = last_value, torch.zeros_like(last_value), last_present
    with torch.no_grad():
        for t in range(reward.shape[-2] - 1, -1, -1):
            ended = cut[..., t, :]
            following = torch.where(ended, final_value[..., t, :], after)
            resolved = resolved | ended
            backed = torch.addcmul(reward[..., t, :], discount[..., t, :], following)
            carried = (discount[..., t, :] * trace).masked_fill(ended, 0)
            factor = lam[..., 0, :] if isinstance(lam, Tensor) and lam.dim() > 1 else lam
            now = backed - value[..., t, :] + factor * carried
            advantage[..., t, :] = now
            decided, there = acted[..., t, :], present[..., t, :]
            resolved_rows[..., t, :] &= resolved
            trace = torch.where(there, torch.where(decided & resolved, now, torch.zeros_like(now)), carried)
            after = torch.where(there, value[..., t, :], backed)
            resolved = resolved | there
    return advantage, resolved_rows


def standardised(values: Tensor, weight: Tensor) -> Tensor:
    """(x − mean) / (std + 1e-8) over the last axis, with weights `weight` [..., B] that sum to 1.

    The population standard deviation (divided by B) is used, which is also defined for one entry.
    """
    mean = (weight * values).sum(-1, keepdim=True)
    centred = values - mean
    std = (weight * centred.square()).sum(-1, keepdim=True).sqrt()
    return centred / (std + 1e-8)
