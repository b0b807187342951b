"""Hindsight on goal environments: learned values are those of the task, and sparse goals are reached."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from agilerl.algorithms import DQN
from agilerl.components.replay_buffer import HindsightReplayBuffer, ReplayBuffer
from agilerl.envs.vector import make_vect_envs
from agilerl.training.train_off_policy import train_off_policy
from tests.probe.goals import BitFlip

GAMMA = 0.5


def trained(bits: int, strategy: str | None, learner: str = "fused", steps: int = 4000, **options: Any) -> DQN:
    env = make_vect_envs(make_env=partial(BitFlip, bits), num_envs=8)
    spaces = env.single_observation_space, env.single_action_space
    arguments: dict[str, Any] = {"batch_size": 64, "learn_step": 2, "tau": 0.05, "lr": 1e-3, **options}
    layers = {"encoder_config": {"hidden_size": [64]}, "head_config": {"hidden_size": [64]}, "latent_dim": 64}
    pop: list[DQN] = DQN.population(1, *spaces, seed=0, net_config=layers, **arguments)
    memory: Any = ReplayBuffer(20_000, seed=0)
    if strategy is not None:
        memory = HindsightReplayBuffer(20_000, env, strategy, seed=0)  # type: ignore[arg-type]
    train_off_policy(
        env, "bits", pop=pop, memory=memory, max_steps=steps, evo_steps=1000, eval_steps=8, eps_start=1.0,
        eps_end=0.1, eps_decay=0.998, verbose=False, seed=0, learner=learner,
    )  # fmt: skip
    env.close()
    return pop[0]


def reached(agent: DQN, bits: int, episodes: int = 50) -> float:
    """Share of greedy episodes that end at their goal, of those that do not begin there."""
    env, ends = BitFlip(bits), []
    for seed in range(episodes):
        obs, _ = env.reset(seed=seed)
        if (env.at == env.goal).all():
            continue
        is_there = is_over = False
        while not is_there and not is_over:
            action = int(np.asarray(agent.get_action(obs, epsilon=0.0)).reshape(-1)[0])
            obs, _, is_there, is_over, _ = env.step(action)
        ends.append(is_there)
    return float(np.mean(ends))


def test_eight_bits_are_solved_with_hindsight_and_not_without() -> None:
    assert reached(trained(8, "future", gamma=0.98), 8) == 1.0
    assert reached(trained(8, None, gamma=0.98), 8) < 0.2


@pytest.mark.thorough
def test_the_final_goal_solves_eight_bits_too() -> None:
    assert reached(trained(8, "final", gamma=0.98), 8) == 1.0


# From Hamming distance d the goal is d flips away, at rewards -1 but for the last: V(d) = -(1 - γ^(d-1)) / (1 - γ). The
# episodes are cut after three steps, which must not count as an end. A flip leads to distance d - 1 or d + 1, and at
# the goal it leads away from it.
def expected(bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return states [K, bits], goals [K, bits] and Q [K, bits] of all pairs."""
    words = np.array(list(itertools.product((0, 1), repeat=bits)), np.int8)
    states, goals = np.repeat(words, len(words), 0), np.tile(words, (len(words), 1))
    distance = (states != goals).sum(1, keepdims=True)
    after = np.where(states != goals, distance - 1, distance + 1)
    after = np.where(distance == 0, 1, after)
    value = -(1 - GAMMA ** (after - 1.0)) / (1 - GAMMA)
    return states, goals, np.where(after == 0, 0.0, -1 + GAMMA * value)


@pytest.mark.parametrize("learner", ["fused", pytest.param("sequential", marks=pytest.mark.thorough)])
def test_the_values_of_three_bits_for_every_state_and_goal(learner: str) -> None:
    agent = trained(3, "future", learner, steps=6000, gamma=GAMMA)
    states, goals, wanted = expected(3)
    obs = {"observation": states, "achieved_goal": states, "desired_goal": goals}
    with torch.no_grad():
        learned = agent.actor(agent.preprocess_observation(obs)).numpy()
    # The nearest wrong answers (an end that is a cut, a reward of the old goal) are 0.25 and more away.
    np.testing.assert_allclose(learned, wanted, atol=0.1)
