"""Images, nested dictionaries and continuous actions: the learned values and actions are the right ones.

As in `test_dqn_learns.py` every update is a real one, through `train_off_policy`; exploration is uniformly random, or
by the algorithm's own noise.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from agilerl.algorithms import DDPG, DQN, SAC, TD3, RainbowDQN
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import make_vect_envs
from tests.probe.environments import (
    ActionRewardEnv,
    ConstantRewardEnv,
    ContinuousConstantEnv,
    ContinuousDiscountedEnv,
    ContinuousObsEnv,
    ContinuousPolicyEnv,
    DictProbe,
    DiscountedRewardEnv,
    FourStatesEnv,
    ImageProbe,
    ObsDependentRewardEnv,
    PolicyEnv,
    TwoStepCreditEnv,
)

GAMMA = 0.5
HEAD: dict[str, Any] = {"head_config": {"hidden_size": [16]}, "latent_dim": 16}
CNN = {"channel_size": [8], "kernel_size": [3], "stride_size": [2]}
IMAGE_NET = {"encoder_config": CNN, **HEAD}
DICT_NET = {"encoder_config": {"latent_dim": 8, "cnn_config": CNN, "mlp_config": {"hidden_size": [8]}}, **HEAD}
MLP_NET = {"encoder_config": {"hidden_size": [32]}, **HEAD}


def train(cls: Any, make: Any, net: Any, updates: int, learner: str = "auto", size: int = 1, **options: Any) -> Any:
    """A population after `updates` updates of each member, from two lanes of the environment."""
    env = make_vect_envs(make_env=make, num_envs=2)
    pop = cls.population(
        size,
        env.single_observation_space,
        env.single_action_space,
        seed=1,
        net_config=net,
        batch_size=32,
        learn_step=2,
        gamma=GAMMA,
        **options,
    )
    train_off_policy(
        env, "probe", pop=pop, memory=ReplayBuffer(max_size=2000, seed=1), max_steps=2 * updates,
        evo_steps=2 * updates, eval_steps=3, eps_start=1.0, eps_end=1.0, verbose=False, seed=2, learner=learner,
    )  # fmt: skip
    env.close()
    return pop


def batch_of(observations: list[Any]) -> Any:
    """Rows of single observations."""
    if isinstance(observations[0], dict):
        return {key: batch_of([obs[key] for obs in observations]) for key in observations[0]}
    if isinstance(observations[0], tuple):
        return tuple(batch_of([obs[i] for obs in observations]) for i in range(len(observations[0])))
    return np.stack(observations)


# --- images and dictionaries

# Adam moves each of the 16 weights into an output by at most 0.005 in its last step, their features are about 1: less
# than 0.08 in all. The nearest wrong answer (no discount, a part of the state unseen) is 0.5 away.
SHOWN_TOLERANCE = 0.1

SHOWN = {
    "image": [ConstantRewardEnv, ObsDependentRewardEnv, DiscountedRewardEnv, ActionRewardEnv, PolicyEnv],
    "image, channels last": [DiscountedRewardEnv, PolicyEnv],
    "dictionary": [FourStatesEnv, DiscountedRewardEnv, PolicyEnv, TwoStepCreditEnv],
}
WAYS: dict[str, Any] = {
    "image": ImageProbe,
    "image, channels last": partial(ImageProbe, channels_last=True),
    "dictionary": DictProbe,
}


FAST = (("image", PolicyEnv), ("image, channels last", DiscountedRewardEnv), ("dictionary", TwoStepCreditEnv))


@pytest.mark.parametrize(
    ("way", "probe"),
    [
        pytest.param(way, probe, marks=() if (way, probe) in FAST else pytest.mark.slow)
        for way, probes in SHOWN.items()
        for probe in probes
    ],
)
def test_values_are_learned_from_what_the_probe_shows(way: str, probe: Any) -> None:
    make = lambda: WAYS[way](probe())  # noqa: E731
    (agent,) = train(DQN, make, DICT_NET if way == "dictionary" else IMAGE_NET, 350, lr=5e-3, tau=0.1)
    env = make()
    with torch.no_grad():
        values = agent.actor(batch_of(env.observations)).numpy()
    np.testing.assert_allclose(values, env.expected_q(GAMMA), atol=SHOWN_TOLERANCE)


def test_rainbow_learns_expected_values_from_a_dictionary() -> None:
    make = lambda: DictProbe(FourStatesEnv())  # noqa: E731
    options = {"num_atoms": 21, "v_min": -2.0, "v_max": 2.0, "n_step": 1, "noisy": False, "lr": 5e-3, "tau": 0.1}
    (agent,) = train(RainbowDQN, make, DICT_NET, 350, **options)
    env = make()
    with torch.no_grad():
        values = agent.actor(batch_of(env.observations)).numpy()
    # Projection onto atoms 0.2 apart keeps the mean of a value inside of the support exactly.
    np.testing.assert_allclose(values, env.expected_q(GAMMA), atol=SHOWN_TOLERANCE)


# --- continuous actions

CONTINUOUS: dict[str, tuple[Any, dict[str, Any]]] = {
    "DDPG": (DDPG, {"lr_actor": 3e-3, "lr_critic": 1e-2, "tau": 0.1, "expl_noise": 0.5, "O_U_noise": False}),
    "TD3": (TD3, {"lr_actor": 3e-3, "lr_critic": 1e-2, "tau": 0.1, "expl_noise": 0.5, "O_U_noise": False}),
    # At this temperature the entropy of the policy, at most log 2, is worth less than 1e-3.
    "SAC": (SAC, {"lr_actor": 3e-3, "lr_critic": 1e-2, "tau": 0.1, "init_temperature": 1e-3,
                  "learn_temperature": False}),
}  # fmt: skip


def critic_of(agent: Any) -> Any:
    return agent.critic if hasattr(agent, "critic") else agent.critic_1


def raw_actions(agent: Any, obs: Any) -> Any:
    """The policy's own actions, in the range in which the critic knows them."""
    return agent.greedy(agent.policy_output(obs))


