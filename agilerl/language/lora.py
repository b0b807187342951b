"""Adapters of several members in one pass of the base; each row uses the adapter of its member.

Low-rank adaptation is y = W x + s B A x (Hu et al. 2021, arXiv:2106.09685, equation 3). The product with W is shared by
all members; those with A and B are batched over members.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from agilerl.language.base import BaseModel, Forward, Slot

A_OF, B_OF = ".lora_A.weight", ".lora_B.weight"


def stacked_delta(x: Tensor, a: Tensor, b: Tensor, scale: float) -> Tensor:
    """s B_n A_n x of every member [N·R, L, out].

    Args:
        x: [N·R, L, in], grouped by member. a: [N, r, in]. b: [N, out, r].
    """
    members = a.shape[0]
    flat = x.reshape(members, -1, x.shape[-1]).to(a.dtype)
    low = torch.bmm(flat, a.transpose(1, 2))
    delta = torch.bmm(low, b.transpose(1, 2)) * scale
    return delta.view(*x.shape[:-1], b.shape[1])


@contextlib.contextmanager
def stacked(base: BaseModel, slot: Slot, values: Mapping[str, Tensor]) -> Iterator[Forward]:
    """The decoder with the adapters of N members, for N·R rows grouped by member.

    Args:
        values: saved name -> [N, ...]; plain LoRA only (`Slot.is_plain_lora`).
    """
    handles = []
    for name, a in values.items():
        if name.endswith(A_OF):
            b = values[name.removesuffix(A_OF) + B_OF]
            handles.append(base.layer(slot, name).register_forward_hook(_adding(a, b, slot.scale)))
    try:
        yield base.plain
    finally:
        for handle in handles:
            handle.remove()


def _adding(a: Tensor, b: Tensor, scale: float) -> Any:
    def add(layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output + stacked_delta(inputs[0], a, b, scale).to(output.dtype)

    return add
