"""Advantages and returns against tables worked by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from agilerl.losses.returns import following_values, gae, standardised


def column(*numbers: float) -> Tensor:
    """[T, 1] float64: one lane."""
    return torch.tensor(numbers, dtype=torch.float64).unsqueeze(1)


def monte_carlo_returns(reward: Tensor, discount: Tensor, next_value: Tensor, cut: Tensor) -> Tensor:
    """Gₜ = rₜ + γₜ·Gₜ₊₁, with v(s'ₜ) in place of Gₜ₊₁ at a cut and after the last step.

    Sutton and Barto 2018, section 3.3, with the bootstrap of a time limit (Pardo et al. 2018, arXiv:1712.00378, eq. 6).

    Args:
        reward, discount, next_value, cut: as of `gae`.

    Returns:
        [..., T, E] returns, detached.
    """
    with torch.no_grad():
        goes_on = ~cut.bool()
        total = torch.addcmul(reward, discount, next_value)
        steps = list(zip(*(x.unbind(-2) for x in (total, reward, discount, goes_on)), strict=True))
        for (now, gained, factor, runs_on), (after, *_) in zip(steps[-2::-1], steps[:0:-1], strict=True):
            now.copy_(torch.where(runs_on, torch.addcmul(gained, factor, after), now))
        return total


def test_ends_after_steps_two_and_four_give_ten_ten_five_five() -> None:
    # Rewards [0, 10, 0, 5], V = 0, gamma = lambda = 1: each reward reaches the steps of its own episode and no other.
    cut = column(0, 1, 0, 1)
    zero = torch.zeros(4, 1, dtype=torch.float64)
    advantage = gae(column(0, 10, 0, 5), 1 - cut, zero, zero, cut, 1.0)
    assert advantage.flatten().tolist() == [10, 10, 5, 5]
    assert monte_carlo_returns(column(0, 10, 0, 5), 1 - cut, zero, cut).flatten().tolist() == [10, 10, 5, 5]


def test_a_truncation_in_mid_rollout_bootstraps_from_the_final_observation_and_stops_the_trace() -> None:
    # gamma = 0.5, lambda = 1, V = 1 everywhere, v(final) = 8 after step 1 and 4 after the last one.
    # d = [1 + .5*1 - 1, 1 + .5*8 - 1, 1 + .5*1 - 1, 1 + .5*4 - 1] = [.5, 4, .5, 2]
    # A = [.5 + .5*4, 4, .5 + .5*2, 2] = [2.5, 4, 1.5, 2]
    cut, one = column(0, 1, 0, 0), torch.ones(4, 1, dtype=torch.float64)
    after = following_values(one, torch.tensor([4.0], dtype=torch.float64))
    assert after.flatten().tolist() == [1, 1, 1, 4]
    after[1] = 8
    assert gae(one, 0.5 * one, one, after, cut, 1.0).flatten().tolist() == [2.5, 4, 1.5, 2]
    # Returns: G1 = 1 + .5*8 = 5, G0 = 1 + .5*5 = 3.5; G3 = 1 + .5*4 = 3, G2 = 2.5: the advantages plus V = 1.
    assert monte_carlo_returns(one, 0.5 * one, after, cut).flatten().tolist() == [3.5, 5, 2.5, 3]


def test_a_truncation_at_the_end_of_the_rollout_bootstraps_where_a_termination_does_not() -> None:
    # One step, reward 1, v(s) = 2, v(final) = 10, gamma = 0.9: 1 + 9 - 2 = 8 truncated, 1 - 2 = -1 terminated.
    one = column(1)
    truncated = gae(one, 0.9 * one, 2 * one, 10 * one, one, 0.95)
    terminated = gae(one, 0 * one, 2 * one, 10 * one, one, 0.95)
    assert truncated.item() == pytest.approx(8)
    assert terminated.item() == -1


def test_lanes_that_end_at_different_times_do_not_mix() -> None:
    # Lane 0 ends after step 0, lane 1 after step 2, lane 2 never; V = 0 but v(last) = 1; gamma = lambda = 1.
    reward = torch.tensor([[1.0, 10, 100], [2, 20, 200], [4, 40, 400]])
    cut = torch.tensor([[1.0, 0, 0], [0, 0, 0], [0, 1, 0]])
    zero = torch.zeros(3, 3)
    after = following_values(zero, torch.ones(3))
    found = gae(reward, 1 - cut, zero, after, cut, 1.0)
    assert found.T.tolist() == [[1, 7, 5], [70, 60, 40], [701, 601, 401]]


def test_lambda_decays_the_trace() -> None:
    # d = [1, 1, 1], gamma = 1, lambda = 0.5: [1 + .5*(1 + .5), 1 + .5, 1].
    one, zero = column(1, 1, 1), torch.zeros(3, 1, dtype=torch.float64)
    assert gae(one, one, zero, zero, zero, 0.5).flatten().tolist() == [1.75, 1.5, 1]


def test_members_keep_their_own_gamma_and_lambda() -> None:
    g = torch.Generator().manual_seed(0)
    reward, value, after = (torch.randn(2, 6, 3, generator=g, dtype=torch.float64) for _ in range(3))
    cut = torch.rand(2, 6, 3, generator=g) < 0.3
    gamma = torch.tensor([0.9, 0.99], dtype=torch.float64).view(2, 1, 1)
    lam = torch.tensor([0.5, 1.0], dtype=torch.float64).view(2, 1, 1)
    both = gae(reward, gamma * ~cut, value, after, cut, lam)
    for i in range(2):
        alone = gae(reward[i], gamma[i] * ~cut[i], value[i], after[i], cut[i], float(lam[i]))
        assert torch.equal(both[i], alone)
    brute = torch.zeros_like(both)
    for i in range(2):
        for e in range(3):
            running = 0.0
            for t in range(5, -1, -1):
                ended = bool(cut[i, t, e])
                bootstrap = 0.0 if ended else float(gamma[i]) * float(after[i, t, e])
                delta = float(reward[i, t, e]) + bootstrap - float(value[i, t, e])
                running = delta + (0.0 if ended else float(gamma[i] * lam[i]) * running)
                brute[i, t, e] = running
    assert torch.allclose(both, brute, atol=1e-12)


def test_with_lambda_one_the_advantage_is_the_return_minus_the_value() -> None:
    g = torch.Generator().manual_seed(1)
    reward, value = (torch.randn(9, 4, generator=g, dtype=torch.float64) for _ in range(2))
    cut = torch.rand(9, 4, generator=g) < 0.3
    terminated = cut & (torch.rand(9, 4, generator=g) < 0.5)
    after = torch.randn(9, 4, generator=g, dtype=torch.float64)
    goes_on = following_values(value, after[-1])
    after = torch.where(cut, after, goes_on)
    discount = 0.97 * ~terminated
    expected = monte_carlo_returns(reward, discount, after, cut)
    assert torch.allclose(gae(reward, discount, value, after, cut, 1.0) + value, expected, atol=1e-12)


def test_standardised_counts_only_the_rows_that_have_weight() -> None:
    # Of [1, 3, 99] the first two count: mean 2, standard deviation 1.
    weight = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    found = standardised(torch.tensor([1.0, 3.0, 99.0], dtype=torch.float64), weight)
    assert found[:2].tolist() == pytest.approx([-1, 1])
    assert standardised(torch.tensor([5.0]), torch.ones(1)).tolist() == [0]


def test_standardised_divides_by_the_deviation_and_not_by_the_variance() -> None:
    found = standardised(torch.tensor([1.0, 5.0]), torch.tensor([0.5, 0.5]))
    assert found.tolist() == pytest.approx([-1.0, 1.0], abs=1e-6)
