"""A run without a target ends where neither fitness nor training returns get better."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import agilerl
from agilerl.hpo.screening import has_plateaued

SMALL: dict[str, Any] = {
    "num_envs": 1, "learn_step": 40, "evo_steps": 40, "update_epochs": 1, "latent_dim": 8, "eval_episodes": 1,
    "eval_screen": 0, "evo_first": None, "restarts": False, "target_score": None, "evolution": False, "verbose": False,
    "population": 1, "confirm_episodes": 0, "eval_share": None, "out": None, "preset": False,
}  # fmt: skip
PATIENCE = 4


class Course(gym.Env[Any, Any]):
    """Episodes of ten steps, whose return is how many have been trained on, `most` at most; evaluated, whose resets
    have seeds, it is 1 from the second generation on, so that fitness stands."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (1,), np.float32), gym.spaces.Discrete(2)

    def __init__(self, most: int) -> None:
        self.most, self.seeded, self.trained = most, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seeded, self.trained, self.left = self.seeded + (seed is not None), self.trained + (seed is None), 10
        self.worth = min(self.trained, self.most) if seed is None else float(self.seeded > 1)
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        return np.ones(1, np.float32), self.worth / 10, self.left == 0, False, {}


@pytest.mark.parametrize(("most", "stopped"), [(0, "plateau"), (40, "plateau"), (10_000, "budget")])
def test_a_run_goes_on_while_its_training_returns_rise(most: int, stopped: str) -> None:
    run = agilerl.train(lambda: Course(most), "PPO", steps=1600, patience=PATIENCE, **SMALL)
    assert run.result["stopped"] == stopped
    alone = next(n for n in range(len(run.history) + 1) if has_plateaued(run.history[:n], PATIENCE))
    if most:
        assert len(run.history) > alone
    else:
        assert len(run.history) == alone
