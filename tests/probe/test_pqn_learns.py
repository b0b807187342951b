"""PQN learns the right values of every action, through `train_on_policy`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from agilerl.algorithms import PQN
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.utils import make_vect_envs
from tests.probe.environments import DiscountedRewardEnv, PolicyEnv, TruncatedEnv, TwoStepCreditEnv

GAMMA = 0.5
NET = {
    "encoder_config": {"hidden_size": [32], "layer_norm": True},
    "head_config": {"hidden_size": [32], "layer_norm": True},
    "latent_dim": 16,
}


@pytest.mark.parametrize(
    "make", [PolicyEnv, TruncatedEnv, TwoStepCreditEnv, pytest.param(DiscountedRewardEnv, marks=pytest.mark.slow)]
)
def test_values_are_those_of_the_best_policy(make: Any) -> None:
    env = make_vect_envs(make_env=make, num_envs=8)
    pop = PQN.population(
        2, env.single_observation_space, env.single_action_space, seed=1, net_config=NET, gamma=GAMMA, gae_lambda=0.3,
        lr=3e-3, batch_size=64, learn_step=128, eps_end=0.5, eps_fraction=0.5,
    )  # fmt: skip
    train_on_policy(env, "probe", pop=pop, max_steps=19_200, evo_steps=1_920, eval_steps=5, verbose=False, seed=2)
    env.close()
    probe = make()
    wanted = probe.expected_q(GAMMA)
    with torch.no_grad():
        values = pop[-1].actor(probe.observations).numpy()
    known = ~np.isnan(wanted)
    np.testing.assert_allclose(values[known], wanted[known], atol=0.15)
