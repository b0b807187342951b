"""Members that rest in an update, and memories of episodes that end: what stays and what changes, number by number."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agilerl.engine.learner import HiddenStates
from agilerl.engine.rows.kernels import Columns, OptimizerRule, step_live

F64 = torch.float64
# Value, gradient, first and second moment of each of three members, steps taken, learning rate.
VALUE, GRAD, FIRST, SECOND = [1.0, 2.0, 3.0], [0.5, -1.0, 2.0], [0.1, 0.2, -0.3], [0.04, 0.09, 0.16]
STEPS, RATES = [0.0, 4.0, 9.0], [0.1, 0.2, 0.1]
Numbers = tuple[float, float, float]  # value and both moments after a step


def adam(k: int) -> Numbers:
    """β = 0.8 and 0.9, ε = 0.01."""
    first, second = 0.8 * FIRST[k] + 0.2 * GRAD[k], 0.9 * SECOND[k] + 0.1 * GRAD[k] ** 2
    step = STEPS[k] + 1
    corrected, root = first / (1 - 0.8**step), math.sqrt(second / (1 - 0.9**step))
    return VALUE[k] - RATES[k] * corrected / (root + 0.01), first, second


def adamw(k: int) -> Numbers:
    """As `adam`, with a decay of 0.5 times the rate."""
    value, first, second = adam(k)
    return value - 0.5 * RATES[k] * VALUE[k], first, second


def sgd(k: int) -> Numbers:
    """A momentum of 0.7."""
    first = 0.7 * FIRST[k] + GRAD[k]
    return VALUE[k] - RATES[k] * first, first, SECOND[k]


def rmsprop(k: int) -> Numbers:
    """α = 0.6, ε = 0.01 and a momentum of 0.7."""
    second = 0.6 * SECOND[k] + 0.4 * GRAD[k] ** 2
    first = 0.7 * FIRST[k] + GRAD[k] / (math.sqrt(second) + 0.01)
    return VALUE[k] - RATES[k] * first, first, second


RULES: dict[str, tuple[dict[str, Any], Callable[[int], Numbers]]] = {
    "Adam": ({"betas": (0.8, 0.9), "eps": 0.01, "weight_decay": 0.0}, adam),
    "AdamW": ({"betas": (0.8, 0.9), "eps": 0.01, "weight_decay": 0.5}, adamw),
    "SGD": ({"momentum": 0.7, "weight_decay": 0.0, "nesterov": False}, sgd),
    "RMSprop": ({"alpha": 0.6, "eps": 0.01, "weight_decay": 0.0, "momentum": 0.7}, rmsprop),
}


def columns() -> Columns:
    parts = [torch.tensor(numbers, dtype=F64)[:, None] for numbers in (VALUE, GRAD, FIRST, SECOND, STEPS)]
    return Columns(*parts)


@pytest.mark.parametrize("live", [None, [True, True, True], [True, False, True], [False, True, False], [False] * 3])
@pytest.mark.parametrize("kind", RULES)
def test_a_step_moves_the_members_that_take_part(kind: str, live: list[bool] | None) -> None:
    options, expected = RULES[kind]
    rows, rates = columns(), torch.tensor(RATES, dtype=F64)[:, None]
    step_live(rows, rates, OptimizerRule(kind, tuple(options.items())), live)
    for k in range(3):
        moves = live is None or live[k]
        numbers = expected(k) if moves else (VALUE[k], FIRST[k], SECOND[k])
        result = [float(part[k]) for part in (rows.value, rows.first, rows.second)]
        assert result == pytest.approx(numbers, rel=1e-12)
        assert float(rows.step[k]) == STEPS[k] + moves


def test_rates_of_a_later_step_are_those_of_that_step() -> None:
    """With moments of a first step at other rates."""
    options, expected = RULES["Adam"]
    rule, rows = OptimizerRule("Adam", tuple(options.items())), columns()
    step_live(rows, torch.tensor([[9.0], [9.0], [9.0]], dtype=F64), rule)
    before = columns()
    for name in ("value", "first", "second", "step"):
        getattr(rows, name).copy_(getattr(before, name))
    step_live(rows, torch.tensor(RATES, dtype=F64)[:, None], rule)
    assert rows.value.flatten().tolist() == pytest.approx([expected(k)[0] for k in range(3)], rel=1e-12)


def memory() -> Any:
    """Two members, one layer, three lanes, two units: 1 to 12."""
    states = torch.arange(1.0, 13).view(2, 1, 3, 2)
    lead = SimpleNamespace(forget=lambda parts, over: {"agents": over})
    hidden = HiddenStates(SimpleNamespace(groups=[SimpleNamespace(lead=lead)]))  # type: ignore[arg-type]
    hidden.hidden[0] = {"policy": states, "critic": 10 * states}
    return hidden


def test_the_memory_of_an_ended_episode_is_cleared_in_its_lane_alone() -> None:
    hidden = memory()
    hidden.forget(0, np.array([[False, True, False], [True, False, True]]))
    rows = [[[1, 2], [0, 0], [5, 6]], [[0, 0], [9, 10], [0, 0]]]
    assert hidden.hidden[0]["policy"][:, 0].tolist() == rows
    assert hidden.hidden[0]["critic"][:, 0].tolist() == [[[10 * x for x in unit] for unit in part] for part in rows]


def test_memories_of_going_episodes_and_of_single_agents_of_teams() -> None:
    hidden = memory()
    before = hidden.hidden[0]
    hidden.forget(0, np.zeros((2, 3), bool))
    assert hidden.hidden[0] is before
    over = np.zeros((2, 3, 4), bool)
    over[1, 2, 3] = True
    hidden.forget(0, over)
    result: Tensor = hidden.hidden[0]["agents"]  # by the algorithm, agent by agent
    assert result.nonzero().tolist() == [[1, 2, 3]]


def test_states_before_the_first_step_are_the_initial_ones_of_each_member() -> None:
    start = {"policy": torch.tensor([[[1.0, 2.0]] * 3])}
    lead = SimpleNamespace(get_initial_hidden_state=lambda lanes: {"policy": start["policy"][:, :lanes]})
    group = SimpleNamespace(lead=lead)
    hidden = HiddenStates(SimpleNamespace(groups=[group]))  # type: ignore[arg-type]
    states = hidden.of(0, torch.zeros(2, 3, 5))["policy"]
    assert states.shape == (2, 1, 3, 2)
    states[0] += 1
    assert states[1].tolist() == start["policy"].tolist(), "members share no memory"
    assert start["policy"].sum() == 9
