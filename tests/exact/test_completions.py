"""Losses of language models against numbers that were worked out by hand, and against autograd."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from agilerl.losses import completions as losses

T, F = True, False


def tensor(*rows: object) -> Tensor:
    return torch.tensor(rows[0] if len(rows) == 1 else rows, dtype=torch.float64)


def close(found: Tensor, wanted: object) -> None:
    torch.testing.assert_close(found, torch.as_tensor(wanted, dtype=found.dtype), atol=1e-12, rtol=0)


def test_group_advantages_are_standardised_within_each_group() -> None:
    rewards = tensor([[1.0, 0.0, 0.0, 0.0], [2.0, 4.0, 4.0, 6.0]])
    # mean 1/4, deviation sqrt((9 + 1 + 1 + 1) / 16 / 3) = 1/2; mean 4, deviation sqrt(8 / 3)
    root = math.sqrt(8 / 3)
    wanted = [[1.5, -0.5, -0.5, -0.5], [-2 / root, 0.0, 0.0, 2 / root]]
    torch.testing.assert_close(losses.group_advantages(rewards), tensor(wanted), atol=1e-7, rtol=0)
    close(losses.group_advantages(rewards, normalise=False), [[0.75, -0.25, -0.25, -0.25], [-2.0, 0.0, 0.0, 2.0]])


def test_equal_rewards_and_single_completions_say_nothing() -> None:
    same = torch.full((2, 3), 0.1, dtype=torch.float32)
    assert torch.equal(losses.group_advantages(same), torch.zeros(2, 3))
    assert torch.equal(losses.leave_one_out(same), torch.zeros(2, 3))
    assert torch.equal(losses.group_advantages(torch.tensor([[5.0]])), torch.zeros(1, 1))


def test_leave_one_out_is_the_mean_of_the_others() -> None:
    rewards = tensor([[1.0, 2.0, 6.0]])
    close(losses.leave_one_out(rewards), [[1 - 4.0, 2 - 3.5, 6 - 1.5]])
    centred = rewards - rewards.mean(-1, keepdim=True)
    close(losses.leave_one_out(rewards), 3 / 2 * centred)


def test_a_reward_stands_at_the_last_own_token_and_every_token_has_it_once() -> None:
    """Not a reward of 4 on each of four tokens, whose returns were [4, 3, 2, 1] for a reward of 1."""
    said = torch.tensor([[T, T, T, T, F], [T, F, T, F, F]])
    rewards = losses.rewards_by_token(tensor([1.0, 2.0]), said)
    close(rewards, [[0, 0, 0, 1, 0], [0, 0, 2, 0, 0]])
    close(losses.discounted_returns(rewards, said), [[1, 1, 1, 1, 0], [2, 0, 2, 0, 0]])
    close(losses.discounted_returns(rewards, said, 0.5), [[0.125, 0.25, 0.5, 1, 0], [1, 0, 2, 0, 0]])


def test_generalised_advantages_skip_what_the_environment_says() -> None:
    said = torch.tensor([[T, F, T, F]])
    rewards, values = tensor([[0.0, 9.0, 1.0, 9.0]]), tensor([[0.5, 7.0, 0.25, 7.0]])
    # δ at 2: 1 − 0.25 = 0.75; at 0: 0.5 · 0.25 − 0.5 = −0.375, and 0.5 · 0.8 · 0.75 = 0.3 more
    advantage, returns = losses.token_advantages(rewards, values, said, 0.5, 0.8)
    close(advantage, [[-0.075, 0, 0.75, 0]])
    close(returns, [[0.425, 0, 1.0, 0]])


def test_a_turn_is_one_action() -> None:
    said = torch.tensor([[T, T, F, T, T]])
    rewards, values = tensor([[0.0, 1.0, 0.0, 0.0, 2.0]]), tensor([[0.5, 3.0, 9.0, 0.25, 3.0]])
    # second turn: 2 − 0.25 = 1.75; first: 1 + 0.5 · 0.25 − 0.5 + 0.5 · 0.8 · 1.75 = 0.625 + 0.7 = 1.325
    advantage, returns = losses.turn_advantages(rewards, values, said, 0.5, 0.8)
    close(advantage, [[1.325, 1.325, 0, 1.75, 1.75]])
    close(returns, [[1.825, 3.0, 0, 2.0, 3.0]])
    alone = torch.tensor([[T, F, T]])
    args = (tensor([[0.0, 0.0, 1.0]]), tensor([[0.5, 0.0, 0.25]]), alone, 0.9, 0.7)
    for one, other in zip(losses.turn_advantages(*args), losses.token_advantages(*args), strict=True):
        close(one, other)


def test_whitening_looks_at_own_tokens_alone() -> None:
    values, weight = tensor([[1.0, 3.0, 100.0]]), tensor([[1.0, 0.5, 0.0]])
    close(losses.whitened(values, weight, eps=0.0), [[-1.0, 1.0, 0.0]])


def test_each_normalisation_weighs_tokens_as_its_paper_says() -> None:
    said, rows = torch.tensor([[T, T, T], [T, F, F]]), tensor([0.5, 0.5])
    close(losses.completion_weights(said, rows, "token", 8), [[0.25, 0.25, 0.25], [0.25, 0, 0]])
    close(losses.completion_weights(said, rows, "sequence", 8), [[1 / 6, 1 / 6, 1 / 6], [0.5, 0, 0]])
    close(losses.completion_weights(said, rows, "constant", 8), [[1 / 16, 1 / 16, 1 / 16], [1 / 16, 0, 0]])
    left_out = losses.completion_weights(said, tensor([1.0, 0.0]), "token", 8)
    close(left_out, [[1 / 3, 1 / 3, 1 / 3], [0, 0, 0]])


def test_the_surrogate_is_clipped_on_the_side_where_it_would_gain() -> None:
    ratio, advantage = tensor([1.5, 1.5, 0.5, 0.5, 1.1]), tensor([1.0, -1.0, 1.0, -1.0, 2.0])
    low, high = tensor(0.2), tensor(0.28)
    close(losses.clipped_surrogate(ratio, advantage, low, high), [-1.28, 1.5, -0.5, 0.8, -2.2])


def test_a_sequence_has_one_ratio() -> None:
    said = torch.tensor([[T, T, F], [T, F, F]])
    ratios = tensor([[0.2, 0.4, 9.0], [-0.1, 9.0, 9.0]])
    close(losses.sequence_ratio(ratios, said), [[math.exp(0.3)], [math.exp(-0.1)]])


def test_cispo_never_loses_a_gradient_by_clipping() -> None:
    log_prob = tensor([math.log(4.0), 0.0]).requires_grad_()
    ratios = log_prob - tensor([0.0, 0.0]).detach()
    loss = losses.clipped_importance(log_prob, ratios, tensor([1.0, 1.0]), tensor(0.5))
    loss.sum().backward()
    assert log_prob.grad is not None
    close(log_prob.grad, [-1.5, -1.0])  # the weight is bounded, and a constant


def test_the_estimate_of_the_divergence_is_never_negative_and_zero_where_nothing_changed() -> None:
    log_prob = torch.linspace(-5, 0, 50, dtype=torch.float64)
    reference = log_prob.flip(0)
    said = torch.ones(50, dtype=torch.bool)
    found = losses.kl_estimate(log_prob, reference, said)
    assert (found >= 0).all()
    close(losses.kl_estimate(tensor([math.log(0.5)]), tensor([math.log(0.25)]), said[:1]), [0.5 + math.log(2) - 1])
    assert torch.equal(losses.kl_estimate(log_prob, log_prob, said), torch.zeros_like(log_prob))


def test_what_is_not_said_neither_overflows_nor_has_a_gradient() -> None:
    log_prob = tensor([[-1.0, 1e4]]).requires_grad_()
    said = torch.tensor([[T, F]])
    ratios = losses.log_ratio(log_prob, tensor([[-1.0, -1e4]]), said).exp()
    kl = losses.kl_estimate(log_prob, tensor([[-1.0, 1e5]]), said)
    (ratios.sum() + kl.sum()).backward()
    assert log_prob.grad is not None
    close(log_prob.grad, [[1.0, 0.0]])


def test_preferences() -> None:
    margin = losses.preference_margin(tensor([-1.0]), tensor([-3.0]), tensor([-2.0]), tensor([-2.5]))
    close(margin, [1.5])
    close(losses.preference_loss(tensor([0.0]), tensor(0.1)), [math.log(2)])  # the policy is the reference
    sigma = 1 / (1 + math.exp(-0.3))
    close(losses.preference_loss(margin, tensor(0.2)), [-math.log(sigma)])
    close(losses.preference_loss(margin, tensor(0.2), 0.1), [-0.9 * math.log(sigma) - 0.1 * math.log(1 - sigma)])


@pytest.mark.parametrize("seed", range(3))
def test_gradients_are_those_of_finite_differences(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    said = torch.rand(2, 3, 4, generator=generator) > 0.3

    def random() -> Tensor:
        return 0.3 * torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)

    old, reference, advantage = random(), random(), random() * 5
    low, high = tensor(0.2), tensor(0.28)

    def objective(log_prob: Tensor) -> Tensor:
        ratios = losses.log_ratio(log_prob, old, said)
        by_token = losses.clipped_surrogate(ratios.exp(), advantage, low, high)
        by_sequence = losses.clipped_surrogate(losses.sequence_ratio(ratios, said), advantage, low, high) * said
        return by_token + by_sequence + losses.kl_estimate(log_prob, reference, said)

    assert torch.autograd.gradcheck(objective, (random().requires_grad_(),))
