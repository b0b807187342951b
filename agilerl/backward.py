"""Backward passes from slopes that are already known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class _WithSlopes(torch.autograd.Function):
    """Zero, whose derivatives by its inputs are given numbers."""

    @staticmethod
    def forward(ctx: Any, slopes: Sequence[Tensor], *outputs: Tensor) -> Tensor:
        ctx.slopes = slopes
        return outputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.slopes


def with_precomputed_gradient(outputs: Sequence[Tensor], slopes: Sequence[Tensor]) -> Tensor:
    """A scalar whose backward pass begins at `outputs` with `slopes`.

    `with_slopes(outputs, slopes).backward()` leaves the same bits as `torch.autograd.backward(outputs, slopes)`, which
    loads torch's symbolic shapes (sympy among them, a second of every new process) to compare the shapes.

    Args:
        outputs: tensors of a graph. slopes: as many, of the same shapes: the derivatives of a loss by them.

    Raises:
        ValueError: the shapes differ.
    """
    shapes, slope_shapes = [tuple(x.shape) for x in outputs], [tuple(x.shape) for x in slopes]
    if shapes != slope_shapes:
        raise ValueError(f"slopes need the shapes of the outputs, {shapes}; got {slope_shapes}.")
    scalar: Tensor = _WithSlopes.apply(list(slopes), *outputs)  # type: ignore[no-untyped-call]
    return scalar
