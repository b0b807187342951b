"""The analytic Q values of the probe environments are what tabular Q-learning finds, through the lanes."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from agilerl.envs.masks import ActionMasks
from agilerl.envs.step import SyncLanes, as_lanes
from agilerl.errors import EnvError
from tests.probe.environments import PROBES, MaskedActionEnv, ProbeEnv, TruncatedEnv

CASES = [*PROBES, partial(TruncatedEnv, 3)]
GAMMA = 0.9


def row_of(env: ProbeEnv, obs: np.ndarray) -> int:
    return int(np.flatnonzero((env.observations == obs).all(axis=1))[0])


def tabular_q(make: type[ProbeEnv], vector_steps: int = 300) -> np.ndarray:
    """Q-learning with step size 1 (exact here: everything is deterministic) under random legal actions."""
    env, lanes, rng = make(), SyncLanes([make] * 4), np.random.default_rng(0)
    masks = ActionMasks(env.action_space)
    q = np.where(np.isnan(env.expected_q(GAMMA)), np.nan, 0.0)
    obs, info = lanes.reset(np.arange(4))
    for _ in range(vector_steps):
        legal = masks.of(info, 4)
        weights = np.ones((4, env.num_actions)) if legal is None else legal.astype(float)
        actions = (weights * rng.random(weights.shape)).argmax(axis=1)
        batch = lanes.step(actions)
        for lane in range(4):
            future = 0.0 if batch.terminated[lane] else GAMMA * np.nanmax(q[row_of(env, batch.final_obs[lane])])
            q[row_of(env, obs[lane]), actions[lane]] = batch.reward[lane] + future
        obs, info = batch.obs, batch.info
    return q


@pytest.mark.parametrize("make", CASES, ids=str)
def test_q_learning_finds_the_stated_values(make: type[ProbeEnv]) -> None:
    # TruncatedEnv converges as γ^k: 0.9^300 / (1 - 0.9) < 1e-12.
    np.testing.assert_allclose(tabular_q(make), make().expected_q(GAMMA), atol=1e-10)


def test_taking_the_time_limit_for_an_end_would_be_noticed() -> None:
    assert TruncatedEnv(1).expected_q(0.99)[0, 0] == pytest.approx(100.0)


@pytest.mark.parametrize("make", [case for case in CASES if case not in (MaskedActionEnv, TruncatedEnv)], ids=str)
def test_probes_keep_the_gymnasium_interface(make: type[ProbeEnv]) -> None:
    # Gymnasium's checker takes sampled actions and refuses a cut after one step, so two probes are left out.
    check_env(make(), skip_render_check=True)


def test_an_illegal_action_is_an_error_and_masks_follow_their_lane() -> None:
    env = MaskedActionEnv()
    env.reset()
    with pytest.raises(EnvError, match=r"action 2 is illegal in state 0: legal are \[0, 1\]"):
        env.step(2)
    lanes = as_lanes(MaskedActionEnv())
    lanes.reset()
    batch = lanes.step(np.array([1]))
    masks = ActionMasks(env.action_space)
    assert masks.of(batch.info, 1).tolist() == [[False, False, True]]
    assert masks.of(lanes.step(np.array([2])).info, 1).tolist() == [[True, True, False]]
