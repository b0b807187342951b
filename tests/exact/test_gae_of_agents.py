"""Rollouts of teams against numbers worked out by hand: advantages agent by agent, losses of a group, values' scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agilerl.algorithms.ippo import IPPO
from agilerl.algorithms.mappo import MAPPO
from agilerl.engine.protocol import RolloutBatch
from agilerl.envs.protocol import AGENTS, PRESENT
from agilerl.losses.returns import following_values, gae, gae_of_agents

GAMMA = LAMBDA = 0.5


def advantages(agent: dict[str, list[float]]) -> tuple[list[float], list[bool]]:
    """Of one agent over three steps; `ends` and `cuts` are steps, `final` is the value of the last observation."""
    steps = range(3)
    ends, cuts = agent.get("ends", []), agent.get("cuts", [])
    column = lambda values: torch.tensor(values, dtype=torch.float64).unsqueeze(-1)  # noqa: E731
    flags = lambda found: torch.tensor([t in found for t in steps]).unsqueeze(-1)  # noqa: E731
    there = agent.get("there", [0, 1, 2, 3])
    found, counts = gae_of_agents(
        column(agent["reward"]), column([0.0 if t in ends else GAMMA for t in steps]), column(agent["value"]),
        column([agent.get("final", [0.0])[0]] * 3), torch.tensor([8.0], dtype=torch.float64),
        flags([*ends, *cuts]), flags(agent.get("acted", there)), flags(there), torch.tensor([3 in there]), LAMBDA,
    )  # fmt: skip
    return found[:, 0].tolist(), counts[:, 0].tolist()


def test_an_agent_that_lives_and_one_that_dies_early() -> None:
    # δ₂ = 2 + ½·8 − 4 = 2; δ₁ = 0 + ½·4 − 2 = 0, Â₁ = ¼·2; δ₀ = 1 + ½·2 − 1 = 1, Â₀ = 1 + ¼·½
    assert advantages({"reward": [1, 0, 2], "value": [1, 2, 4]}) == ([1.125, 0.5, 2.0], [True] * 3)
    # It dies in step 1: δ₁ = 3 − 1 = 2; δ₀ = 0 + ½·1 − 2 = −1.5, Â₀ = −1.5 + ¼·2. What stands after its death counts
    # for nothing.
    dead = {"reward": [0, 3, 99], "value": [2, 1, 50], "there": [0, 1], "ends": [1]}
    found, counts = advantages(dead)
    assert (found[:2], counts) == ([-1.0, 2.0], [True, True, False])


def test_an_agent_that_is_cut_off_bootstraps_from_what_it_saw_last() -> None:
    # δ₁ = 3 + ½·6 − 1 = 5; Â₀ = −1.5 + ¼·5: as an end it would be 2 and −1.
    cut = {"reward": [0, 3, 99], "value": [2, 1, 50], "there": [0, 1], "cuts": [1], "final": [6]}
    found, counts = advantages(cut)
    assert (found[:2], counts) == ([-0.25, 5.0], [True, True, False])


def test_what_an_agent_gets_while_it_is_away_belongs_to_what_it_did_last() -> None:
    # Away in step 1: δ₂ = 1 + ½·8 − 4 = 1; δ₀ = 1 + ½·4 + ¼·4 − 2 = 2, Â₀ = 2 + λ·γ²·1 = 2.125
    away = {"reward": [1, 4, 1], "value": [2, 77, 4], "there": [0, 2, 3]}
    found, counts = advantages(away)
    assert ([found[0], found[2]], counts) == ([2.125, 1.0], [True, False, True])
    # It ends while it is away: δ₀ = 1 + ½·4 − 2 = 1.
    ended = {"reward": [1, 4, 1], "value": [2, 77, 4], "there": [0, 2, 3], "ends": [1]}
    assert advantages(ended)[0][0] == 1.0


def test_a_decision_whose_outcome_is_not_seen_is_not_learned_from() -> None:
    # Away after step 1, and after the rollout: of step 1 nothing is known; δ₀ = 1 + ½·2 − 1 = 1.
    found, counts = advantages({"reward": [1, 5, 5], "value": [1, 2, 4], "there": [0, 1]})
    assert (found[0], counts) == (1.0, [True, False, False])


def test_where_an_agent_did_not_decide_its_value_stands_for_what_follows() -> None:
    # There in step 1, but the environment acted for it: Â₀ = δ₀ = 1 + ½·2 − 1 = 1.
    found, counts = advantages({"reward": [1, 0, 2], "value": [1, 2, 4], "acted": [0, 2]})
    assert ([found[0], found[2]], counts) == ([1.0, 2.0], [True, False, True])


def test_agents_that_always_act_get_what_one_agent_gets() -> None:
    draw = torch.Generator().manual_seed(0)
    reward, value = (torch.randn(2, 7, 5, generator=draw, dtype=torch.float64) for _ in range(2))
    last = torch.randn(2, 5, generator=draw, dtype=torch.float64)
    cut = torch.rand(2, 7, 5, generator=draw) < 0.3
    discount = 0.9 * (~(cut & (torch.rand(2, 7, 5, generator=draw) < 0.5))).double()
    final = torch.randn(2, 7, 5, generator=draw, dtype=torch.float64)
    everywhere = torch.ones(2, 7, 5, dtype=torch.bool)
    lam = torch.tensor([0.95, 0.5], dtype=torch.float64).view(2, 1, 1)
    found, counts = gae_of_agents(
        reward, discount, value, final, last, cut, everywhere, everywhere, everywhere[:, 0], lam
    )
    expected = gae(reward, discount, value, torch.where(cut, final, following_values(value, last)), cut, lam)
    torch.testing.assert_close(found, expected, rtol=1e-13, atol=1e-13)
    assert counts.all()


# --- one minibatch ----------------------------------------------------------------------------------------------------

OBS = {"a_0": spaces.Box(-1, 1, (1,)), "a_1": spaces.Box(-1, 1, (1,))}
DO = {"a_0": spaces.Discrete(2), "a_1": spaces.Discrete(2)}


def zeroed(cls: Any, **more: Any) -> Any:
    """A team whose policy is uniform and whose value is 0.25 everywhere."""
    team = cls(OBS, DO, seed=0, net_config={"latent_dim": 4, "encoder_config": {"hidden_size": [4]}}, **more)
    for network in team.evaluation_networks().values():
        with torch.no_grad():
            for parameter in network.double().parameters():
                parameter.zero_()
    with torch.no_grad():
        list(team.critics["a"].parameters())[-1].fill_(0.25)
    return team


@pytest.mark.parametrize("cls", [IPPO, MAPPO])
def test_the_loss_of_a_minibatch_is_the_mean_over_the_agents_that_acted(cls: Any) -> None:
    team = zeroed(cls, clip_coef=0.2, vf_coef=0.5, ent_coef=0.1, clip_value_loss=False)
    two = lambda *rows: torch.tensor(rows, dtype=torch.float64)  # noqa: E731
    half = np.log(0.5)
    batch = RolloutBatch(
        {AGENTS: {a: torch.zeros(2, 1).double() for a in OBS}, PRESENT: torch.tensor([[1, 1], [1, 0]])},
        action=torch.tensor([[0.0, 1.0], [1.0, 0.0]]),
        # ratios 1, ½/0.25 = 2 (clipped to 1.2 where the advantage is positive), 1; the last row did not act
        log_prob=two([half, np.log(0.25)], [half, half]),
        value=torch.zeros(2, 2).double(),
        advantage=two([1.0, 3.0], [-2.0, 1e6]),
        returns=two([1.25, 0.25], [0.25, 1e6]),
        weight=torch.tensor([0.5, 0.5]).double(),
        acted=torch.tensor([[True, True], [True, False]]),
    )  # fmt: skip
    result = team.learn_batch(batch)
    surrogate = -(1.0 + 1.2 * 3.0 - 2.0) / 3
    value = 0.5 * (1.0**2) / 3
    assert result.actor_loss.item() == pytest.approx(surrogate, rel=1e-12)
    assert result.loss.item() == pytest.approx(surrogate + 0.5 * value - 0.1 * np.log(2), rel=1e-12)
    assert result.kl.item() == pytest.approx((1 - np.log(2)) / 3, rel=1e-12)  # ρ − 1 − log ρ of ρ = 2


def test_values_of_mappo_are_learned_in_units_of_the_returns_seen_so_far() -> None:
    team = MAPPO(OBS, DO, seed=0)
    assert [x.tolist() for x in team.value_scale()] == [[0, 0], [1, 1]]
    team.see_returns(np.array([[1.0, 3.0], [5.0, 99.0]]), np.array([[True, True], [True, False]]))  # 1, 3, 5
    assert team.value_statistics["a"]["mean"] == 3.0
    assert team.value_statistics["a"]["var"] == pytest.approx(8 / 3)
    team.see_returns(np.array([[7.0, 9.0]]), np.ones((1, 2), bool))  # 1, 3, 5, 7, 9
    mean, deviation = team.value_scale()
    assert (mean.tolist(), deviation.tolist()) == ([5.0, 5.0], [np.sqrt(8.0)] * 2)
    team.see_returns(np.full((1, 2), np.nan), np.ones((1, 2), bool))
    assert team.value_statistics["a"]["count"] == 5
    other = MAPPO(OBS, DO, seed=1)
    other.load_run_state(team.run_state())
    assert other.value_statistics == team.value_statistics
    off = MAPPO(OBS, DO, seed=0, normalize_values=False)
    off.see_returns(np.ones((1, 2)), np.ones((1, 2), bool))
    assert off.value_statistics == {}


def test_a_value_that_agents_share_knows_who_asks() -> None:
    team = MAPPO(OBS, DO, seed=0)
    seen = {agent: np.array([[0.5]], np.float32) for agent in OBS}
    *_, values = team.get_action(seen)
    assert abs(values["a_0"] - values["a_1"]) > 1e-6
    *_, alike = IPPO(OBS, DO, seed=0).get_action(seen)
    assert alike["a_0"] == pytest.approx(alike["a_1"], rel=1e-4)
