"""Losses and targets for quantiles of returns; leading axes are arbitrary, such as members [N] and the batch [B]."""

from __future__ import annotations

import torch
from torch import Tensor

HUBER_THRESHOLD = 1.0  # κ of QR-DQN-1, the better one of the paper's two
BLOCK = 131_072  # pairs of quantiles at a time: what fits into a cache takes a third of the time


def quantile_levels(values: Tensor) -> Tensor:
    """Levels τ̂_i = (2i − 1) / 2K [K] of the K quantiles in `values` (Dabney et al. 2018, arXiv:1710.10044, lemma 2)."""
    count = values.shape[-1]
    return (torch.arange(count, dtype=values.dtype, device=values.device) + 0.5) / count


@torch.no_grad()
def quantile_huber(values: Tensor, target: Tensor, threshold: float = HUBER_THRESHOLD) -> tuple[Tensor, Tensor]:
    """Return L = Σ_i mean_j |τ̂_i − 1[u_ij < 0]| · H(u_ij), u_ij = y_j − θ_i, and its closed-form gradient.

    H is the Huber loss, u²/2 up to κ and κ(|u| − κ/2) beyond (arXiv:1710.10044, eq. 9, 10 and algorithm 1). With
    c = clip(u, −κ, κ) it is c(u − c/2), and ∂L/∂θ_i = −mean_j |τ̂_i − 1[u_ij < 0]| · c_ij. The weighted c is
    (τ̂_i − ½)|c| + ½c, so that levels are applied to sums over j: the K · J errors decide the cost.

    Args:
        values: θ [..., K]. target: y [..., J], samples or quantiles of equal probability in any order.
        threshold: κ.

    Returns:
        (loss [...], gradient [..., K]), constants.
    """
    count, samples = values.shape[-1], target.shape[-1]
    rows, tilt = max(1, BLOCK // (count * samples)), quantile_levels(values) - 0.5
    flat = values.reshape(-1, count), target.expand(*values.shape[:-1], samples).reshape(-1, samples)
    losses, slopes = list[Tensor](), list[Tensor]()
    for theta, y in zip(*(torch.split(x, rows) for x in flat), strict=True):
        error = y.unsqueeze(-2) - theta.unsqueeze(-1)  # [rows, K, J]
        clipped = error.clamp(-threshold, threshold)
        size, halved = clipped.abs(), error.sub_(clipped, alpha=0.5)  # |c| and u − c/2; `error` is overwritten
        slopes.append(tilt * size.sum(-1) + 0.5 * clipped.sum(-1))
        losses.append((tilt * size.mul_(halved).sum(-1) + 0.5 * clipped.mul_(halved).sum(-1)).sum(-1))
    return torch.cat(losses).view(values.shape[:-1]) / samples, -torch.cat(slopes).view(values.shape) / samples


def truncated_atoms(atoms: Tensor, dropped: int) -> Tensor:
    """Pool the quantiles of all critics, and remove the largest ones: `dropped` times the number of critics.

    Kuznetsov et al. 2020, arXiv:2005.04269, section 3 and figure 2.

    Args:
        atoms: [M, ..., K] of M critics. dropped: of each critic, below K.

    Returns:
        [..., M · (K − dropped)], in ascending order.
    """
    pooled = atoms.movedim(0, -2).flatten(-2).sort(-1).values
    return pooled[..., : len(atoms) * (atoms.shape[-1] - dropped)]
