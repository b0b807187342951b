"""The conservative term of CQN against numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from agilerl.losses.conservative import conservative_penalty, sampled_conservative_penalty

LOG_3 = math.log(3.0)


def test_the_term_is_the_log_of_the_sum_of_exponentials_above_the_value_of_the_data() -> None:
    # Row 1: exp(0) + exp(log 3) = 4, of which the first action was taken: log 4 - 0, softmax (1/4, 3/4).
    # Row 2: equal values 5: log(2 e^5) - 5 = log 2, softmax (1/2, 1/2), the second action taken.
    values = torch.tensor([[0.0, LOG_3], [5.0, 5.0]], dtype=torch.float64)
    loss, grad = conservative_penalty(values, torch.tensor([0, 1]), torch.tensor([0.5, 0.25], dtype=torch.float64))
    assert loss.item() == pytest.approx(0.5 * math.log(4) + 0.25 * math.log(2))
    expected = torch.tensor([[-0.375, 0.375], [0.125, -0.125]], dtype=torch.float64)
    assert torch.allclose(grad, expected, atol=1e-12)


def test_the_gradient_is_that_of_autograd() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(3, 7, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    action = torch.randint(4, (3, 7), generator=generator)
    weight = torch.rand(3, 7, generator=generator, dtype=torch.float64)
    expected = (weight * (values.logsumexp(-1) - values.gather(-1, action[..., None])[..., 0])).sum(-1)
    (of_autograd,) = torch.autograd.grad(expected.sum(), values)
    loss, grad = conservative_penalty(values.detach(), action, weight)
    assert torch.allclose(loss, expected, atol=1e-12)
    assert torch.allclose(grad, of_autograd, atol=1e-12)


def test_an_illegal_action_is_no_part_of_the_sum() -> None:
    values = torch.tensor([[0.0, LOG_3, 9.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False]])
    loss, grad = conservative_penalty(values, torch.tensor([0]), torch.ones(1, dtype=torch.float64), mask)
    assert loss.item() == pytest.approx(math.log(4))
    assert grad[0, 2].item() == 0


def test_the_sampled_integral_of_a_constant_is_the_width_times_its_exponential() -> None:
    """∫ exp(c) da over actions in [-1, 1], of density 1/2, is 2 exp(c), from however many samples."""
    for count in (1, 2, 7):
        values = torch.tensor([1.5, -0.5]).unsqueeze(-1).expand(2, count)
        log_density = torch.full((2, count), -math.log(2.0))
        found = sampled_conservative_penalty(values, log_density, torch.tensor([1.0, 0.0]), torch.tensor([0.25, 0.75]))
        by_hand = 0.25 * (1.5 + math.log(2) - 1.0) + 0.75 * (-0.5 + math.log(2))
        assert float(found) == pytest.approx(by_hand, abs=1e-6)
