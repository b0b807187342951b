"""Components of on-policy agents by themselves: arguments of a parent, observation statistics, the adaptive rate."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from agilerl.algorithms import IPPO, MAPPO, PPO
from agilerl.algorithms.base.declared import hyperparameters
from agilerl.algorithms.base.observation_statistics import ALONE, ObservationStatistics
from agilerl.errors import ArgumentError
from agilerl.networks.distributions import distribution_of

SPACES = gym.spaces.Box(-1, 1, (3,), np.float32), gym.spaces.Discrete(2)


def test_mappo_takes_the_arguments_of_ippo_and_two_of_its_own() -> None:
    parents, own = (dict(inspect.signature(cls.__init__).parameters) for cls in (IPPO, MAPPO))
    del parents["share_encoders"]  # MAPPO's value reads other observations
    added = [name for name in own if name not in parents]
    assert added == ["state_space", "normalize_values"]
    assert [name for name in own if name not in added] == list(parents)
    assert all(own[name] == parents[name] for name in parents)
    assert list(own).index("normalize_values") < list(own).index("lr_schedule")
    assert set(hyperparameters(MAPPO)) - set(hyperparameters(IPPO)) == {"normalize_values"}
    with pytest.raises(ArgumentError, match="did you mean normalize_values"):
        MAPPO([SPACES[0]], [SPACES[1]], normalise_values=False)


def test_arguments_of_the_parent_arrive_by_position_and_by_name() -> None:
    team = MAPPO([SPACES[0]] * 2, [SPACES[1]] * 2, ["a_0", "a_1"], 3, None, None, 32, gamma=0.5, normalize_values=False)
    assert (team.agent_ids, team.index, team.batch_size, team.gamma) == (["a_0", "a_1"], 3, 32, 0.5)
    assert not team.normalize_values


def test_statistics_are_replaced_and_stay_what_they_are_in_copies_and_files() -> None:
    agent = PPO(*SPACES, seed=0, normalize_observations=True)
    rows = np.random.default_rng(0).normal(2, 3, (50, 3))
    before = agent.observation_statistics
    statistics = agent.observation_statistics.running()
    assert not statistics
    statistics.add([{ALONE: rows}])
    agent.take_statistics(statistics)
    assert not before
    other = PPO(*SPACES, seed=1, normalize_observations=True)
    other.load_run_state(agent.run_state())
    for each in (agent, agent.clone(), copy.deepcopy(agent), other):
        assert isinstance(each.observation_statistics, ObservationStatistics)
        np.testing.assert_allclose(each.observation_statistics.running()[ALONE].mean, rows.mean(0))
        np.testing.assert_allclose(each.actor.get_buffer("obs_mean").numpy().ravel(), rows.mean(0), rtol=1e-6)


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Box(-2, 3, (2, 2), np.float32), gym.spaces.Box(-2, 3, (), np.float32), gym.spaces.MultiBinary(3),
        gym.spaces.MultiDiscrete([2, 3]), gym.spaces.Tuple([SPACES[1], gym.spaces.Box(0, 1, (2,), np.float32)]),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_stored_is_what_the_distribution_takes(space: gym.Space[Any]) -> None:
    agent = PPO(SPACES[0], space, seed=0)
    assert agent.distribution == distribution_of(space, scaled=True)
    obs = np.zeros((4, 3), np.float32)
    action, log_prob, *_ = agent.get_action(obs)
    assert action.shape == (4, *agent.action_shape)
    np.testing.assert_allclose(agent.evaluate_actions(obs, action)[0].detach().numpy(), log_prob, rtol=1e-5)
