"""Fitted Q evaluation: off-policy evaluation of a fixed policy from transitions of another policy.

The last axis is the batch [B]; leading axes are arbitrary, such as members [N].
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

MIN_SCALE = 1e-6  # minimum standard deviation of returns for scaling


def fitted_target(reward: Tensor, discount: Tensor, next_value: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """y = r + γ (1 − terminated) · Q⁻(s', π(s')) [..., B] (Le et al. 2019, arXiv:1903.08738, algorithm 3).

    π is the evaluated policy, neither the behaviour policy nor the greedy policy of Q. Departs from the paper: y is
    clipped to the possible values (`value_bounds`), so out-of-distribution inputs cannot cause divergence.

    Args:
        reward: [..., B]. discount: [..., B] γ · (1 − terminated); a truncated step keeps its γ.
        next_value: [..., B] of π's action in s', the FINAL observation if the step was truncated.
        low, high: [..., 1] per member, or scalars.
    """
    return torch.addcmul(reward, discount, next_value).clamp(low, high)


def value_bounds(reward: np.ndarray, gamma: float) -> tuple[float, float]:
    """Return the lowest and highest value of any policy with rewards in the range of the data [N].

    r_min / (1 − γ) and r_max / (1 − γ), extended to include 0, because an episode may end earlier.
    """
    least, largest = min(float(reward.min()), 0.0), max(float(reward.max()), 0.0)
    return least / (1 - gamma), largest / (1 - gamma)


def discounted_returns(reward: np.ndarray, ended: np.ndarray, gamma: float) -> np.ndarray:
    """Return G_t = r_t + γ · G_{t+1} [N] of every step, up to the end of its episode or of the data.

    Args:
        reward: [N] in episode order. ended: [N] bool, whether the next row belongs to another episode.
    """
    returns, after = np.empty(len(reward)), 0.0
    for t in range(len(reward) - 1, -1, -1):
        returns[t] = after = float(reward[t]) + (0.0 if ended[t] else gamma * after)
    return returns


def centred_reward(reward: np.ndarray, discount: np.ndarray, mean: float, scale: float) -> np.ndarray:
    """r̃ = (r − μ · (1 − γ (1 − terminated))) / σ [N], whose values are (Q − μ) / σ.

    With Q = μ + σ Q̃ the equation Q = r + γ' Q' becomes Q̃ = r̃ + γ' Q̃': the same fixed point, at the scale of an
    untrained network's outputs.

    Args:
        reward: [N]. discount: [N] γ' = γ · (1 − terminated). mean, scale: μ, σ.
    """
    return (reward - mean * (1 - discount)) / scale


def centre_and_scale(returns: np.ndarray) -> tuple[float, float]:
    """Return (μ, σ) of returns [N]; σ is 1 if they are all equal."""
    scale = float(returns.std())
    return float(returns.mean()), scale if scale > MIN_SCALE else 1.0
