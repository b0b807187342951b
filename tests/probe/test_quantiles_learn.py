"""QRDQN and TQC learn the right values and actions, and the right quantiles of a random reward."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from agilerl.algorithms import QRDQN, TQC
from tests.probe.environments import (
    CoinEnv,
    ContinuousCoinEnv,
    DiscountedActionEnv,
    DiscountedRewardEnv,
    MaskedActionEnv,
    PolicyEnv,
    TargetActionEnv,
    TruncatedActionEnv,
    TruncatedEnv,
    TwoStepActionEnv,
    TwoStepCreditEnv,
)
from tests.probe.test_actor_critic_learns import GAMMA, train

QUANTILES = 8
LEVELS = (np.arange(QUANTILES) + 0.5) / QUANTILES
SOFT = {"init_temperature": 1e-3, "learn_temperature": False, "lr_alpha": 1e-3}
RATES = {"lr_actor": 2e-3, "lr_critic": 4e-3, "tau": 0.05, "num_quantiles": QUANTILES, "dropped": 1}


@pytest.mark.parametrize(
    ("make", "double"),
    [
        (MaskedActionEnv, False),
        pytest.param(TwoStepCreditEnv, True, marks=pytest.mark.slow),
        *(pytest.param(make, False, marks=pytest.mark.slow) for make in (DiscountedRewardEnv, PolicyEnv)),
        pytest.param(partial(TruncatedEnv, 3), True, marks=pytest.mark.slow),
    ],
)
def test_qrdqn_learns_the_values_of_every_state_and_legal_action(make: Any, double: bool) -> None:
    options = {"lr": 3e-3, "tau": 0.1, "num_quantiles": QUANTILES, "double": double}
    agent, env = train(QRDQN, make, 1500 if isinstance(make, partial) else 1000, **options), make()
    expected = env.expected_q(GAMMA)
    legal = ~np.isnan(expected)
    with torch.no_grad():
        values, quantiles = agent.actor(env.observations).numpy(), agent.actor.quantiles(env.observations).numpy()
    np.testing.assert_allclose(values[legal], expected[legal], atol=0.05)
    # The returns are certain: every quantile is the value. The outer levels pull at it with an eighth of the force.
    np.testing.assert_allclose(quantiles[legal], expected[legal, None].repeat(QUANTILES, -1), atol=0.15)


def test_qrdqn_learns_the_quantiles_of_a_coin() -> None:
    agent = train(QRDQN, CoinEnv, 1500, lr=3e-3, tau=0.1, num_quantiles=QUANTILES)
    with torch.no_grad():
        quantiles = agent.actor.quantiles(np.zeros((1, 1), np.float32))[0].numpy()
    expected = CoinEnv.expected_quantiles(LEVELS)
    assert expected[-1] == pytest.approx(2 - 16 / 15)
    np.testing.assert_allclose(quantiles, np.stack([expected] * 2), atol=0.12)


@pytest.mark.slow
def test_tqc_learns_the_quantiles_of_a_coin() -> None:
    agent = train(TQC, ContinuousCoinEnv, 1500, **RATES, **SOFT)
    with torch.no_grad():
        for critic in (agent.critic_1, agent.critic_2):
            quantiles = critic(np.zeros((3, 1), np.float32), torch.tensor([[-0.5], [0.0], [0.5]])).numpy()
            np.testing.assert_allclose(quantiles, np.stack([CoinEnv.expected_quantiles(LEVELS)] * 3), atol=0.15)


@pytest.mark.parametrize(
    "make",
    [
        DiscountedActionEnv,
        *(pytest.param(x, marks=pytest.mark.slow) for x in (TargetActionEnv, TwoStepActionEnv, TruncatedActionEnv)),
    ],
)
def test_tqc_learns_the_values_and_the_best_action(make: Any) -> None:
    updates = 1500 if make in (TargetActionEnv, TwoStepActionEnv) else 700
    agent, env = train(TQC, make, updates, **RATES, **SOFT), make()
    taken = agent._greedy(env.observations)
    known = ~np.isnan(env.best)
    np.testing.assert_allclose(taken[known], env.best[known], atol=0.6)
    for shift in (-0.5, 0.0, 0.5):
        at = np.clip(taken[:, 0] + shift, env.low, env.high)
        raw = torch.as_tensor((at - env.low) / (env.high - env.low) * 2 - 1, dtype=torch.float32)[:, None]
        with torch.no_grad():
            values = agent.critic_1(env.observations, raw).mean(-1).numpy()
        np.testing.assert_allclose(values, np.diag(env.expected_q(GAMMA, at)), atol=0.1)
