"""Targets and losses of VDN and QMIX against tables worked by hand: two agents, linear values, two actions each."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from agilerl.algorithms import QMIX, VDN
from agilerl.engine.protocol import TransitionBatch
from agilerl.envs.protocol import LAST_ACTION, PRESENT, WAITING
from agilerl.networks.mixing import MixingNetwork, monotonic_mix

SEEN = {name: spaces.Box(-9, 9, (1,)) for name in ("x_0", "y_0")}
DONE = {"x_0": spaces.Discrete(2), "y_0": spaces.Discrete(2)}
ONLINE: dict[str, Any] = {
    "actors.x": lambda o: torch.cat((o, -o), -1),
    "actors.y": lambda o: torch.cat((torch.ones_like(o), o), -1),
    "mixer": lambda seen, q: 2 * q[:, 0] + q[:, 1] + seen["x_0"].squeeze(-1),
}
TARGET: dict[str, Any] = {
    "actors.x": lambda o: torch.cat((2 * o, torch.full_like(o, 5)), -1),
    "actors.y": lambda o: torch.cat((o, torch.full_like(o, 3)), -1),
    "mixer": lambda seen, q: q.sum(-1) + 1,
}


class Table:
    """An engine whose networks are the functions above; it keeps the loss and moves nothing."""

    def __init__(self) -> None:
        self.hp = {"gamma": torch.tensor(0.5), "tau": torch.tensor(0.1)}
        self.losses: dict[str, Tensor] = {}
        self.tracked: tuple[str, ...] = ()

    def network(self, name: str) -> Any:
        return ONLINE[name]

    def target(self, name: str) -> Any:
        return TARGET[name]

    def frozen_and_target(self, name: str) -> Any:
        return lambda x: (ONLINE[name](x), TARGET[name](x))

    def minimise(self, name: str, loss: Tensor) -> None:
        self.losses[name] = loss

    def track(self, names: tuple[str, ...], tau: Tensor) -> None:
        self.tracked = names


def seen(x: list[float], y: list[float], present: list[list[int]]) -> dict[str, Any]:
    rows = {"x_0": torch.tensor(x).unsqueeze(-1), "y_0": torch.tensor(y).unsqueeze(-1)}
    return {"agents": rows, PRESENT: torch.tensor(present)}


def batch() -> TransitionBatch:
    """In the second row y's episode ends, and x goes on."""
    return TransitionBatch(
        seen([2.0, 1.0], [1.0, 3.0], [[1, 1], [1, 1]]),
        torch.tensor([[0.0, 1.0], [1.0, 0.0]]),
        torch.tensor([[3.0, 1.0], [0.0, -2.0]]),
        seen([-1.0, 2.0], [0.5, 0.0], [[1, 1], [1, 0]]),
        torch.tensor([[0.0, 0.0], [0.0, 1.0]]),
        torch.tensor([0.5, 0.5]),
    )


def errors(cls: Any, rows: TransitionBatch) -> list[float]:
    """|Q_tot - y| of the rows; the loss is checked beside them."""
    engine = Table()
    result = cls(SEEN, DONE, gamma=0.5).update(engine, rows)
    assert list(engine.losses) == ["optimizer"]
    assert set(engine.tracked) == {name for name in ONLINE if cls is QMIX or name != "mixer"}
    assert result.priorities is not None
    assert engine.losses["optimizer"].item() == pytest.approx(float((rows.weight * result.priorities.square()).sum()))
    return result.priorities.tolist()


def test_vdn_has_the_target_of_the_table() -> None:
    # Q_tot: 2 + 1 = 3 and -1 + 1 = 0. Choices in the next state: x: (-1, 1) the second, worth 5, and (2, -2) the first,
    # worth 4; y: (1, 0.5) the first, worth 0.5, and not there. y = (3 + 1)/2 + 5.5/2 = 4.75, and -1 + 4/2 = 1.
    assert errors(VDN, batch()) == [1.75, 1.0]


def test_qmix_mixes_values_of_both_states() -> None:
    # Q_tot: 4 + 1 + 2 = 7 and -2 + 1 + 1 = 0; y = 2 + (5.5 + 1)/2 = 5.25 and -1 + (4 + 1)/2 = 1.5.
    assert errors(QMIX, batch()) == [1.75, 1.5]


@pytest.mark.parametrize("cls", [VDN, QMIX])
def test_nothing_follows_where_no_agent_goes_on(cls: Any) -> None:
    over = replace(batch(), done=torch.tensor([[1.0, 1.0], [1.0, 1.0]]))
    first, second = (3.0 - 2, 0.0 + 1) if cls is VDN else (7.0 - 2, 0.0 + 1)
    assert errors(cls, over) == [first, second]
    gone = replace(batch(), next_obs=seen([-1.0, 2.0], [0.5, 0.0], [[0, 0], [0, 0]]), done=torch.zeros(2, 2))
    assert errors(cls, gone) == [first, second], "the same without flags: nobody is there any more"


