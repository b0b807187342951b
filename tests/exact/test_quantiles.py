"""Quantiles of returns by hand: levels, the quantile Huber loss and its gradient, truncated targets."""

from __future__ import annotations

import gymnasium as gym
import pytest
import torch
from torch import Tensor

from agilerl.algorithms import QRDQN
from agilerl.engine.protocol import TransitionBatch
from agilerl.losses import quantiles
from agilerl.losses.quantiles import quantile_huber, quantile_levels, truncated_atoms

T = lambda *values: torch.tensor(values, dtype=torch.float64)  # noqa: E731


def as_written(values: Tensor, target: Tensor, threshold: float = 1.0) -> Tensor:
    """Equations 9 and 10 of arXiv:1710.10044, and the sum of algorithm 1."""
    error = target[..., None, :] - values[..., :, None]
    huber = torch.where(error.abs() <= threshold, error**2 / 2, threshold * (error.abs() - threshold / 2))
    count = values.shape[-1]
    level = torch.tensor([(2 * i - 1) / (2 * count) for i in range(1, count + 1)], dtype=values.dtype)
    return ((level[:, None] - (error < 0).to(values.dtype)).abs() * huber).mean(-1).sum(-1)


def test_levels_are_the_middles_of_equal_shares() -> None:
    assert quantile_levels(torch.zeros(3, 4)).tolist() == [0.125, 0.375, 0.625, 0.875]
    assert quantile_levels(torch.zeros(1)).tolist() == [0.5]


def test_the_loss_and_its_gradient_by_hand() -> None:
    # levels 1/4 and 3/4; of θ = 0 the errors are 0.5 and 3 (Huber 0.125 and 2.5), of θ = 1 they are -0.5 and 2 (0.125
    # and 1.5). Weights: 1/4 and 1/4; |3/4 - 1| = 1/4 and 3/4.
    loss, slope = quantile_huber(T(0, 1), T(0.5, 3))
    assert loss.item() == pytest.approx((0.125 + 2.5) / 4 / 2 + (0.125 / 4 + 1.5 * 3 / 4) / 2)  # 0.90625
    assert slope.tolist() == pytest.approx([-(0.5 / 4 + 1 / 4) / 2, -(-0.5 / 4 + 3 / 4) / 2])  # -0.1875, -0.3125


def test_one_quantile_is_half_of_the_huber_loss() -> None:
    values, target = torch.randn(50, 1).double() * 3, torch.randn(50, 1).double() * 3
    loss, _ = quantile_huber(values, target)
    torch.testing.assert_close(loss, 0.5 * torch.nn.functional.huber_loss(values, target, reduction="none")[:, 0])


@pytest.mark.parametrize("threshold", [0.3, 1.0, 5.0])
@pytest.mark.parametrize(("shape", "samples"), [((7,), 4), ((2, 3, 5), 5), ((2, 3, 1), 6)])
def test_the_gradient_is_that_of_the_equations(shape: tuple[int, ...], samples: int, threshold: float) -> None:
    """Targets lack the first axis, of critics."""
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(*shape, generator=draw, dtype=torch.float64).mul(2).requires_grad_()
    target = torch.randn(*shape[1:-1], samples, generator=draw, dtype=torch.float64) * 2
    expected = as_written(values, target, threshold)
    (of_values,) = torch.autograd.grad(expected.sum(), values)
    loss, slope = quantile_huber(values, target, threshold)
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(slope, of_values)


def test_blocks_of_rows_have_the_bits_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    values, target = torch.randn(2, 9, 8), torch.randn(9, 12)
    whole = quantile_huber(values, target)
    for block in (1, 8 * 12 * 5):  # one row, and five
        monkeypatch.setattr(quantiles, "BLOCK", block)
        for one, other in zip(quantile_huber(values, target), whole, strict=True):
            assert torch.equal(one, other)


def test_without_a_threshold_the_minimum_is_at_the_quantiles_of_the_targets() -> None:
    """With κ near 0 the loss is that of quantile regression: the best θ at level τ is the τ-quantile."""
    target = torch.arange(1, 101, dtype=torch.float64)
    best = T(*target.quantile(quantile_levels(torch.zeros(4).double())).tolist())
    assert best.tolist() == pytest.approx([13.375, 38.125, 62.875, 87.625])
    _, slope = quantile_huber(best, target, 1e-6)
    assert slope.abs().max() <= 1e-6 * 0.5 / 100 + 1e-15  # the share of targets below is level to half a target
    _, above = quantile_huber(best + 2, target, 1e-6)
    assert (above > 1e-8).all()


def test_the_largest_quantiles_of_all_critics_are_left_out_together() -> None:
    first, second = T(9, 1, 5), T(2, 8, 7)
    atoms = torch.stack((first, second))
    assert truncated_atoms(atoms, 1).tolist() == [1, 2, 5, 7]
    assert truncated_atoms(atoms, 2).tolist() == [1, 2], "both of one critic"
    assert truncated_atoms(atoms, 0).tolist() == [1, 2, 5, 7, 8, 9]
    rows = torch.stack((atoms, atoms + 10), 1)  # [2 critics, 2 rows, 3]
    assert truncated_atoms(rows, 2).tolist() == [[1, 2], [11, 12]]


def test_a_target_takes_the_quantiles_of_the_action_with_the_best_mean() -> None:
    """The next state's actions have quantiles (0, 4) and (1, 1): the first is best by 2 to 1, and illegal in one row.

    Rewards are 1, the discount is 1/2: targets are (1, 3), (3/2, 3/2) and, terminated, (1, 1). With a network of zeros
    the taken action has quantiles 0: the loss is Σ_i mean_j τ̂_i · H(y_j) = mean_j H(y_j) for positive targets.
    """
    agent = QRDQN(gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2), num_quantiles=2, gamma=0.5, seed=0)
    with torch.no_grad():
        for parameter in [*agent.actor.parameters(), *agent.actor_target.parameters()]:
            parameter.zero_()
        list(agent.actor_target.parameters())[-1].copy_(torch.tensor([0.0, 4.0, 1.0, 1.0]))
    zeros, ones = torch.zeros(3, 1), torch.ones(3)
    legal = torch.tensor([[True, True], [False, True], [True, True]])
    done = torch.tensor([0.0, 0.0, 1.0])
    batch = TransitionBatch(zeros, torch.tensor([0, 1, 0]), ones, zeros, done, ones / 3, next_mask=legal)
    result = agent.learn_batch(batch)
    assert result.priorities is not None
    assert result.priorities.tolist() == pytest.approx([(0.5 + 2.5) / 2, 1.0, 0.5])
    assert float(result.loss) == pytest.approx((1.5 + 1.0 + 0.5) / 3)
