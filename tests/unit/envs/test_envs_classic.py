"""Our classic-control lanes against Gymnasium's single environments, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium
import numpy as np
import pytest

from agilerl.core.env_ids import SHIPPED
from agilerl.envs.protocol import Lanes
from agilerl.envs.simulators.classic import FAST
from agilerl.envs.step import SyncLanes
from agilerl.errors import EnvError

Policy = Callable[[np.ndarray], np.ndarray]
# A controller per environment for half of the lanes (so that both kinds of end occur); the others act at random.
CONTROLLERS: dict[str, Policy] = {
    "Acrobot-v1": lambda obs: 2 * (obs[:, 5] > 0).astype(int),
    "MountainCar-v0": lambda obs: 2 * (obs[:, 1] > 0).astype(int),
    "CartPole-v1": lambda obs: (obs[:, 2] + 0.5 * obs[:, 3] > 0).astype(int),
}
CONTINUOUS: dict[str, Policy] = {"Pendulum-v1": lambda obs: -3 * obs[:, 2:] * obs[:, :1]}
STEPS = 2500


def test_every_fast_environment_is_compared() -> None:
    masked = {name for name in SHIPPED if name.startswith("Masked")}  # tests/unit/envs/test_envs_masked.py
    assert {*CONTROLLERS, *CONTINUOUS, *masked} == set(FAST)


# NumPy treats the rows beyond a vector register's width differently: of 7 lanes some are, of 8 none.
@pytest.mark.parametrize("num_lanes", [7, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("env_id", CONTROLLERS)
def test_classic_lanes_equal_gymnasium_bit_for_bit_over_resets_ends_and_time_limits(
    env_id: str, num_lanes: int
) -> None:
    reference: Lanes = SyncLanes([lambda: gymnasium.make(env_id)] * num_lanes)
    lanes = FAST[env_id](num_lanes)
    actions_count = int(lanes.single_action_space.n)  # type: ignore[attr-defined]
    seeds, rng = np.arange(100, 100 + num_lanes), np.random.default_rng(1)
    obs, other = lanes.reset(seeds)[0], reference.reset(seeds)[0]
    ends = np.zeros(2, dtype=int)
    for step in range(STEPS):
        np.testing.assert_array_equal(obs, other)
        random = rng.integers(actions_count, size=num_lanes)
        actions = np.where(np.arange(num_lanes) < num_lanes // 2, CONTROLLERS[env_id](obs), random)
        active = rng.random(num_lanes) < 0.9 if step % 3 == 0 else None
        ours, theirs = lanes.step(actions, active), reference.step(actions, active)
        for name in ("obs", "final_obs", "reward", "terminated", "truncated", "mask"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=f"{name} at {step}")
        obs, other = ours.obs, theirs.obs
        ends += ours.terminated.sum(), ours.truncated.sum()
    assert (ends > 5).all(), f"both kinds of end must occur for the test to mean something: {ends}"


@pytest.mark.parametrize("num_lanes", [1, 7, 16])
@pytest.mark.parametrize("env_id", CONTINUOUS)
def test_lanes_with_continuous_actions_equal_gymnasium_bit_for_bit(env_id: str, num_lanes: int) -> None:
    reference: Lanes = SyncLanes([lambda: gymnasium.make(env_id)] * num_lanes)
    lanes = FAST[env_id](num_lanes)
    seeds, rng = np.arange(100, 100 + num_lanes), np.random.default_rng(1)
    obs, other = lanes.reset(seeds)[0], reference.reset(seeds)[0]
    truncated = 0
    for step in range(1000):
        np.testing.assert_array_equal(obs, other)
        random = rng.uniform(-2.5, 2.5, size=(num_lanes, 1))  # beyond the bounds too
        actions = np.where(rng.random((num_lanes, 1)) < 0.5, CONTINUOUS[env_id](obs), random).astype(np.float32)
        active = rng.random(num_lanes) < 0.9 if step % 3 == 0 else None
        ours, theirs = lanes.step(actions, active), reference.step(actions, active)
        for name in ("obs", "final_obs", "reward", "terminated", "truncated", "mask"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=f"{name} at {step}")
        obs, other = ours.obs, theirs.obs
        truncated += int(ours.truncated.sum())
    assert truncated > 3 * num_lanes


def test_actions_of_another_shape_or_not_finite_are_refused() -> None:
    lanes = FAST["Pendulum-v1"](2)
    lanes.reset(np.arange(2))
    with pytest.raises(EnvError, match=r"expected shape \(2, 1\), got shape \(2,\)"):
        lanes.step(np.zeros(2))
    with pytest.raises(EnvError, match="finite actions"):
        lanes.step(np.array([[0.0], [np.nan]]))
