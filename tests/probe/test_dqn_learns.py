"""DQN learns the right values: each probe environment isolates one thing that a learner can get wrong.

Every update is a real one: environment, replay buffer, exploration, loss, Adam, soft target, through
`train_off_policy`. What is asserted are the learned Q values in every state, for every legal action.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from agilerl.algorithms.dqn import DQN
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import make_vect_envs
from tests.probe.environments import (
    ActionRewardEnv,
    ConstantRewardEnv,
    DiscountedRewardEnv,
    MaskedActionEnv,
    ObsDependentRewardEnv,
    PolicyEnv,
    ProbeEnv,
    TruncatedEnv,
    TwoStepCreditEnv,
)

GAMMA = 0.5
UPDATES = 1000
TAU = 0.1
RATES = (4e-3, 3e-3)

# Rewards and transitions are deterministic and the network can represent the table, so three things are left of the
# error at the end:
# * the climb: with observation 0 only the output's bias moves, by at most lr = 0.003 an update; the largest value is
#   1 / (1 - gamma) = 2, which takes 667 updates at least. Adam's second moment remembers 1 / (1 - 0.999) = 1000
#   updates, so that the gradients of the climb slow its end down: that probe gets 1500 updates;
# * the lag of the target, from then on: 2 * (1 - tau (1 - gamma))^333 = 2 * 0.95^333 < 1e-7;
# * Adam's last steps: at most lr for each of the 16 weights into an output, times features of about 1: less than
#   16 * 0.003 = 0.048.
# The nearest wrong answer (a discount left out, a cut taken for an end) is 1 - gamma = 0.5 away.
TOLERANCE = 0.05

CASES = [
    ConstantRewardEnv,
    ObsDependentRewardEnv,
    DiscountedRewardEnv,
    ActionRewardEnv,
    PolicyEnv,
    TwoStepCreditEnv,
    partial(TruncatedEnv, 1),
    partial(TruncatedEnv, 3),
]


def learn(make: Any, learner: str = "fused", **options: Any) -> list[DQN]:
    """Members of different learning rate, trained on what uniformly random actions show them."""
    updates = UPDATES if isinstance(make, type) else 1500
    rates = RATES if learner == "fused" else RATES[:1]
    env = make_vect_envs(make_env=make, num_envs=2)
    pop: list[DQN] = DQN.population(
        len(rates),
        env.single_observation_space,
        env.single_action_space,
        seed=1,
        net_config={"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}, "latent_dim": 16},
        batch_size=16,
        learn_step=2,
        tau=TAU,
        gamma=GAMMA,
        **options,
    )
    for agent, rate in zip(pop, rates, strict=True):
        agent.lr = rate
    train_off_policy(
        env,
        "probe",
        pop=pop,
        memory=ReplayBuffer(max_size=1000, seed=1),
        max_steps=2 * updates,
        evo_steps=2 * updates,
        eval_steps=5,
        eps_start=1.0,
        eps_end=1.0,
        eps_decay=1.0,
        verbose=False,
        seed=2,
        learner=learner,
    )
    env.close()
    return pop


def name(make: Any) -> str:
    return make.__name__ if isinstance(make, type) else f"{make.func.__name__}{make.args}"


def values(agent: DQN, env: ProbeEnv) -> np.ndarray:
    with torch.no_grad():
        return agent.actor(env.observations).numpy()


@pytest.mark.parametrize(
    ("make", "learner"),
    [
        pytest.param(
            make,
            learner,
            id=f"{name(make)}-{learner}",
            marks=() if learner == "fused" or make is TwoStepCreditEnv else pytest.mark.slow,
        )
        for make in CASES
        for learner in ("fused", "sequential")
    ],
)
def test_the_probe_has_the_values_that_it_should(make: Any, learner: str) -> None:
    env = make()
    expected = env.expected_q(GAMMA)
    for agent in learn(make, learner):
        np.testing.assert_allclose(values(agent, env), expected, atol=TOLERANCE)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make, id=name(make), marks=() if make is TwoStepCreditEnv else pytest.mark.slow)
        for make in (DiscountedRewardEnv, TwoStepCreditEnv, partial(TruncatedEnv, 2))
    ],
)
def test_the_double_target_has_the_same_fixed_point(make: Any) -> None:
    for agent in learn(make, double=True):
        np.testing.assert_allclose(values(agent, make()), make().expected_q(GAMMA), atol=TOLERANCE)


@pytest.mark.parametrize("learner", ["fused", pytest.param("sequential", marks=pytest.mark.slow)])
def test_illegal_actions_are_neither_taken_nor_valued(learner: str) -> None:
    """The environment raises for an illegal action, so that the run ending at all says that none was taken."""
    # Without the masks in the target, the values of illegal actions, which nothing corrects, run away with the start's.
    env = MaskedActionEnv()
    expected = env.expected_q(GAMMA)
    legal = ~np.isnan(expected)
    for agent in learn(MaskedActionEnv, learner):
        np.testing.assert_allclose(values(agent, env)[legal], expected[legal], atol=TOLERANCE)


class Rotating(gym.Env[np.ndarray, int]):
    """At time t the one legal action is t % 3; the time limit cuts every episode after 4 steps."""

    observation_space = gym.spaces.Box(0, 10, (1,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def answer(self) -> tuple[np.ndarray, dict[str, Any]]:
        return np.array([self.time], np.float32), {"action_mask": (np.arange(3) == self.time % 3).astype(np.int8)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.time = 0
        return self.answer()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert action == self.time % 3, "an illegal action"
        self.time += 1
        obs, info = self.answer()
        return obs, 1.0, False, self.time == 4, info


@pytest.mark.parametrize("mode", [*AutoresetMode, None], ids=lambda m: "make_vect_envs" if m is None else m.name)
def test_stored_masks_are_those_of_the_next_observation_also_at_a_cut(mode: AutoresetMode | None) -> None:
    if mode is None:
        env: Any = make_vect_envs(make_env=Rotating, num_envs=2)
    else:
        env = SyncVectorEnv([Rotating] * 2, autoreset_mode=mode)
    memory = ReplayBuffer(max_size=500)
    pop = DQN.population(1, Rotating.observation_space, Rotating.action_space, seed=1, batch_size=4)
    train_off_policy(env, "r", pop=pop, memory=memory, max_steps=80, evo_steps=80, eval_steps=2, verbose=False, seed=1)
    env.close()
    rows = memory.gather(np.arange(len(memory)))
    times = rows["next_obs"].flatten().long()
    assert (times == 4).sum() > 10, "cut episodes"
    assert torch.equal(rows["next_mask"].long(), torch.nn.functional.one_hot(times % 3, 3))
