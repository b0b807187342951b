"""Losses of language models trained on rewards of completions or on preferences between two completions.

Shapes: R completions of T tokens, with any leading member axes. `completion_mask` marks the policy's own tokens. Other
tokens are masked before exponentiation, so padding can neither overflow nor contribute a gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# -- advantages --------------------------------------------------------------------------------------------------------


def group_advantages(rewards: Tensor, normalise: bool = True, eps: float = 1e-8) -> Tensor:
    """(r − mean) / (std + ε) within each group [..., B, G]; without `normalise` only the difference.

    Shao et al. 2024, arXiv:2402.03300, section 4.1.2; without the standard deviation Liu et al. 2025, arXiv:2503.20783,
    equation 3. It is the group's sample standard deviation (divided by G − 1). A group of one, or with equal rewards,
    has advantages of 0.
    """
    centred = rewards - rewards.mean(-1, keepdim=True)
    equal = (rewards == rewards[..., :1]).all(-1, keepdim=True)  # ignore rounding of the mean
    centred = centred.masked_fill(equal, 0)
    if not normalise or rewards.shape[-1] == 1:
        return centred
    return centred / (rewards.std(-1, keepdim=True) + eps)


def leave_one_out(rewards: Tensor) -> Tensor:
    """r_i − mean of the other rewards of the group [..., B, G] (RLOO; Ahmadian et al. 2024, arXiv:2402.14740, eq. 8).

    Equal to G / (G − 1) · (r_i − mean). In a group of one the advantage is the reward.
    """
    size = rewards.shape[-1]
    if size == 1:
        return rewards
    equal = (rewards == rewards[..., :1]).all(-1, keepdim=True)
    return (size / (size - 1) * (rewards - rewards.mean(-1, keepdim=True))).masked_fill(equal, 0)


def whitened(
    values: Tensor, weight: Tensor, eps: float = 1e-8, mean_of: Callable[[Tensor], Tensor] = lambda x: x
) -> Tensor:
    """(x − mean) / (std + ε) over entries [..., R, T] of weight above 0; 0 elsewhere, and if all are equal.

    Args:
        mean_of: mean over processes, to standardise their entries together.
    """
    there = weight > 0
    count = mean_of(there.sum((-2, -1), keepdim=True).to(values.dtype)).clamp_min(torch.finfo(values.dtype).tiny)
    filled = values.masked_fill(~there, 0)
    mean = mean_of(filled.sum((-2, -1), keepdim=True)) / count
    centred = (values - mean).masked_fill(~there, 0)
    variance = mean_of(centred.square().sum((-2, -1), keepdim=True)) / count
    return centred / (variance.sqrt() + eps)


def discounted_returns(rewards: Tensor, completion_mask: Tensor, gamma: Tensor | float = 1.0) -> Tensor:
    """Return Σ_k γ^k r [..., T] over the policy's own tokens from each one on; other tokens do not discount.

    A reward is placed at the last token of its completion. With γ = 1 every token has the completion's reward,
    regardless of length.
    """
    returns, running = [], torch.zeros_like(rewards[..., 0])
    for t in reversed(range(rewards.shape[-1])):
        mask = completion_mask[..., t]
        running = torch.where(mask, rewards[..., t] + gamma * running, running)
        returns.append(running)
    return torch.stack(returns[::-1], -1) * completion_mask


def token_advantages(
    rewards: Tensor, values: Tensor, completion_mask: Tensor, gamma: Tensor | float, gae_lambda: Tensor | float
) -> tuple[Tensor, Tensor]:
    """Return (advantages, returns) [..., T] by generalised advantage estimation over the policy's own tokens.

    δ_t = r_t + γ V_t' − V_t, A_t = δ_t + γ λ A_t' with t' the next own token; both are 0 after the last one, which is
    terminal (Schulman et al. 2016, arXiv:1506.02438, equations 11 and 16). V_t is the value before token t.
    """
    advantages, later, ahead = [], torch.zeros_like(rewards[..., 0]), torch.zeros_like(rewards[..., 0])
    for t in reversed(range(rewards.shape[-1])):
        mask = completion_mask[..., t]
        delta = rewards[..., t] + gamma * ahead - values[..., t]
        later = torch.where(mask, delta + gamma * gae_lambda * later, later)
        ahead = torch.where(mask, values[..., t], ahead)
        advantages.append(later)
    advantage = torch.stack(advantages[::-1], -1) * completion_mask
    return advantage, (advantage + values) * completion_mask


# -- weights -----------------------------------------------------------------------------------------------------------

NORMALISATIONS = ("token", "sequence", "constant")


def completion_weights(completion_mask: Tensor, weight: Tensor, normalisation: str, most: int) -> Tensor:
    """Return the loss weight [..., R, T] of each token in one optimiser step.

    "token": 1 / Σ of all own tokens (Yu et al. 2025, DAPO, arXiv:2503.14476, equation 12). "sequence": equal weight per
    completion, 1 / (R |o_i|) (arXiv:2402.03300, equation 3). "constant": 1 / (R · `most`), independent of length
    (arXiv:2503.20783, section 3.2).

    Args:
        completion_mask: [..., R, T] bool. weight: [..., R], 1/R, or 0 for padding rows. most: maximum completion
            length.
    """
    mask = completion_mask.to(weight.dtype)
    if normalisation == "constant":
        return mask * weight.unsqueeze(-1) / most
    if normalisation == "sequence":
        return mask * weight.unsqueeze(-1) / mask.sum(-1, keepdim=True).clamp_min(1)
    each = mask * (weight > 0).unsqueeze(-1)
    return each / each.sum((-2, -1), keepdim=True).clamp_min(1)


# -- policies ----------------------------------------------------------------------------------------------------------


def log_ratio(log_prob: Tensor, old: Tensor, completion_mask: Tensor) -> Tensor:
    """log π(a) − log π_old(a) at the policy's own tokens; 0 elsewhere."""
    return (log_prob - old).masked_fill(~completion_mask, 0)


