"""Fitted Q evaluation: what a policy that is given is worth, from transitions of another one.

Leading axes are free: members [N]; then the batch [B].
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

MIN_SCALE = 1e-6  # of returns: data that are always paid alike are left as they are


def fitted_target(reward: Tensor, discount: Tensor, next_value: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """y = r + γ (1 − terminated) · Q⁻(s', π(s')) [..., B] (Le et al. 2019, arXiv:1903.08738, algorithm 3).

    π is the policy that is judged, not the one that has made the data, and not the greedy one in Q.
    Departs from the paper: y is kept between the least and the largest value that there can be (`value_bounds`), so
    that what the function has never seen cannot make it diverge.

    Args:
        reward: [..., B]. discount: [..., B] γ · (1 − terminated); a truncated step keeps its γ.
        next_value: [..., B] of the action that π takes in s', the FINAL observation where an episode was cut.
        low, high: [..., 1] per member, or scalars.
    """
    return torch.addcmul(reward, discount, next_value).clamp(low, high)


def value_bounds(reward: np.ndarray, gamma: float) -> tuple[float, float]:
    """The least and the largest value of any policy whose rewards are those of the data [N]: of γ/(1 − γ) more steps.

    r_min / (1 − γ) and r_max / (1 − γ), and 0 where an episode may end before that.
    """
    least, largest = min(float(reward.min()), 0.0), max(float(reward.max()), 0.0)
    return least / (1 - gamma), largest / (1 - gamma)


def discounted_returns(reward: np.ndarray, ended: np.ndarray, gamma: float) -> np.ndarray:
    """G_t = r_t + γ · G_{t+1} [N] of every step to the end of its episode, or to where the data stop.

    Args:
        reward: [N] in the order of the episodes. ended: [N] bool, where the next row does not follow on this one.
    """
    returns, after = np.empty(len(reward)), 0.0
    for t in range(len(reward) - 1, -1, -1):
        returns[t] = after = float(reward[t]) + (0.0 if ended[t] else gamma * after)
    return returns


def centred_reward(reward: np.ndarray, discount: np.ndarray, mean: float, scale: float) -> np.ndarray:
    """r̃ = (r − μ · (1 − γ (1 − terminated))) / σ [N], whose values are (Q − μ) / σ.

    Of Q = μ + σ Q̃ the equation Q = r + γ' Q' is Q̃ = r̃ + γ' Q̃': the same fixed point, in units that a network begins
    near to.

    Args:
        reward: [N]. discount: [N] γ' = γ · (1 − terminated). mean, scale: μ, σ.
    """
    centred: np.ndarray = (reward - mean * (1 - discount)) / scale
    return centred


def centre_and_scale(returns: np.ndarray) -> tuple[float, float]:
    """(μ, σ) of returns [N]; σ is 1 where they do not differ."""
    scale = float(returns.std())
    return float(returns.mean()), scale if scale > MIN_SCALE else 1.0
