"""The losses of PPO against numbers worked by hand, and their gradients against autograd."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical

from agilerl.losses.actor_critic import approximate_kl, categorical_gradient, clipped_surrogate, clipped_value_loss

CLIP = torch.tensor(0.2, dtype=torch.float64)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_surrogate_is_clipped_only_where_that_lowers_it() -> None:
    # rho = [1.5, 1.5, 0.5, 0.5, 1.1], A = [1, -1, 1, -1, 2]: minima are 1.2, -1.5, 0.5, -0.8, 2.2; their sum is 1.6.
    log_prob = numbers(1.5, 1.5, 0.5, 0.5, 1.1).log()
    advantage = numbers(1, -1, 1, -1, 2)
    loss, slope = clipped_surrogate(log_prob, torch.zeros(5), advantage, CLIP, torch.full((5,), 0.2))
    assert loss.item() == pytest.approx(-1.6 / 5)
    # -w rho A where the free term is the smaller one; 0 where the clip holds.
    assert slope.tolist() == pytest.approx([0, 0.3, -0.1, 0, -0.44])


def test_the_value_loss_is_half_the_larger_square() -> None:
    # v = 3, R = 0, v_old = 1, clip 0.2: free 9, clipped (1.2)^2; half of 9. v = 0 towards R = 2 from v_old = -1:
    # free 4, clipped (-0.8 - 2)^2 = 7.84: half of that, and no gradient.
    loss, slope = clipped_value_loss(numbers(3), numbers(1), numbers(0), CLIP, numbers(1))
    assert loss.item() == pytest.approx(4.5)
    assert slope.item() == pytest.approx(3)
    loss, slope = clipped_value_loss(numbers(0), numbers(-1), numbers(2), CLIP, numbers(1))
    assert loss.item() == pytest.approx(3.92)
    assert slope.item() == 0
    loss, slope = clipped_value_loss(numbers(3), numbers(1), numbers(0), None, numbers(1))
    assert (loss.item(), slope.item()) == (4.5, 3)


def test_the_approximate_divergence_is_exact_in_expectation() -> None:
    # KL([.5, .5] || [.8, .2]) = .5 log(.5/.8) + .5 log(.5/.2); the weights are the old probabilities.
    old, new = numbers(0.5, 0.5), numbers(0.8, 0.2)
    expected = 0.5 * math.log(0.5 / 0.8) + 0.5 * math.log(0.5 / 0.2)
    assert approximate_kl(new.log(), old.log(), old).item() == pytest.approx(expected)
    assert approximate_kl(old.log(), old.log(), old).item() == 0


def test_closed_form_gradients_are_those_of_autograd() -> None:
    g = torch.Generator().manual_seed(3)
    draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    logits, action = draw(2, 50, 4).requires_grad_(), torch.randint(4, (2, 50), generator=g)
    weight = torch.full((2, 50), 0.02, dtype=torch.float64)
    weight[1, 40:] = 0
    old, advantage, coefficient = -1.4 + 0.3 * draw(2, 50), draw(2, 50), numbers(0.01, 0.1).unsqueeze(1)
    policy = Categorical(logits=logits)
    log_prob = policy.log_prob(action)
    ratio = (log_prob - old).exp()
    surrogate = -(weight * torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)).sum(-1)
    (surrogate - coefficient.squeeze(1) * (weight * policy.entropy()).sum(-1)).sum().backward()
    loss, slope = clipped_surrogate(log_prob.detach(), old, advantage, CLIP, weight)
    assert torch.allclose(loss, surrogate, atol=1e-12)
    found = categorical_gradient(logits.detach(), action, slope, -coefficient * weight)
    assert logits.grad is not None
    assert torch.allclose(found, logits.grad, atol=1e-14)

    value, before, target = draw(2, 50).requires_grad_(), draw(2, 50), draw(2, 50)
    near = before + (value - before).clamp(-0.2, 0.2)
    expected = 0.5 * (weight * torch.max((value - target) ** 2, (near - target) ** 2)).sum(-1)
    expected.sum().backward()
    loss, slope = clipped_value_loss(value.detach(), before, target, CLIP, weight)
    assert torch.allclose(loss, expected, atol=1e-12)
    assert value.grad is not None
    assert torch.allclose(slope, value.grad, atol=1e-14)


@pytest.mark.parametrize(
    ("moved", "expected"),
    [
        (0.0, 0.0),
        (-3.0, math.exp(-3) - 1 + 3),
        (19.0, math.exp(19) - 1 - 19),
        (30.0, math.exp(20) - 1 - 30),  # the ratio is bounded, the logarithm is not
        (-30.0, math.exp(-30) - 1 + 30),
    ],
)
def test_the_divergence_of_one_row_by_hand(moved: float, expected: float) -> None:
    old = torch.tensor([[-1.0, -2.0]], dtype=torch.float64)
    log_prob = old + torch.tensor([[moved, 5.0]], dtype=torch.float64)
    weight = torch.tensor([[0.5, 0.0]], dtype=torch.float64)
    assert float(approximate_kl(log_prob, old, weight)) == pytest.approx(expected / 2, rel=1e-12)
