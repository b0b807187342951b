"""The least standard deviation of Box actions: where it lies, and that every call of an agent keeps to it."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.distributions import Normal

import agilerl
from agilerl.algorithms import PPO
from agilerl.config import apply_overrides, manifest_from
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.networks.distributions import (
    LOG_STD_MIN,
    ActionDistribution,
    distribution_of,
    least_log_std,
    split_normal,
    squashed_normal_sample,
)

OBS, BOX = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Box(-1, 1, (2,))
UNEVEN = gym.spaces.Box(np.array([-2.0, 0.0, -np.inf], np.float32), np.array([2.0, 0.5, np.inf], np.float32))


def agent(share: float, space: gym.Space[Any] = BOX, **more: Any) -> PPO:
    return PPO(OBS, space, seed=1, action_std_min=share, action_std_init=1e-3, **more)


def test_it_is_a_share_of_half_of_each_range() -> None:
    assert least_log_std(BOX, 0.1) == pytest.approx(math.log(0.1))
    assert least_log_std(gym.spaces.Box(-2, 2, (3,)), 0.1) == pytest.approx(math.log(0.2))
    assert least_log_std(UNEVEN, 0.2) == pytest.approx((math.log(0.4), math.log(0.05), math.log(0.2)))
    assert least_log_std(UNEVEN, 0.2, squash=True) == pytest.approx(math.log(0.2)), "of (-1, 1), before it is scaled"
    unbounded = gym.spaces.Box(-np.finfo(np.float32).max, np.finfo(np.float32).max, (1,))
    assert least_log_std(unbounded, 0.2) == pytest.approx(math.log(0.2))
    assert least_log_std(gym.spaces.Box(0.5, 0.5, (1,)), 0.2) == pytest.approx(math.log(0.2)), "one action alone"


@pytest.mark.parametrize("least", [math.log(0.2), (math.log(0.2), math.log(0.01))])
def test_density_and_entropy_are_those_of_the_wider_normal(least: Any) -> None:
    raw = torch.tensor([[0.3, -0.2, -3.0, -1.0], [0.1, 0.4, 0.5, -9.0]], dtype=torch.float64)
    kind, floor = ActionDistribution("normal", (2,), least), torch.tensor(least, dtype=torch.float64)
    wide = Normal(raw[:, :2], raw[:, 2:].maximum(floor).exp())
    numbers, action = torch.ones(2, 2, dtype=torch.float64), torch.full((2, 2), 0.25, dtype=torch.float64)
    torch.testing.assert_close(kind.sample(raw, numbers), wide.mean + wide.stddev)
    torch.testing.assert_close(kind.log_prob(raw, action), wide.log_prob(action).sum(-1))
    torch.testing.assert_close(kind.entropy(raw), wide.entropy().sum(-1))
    torch.testing.assert_close(kind.mode(raw), raw[:, :2])


@pytest.mark.parametrize("least", [6.0, (6.0, 7.0)])
def test_the_upper_limit_goes_first_where_actions_are_large(least: Any) -> None:
    assert split_normal(torch.zeros(1, 4), least)[1].tolist() == [[2.0, 2.0]]


def test_a_squashed_one_is_wider_before_tanh() -> None:
    raw, numbers = torch.tensor([[0.3, -4.0]], dtype=torch.float64), torch.tensor([[1.5]], dtype=torch.float64)
    kind = ActionDistribution("squashed", (1,), math.log(0.2))
    action, log_prob = squashed_normal_sample(raw, numbers, kind.least)
    torch.testing.assert_close(action, torch.tensor([[math.tanh(0.3 + 0.2 * 1.5)]], dtype=torch.float64))
    torch.testing.assert_close(kind.sample(raw, numbers), action)
    torch.testing.assert_close(kind.log_prob(raw, action), log_prob)


def test_below_it_no_gradient_narrows_the_policy_and_above_it_all_do() -> None:
    raw = torch.tensor([[0.0, 0.0, -5.0, 0.0]], requires_grad=True)
    split_normal(raw, math.log(0.1))[1].sum().backward()
    assert raw.grad is not None
    assert raw.grad.tolist() == [[0.0, 0.0, 0.0, 1.0]]


@pytest.mark.parametrize("squash", [False, True])
def test_all_calls_of_an_agent_keep_to_it(squash: bool) -> None:
    ppo = agent(0.3, net_config={"squash_output": squash})
    obs = np.zeros((4000, 3), np.float32)
    action, log_prob, _, _ = ppo.get_action(obs)
    drawn = np.arctanh(action) if squash else action
    assert drawn.std(axis=0) == pytest.approx([0.3, 0.3], rel=0.05)
    again, _, _ = ppo.evaluate_actions(obs, action)
    np.testing.assert_allclose(again.detach().numpy(), log_prob, rtol=1e-4, atol=1e-4)
    ppo.set_training_mode(False)
    greedy = ppo.get_action(obs[:2])[0]
    assert np.ptp(greedy, axis=0).max() == 0, "greedy actions are the mean as before"
    assert agent(0.0, net_config={"squash_output": squash}).distribution.least == LOG_STD_MIN


def test_it_follows_the_hyperparameter_and_is_cloned() -> None:
    ppo = agent(0.3)
    assert ppo.distribution.least == pytest.approx(math.log(0.3))
    ppo.action_std_min = 0.1
    assert ppo.distribution.least == pytest.approx(math.log(0.1))
    assert ppo.clone().distribution.least == pytest.approx(math.log(0.1))
    ppo.action_std_min = 0.0
    assert ppo.distribution == distribution_of(BOX)


def test_it_means_nothing_to_choices() -> None:
    ppo = PPO(OBS, gym.spaces.Discrete(3), seed=1, action_std_min=0.3)
    assert ppo.distribution == distribution_of(gym.spaces.Discrete(3))


def test_members_of_different_ones_learn_by_their_own() -> None:
    def groups(*shares: float) -> list[int]:
        agents = [agent(share) for share in shares]
        return [len(group.agents) for group in Learner(agents, choose(agents)).groups]

    assert groups(0.3, 0.1) == [1, 1]
    assert groups(0.3, 0.3) == [2]


def test_a_policy_that_narrows_stays_as_wide_while_it_trains() -> None:
    """A still target, which nothing but a narrower policy would come nearer to: without it deviation falls away."""

    def trained(share: float) -> float:
        manifest = manifest_from({
            "algorithm": {"name": "PPO", "lr": 3e-3, "learn_step": 256, "batch_size": 64, "ent_coef": 0.0,
                          "action_std_min": share},
            "environment": {"num_envs": 8}, "training": {"max_steps": 8192, "pop_size": 1, "evo_steps": 8192},
        })  # fmt: skip
        run = agilerl.train(Still, config=manifest, seed=3, out=None, verbose=False)
        actions = run.best.get_action(np.zeros((2000, 1), np.float32), training=True)[0]
        return float(actions.std())

    assert trained(0.2) > 0.19
    assert trained(0.0) < 0.15


class Still(gym.Env[np.ndarray, np.ndarray]):
    """One step: the squared distance of the action from 0.5 is lost."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        return np.zeros(1, np.float32), -float((action[0] - 0.5) ** 2), True, False, {}


def test_a_manifest_without_it_keeps_its_hash() -> None:
    manifest = manifest_from({"algorithm": {"name": "PPO"}})
    assert apply_overrides(manifest, {"algorithm.action_std_min": 0.0}, "test").hash() == manifest.hash()
    assert apply_overrides(manifest, {"algorithm.action_std_min": 0.1}, "test").hash() != manifest.hash()
