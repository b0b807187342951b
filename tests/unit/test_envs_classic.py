"""Our classic-control lanes against Gymnasium's single environments, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium
import numpy as np
import pytest

from agilerl.envs.classic import FAST
from agilerl.envs.protocol import Lanes
from agilerl.envs.step import SyncLanes

Policy = Callable[[np.ndarray], np.ndarray]
# A controller per environment for half of the lanes (so that both kinds of end occur); the others act at random.
CONTROLLERS: dict[str, Policy] = {
    "Acrobot-v1": lambda obs: 2 * (obs[:, 5] > 0).astype(int),
    "MountainCar-v0": lambda obs: 2 * (obs[:, 1] > 0).astype(int),
    "CartPole-v1": lambda obs: (obs[:, 2] + 0.5 * obs[:, 3] > 0).astype(int),
}
STEPS = 2500


def test_every_fast_environment_is_compared() -> None:
    assert set(CONTROLLERS) == set(FAST)


@pytest.mark.parametrize("num_lanes", [7, 8])  # NumPy treats the rows beyond a vector register's width differently
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