def test_an_agent_that_ends_counts_no_more_though_its_last_observation_is_there() -> None:
    shown = replace(batch(), next_obs=seen([-1.0, 2.0], [0.5, 9.0], [[1, 1], [1, 1]]))
    assert errors(VDN, shown) == errors(VDN, batch())


def test_an_absent_agent_counts_with_zero() -> None:
    absent = replace(batch(), obs=seen([2.0, 1.0], [1.0, 3.0], [[1, 1], [1, 0]]))
    assert errors(VDN, absent) == [1.75, 2.0]  # Q_tot = -1
    assert errors(QMIX, absent) == [1.75, 2.5]  # Q_tot = -2 + 0 + 1


def test_only_legal_actions_follow() -> None:
    legal = torch.tensor([[True, False, True, True], [True, True, True, True]])
    # x: the first, worth -2: y = 2 + (-2 + 0.5)/2 = 1.25.
    assert errors(VDN, replace(batch(), next_mask=legal)) == [1.75, 1.0]
    both = torch.tensor([[True, False, False, True], [True, True, True, True]])
    assert errors(VDN, replace(batch(), next_mask=both)) == [3 - 2.5, 1.0]  # y: the second, worth 3


def test_a_waiting_agent_counts_with_the_action_that_it_holds() -> None:
    rows = batch()
    later = {**rows.next_obs, WAITING: torch.tensor([[0, 0], [0, 1]]), LAST_ACTION: torch.tensor([[1.0, 1], [0.0, 1]])}
    waits = replace(rows, next_obs=later, done=torch.zeros(2, 2))
    assert errors(VDN, waits) == [1.75, 2.5]  # y = -1 + (4 + 3)/2 in the second row, and the first is as before
    now = {**seen([2.0, 1.0], [1.0, 3.0], [[1, 1], [1, 0]]), WAITING: torch.tensor([[0, 0], [0, 1]])}
    assert errors(VDN, replace(rows, obs=now)) == [1.75, 1.0]  # what it holds is its stored action


def test_n_step_targets_have_the_discount_of_those_that_go_on_and_the_weight_of_each_row() -> None:
    rows = replace(batch(), discount=torch.tensor([[0.25, 0.25], [0.125, 0.0]]), weight=torch.tensor([0.5, 0.1]))
    assert errors(VDN, rows) == [abs(3 - (2 + 5.5 / 4)), abs(0 - (-1 + 4 / 8))]


def test_the_mix_is_that_of_the_table() -> None:
    # W1: (1, -2) of the first agent, (-0.5, 0) of the second; b1 = (0.5, -4); w2 = (-2, 1); b2 = 3.
    weights, bias = torch.tensor([1, -2, -0.5, 0, 0.5, -4, -2, 1], dtype=torch.float64), torch.tensor([3.0]).double()
    values = torch.tensor([[2.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    found = monotonic_mix(values, weights.expand(2, 8), bias.expand(2, 1))
    # Hidden units: 2 + 0.5 + 0.5 = 3 and 4 - 4 = 0; 1 + 0.5 = 1.5 and elu(2 - 4) = exp(-2) - 1.
    assert found.tolist() == pytest.approx([2 * 3 + 0 + 3, 2 * 1.5 + math.exp(-2) - 1 + 3])


def test_the_team_value_rises_with_the_value_of_every_agent_in_every_state() -> None:
    network = MixingNetwork(spaces.Box(-1, 1, (4,)), 3, random_seed=1, mixing_size=8).double()
    states = torch.randn(64, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values = (5 * torch.randn(64, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))).requires_grad_()
    network(states, values).sum().backward()
    assert values.grad is not None
    assert (values.grad >= 0).all()
    assert (values.grad > 0).double().mean() > 0.9
    weights = torch.randn(3, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    bias = torch.randn(3, 1, dtype=torch.float64, requires_grad=True)
    torch.autograd.gradcheck(monotonic_mix, (values[:3].detach().requires_grad_(), weights, bias))


def test_next_actions_are_chosen_by_the_network_and_judged_by_its_target() -> None:
    chosen = dict(ONLINE)
    ONLINE["actors.x"] = lambda o: torch.cat((o + 9, -o), -1)
    try:  # x now prefers the first in both rows, worth -2 and 4 by the target; Q_tot of the first row is 11 + 1
        assert errors(VDN, batch()) == [12 - 1.25, 1.0]
    finally:
        ONLINE.update(chosen)
