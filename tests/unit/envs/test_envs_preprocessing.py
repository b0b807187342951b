"""Preprocessing by name."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from agilerl.core.options import OffPolicyOptions
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import ConfigError


def test_atari_gives_four_grey_frames_and_repeats_each_action_four_times() -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    env = make_vect_envs("ALE/Pong-v5", num_envs=2, preprocessing="atari")
    assert env.single_observation_space == gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    lanes = env.replicate(1)
    obs, _ = lanes.reset(np.array([1, 2]))
    first = lanes.step(np.array([0, 0]))
    assert (obs.shape, obs.dtype) == ((2, 4, 84, 84), np.uint8)
    np.testing.assert_array_equal(first.obs[:, :3], obs[:, 1:])  # the stack moves by one
    before = lanes.envs[0].unwrapped.ale.getEpisodeFrameNumber()
    lanes.step(np.array([0, 0]))
    assert lanes.envs[0].unwrapped.ale.getEpisodeFrameNumber() == before + 4
    env.close()


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'atari'"):
        make_vect_envs("CartPole-v1", preprocessing="atary")


def test_rewards_are_learned_from_by_their_sign() -> None:
    options = OffPolicyOptions(clip_rewards=True, reward_scale=0.5)
    assert options.learned_reward(np.array([-7.0, 0.0, 0.2])).tolist() == [-0.5, 0.0, 0.5]
