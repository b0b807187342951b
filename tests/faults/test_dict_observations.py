"""Dict observations with a text: a run that was stopped ends as one that was not, and its scaling is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from faulty_runs import CASES, digest, newest, resume, train, train_part
from gymnasium import spaces

from agilerl.core.checkpoint import decode_tree


class Corridor(gym.Env[Any, Any]):
    """Walk as the text says; a step in its direction gives 1."""

    observation_space = spaces.Dict(
        {"at": spaces.Discrete(9), "grid": spaces.Box(0, 255, (3, 9, 1), np.uint8), "order": spaces.Text(9)}
    )
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at, self.time, self.order = 4, 0, int(self.np_random.integers(2))
        return self._observe(), {}

    def _observe(self) -> Any:
        grid = np.zeros((3, 9, 1), np.uint8)
        grid[:, self.at] = 255
        return {"at": self.at, "grid": grid, "order": ("go left", "go right")[self.order]}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at, self.time = self.at + (1 if action else -1), self.time + 1
        reward = float(int(action) == self.order)
        return self._observe(), reward, self.at in (0, 8), self.time == 20, {}


@pytest.mark.parametrize("name", ["DQN", "PPO"])
def test_a_run_stopped_inside_a_generation_ends_as_if_it_had_not(name: str, tmp_path: Path) -> None:
    case = {**CASES[name], "env": Corridor, "population": 2, "steps": 480}
    whole = train(case, tmp_path / "whole")
    path = train_part(case, tmp_path / "part", 1)
    assert resume(path, env=Corridor) == []
    assert digest(path) == digest(whole)
    if name == "PPO":  # statistics of everything side by side: one-hot, cells, counts of words
        saved = decode_tree(newest(path).files["best.safetensors"])
        assert "(164,)" in str({k: tuple(v.shape) for k, v in leaves(saved) if k.endswith("obs_mean")})


def leaves(tree: Any, path: str = "") -> list[tuple[str, Any]]:
    """(path, tensor or array) of everything that has a shape."""
    if isinstance(tree, dict):
        return [found for key, part in tree.items() for found in leaves(part, f"{path}/{key}")]
    return [(path, tree)] if hasattr(tree, "shape") else []