def clipped_surrogate(ratio: Tensor, advantage: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """−min(r A, clip(r, 1 − ε_low, 1 + ε_high) A), elementwise (Schulman et al. 2017, arXiv:1707.06347, equation 7).

    With ε_high > ε_low it is the loss of DAPO (arXiv:2503.14476, equation 10).
    """
    bounded = torch.minimum(torch.maximum(ratio, 1 - low), 1 + high)
    return -torch.minimum(ratio * advantage, bounded * advantage)


def sequence_ratio(log_ratios: Tensor, completion_mask: Tensor) -> Tensor:
    """s [..., R, 1]: exp of the mean log ratio over a completion's tokens (GSPO; Zheng et al. 2025, arXiv:2507.18071,
    equation 7)."""
    count = completion_mask.sum(-1, keepdim=True).clamp_min(1)
    return ((log_ratios * completion_mask).sum(-1, keepdim=True) / count).exp()


def clipped_importance(log_prob: Tensor, log_ratios: Tensor, advantage: Tensor, high: Tensor) -> Tensor:
    """−sg(min(r, 1 + ε_high)) A log π, elementwise (CISPO; MiniMax 2025, arXiv:2506.13585, equation 4).

    The weight is detached and only bounded from above, so clipped tokens also have a gradient.
    """
    weight = torch.minimum(log_ratios.exp(), 1 + high).detach()
    return -weight * advantage * log_prob


def kl_estimate(log_prob: Tensor, reference: Tensor, completion_mask: Tensor) -> Tensor:
    """exp(d) − d − 1 with d = log π_ref − log π at own tokens, 0 elsewhere: never negative, unbiased for KL(π ‖ π_ref)
    under samples of π (Schulman 2020, "k3"; arXiv:2402.03300, equation 4)."""
    difference = (reference - log_prob).masked_fill(~completion_mask, 0)
    return difference.exp() - difference - 1


# -- preferences -------------------------------------------------------------------------------------------------------


def preference_margin(chosen: Tensor, rejected: Tensor, chosen_ref: Tensor, rejected_ref: Tensor) -> Tensor:
    """(log π(y_w) − log π_ref(y_w)) − (log π(y_l) − log π_ref(y_l)) [..., R], log-probabilities summed over tokens.

    Rafailov et al. 2023, arXiv:2305.18290, equation 7, without β."""
    return (chosen - chosen_ref) - (rejected - rejected_ref)


def preference_loss(margin: Tensor, beta: Tensor, smoothing: Tensor | float = 0.0) -> Tensor:
    """−(1 − ε) log σ(β m) − ε log σ(−β m) [..., R] (arXiv:2305.18290, equation 7; with ε Mitchell 2023, "cDPO").

    It is ln 2 at the first step, where the policy equals the reference."""
    scaled = beta * margin
    log_sigmoid = torch.nn.functional.logsigmoid
    return -(1 - smoothing) * log_sigmoid(scaled) - smoothing * log_sigmoid(-scaled)


# -- turns -------------------------------------------------------------------------------------------------------------


def last_said(completion_mask: Tensor) -> Tensor:
    """Return [..., T] bool: the last of the policy's own tokens in each row."""
    later = completion_mask.flip(-1).long().cumsum(-1).flip(-1)
    return completion_mask & (later == 1)


def rewards_by_token(rewards: Tensor, completion_mask: Tensor) -> Tensor:
    """Place the reward [..., R] of each completion at its last token, [..., R, T]; 0 elsewhere."""
    return rewards.unsqueeze(-1) * last_said(completion_mask)


def turn_advantages(
    rewards: Tensor, values: Tensor, completion_mask: Tensor, gamma: Tensor | float, gae_lambda: Tensor | float
) -> tuple[Tensor, Tensor]:
    """Return `token_advantages` with a turn, a contiguous run of own tokens, as one action.

    A turn's value is the one before its first token, its reward the sum over its tokens. All of its tokens get its
    advantage. The critic's return is at the first token; the others' returns are their values, so their error is 0.
    """
    before = torch.cat((torch.zeros_like(completion_mask[..., :1]), completion_mask[..., :-1]), -1)
    starts = completion_mask & ~before
    total, sums = torch.zeros_like(rewards[..., 0]), []
    for t in reversed(range(rewards.shape[-1])):  # the sum of a turn's rewards, at its first token
        total = torch.where(completion_mask[..., t], total + rewards[..., t], torch.zeros_like(total))
        sums.append(total)
        total = torch.where(starts[..., t], torch.zeros_like(total), total)
    of_turn = torch.stack(sums[::-1], -1) * starts
    advantage, returns = token_advantages(of_turn, values, starts, gamma, gae_lambda)
    spread, current = [], torch.zeros_like(rewards[..., 0])
    for t in range(rewards.shape[-1]):
        current = torch.where(starts[..., t], advantage[..., t], current)
        spread.append(current)
    return torch.stack(spread, -1) * completion_mask, torch.where(starts, returns, values) * completion_mask
