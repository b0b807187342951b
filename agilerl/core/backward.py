"""Backward passes from precomputed gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class _WithSlopes(torch.autograd.Function):
    """Zero, whose gradients are precomputed."""

    @staticmethod
    def forward(ctx: Any, slopes: Sequence[Tensor], *outputs: Tensor) -> Tensor:
        ctx.slopes = slopes
        return outputs[0].new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return None, *ctx.slopes


def with_precomputed_gradient(outputs: Sequence[Tensor], slopes: Sequence[Tensor]) -> Tensor:
    """A scalar whose backward pass starts at `outputs` with the gradients `slopes`.

    `with_precomputed_gradient(outputs, slopes).backward()` is bit-identical to `torch.autograd.backward(outputs,
    slopes)`, which loads torch's symbolic shapes (including sympy, a second in every new process) to compare the
    shapes.

    Args:
        outputs: tensors of a graph. slopes: gradients of a loss with respect to them, of the same shapes.

    Raises:
        ValueError: the shapes differ.
    """
    shapes, slope_shapes = [tuple(x.shape) for x in outputs], [tuple(x.shape) for x in slopes]
    if shapes != slope_shapes:
        raise ValueError(f"slopes need the shapes of the outputs, {shapes}; got {slope_shapes}.")
    scalar: Tensor = _WithSlopes.apply(list(slopes), *outputs)  # type: ignore[no-untyped-call]
    return scalar
