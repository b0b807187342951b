"""Backward passes that begin with known slopes."""

from __future__ import annotations

import pytest
import torch

from agilerl.core.backward import with_precomputed_gradient


def graph(seed: int) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
    """A leaf, two outputs that share a part of their graph, and slopes."""
    draw = torch.Generator().manual_seed(seed)
    leaf = torch.randn(4, 3, generator=draw).requires_grad_()
    shared = (leaf @ torch.randn(3, 5, generator=draw)).tanh()
    outputs = [shared.square().sum(-1), shared.exp() * 3]
    return leaf, outputs, [torch.randn(x.shape, generator=draw) for x in outputs]


@pytest.mark.parametrize("seed", range(5))
def test_the_bits_are_those_of_autograd(seed: int) -> None:
    expected, outputs, slopes = graph(seed)
    torch.autograd.backward(outputs, slopes)
    leaf, outputs, slopes = graph(seed)
    with_precomputed_gradient(outputs, slopes).backward()
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, expected.grad)


def test_a_number_worked_by_hand() -> None:
    """y = x², slope 5: dL/dx = 5 · 2x = 30 at x = 3."""
    x = torch.tensor([3.0], requires_grad=True)
    (slope,) = torch.autograd.grad(with_precomputed_gradient([x * x], [torch.tensor([5.0])]), x)
    assert slope.tolist() == [30.0]


def test_it_adds_to_what_a_leaf_has_got() -> None:
    x = torch.tensor([3.0], requires_grad=True)
    for _ in range(2):
        with_precomputed_gradient([x * x], [torch.tensor([5.0])]).backward()
    assert x.grad is not None
    assert x.grad.tolist() == [60.0]


@pytest.mark.parametrize("slopes", [[torch.ones(3)], [torch.ones(2), torch.ones(2)], []])
def test_other_shapes_are_refused(slopes: list[torch.Tensor]) -> None:
    with pytest.raises(ValueError, match=r"need the shapes of the outputs, \[\(2,\)\]"):
        with_precomputed_gradient([torch.ones(2, requires_grad=True)], slopes)
