"""DDPG, TD3 and SAC learn the right values and actions, through `train_off_policy`; Rainbow the right distributions.

What is asserted are learned numbers: Q on a grid of actions, the policy's action, probabilities in closed form.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from agilerl.algorithms import DDPG, SAC, TD3, RainbowDQN
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import make_vect_envs
from tests.probe.environments import (
    ActionRewardEnv,
    ContinuousProbe,
    DiscountedActionEnv,
    DiscountedRewardEnv,
    PolicyEnv,
    TargetActionEnv,
    TruncatedActionEnv,
    TruncatedEnv,
    TwoStepActionEnv,
    TwoStepCreditEnv,
)

GAMMA = 0.5
NET = {"encoder_config": {"hidden_size": [32]}, "head_config": {"hidden_size": [32]}, "latent_dim": 16}
ACTOR_CRITICS: dict[str, tuple[Any, dict[str, Any]]] = {
    "DDPG": (DDPG, {"O_U_noise": False, "expl_noise": 0.6, "policy_freq": 1}),
    # Smoothing averages Q over actions at a distance of 0.05 raw, 0.2 of the environment: at most (0.2 / 4)² = 0.0025.
    "TD3": (TD3, {"O_U_noise": False, "expl_noise": 0.6, "policy_noise": 0.05, "noise_clip": 0.1}),
    # With a temperature of 1e-3 entropies of a few nats add a few thousandths to a value.
    "SAC": (SAC, {"init_temperature": 1e-3, "learn_temperature": False, "lr_alpha": 1e-3}),
}


def train(cls: Any, make: Any, updates: int, learner: str = "auto", **options: Any) -> Any:
    """One agent, one update per environment step of two lanes; what was explored is what the noise allows."""
    env = make_vect_envs(make_env=make, num_envs=2)
    pop = cls.population(
        1, env.single_observation_space, env.single_action_space, seed=1, net_config=NET, batch_size=32, learn_step=2,
        gamma=GAMMA, **options,
    )  # fmt: skip
    train_off_policy(
        env, "probe", pop=pop, memory=ReplayBuffer(max_size=2000, seed=1), max_steps=2 * updates, evo_steps=2 * updates,
        eval_steps=3, eps_start=1.0, eps_end=1.0, eps_decay=1.0, verbose=False, seed=2, learner=learner,
        learning_delay=200,
    )  # fmt: skip
    env.close()
    return pop[0]


def critic_values(agent: Any, env: ContinuousProbe, actions: np.ndarray) -> np.ndarray:
    """Q of the (first) critic [S, M] for actions [M] in units of the environment."""
    critic = agent.critic if isinstance(agent, DDPG) else agent.critic_1
    raw = torch.as_tensor((actions - env.low) / (env.high - env.low) * 2 - 1, dtype=torch.float32)[:, None]
    with torch.no_grad():
        return np.stack([critic(np.tile(obs, (len(raw), 1)), raw)[:, 0].numpy() for obs in env.observations])


CASES = [TargetActionEnv, DiscountedActionEnv, TruncatedActionEnv, TwoStepActionEnv]
FAST = [("DDPG", TargetActionEnv), ("TD3", TwoStepActionEnv), ("SAC", DiscountedActionEnv), ("TD3", TruncatedActionEnv)]


@pytest.mark.parametrize(
    ("name", "make"),
    [
        pytest.param(name, make, id=f"{name}-{make.__name__}", marks=() if (name, make) in FAST else pytest.mark.slow)
        for name in ACTOR_CRITICS
        for make in CASES
    ],
)
def test_critics_learn_the_values_and_policies_the_best_action(name: str, make: Any) -> None:
    cls, options = ACTOR_CRITICS[name]
    rates = {"lr_actor": 2e-3, "lr_critic": 4e-3, "tau": 0.05}
    updates = 1500 if make in (TargetActionEnv, TwoStepActionEnv) else 700
    agent, env = train(cls, make, updates, **rates, **options), make()
    taken = agent._greedy(env.observations)
    known = ~np.isnan(env.best)
    # The policy's objective falls by (Δ/4)² at a distance Δ: 0.6 costs 0.02, less than what is left of the critic's
    # error; the nearest wrong answer (not rescaled) is 2.5 away.
    np.testing.assert_allclose(taken[known], env.best[known], atol=0.6)
    # Values are asserted at the actions that the policy takes, where it explores the most, and at both of its sides.
    for shift in (-0.5, 0.0, 0.5):
        at = np.clip(taken[:, 0] + shift, env.low, env.high)
        expected = np.diag(env.expected_q(GAMMA, at))
        np.testing.assert_allclose(np.diag(critic_values(agent, env, at)), expected, atol=0.08)


def test_both_learners_find_the_same_values() -> None:
    agent = train(TD3, DiscountedActionEnv, 800, "sequential", lr_critic=4e-3, lr_actor=2e-3, tau=0.05)
    got = critic_values(agent, DiscountedActionEnv(), np.array([0.0, 4.0]))
    np.testing.assert_allclose(got, [[GAMMA] * 2, [1.0] * 2], atol=0.08)


@pytest.mark.parametrize("alpha", [0.5, pytest.param(2.0, marks=pytest.mark.slow)])
def test_the_policy_of_a_fixed_temperature_is_the_softmax_of_the_rewards(alpha: float) -> None:
    """One step, rewards -1 and 1: π ∝ exp(r / α), the closed form of the maximum-entropy problem."""
    options = {"init_temperature": alpha, "learn_temperature": False}
    agent = train(SAC, ActionRewardEnv, 1500, lr_actor=4e-3, lr_critic=4e-3, tau=0.1, **options)
    probability = agent.actor.output(np.zeros((1, 1), np.float32)).softmax(-1).detach().numpy()[0]
    expected = np.exp(np.array([-1, 1]) / alpha)
    np.testing.assert_allclose(probability, expected / expected.sum(), atol=0.03)


def test_the_learned_temperature_brings_the_entropy_to_its_target() -> None:
    """Actions worth -1 and 1 and an entropy of 0.5 nats: p = 0.80029, α = 2 / log(p / (1 − p)) = 1.4408."""
    agent = train(SAC, ActionRewardEnv, 1500, lr_actor=4e-3, lr_critic=4e-3, lr_alpha=3e-3, tau=0.1, target_entropy=0.5)
    p = agent.actor.output(np.zeros((1, 1), np.float32)).softmax(-1).detach().numpy()[0]
    assert -(p * np.log(p)).sum() == pytest.approx(0.5, abs=0.005)
    assert agent.alpha == pytest.approx(1.4408, abs=0.02)


RAINBOW = [
    *((make, False) for make in (DiscountedRewardEnv, TruncatedEnv, TwoStepCreditEnv, PolicyEnv)),
    *((make, True) for make in (DiscountedRewardEnv, PolicyEnv)),
]


@pytest.mark.parametrize(
    ("make", "noisy"),
    [
        pytest.param(
            make,
            noisy,
            id=f"{make.__name__}{' noisy' * noisy}",
            marks=() if (make, noisy) in ((TwoStepCreditEnv, False), (PolicyEnv, True)) else pytest.mark.slow,
        )
        for make, noisy in RAINBOW
    ],
)
def test_rainbow_learns_expected_values_of_every_state_and_action(make: Any, noisy: bool) -> None:
    # Atoms from -1.5 to 2.5 in steps of 0.2: every value lies within the support.
    options = {"lr": 3e-3, "tau": 0.1, "v_min": -1.5, "v_max": 2.5, "num_atoms": 21, "noisy": noisy, "noise_std": 0.3}
    agent, env = train(RainbowDQN, make, 1500 if make is TruncatedEnv else 1000, **options), make()
    agent.set_training_mode(False)
    expected = env.expected_q(GAMMA)
    got = agent.actor(env.observations).detach().numpy()
    best = got.argmax(-1)
    assert (expected[np.arange(len(best)), best] == expected.max(-1)).all(), "every choice is a best one"
    # A noisy policy learns the values of what it goes on doing; the ε-greedy one sees every action.
    kept = expected == expected.max(-1, keepdims=True) if noisy else np.ones_like(expected, bool)
    assert np.abs(got - expected)[kept].max() < 0.12
