"""A lane whose worker was replaced begins its new episode at once: no reset step follows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from agilerl.envs.adapters import VectorLanes
from agilerl.envs.returned import HEALED


class Healing:
    """Two lanes; lane 1 is replaced in the second step. Rewards are 1, and 0 in the step that heals or resets."""

    num_envs = 2
    single_observation_space, single_action_space = spaces.Box(0, 100, (1,), np.float32), spaces.Discrete(2)

    def __init__(self, mode: AutoresetMode) -> None:
        self.metadata = {"autoreset_mode": mode}
        self.resets: list[Any] = []

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.resets.append(options)
        self.time = 0
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        self.time += 1
        healed = np.array([False, self.time == 2])
        ended = np.zeros(2, bool)
        obs = np.array([[self.time], [self.time if self.time < 2 else self.time - 2]], np.float32)
        info = {HEALED: healed} if healed.any() else {}
        return obs, np.where(healed, 0.0, 1.0), ended, healed.copy(), info


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_the_step_after_a_healing_is_a_transition_with_its_reward(mode: AutoresetMode) -> None:
    env = Healing(mode)
    lanes = VectorLanes(env)
    lanes.reset()
    steps = [lanes.step(np.zeros(2, int)) for _ in range(4)]
    assert [s.mask.tolist() for s in steps] == [[True, True], [True, False], [True, True], [True, True]]
    assert [s.reward.tolist() for s in steps] == [[1, 1], [1, 0], [1, 1], [1, 1]]
    assert [s.truncated.tolist() for s in steps] == [[False, False], [False, True], [False, False], [False, False]]
    assert [s.obs[1, 0] for s in steps] == [1, 0, 1, 2]
    assert len(env.resets) == 1, "the lane has begun anew already"
