"""The shipped environments: found by their ids, equal to what they hide a part of, and nothing at import."""

from __future__ import annotations

import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from agilerl.core.env_ids import resolve_env_id
from agilerl.envs.simulators.classic import CARTPOLE_KEPT, FAST, PENDULUM_KEPT
from agilerl.envs.step import SyncLanes
from agilerl.envs.vector import make_vect_envs

CASES = {"MaskedCartPole-v1": ("CartPole-v1", CARTPOLE_KEPT), "MaskedPendulum-v1": ("Pendulum-v1", PENDULUM_KEPT)}


@pytest.mark.parametrize("env_id", CASES)
def test_masked_lanes_show_a_part_of_the_full_ones_and_equal_the_single_environment(env_id: str) -> None:
    env = make_vect_envs(env_id, num_envs=3)
    lanes = env.replicate(2)
    assert type(lanes) is FAST[env_id]
    full_id, kept = CASES[env_id]
    full, single = FAST[full_id](6), SyncLanes([env.factory] * 6)
    seeds = np.arange(6)
    obs, whole, other = (x.reset(seeds)[0] for x in (lanes, full, single))
    ended = 0
    for _ in range(600):
        np.testing.assert_array_equal(obs, whole[:, kept])
        np.testing.assert_array_equal(obs, other)
        if full_id == "CartPole-v1":
            actions = (whole[:, 2] + 0.5 * whole[:, 3] > 0).astype(int)
            actions[:3] = 1
        else:
            actions = -3 * whole[:, 2:] * whole[:, :1]
        ours, theirs, third = (x.step(actions) for x in (lanes, full, single))
        np.testing.assert_array_equal(ours.final_obs, theirs.final_obs[:, kept])
        for name in ("reward", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
            np.testing.assert_array_equal(getattr(ours, name), getattr(third, name))
        ended += int(ours.truncated.sum())
        obs, whole, other = ours.obs, theirs.obs, third.obs
    assert ended > 0
    assert env.single_observation_space.shape == (2,)
    assert env.single_observation_space.contains(obs[0])
    env.close()


@pytest.mark.thorough
def test_ids_are_known_where_they_are_asked_for_and_not_before() -> None:
    code = (
        "import gymnasium, agilerl.envs.simulators.classic, agilerl.envs.vector as v\n"
        "assert 'MaskedCartPole-v1' not in gymnasium.registry\n"
        "env = v.make_vect_envs('MaskedCartPole-v1', num_envs=1)\n"
        "assert env.spec.max_episode_steps == 500\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert resolve_env_id("MaskedPendulum-v1") == "MaskedPendulum-v1"
    assert gymnasium.make("MaskedPendulum-v1").spec.max_episode_steps == 200
