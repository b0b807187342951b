"""Numbers that follow a schedule: what an update reads in the course of a budget, and rates that follow divergences."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import pytest

from agilerl.algorithms import IPPO, MAPPO, PPO
from agilerl.algorithms.base.schedules import AdaptiveRate, scheduled
from tests.differential.language_reference import make

OBS, CHOICE = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)
NET: dict[str, Any] = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 8}
TEAM = {"a_0": OBS, "a_1": OBS}, {"a_0": CHOICE, "a_1": CHOICE}


def test_a_linear_schedule_ends_at_zero_and_stays_there() -> None:
    assert [scheduled(4.0, "linear", progress) for progress in (0, 0.25, 1, 1.5)] == [4, 3, 0, 0]
    assert [scheduled(4.0, "constant", progress) for progress in (0, 0.25, 1, 1.5)] == [4, 4, 4, 4]


AGENTS: dict[str, tuple[Any, dict[str, str]]] = {
    # agent, hyperparameters of an update that have a schedule -> the attribute behind them
    "PPO": (lambda: PPO(OBS, CHOICE, net_config=NET, lr_schedule="linear", clip_schedule="linear"),
            {"lr": "lr", "clip_coef": "clip_coef"}),
    "IPPO": (lambda: IPPO(*TEAM, net_config=NET, lr_schedule="linear", ent_schedule="linear"),
             {"lr": "lr", "ent_coef": "ent_coef"}),
    "MAPPO": (lambda: MAPPO(*TEAM, net_config=NET, lr_schedule="linear"), {"lr": "lr"}),
    **{name: (lambda name=name: make(name, 0, lr_schedule="linear"), {"lr": "lr"})
       for name in ("GRPO", "LLMREINFORCE", "DPO", "SFT")},
    "LLMPPO": (lambda: make("LLMPPO", 0, lr_schedule="linear"), {"lr_actor": "lr_actor", "lr_critic": "lr_critic"}),
}  # fmt: skip


@pytest.mark.parametrize("name", AGENTS)
def test_updates_read_what_the_schedule_leaves(name: str) -> None:
    make_agent, scheduled_names = AGENTS[name]
    agent = make_agent()
    constant = {key: getattr(agent, attribute) for key, attribute in scheduled_names.items()}
    others = {key: value for key, value in agent.update_hyperparameters().items() if key not in constant}
    for progress, share in ((0.0, 1.0), (0.25, 0.75), (1.0, 0.0)):
        agent.progress = progress
        values = agent.update_hyperparameters()
        assert {key: values[key] for key in constant} == pytest.approx({k: x * share for k, x in constant.items()})
        assert {key: values[key] for key in others} == others, "these have none"
        assert {key: getattr(agent, attribute) for key, attribute in scheduled_names.items()} == constant


@pytest.mark.parametrize(
    ("lr", "divergence", "first", "after"),
    [
        (1e-3, 0.01 / 4, None, 2e-3),  # by the root of 4
        (1e-3, 0.01 / 400, None, 1e-2),  # by ten
        (1e-3, 0.04, None, 0.5e-3),
        (1e-3, 4.0, None, 1e-4),
        (1e-3, 0.01 / 1.96, None, 1e-3),  # between half and twice
        (1e-3, 0.0199, None, 1e-3),
        (5e-3, 1e-9, None, 1e-2),  # the highest of all
        (2e-6, 9.0, None, 1e-6),
        (1e-3, 0.01 / 4, 1e-3, 1.5e-3),  # once a rate has met the aim, by half at a time
        (1e-3, 0.01 / 400, 0.4e-3, 1.2e-3),  # and to three times that rate
        (5e-3, 0.01 / 400, 1e-3, 5e-3),  # one beyond, which a mutation has set, neither rises nor falls
        (5e-3, 0.04, 1e-3, 2.5e-3),
        (1e-3, math.nan, 1e-3, 1e-3),
    ],
)
def test_a_rate_moves_by_the_root_of_the_divergence(
    lr: float, divergence: float, first: float | None, after: float
) -> None:
    rate = AdaptiveRate(0.01, first)
    assert rate.step(lr, divergence) == pytest.approx(after, rel=1e-12)
    has_met = first is None and divergence >= 0.005
    assert rate.found == (pytest.approx(after, rel=1e-12) if has_met else first)
