"""Targets and losses of MADDPG and MATD3 against tables worked by hand: two agents, linear critics.

Agent x sees a number and acts in [-1, 1]; agent y sees a number and chooses one of two. A team's action is the three
features (x, y's first choice, y's second choice).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from agilerl.algorithms import MADDPG, MATD3
from agilerl.engine.protocol import TransitionBatch

SEEN = {name: spaces.Box(-9, 9, (1,)) for name in ("x_0", "y_0")}
DONE = {"x_0": spaces.Box(-1, 1, (1,)), "y_0": spaces.Discrete(2)}
SCALE = torch.tensor(1.0, requires_grad=True)  # of y's logits
Linear = Callable[[Tensor, Tensor, Tensor], Tensor]  # (what x sees, what y sees, features [B, 3]) -> values [B]


def critic(linear: Linear) -> Callable[[Any, Tensor], Tensor]:
    return lambda seen, a: linear(seen["x_0"].squeeze(-1), seen["y_0"].squeeze(-1), a).unsqueeze(-1)


POLICIES: dict[str, Any] = {"actors.x": lambda o: 0.5 * o, "actors.y": lambda o: SCALE * torch.cat((o, -o), -1)}
POLICY_TARGETS: dict[str, Any] = {"actors.x": lambda o: 0.25 * o, "actors.y": lambda o: torch.cat((-o, o), -1)}
FIRST: dict[str, Linear] = {
    "x": lambda x, y, a: x + 2 * a[:, 0] + 3 * a[:, 1] - a[:, 2],
    "y": lambda x, y, a: y + a[:, 0] + a[:, 2],
}
FIRST_TARGET: dict[str, Linear] = {
    "x": lambda x, y, a: 2 * (x + y) + a[:, 0] + a[:, 1],
    "y": lambda x, y, a: a[:, 2] - x,
}
SECOND: dict[str, Linear] = {"x": lambda x, y, a: FIRST["x"](x, y, a) + 1, "y": lambda x, y, a: 0 * x}
SECOND_TARGET: dict[str, Linear] = {
    "x": lambda x, y, a: x - a[:, 0] + 2 * a[:, 1],
    "y": lambda x, y, a: a[:, 0] - 3 + 0 * x,
}


class Table:
    """An engine whose networks are the functions above; it keeps the losses and moves nothing."""

    def __init__(self, **hp: float) -> None:
        self.hp = {name: torch.tensor(value) for name, value in {"gamma": 0.5, "tau": 0.1, **hp}.items()}
        self.losses: dict[Any, Tensor] = {}
        self.tracked: list[Any] = []

    @staticmethod
    def _values(name: str, first: dict[str, Linear], second: dict[str, Linear]) -> Any:
        kind, group = name.split(".")
        return critic((second if kind == "critics_2" else first)[group])

    def network(self, name: str) -> Any:
        return POLICIES[name] if name in POLICIES else self._values(name, FIRST, SECOND)

    def target(self, name: str) -> Any:
        return POLICY_TARGETS[name] if name in POLICIES else self._values(name, FIRST_TARGET, SECOND_TARGET)

    def networks(self, names: tuple[str, ...]) -> Any:
        return lambda *inputs: torch.stack([self.network(name)(*inputs) for name in names])

    def targets(self, names: tuple[str, ...]) -> Any:
        return lambda *inputs: torch.stack([self.target(name)(*inputs) for name in names])

    def through_each(self, names: tuple[str, ...]) -> Any:
        return lambda given: torch.stack([self.network(n)(*own) for n, own in zip(names, given, strict=True)])

    def minimise(self, names: tuple[str, ...], loss: Tensor) -> None:
        self.losses |= dict(zip(names, loss, strict=True))

    def track(self, name: Any, tau: Tensor) -> None:
        self.tracked += [name] if isinstance(name, str) else name


def batch(number: int = 2, y_is_there: bool = True) -> TransitionBatch:
    """Row 1 goes on; row 2 ends for x, and y is not there after it. `y_is_there`: whether it is in row 2 before."""
    here = torch.tensor([[1, 1], [1, int(y_is_there)]])
    seen = {"x_0": torch.tensor([[1.0], [-1.0]]), "y_0": torch.tensor([[2.0], [1.0 if y_is_there else 0.0]])}
    later = {"x_0": torch.tensor([[2.0], [0.0]]), "y_0": torch.tensor([[-1.0], [0.0]])}
    return TransitionBatch(
        {"agents": seen, "present": here},
        torch.tensor([[0.5, 1.0], [-1.0, 0.0]]),
        torch.tensor([[1.0, -1.0], [0.0, 2.0]]),
        {"agents": later, "present": torch.tensor([[1, 1], [1, 0]])},
        torch.tensor([[0.0, 0.0], [1.0, 0.0]]),
        torch.tensor([0.5, 0.5]),
        noise={
            "gumbel": torch.tensor([[0.0, 0.0, 5.0], [0.0, 0.0, 0.0]]),
            "smoothing": torch.tensor([[1.0, 9.0, -9.0], [-10.0, 9.0, 9.0]]),
        },
        number=number,
    )


def team(cls: Any) -> Any:
    return cls(SEEN, DONE, gamma=0.5)


def test_maddpg_has_the_targets_and_losses_of_the_table() -> None:
    engine = Table()
    result = team(MADDPG).update(engine, batch())
    # Next actions: x' = 2/4 = 0.5, logits (1, -1) choose (1, 0); in row 2 x' = 0 and y is not there: (0, 0).
    # Targets: x: 1 + (2(2 - 1) + 0.5 + 1)/2 = 2.75 and 0 (an end); y: -1 + (0 - 2)/2 = -2 and 2 + 0/2 = 2.
    # Values:  x: 1 + 1 + 0 - 1 = 1 and -1 - 2 + 3 = 0;             y: 2 + 0.5 + 1 = 3.5 and 1 - 1 + 0 = 0.
    assert engine.losses["critic_optimizers.x"].item() == pytest.approx((1.75**2 + 0) / 2)
    assert engine.losses["critic_optimizers.y"].item() == pytest.approx((5.5**2 + 2**2) / 2)
    assert result.loss.item() == pytest.approx(1.53125 + 17.125)
    assert result.priorities is not None
    assert result.priorities.tolist() == [(1.75 + 5.5) / 2, (0 + 2) / 2], "the mean of |value - target|"
    # Policies: x acts 0.5 and -0.5: values 1 + 1 - 1 = 1 and -1 - 1 + 3 = 1. y: logits (2, -2) + (0, 5) choose the
    # second: 2 + 0.5 + 1 = 3.5, less 0.001 * 4; (1, -1) choose the first: 1 - 1 = 0, less 0.001 * 1.
    assert engine.losses["actor_optimizers.x"].item() == pytest.approx(-1)
    assert engine.losses["actor_optimizers.y"].item() == pytest.approx(-(3.496 - 0.001) / 2)
    assert sorted(engine.tracked) == ["actors.x", "actors.y", "critics.x", "critics.y"]


def test_the_gradient_of_a_choice_is_that_of_its_relaxation() -> None:
    engine = Table()
    team(MADDPG).update(engine, batch())
    (found,) = torch.autograd.grad(engine.losses["actor_optimizers.y"], SCALE)
    # The value is a_2, and da_2/dk of softmax(k l + g) is p_1 p_2 (l_2 - l_1): row 1 l = (2, -2), scores (2, 3);
    # row 2 l = (1, -1), scores (1, -1). The squares' part is 0.001 * 2 * mean(l^2).
    p, q = torch.sigmoid(torch.tensor(1.0)).item(), torch.sigmoid(torch.tensor(-2.0)).item()
    value = [p * (1 - p) * -4 - 0.008, q * (1 - q) * -2 - 0.002]
    assert found.item() == pytest.approx(-sum(value) / 2, rel=1e-5)


def test_nothing_is_learned_from_the_row_of_an_agent_that_is_not_there() -> None:
    engine = Table()
    team(MADDPG).update(engine, batch(y_is_there=False))
    # In row 2 y's action is (0, 0) for x's critic: -1 - 2 + 0 = -3 against 0; y itself has row 1 alone.
    assert engine.losses["critic_optimizers.x"].item() == pytest.approx((1.75**2 + 3**2) / 2)
    assert engine.losses["critic_optimizers.y"].item() == pytest.approx(5.5**2 / 2)
    assert engine.losses["actor_optimizers.y"].item() == pytest.approx(-3.496 / 2)


def test_n_step_targets_have_the_discount_and_the_weight_of_each_row() -> None:
    engine, rows = Table(), batch()
    rows = replace(rows, discount=torch.tensor([[0.25, 0.0], [0.5, 0.125]]), weight=torch.tensor([0.5, 0.1]))
    result = team(MADDPG).update(engine, rows)
    # As in the first table, but targets: x: 1 + 3.5/4 = 1.875 and 0 + (2 * 0 + 0)/2 = 0; y: -1 and 2 + 0/8 = 2.
    assert engine.losses["critic_optimizers.x"].item() == pytest.approx(0.5 * 0.875**2 + 0.1 * 0)
    assert engine.losses["critic_optimizers.y"].item() == pytest.approx(0.5 * 4.5**2 + 0.1 * 2**2)
    assert engine.losses["actor_optimizers.y"].item() == pytest.approx(-(0.5 * 3.496 + 0.1 * -0.001))
    assert result.priorities is not None
    assert result.priorities.tolist() == [(0.875 + 4.5) / 2, 1.0]


def test_a_row_without_an_agent_has_the_priority_of_those_that_were_there() -> None:
    result = team(MADDPG).update(Table(), batch(y_is_there=False))
    assert result.priorities is not None
    assert result.priorities.tolist() == [(1.75 + 5.5) / 2, 3.0]
    nobody = batch()
    nobody.obs["present"][:] = 0
    found = team(MADDPG).update(Table(), nobody).priorities
    assert found is not None
    assert found.tolist() == [0, 0]


def test_matd3_takes_the_smaller_target_and_smooths_raw_actions_alone() -> None:
    engine = Table(policy_noise=0.2, noise_clip=0.5)
    result = team(MATD3).update(engine, batch())
    # Smoothed: x' = 0.5 + 0.2 and 0 - 0.5 (clipped); y's choice stays.
    # Targets: x: 1 + min(2 + 0.7 + 1, 2 - 0.7 + 2)/2 = 2.65 and 0; y: -1 + min(-2, 0.7 - 3)/2 = -2.15 and
    # 2 + min(0, -0.5 - 3)/2 = 0.25. Values of the first critics as above, of the second x: 2 and 1, y: 0 and 0.
    of_x = (1.65**2 + 0) / 2 + (0.65**2 + 1) / 2
    of_y = (5.65**2 + 0.25**2) / 2 + (2.15**2 + 0.25**2) / 2
    pair = engine.losses["critic_1_optimizers.x"] + engine.losses["critic_2_optimizers.x"]
    assert pair.item() == pytest.approx(of_x, rel=1e-6)
    assert result.loss.item() == pytest.approx(of_x + of_y, rel=1e-6)
    assert result.actor_loss is not None
    assert result.actor_loss.item() == pytest.approx(-1 - (3.496 - 0.001) / 2)
    assert result.priorities is not None
    torch.testing.assert_close(result.priorities, torch.tensor([(1.65 + 5.65) / 2, (1 + 0.25) / 2]))


def test_matd3_moves_policies_and_targets_with_every_second_update_alone() -> None:
    engine = Table(policy_noise=0.2, noise_clip=0.5)
    result = team(MATD3).update(engine, batch(number=3))
    assert result.actor_loss is None
    assert engine.tracked == []
    assert set(engine.losses) == {f"critic_{k}_optimizers.{group}" for k in (1, 2) for group in "xy"}
