"""Fitted Q evaluation against values worked out by hand: the formulas, and whole evaluations of given policies."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from agilerl.algorithms import BC, CQN
from agilerl.collect.fitted import FittedEvaluator
from agilerl.collect.offline import fill
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core.options import OfflineOptions
from agilerl.data.dataset import Dataset, read_dataset
from agilerl.engine.learner import Learner
from agilerl.losses.fitted import (
    centre_and_scale,
    centred_reward,
    discounted_returns,
    fitted_target,
    value_bounds,
)

SMALL = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}, "latent_dim": 8}


def test_the_target_is_the_reward_and_the_discounted_value_of_the_policys_action_within_bounds() -> None:
    reward, discount = torch.tensor([1.0, 2.0, 3.0, -9.0]), torch.tensor([0.5, 0.5, 0.0, 0.5])
    next_value = torch.tensor([4.0, 30.0, 100.0, -1.0])
    found = fitted_target(reward, discount, next_value, torch.tensor([-6.0]), torch.tensor([6.0]))
    assert found.tolist() == [3.0, 6.0, 3.0, -6.0]


def test_no_value_lies_outside_of_what_the_rewards_can_add_up_to() -> None:
    assert value_bounds(np.array([1.0, 2.0]), 0.5) == (0.0, 4.0)  # an episode may end before it is paid
    assert value_bounds(np.array([-3.0, -1.0]), 0.9) == pytest.approx((-30.0, 0.0))


def test_returns_are_discounted_to_the_end_of_each_episode() -> None:
    found = discounted_returns(np.array([1.0, 2.0, 4.0, 8.0]), np.array([False, True, False, False]), 0.5)
    assert found.tolist() == [2.0, 2.0, 8.0, 8.0]


def test_centred_rewards_have_the_same_fixed_point_in_other_units() -> None:
    # One state that pays 1 and goes on with γ = 0.9 (Q = 10), one that pays 5 and ends (Q = 5); μ = 4, σ = 2.
    found = centred_reward(np.array([1.0, 5.0]), np.array([0.9, 0.0]), 4.0, 2.0)
    assert found[0] + 0.9 * (10 - 4) / 2 == pytest.approx((10 - 4) / 2)
    assert found[1] == pytest.approx((5 - 4) / 2)
    assert centre_and_scale(np.array([7.0, 7.0])) == (7.0, 1.0)


# --- a chain of two states, whose values fit on a page ---------------------------------------------------------------
#
# A, action 0: pays 1, stays in A.   A, action 1: pays 0, goes to B.
# B, action 0: pays 2, ends.         B, action 1: pays 4, goes to A.
# With γ = ½: (0, ·): v(A) = 1 + ½ v(A) = 2.   (1, 0): v(A) = ½ · 2 = 1.   (1, 1): v(A) = ½ (4 + ½ v(A)) = 8/3.

VALUES = {(0, 0): 2.0, (1, 0): 1.0, (1, 1): 8 / 3, (0, 1): 2.0}


def chain(rows: int) -> Dataset:
    """Random actions in the chain; episodes begin in A and are cut after 8 steps."""
    rng, state, age = np.random.default_rng(0), 0, 0
    kept: dict[str, list[Any]] = {"observations": [], "actions": [], "rewards": [], "terminals": [], "timeouts": []}
    kept["next_observations"] = []
    for _ in range(rows):
        action, age = int(rng.integers(2)), age + 1
        reward, following, ends = {(0, 0): (1, 0, 0), (0, 1): (0, 1, 0), (1, 0): (2, 1, 1), (1, 1): (4, 0, 0)}[
            state, action
        ]
        for name, value in zip(kept, (state, action, reward, bool(ends), age == 8, following), strict=True):
            kept[name].append(value)
        state, age = (0, 0) if ends or age == 8 else (following, age)
    arrays = {name: np.array(values) for name, values in kept.items()}
    return read_dataset({**arrays, **{k: np.eye(2)[arrays[k]] for k in ("observations", "next_observations")}})


def taught(agent: Any, wanted: np.ndarray) -> Any:
    """An agent in float64 whose policy gives `wanted` [2, out] in the two states."""
    agent.actor.double()
    optimizer = torch.optim.Adam(agent.actor.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        (agent.actor(torch.eye(2).double()) - torch.as_tensor(wanted)).square().sum().backward()
        optimizer.step()
    return agent


def evaluator(data: Dataset, agent: Any, updates: int) -> FittedEvaluator:
    options = OfflineOptions(fitness="fqe", fqe_gamma=0.5, fqe_updates=updates)
    rows = ReplayBuffer(len(data), dtype=torch.float64)
    fill(rows, data, agent, options)
    return FittedEvaluator(data, rows, options, seed=0)


@pytest.mark.thorough
def test_the_values_of_four_policies_are_those_worked_out_by_hand() -> None:
    agents = [
        taught(
            CQN(gym.spaces.Box(0, 1, (2,)), gym.spaces.Discrete(2), i, net_config=SMALL, seed=i), np.eye(2)[[*policy]]
        )
        for i, policy in enumerate(VALUES)
    ]
    found = evaluator(chain(400), agents[0], 700).population(Learner(agents), 0)
    assert found == pytest.approx(list(VALUES.values()), abs=1e-3)


@pytest.mark.thorough
def test_the_value_of_a_continuous_policy_is_that_of_its_own_action() -> None:
    # One state. Action a in [0, 4] pays a and ends with the next step, whatever it is: v = a + ½ · 0 where it ends.
    rng = np.random.default_rng(1)
    action = rng.uniform(0, 4, (400, 1))
    data = read_dataset(
        {
            "observations": np.tile([1.0, 0.0], (400, 1)),
            "next_observations": np.tile([1.0, 0.0], (400, 1)),
            "actions": action,
            "rewards": action[:, 0],
            "terminals": np.ones(400, bool),
        }
    )
    space, box = gym.spaces.Box(0, 1, (2,)), gym.spaces.Box(0, 4, (1,), np.float64)
    raw = (-0.5, 0.0, 0.5)  # actions 1, 2 and 3
    agents = [taught(BC(space, box, i, net_config=SMALL, seed=i), np.full((2, 1), a)) for i, a in enumerate(raw)]
    taken = [float(agent.get_action(np.array([[1.0, 0.0]]), False)[0, 0]) for agent in agents]
    assert taken == pytest.approx([2 + 2 * a for a in raw], abs=0.1)
    found = evaluator(data, agents[0], 500).population(Learner(agents), 0)
    assert found == pytest.approx(taken, abs=0.1)