@pytest.mark.parametrize("probe", [ContinuousConstantEnv, ContinuousObsEnv, ContinuousDiscountedEnv])
@pytest.mark.parametrize("algo", CONTINUOUS)
def test_critics_learn_the_value_of_every_state(algo: str, probe: Any) -> None:
    cls, options = CONTINUOUS[algo]
    (agent,) = train(cls, probe, MLP_NET, 400, **options)
    env = probe()
    obs = env.observations
    with torch.no_grad():
        value = critic_of(agent)(obs, raw_actions(agent, obs)).numpy()[:, 0]
    np.testing.assert_allclose(value, env.expected_value(GAMMA), atol=0.1)


@pytest.mark.parametrize(
    ("algo", "learner"),
    [
        pytest.param("DDPG", "fused", marks=pytest.mark.slow),
        ("TD3", "fused"),
        ("SAC", "fused"),
        pytest.param("TD3", "sequential", marks=pytest.mark.slow),
        pytest.param("DDPG", "sequential", marks=pytest.mark.slow),
        pytest.param("SAC", "sequential", marks=pytest.mark.slow),
    ],
)
def test_policies_find_the_best_action_of_each_state_at_the_scale_of_the_environment(algo: str, learner: str) -> None:
    cls, options = CONTINUOUS[algo]
    env = ContinuousPolicyEnv()
    for agent in train(cls, ContinuousPolicyEnv, MLP_NET, 800, learner, size=2 if learner == "fused" else 1, **options):
        actions = agent._greedy(env.observations)[:, 0]
        # The reward is flat at its top: an action 0.4 off pays 0.96. Unscaled actions lie in -1 to 1.
        np.testing.assert_allclose(actions, env.best_actions(), atol=0.4)
        with torch.no_grad():
            value = critic_of(agent)(env.observations, raw_actions(agent, env.observations))
        np.testing.assert_allclose(value.numpy()[:, 0], env.expected_value(GAMMA), atol=0.15)


@pytest.mark.parametrize("algo", [pytest.param(name, marks=pytest.mark.slow) for name in ("TD3", "DDPG", "SAC")])
def test_policies_act_on_a_dictionary(algo: str) -> None:
    cls, options = CONTINUOUS[algo]
    make = lambda: DictProbe(ContinuousPolicyEnv())  # noqa: E731
    (agent,) = train(cls, make, DICT_NET, 700, **{**options, "lr_actor": 1e-3, "lr_critic": 5e-3})
    env = make()
    actions = agent._greedy(batch_of(env.observations))[:, 0]
    # Which does not see the state does 4 at best, 1 away from both; an action 0.6 off pays 0.91.
    np.testing.assert_allclose(actions, ContinuousPolicyEnv.best[:, 0], atol=0.6)
