"""Boxes of integers: every one of them is taken, by every algorithm, in training, by hand and from files."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from policy_files import alone

from agilerl.algorithms import DDPG, MATD3, SAC, TD3
from agilerl.data.recording import random_policy
from agilerl.envs.team import as_action
from agilerl.networks.actors import rescale_action

OBS = Box(-1, 1, (3,))
SPACE = Box(-3, 9, (2,), np.int64)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_integers_are_the_nearest_ones(as_tensor):
    # -3 + (x + 1) / 2 * 12: -0.99 -> -2.94, 0.99 -> 8.94, 0 -> 3, -0.6 -> -0.6, 0.1 -> 3.6
    raw = np.array([-1.0, -0.99, -0.6, 0.0, 0.1, 0.99, 1.0])
    bounds = (np.full(7, -3), np.full(7, 9))
    got = rescale_action(torch.tensor(raw) if as_tensor else raw, *bounds)
    assert got.tolist() == [-3, -3, -1, 3, 4, 9, 9]


@pytest.mark.parametrize("algorithm", [SAC, TD3, DDPG])
def test_an_agent_reaches_both_ends(algorithm):
    agent = algorithm(OBS, Box(0, 1, (1,), np.int8))
    ends = agent.environment_action(np.array([[-0.9], [-0.1], [0.1], [0.9]], np.float32))
    assert ends.ravel().tolist() == [0, 0, 1, 1]
    assert ends.dtype == np.int8


@pytest.mark.parametrize("algorithm", [SAC, TD3, DDPG])
def test_exported_policies_take_the_same_integers(algorithm, tmp_path):
    torch.manual_seed(0)
    agent = algorithm(OBS, SPACE)
    agent.set_training_mode(False)
    obs = np.random.default_rng(0).uniform(-1, 1, (200, 3)).astype(np.float32)
    with torch.no_grad():
        for parameter in agent.actor.parameters():
            parameter.mul_(3)
    expected = np.asarray(agent.get_action(obs))
    assert len(np.unique(expected)) > 4
    assert np.array_equal(np.asarray(alone(agent, tmp_path).act(obs)), expected)


def test_teams_take_the_nearest_integer():
    assert as_action(SPACE, np.array([8.94, -2.94])).tolist() == [9, -3]
    team = MATD3({"a": OBS}, {"a": Box(0, 1, (1,), np.int32)}, agent_ids=["a"])
    assert team.environment_action(np.array([[0.9], [0.1], [-0.1]], np.float32)).ravel().tolist() == [1, 1, 0]


def test_uniform_random_play_takes_every_integer_equally_often():
    act = random_policy(Box(-2, 1, (1,), np.int64), np.random.default_rng(0))
    values, counts = np.unique(act(np.zeros((8_000, 3)), None), return_counts=True)
    assert values.tolist() == [-2, -1, 0, 1]
    assert abs(counts / 8_000 - 0.25).max() < 0.02
