"""Targets and losses of DDPG, TD3 and SAC against numbers worked out by hand, and their gradients."""

from __future__ import annotations

import math

import pytest
import torch

from agilerl.losses.actor_critic import (
    bootstrap,
    deterministic_policy_loss,
    discrete_soft_value,
    smoothed_action,
    soft_policy_loss,
    soft_value,
    temperature_loss,
    weighted_squared_error,
)
from agilerl.networks.distributions import masked_logits

T = lambda *values: torch.tensor(values, dtype=torch.float64)  # noqa: E731


def test_one_step_targets_by_hand() -> None:
    # γ = 0.9; terminated; three steps of γ; a negative value
    reward, discount = T(1, 1, 0.5, 0), T(0.9, 0, 0.729, 0.9)
    assert bootstrap(reward, discount, T(10, 10, 2, -1)).tolist() == pytest.approx([10, 1, 1.958, -0.9])


def test_the_target_action_is_disturbed_within_the_clip_and_the_bounds() -> None:
    action = T(0.0, 0.0, 0.0, 0.9, -0.95)[:, None]
    noise = T(1.0, 10.0, -10.0, 2.0, -1.0)[:, None]
    got = smoothed_action(action, noise, torch.tensor(0.2).double(), torch.tensor(0.5).double())
    # 0.2; 2 cut to 0.5; -2 cut to -0.5; 0.9 + 0.4 cut to 1; -0.95 - 0.2 cut to -1
    torch.testing.assert_close(got[:, 0], T(0.2, 0.5, -0.5, 1.0, -1.0))


def test_members_disturb_with_their_own_deviation_and_clip() -> None:
    got = smoothed_action(torch.zeros(2, 1, 1).double(), torch.ones(2, 1, 1).double(), T(0.1, 0.8)[:, None],
                          T(0.5, 0.3)[:, None])  # fmt: skip
    assert got.flatten().tolist() == pytest.approx([0.1, 0.3])
    got = smoothed_action(T(0.5)[None], T(3.0)[None], torch.tensor(0.2), torch.tensor(0.5), 0.0, 0.8)
    assert float(got) == pytest.approx(0.8), "bounds of another output activation"


def test_rows_beyond_the_batch_neither_count_nor_get_a_gradient() -> None:
    value = T(1, 2, 50).requires_grad_()
    loss, error = weighted_squared_error(value, T(0, 4, 0), T(0.5, 0.5, 0))
    assert (loss.item(), error.tolist()) == (2.5, [1, -2, 50])
    loss.backward()
    assert value.grad is not None
    assert value.grad.tolist() == [1, -2, 0]
    value = T(3, 5, 7).requires_grad_()
    (slope,) = torch.autograd.grad(deterministic_policy_loss(value, T(0.5, 0.5, 0)), value)
    assert slope.tolist() == [-0.5, -0.5, 0]


def test_soft_values_by_hand() -> None:
    alpha = torch.tensor(0.5).double()
    assert soft_value(T(3, 1), T(2, 4), T(-1, 2), alpha).tolist() == [2 + 0.5, 1 - 1]
    assert float(soft_policy_loss(T(3, 1), T(2, 4), T(-1, 2), alpha, T(0.5, 0.5))) == -0.5 * (2.5 + 0)
    # π = (1/4, 3/4), min Q = (2, 0): 0.5 + α H with H = log 4 − 3/4 log 3
    got = discrete_soft_value(T(2, 1)[None], T(5, 0)[None], T(0.25, 0.75).log()[None], alpha)
    assert float(got) == pytest.approx(0.5 + 0.5 * (math.log(4) - 0.75 * math.log(3)))


def test_illegal_actions_have_no_part_in_the_soft_value() -> None:
    logits = masked_logits(T(1.0, 3.0, 1.0)[None], torch.tensor([[1, 0, 1]]))
    for alpha in (0.5, 40.0):
        got = discrete_soft_value(T(2, 99, 4)[None], T(2, 99, 4)[None], logits.log_softmax(-1), torch.tensor(alpha))
        assert float(got) == pytest.approx(3 + alpha * math.log(2))
    single = masked_logits(torch.tensor([[1.0, 2.0]]), torch.tensor([[True, False]])).requires_grad_()
    value = discrete_soft_value(torch.ones(1, 2), torch.ones(1, 2), single.log_softmax(-1), torch.tensor(2.0))
    (slope,) = torch.autograd.grad(value.sum(), single)
    assert torch.equal(slope, torch.zeros(1, 2)), "and no gradient that is not a number"


def test_the_temperature_gradient_by_hand() -> None:
    # α = 2, entropies 1 and 3 with weights 1/2, target 0.5: ∂J/∂log α = α (mean H − H̄) = 2 · 1.5 = 3
    log_alpha = T(math.log(2)).requires_grad_()
    loss = temperature_loss(log_alpha, T(1, 3), torch.tensor(0.5), T(0.5, 0.5))
    assert float(loss) == pytest.approx(3)
    (slope,) = torch.autograd.grad(loss, log_alpha)
    assert slope.tolist() == pytest.approx([3])
    too_sure = temperature_loss(log_alpha, T(-1, 0), torch.tensor(0.5), T(0.5, 0.5))
    (slope,) = torch.autograd.grad(too_sure, log_alpha)
    assert slope.tolist() == pytest.approx([-2]), "less random than asked: a step downhill raises the temperature"
    members = temperature_loss(T(0, math.log(3))[:, None], T(1, 1).repeat(2, 1), T(0, 0.5)[:, None], T(0.5, 0.5))
    assert members.tolist() == pytest.approx([1, 1.5])
