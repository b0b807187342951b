"""Losses over tokens of texts, against numbers worked by hand and loops over tokens."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from agilerl.losses.actor_critic import bootstrap
from agilerl.losses.language import perturbed_logits, state_after, state_before, token_values, token_weights
from agilerl.losses.offline import cloning_likelihood, expectile_loss

# One text: start, said, said, answered, said, padding. States are numbered as the tokens that they end with.
SAID = torch.tensor([[False, True, True, False, True, False]])
TEXT = torch.tensor([[1, 2, 3, 1, 2, 0]])
LENGTH = torch.tensor([5])


def numbers(*values: float) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def test_each_of_the_policys_own_tokens_counts_alike_and_no_other() -> None:
    said = torch.tensor([[False, True, True, False], [False, True, False, False]])
    each = token_weights(said, torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert each.flatten().tolist() == pytest.approx([0, 1 / 3, 1 / 3, 0, 0, 1 / 3, 0, 0])
    uneven = token_weights(said, torch.tensor([0.25, 0.5], dtype=torch.float64))  # ¼ + ¼ + ½
    assert uneven.tolist() == [[0, 0.25, 0.25, 0], [0, 0.5, 0, 0]]
    gone = token_weights(said, torch.tensor([0.0, 0.5], dtype=torch.float64))
    assert gone.tolist() == [[0, 0, 0, 0], [0, 1, 0, 0]]
    assert token_weights(torch.zeros(1, 3, dtype=torch.bool), torch.ones(1)).tolist() == [[0, 0, 0]]


def test_a_state_speaks_of_the_token_that_follows_on_it() -> None:
    values = torch.arange(24, dtype=torch.float64).view(1, 6, 4)  # of state t and token a: 4 t + a
    assert token_values(values, TEXT).tolist() == [[0, 0 + 2, 4 + 3, 8 + 1, 12 + 2, 16 + 0]]
    assert state_before(numbers(10, 11, 12, 13, 14, 15)).tolist() == [[0, 10, 11, 12, 13, 14]]


def test_what_follows_on_a_token_is_the_state_in_which_the_policy_speaks_next() -> None:
    values = numbers(10, 11, 12, 13, 14, 15)
    later = state_after(values, SAID, LENGTH)[SAID]
    # Token 1 is followed by token 2, said in state 1; token 2 by token 4, said in state 3, behind the answer; token 4
    # by none: the state at the end of the text of five tokens is number 4.
    assert later.tolist() == [11, 13, 14]


def test_targets_by_hand() -> None:
    reward, terminated = numbers(0, 0, -1, 0, -1, 0), numbers(0, 0, 0, 0, 1, 0)
    later = state_after(numbers(10, 11, 12, 13, 14, 15), SAID, LENGTH)
    target = bootstrap(reward, 0.5 * (1 - terminated), later)
    assert target[SAID].tolist() == [0 + 0.5 * 11, -1 + 0.5 * 13, -1 + 0.5 * 0]


def test_states_that_follow_agree_with_a_loop_over_texts_of_unequal_length() -> None:
    g = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, 13, (3, 20), generator=g)  # two leading axes
    place = torch.arange(12).expand(3, 20, 12)
    said = (torch.rand(3, 20, 12, generator=g) < 0.4) & (place > 0) & (place < lengths[..., None])
    values = torch.rand(3, 20, 12, generator=g, dtype=torch.float64)
    found = state_after(values, said, lengths)
    for row in torch.cartesian_prod(torch.arange(3), torch.arange(20)).tolist():
        own = [p for p in range(12) if said[tuple(row)][p]]
        for k, p in enumerate(own):
            state = own[k + 1] - 1 if k + 1 < len(own) else int(lengths[tuple(row)]) - 1
            assert found[(*row, p)] == values[(*row, state)]


def test_the_losses_of_one_text_by_hand() -> None:
    """Values of the state 0.5, of the token judged 1.5 and 0: u = 1 and −0.5. Two tokens, half each, τ = 0.8."""
    weight = token_weights(torch.tensor([[True, True]]), torch.ones(1, dtype=torch.float64))
    u = numbers(1.5, 0.0) - numbers(0.5, 0.5)
    loss = expectile_loss(u.flatten(-2), torch.tensor(0.8), weight.flatten(-2))
    assert float(loss) == pytest.approx(0.5 * 0.8 * 1.0 + 0.5 * 0.2 * 0.25)
    # The conservative term of values (0, log 3) for the first: log(1 + 3) − 0 and log 4 − log 3.
    values = torch.tensor([[[0.0, math.log(3)], [0.0, math.log(3)], [0.0, 0.0]]], dtype=torch.float64)
    text = torch.tensor([[0, 0, 1]])
    likely = token_values(values.log_softmax(-1), text)
    said = token_weights(torch.tensor([[False, True, True]]), torch.ones(1, dtype=torch.float64))
    term = cloning_likelihood(likely.flatten(-2), said.flatten(-2))
    assert float(term) == pytest.approx(0.5 * math.log(4) + 0.5 * (math.log(4) - math.log(3)))


def test_the_policy_multiplies_the_cloned_probabilities_by_the_exponentials_of_advantages() -> None:
    logits = torch.tensor([math.log(6), math.log(3), math.log(1)], dtype=torch.float64)  # shares 0.6, 0.3, 0.1
    value = torch.tensor([0.0, math.log(2), math.log(3)], dtype=torch.float64)
    scores = perturbed_logits(logits, value, torch.tensor(7.0), torch.tensor(1.0))
    assert scores.softmax(-1).tolist() == pytest.approx([0.6 / 1.5, 0.6 / 1.5, 0.3 / 1.5])
    assert scores.tolist() == pytest.approx([math.log(0.6) - 7, math.log(0.6) - 7, math.log(0.3) - 7])
    squared = perturbed_logits(logits, value, torch.tensor(7.0), torch.tensor(2.0))  # 0.6 · 1, 0.3 · 4, 0.1 · 9
    assert squared.softmax(-1).tolist() == pytest.approx([0.6 / 2.7, 1.2 / 2.7, 0.9 / 2.7])
    cloned = perturbed_logits(logits, value, torch.tensor(7.0), torch.tensor(0.0))
    assert cloned.softmax(-1).tolist() == pytest.approx([0.6, 0.3, 0.1])


@pytest.mark.parametrize("which", ["values", "states"])
def test_padding_and_the_environments_tokens_get_no_gradient(which: str) -> None:
    values: Any = torch.zeros(1, 6, 4, dtype=torch.float64, requires_grad=True)
    states: Any = torch.zeros(1, 6, dtype=torch.float64, requires_grad=True)
    weight = token_weights(SAID, torch.ones(1, dtype=torch.float64))
    if which == "values":
        cloning_likelihood(token_values(values.log_softmax(-1), TEXT).flatten(-2), weight.flatten(-2)).backward()
        touched = values.grad.abs().sum(-1)[0] > 0
    else:
        expectile_loss((1 - state_before(states)).flatten(-2), torch.tensor(0.7), weight.flatten(-2)).backward()
        touched = states.grad[0] != 0
    assert touched.tolist() == [True, True, False, True, False, False], (
        "the states in which tokens 1, 2 and 4 were said"
    )
