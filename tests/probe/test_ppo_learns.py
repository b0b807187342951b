"""PPO learns the right values and policies, through `train_on_policy`; recurrent PPO remembers.

What is asserted are learned numbers: values with gamma = 0.5, which differ wherever a bootstrap goes wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from agilerl.algorithms import PPO
from agilerl.testing.probes import RecallEnv
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.utils import make_vect_envs
from tests.probe.environments import (
    ConstantRewardEnv,
    DiscountedRewardEnv,
    MaskedActionEnv,
    ObsDependentRewardEnv,
    PolicyEnv,
    TargetActionEnv,
    TruncatedEnv,
    TwoStepCreditEnv,
)

GAMMA = 0.5
NET = {"encoder_config": {"hidden_size": [32]}, "head_config": {"hidden_size": [32]}, "latent_dim": 16}
OPTIONS: dict[str, Any] = {
    "batch_size": 64, "learn_step": 128, "lr": 5e-3, "gamma": GAMMA, "gae_lambda": 0.95, "ent_coef": 0.0,
    "update_epochs": 8, "clip_value_loss": False,
}  # fmt: skip
SLOWER = {"lr": 2e-3, "ent_coef": 0.01}  # for PolicyEnv: 30 of 30 seeds learn with these, half of 120 with the others


def train(make: Any, steps: int = 6_000, members: int = 1, **options: Any) -> Any:
    env = make_vect_envs(make_env=make, num_envs=8)
    arguments = {"net_config": NET, **OPTIONS, **options}
    pop = PPO.population(members, env.single_observation_space, env.single_action_space, seed=1, **arguments)
    train_on_policy(env, "probe", pop=pop, max_steps=steps, evo_steps=steps, eval_steps=5, verbose=False, seed=2)
    env.close()
    return pop[-1]


def values(agent: Any, observations: np.ndarray) -> np.ndarray:
    found: np.ndarray = agent.get_action(observations, training=False)[3]
    return found


PROBES = [ConstantRewardEnv, ObsDependentRewardEnv, DiscountedRewardEnv, PolicyEnv, TruncatedEnv, TwoStepCreditEnv]
FAST = [(TruncatedEnv, False), (PolicyEnv, False), (TwoStepCreditEnv, False)]


@pytest.mark.parametrize(
    ("make", "share"),
    [
        pytest.param(
            make,
            share,
            id=f"{make.__name__}-{'shared' if share else 'separate'}",
            marks=() if (make, share) in FAST else pytest.mark.slow,
        )
        for make in PROBES
        for share in (False, True)
    ],
)
def test_values_are_those_of_the_best_policy(make: Any, share: bool) -> None:
    env = make()
    agent = train(make, share_encoders=share, **(SLOWER if make is PolicyEnv else {}))
    wanted = np.nanmax(env.expected_q(GAMMA), axis=1)
    # The policy is a sample: what it still does wrong takes less than 0.1 from values of at most 2. States that the
    # best policy avoids are seldom seen: their values are known less well.
    np.testing.assert_allclose(values(agent, env.observations), wanted, atol=0.15)
    chosen = agent.get_action(env.observations, training=False)[0]
    best = env.expected_q(GAMMA)
    assert (best[np.arange(len(best)), chosen] >= wanted - 1e-6).all()


def test_illegal_actions_are_neither_taken_nor_learned_from() -> None:
    env = MaskedActionEnv()
    agent = train(MaskedActionEnv)
    best = env.expected_q(GAMMA)
    np.testing.assert_allclose(values(agent, env.observations), np.nanmax(best, axis=1), atol=0.1)
    chosen = agent.get_action(env.observations, action_mask=~np.isnan(best), training=False)[0]
    assert (chosen == np.nanargmax(best, axis=1)).all()


@pytest.mark.parametrize(
    "squash", [pytest.param(False, id="clipped", marks=pytest.mark.slow), pytest.param(True, id="squashed")]
)
def test_continuous_actions_reach_their_target(squash: bool) -> None:
    env = TargetActionEnv()
    # Without the entropy bonus a squashed policy may end at the bounds, where its actions no longer change; with it
    # seeds 1 to 5 of this setting end within 0.25 of the targets.
    # Clipped ones: seeds 1 to 4 end within 0.2, seed 5 does not.
    of_kind = {"lr": 1e-3, "ent_coef": 0.01, "action_std_init": 0.6 if squash else 0.5}
    agent = train(TargetActionEnv, 16_000, net_config={**NET, "squash_output": squash}, **of_kind)
    found = agent.get_action(env.observations, training=False)[0]
    # Both targets are 4 apart; half a unit off costs (0.5 / 4)² < 0.02 of the reward, which is below its noise.
    np.testing.assert_allclose(found.ravel(), env.best.ravel(), atol=0.5)


@pytest.mark.parametrize("cell", ["LSTM", pytest.param("GRU", marks=pytest.mark.slow)])
def test_a_recurrent_policy_recalls_what_it_saw_first(cell: str) -> None:
    net = {"encoder_config": {"hidden_state_size": 16, "min_hidden_state_size": 8, "cell": cell},
           "head_config": {"hidden_size": [16]}, "latent_dim": 16}  # fmt: skip
    agent = train(
        lambda: RecallEnv(3), 8_000, recurrent=True, update_epochs=4, net_config=net, gamma=1.0, batch_size=16, lr=5e-3,
        ent_coef=0.01,
    )  # fmt: skip
    env = make_vect_envs(make_env=lambda: RecallEnv(3), num_envs=32)
    assert agent.test(env) >= 0.95
    env.close()


@pytest.mark.slow
def test_a_feed_forward_policy_can_only_guess() -> None:
    agent = train(lambda: RecallEnv(3), 12_000, gamma=1.0)
    env = make_vect_envs(make_env=lambda: RecallEnv(3), num_envs=64)
    assert agent.test(env) <= 0.75
    env.close()
