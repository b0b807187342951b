"""Layers as functions, with or without a leading member axis, and as `nn.Module` classes."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def dense(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Affine map, for one member or for a stack of members.

    Args:
        x: [..., I], or [N, B, I] where `weight` has a member axis.
        weight: [O, I] or [N, O, I].
        bias: [O] or [N, O], or None.

    Returns:
        [..., O] or [N, B, O].
    """
    if weight.dim() == 2:
        return F.linear(x, weight, bias)
    if bias is None:
        return torch.bmm(x, weight.transpose(1, 2))
    return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))


class Linear(nn.Linear):
    """`nn.Linear` whose weights start unset: the owner draws them from its own generator, never from torch's."""

    def reset_parameters(self) -> None:
        """Draw nothing: `init_linear` fills the weights."""


def init_linear(
    rows: int, columns: int, generator: torch.Generator, *, orthogonal: bool = True, gain: float = math.sqrt(2)
) -> Tensor:
    """Fresh weights [rows, columns] in float32 on the CPU.

    Orthogonal with `gain` (Saxe et al. 2014, arXiv:1312.6120), or torch's default for `nn.Linear`
    (uniform within 1/sqrt(columns)), in which case `gain` is not used.
    """
    weight = torch.empty(rows, columns)
    if weight.numel() == 0:
        return weight
    if orthogonal:
        return nn.init.orthogonal_(weight, gain, generator=generator)
    return nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
