"""Losses of learning from data against numbers worked by hand, and their gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from agilerl.losses.conservative import multiplier_loss, sampled_conservative_penalty
from agilerl.losses.offline import (
    advantage_weight,
    cloning_error,
    cloning_likelihood,
    cloning_policy_loss,
    expectile_loss,
)
from agilerl.networks.distributions import bounded_mean_log_prob


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_an_expectile_weighs_values_below_by_the_rest() -> None:
    u = numbers(2, -1, 0, 9).requires_grad_()
    loss = expectile_loss(u, numbers(0.9), numbers(0.5, 0.25, 0.25, 0))
    assert loss.item() == pytest.approx(0.5 * 0.9 * 4 + 0.25 * 0.1 * 1)
    loss.backward()
    assert u.grad is not None
    assert u.grad.tolist() == pytest.approx([0.5 * 0.9 * 4, -0.25 * 0.1 * 2, 0, 0])


def test_the_least_expectile_loss_is_at_the_expectile() -> None:
    # Of 0 and 1 the tau-expectile is tau: tau (1 - tau)^2's slope is balanced by (1 - tau) tau^2's.
    v = numbers(0.8, 0.8).requires_grad_()
    expectile_loss(numbers(0, 1) - v, numbers(0.8), numbers(0.5, 0.5)).backward()
    assert v.grad is not None
    assert v.grad.sum().item() == pytest.approx(0, abs=1e-12)


def test_members_have_expectiles_of_their_own() -> None:
    u = numbers(1, -1).expand(2, 2)
    loss = expectile_loss(u, numbers(0.5, 0.7)[:, None], torch.ones(2, 2, dtype=torch.float64))
    assert loss.tolist() == pytest.approx([1.0, 1.0])
    only_above = expectile_loss(u, numbers(0.5, 0.7)[:, None], numbers(1, 0).expand(2, 2))
    assert only_above.tolist() == pytest.approx([0.5, 0.7])


def test_an_action_counts_by_its_advantage_up_to_a_limit() -> None:
    got = advantage_weight(numbers(0, math.log(2), -math.log(3), 1e6), numbers(2.0), numbers(100.0))
    assert got.tolist() == pytest.approx([1, 4, 1 / 9, 100])
    assert advantage_weight(numbers(5.0), numbers(0.0), numbers(100.0)).item() == 1, "cloning"
    assert advantage_weight(numbers(5.0), numbers(1.0), numbers(0.5)).item() == pytest.approx(0.5)


def test_cloning_by_squares_and_by_likelihood() -> None:
    action = numbers(0.5, 0.0, -1.0, 1.0).view(2, 2).requires_grad_()
    loss = cloning_error(action, numbers(0, 1, -1, 0).view(2, 2), numbers(0.5, 0.25))
    assert loss.item() == pytest.approx(0.5 * (0.25 + 1) / 2 + 0.25 * (0 + 1) / 2)
    loss.backward()
    assert action.grad is not None
    assert action.grad.flatten().tolist() == pytest.approx([0.25, -0.5, 0, 0.25])
    assert cloning_likelihood(numbers(-1, -2, -7), numbers(0.5, 0.25, 0)).item() == pytest.approx(1.0)


def test_values_count_in_units_of_their_mean_size() -> None:
    # mean |Q| = (3 + 1) / 2 = 2, lambda = 4 / 2 = 2, so -2 (1.5 - 0.5) + cloning (1 + 0) / 2; rows of weight 0 are out.
    value = numbers(3, -1, 50).requires_grad_()
    action, taken = numbers(1, 0, 9).view(3, 1).requires_grad_(), torch.zeros(3, 1, dtype=torch.float64)
    loss = cloning_policy_loss(value, action, taken, numbers(4.0), numbers(0.5, 0.5, 0))
    assert loss.item() == pytest.approx(-2 + 0.5)
    loss.backward()
    assert value.grad is not None
    assert action.grad is not None
    assert value.grad.tolist() == pytest.approx([-1, -1, 0]), "lambda is a constant"
    assert action.grad.flatten().tolist() == pytest.approx([1, 0, 0])


def test_values_of_any_scale_weigh_the_same_and_none_divide_by_nothing() -> None:
    zero, half = torch.zeros(2, 1, dtype=torch.float64), numbers(0.5, 0.5)
    small, large = (cloning_policy_loss(numbers(1, 3) * c, zero, zero, numbers(2.5), half).item() for c in (1, 1000))
    assert small == pytest.approx(large) == pytest.approx(-2.5)
    assert cloning_policy_loss(numbers(0, 0), zero, zero, numbers(2.5), half).item() == 0


def test_the_integral_is_a_mean_of_importance_weights() -> None:
    # exp(Q) / p: 2 / 0.5 = 4 and 6 / 3 = 2, whose mean is 3; the data's action has value log 1.5: log 3 - log 1.5.
    values, density = numbers(math.log(2), math.log(6))[None], numbers(math.log(0.5), math.log(3))[None]
    got = sampled_conservative_penalty(values, density, numbers(math.log(1.5)), numbers(1.0))
    assert got.item() == pytest.approx(math.log(2))


def test_the_sampled_term_has_the_integral_as_its_limit() -> None:
    # Q(a) = a on [-1, 1]: log of the integral of exp is log(e - 1/e); a grid of uniform density 1/2.
    grid = (torch.arange(4000, dtype=torch.float64) + 0.5) / 2000 - 1
    density = torch.full_like(grid, -math.log(2))
    got = sampled_conservative_penalty(grid[None], density[None], numbers(0.0), numbers(1.0))
    assert got.item() == pytest.approx(math.log(math.e - 1 / math.e), abs=1e-6)


def test_the_sampled_term_pushes_samples_down_and_the_data_up() -> None:
    values = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    of_data = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    density = numbers(0, 0, 0, math.log(3))[None]  # what was drawn more often counts less
    sampled_conservative_penalty(values, density, of_data, numbers(2.0)).backward()
    assert values.grad is not None
    assert of_data.grad is not None
    assert values.grad.flatten().tolist() == pytest.approx([0.6, 0.6, 0.6, 0.2])
    assert of_data.grad.tolist() == [-2]


@pytest.mark.parametrize(("gap", "sign"), [(3.0, -1), (1.0, 1)])
def test_the_weight_of_the_term_grows_above_the_threshold_alone(gap: float, sign: int) -> None:
    log_multiplier = numbers(math.log(2)).requires_grad_()
    loss = multiplier_loss(log_multiplier, torch.tensor(gap).double(), torch.tensor(2.0).double())
    loss.backward()
    assert log_multiplier.grad is not None
    assert log_multiplier.grad.item() == pytest.approx(2.0 * sign)  # descent moves the other way


def test_the_density_around_a_bounded_mean_is_that_of_a_normal_also_on_the_bounds() -> None:
    raw = numbers(math.atanh(0.5), 0.0, math.log(0.5), -9.0)  # means 0.5 and 0; deviations 0.5 and, at least, exp(-5)
    got = bounded_mean_log_prob(raw, numbers(1.0, 0.0)).item()
    by_hand = -0.5 * 1 - math.log(0.5) - 0.5 * math.log(2 * math.pi) + 5 - 0.5 * math.log(2 * math.pi)
    assert got == pytest.approx(by_hand)
