"""A stand-in for EnvPool with its documented interface over Gymnasium's environments, for machines without it."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest


class PoolOfGymnasium:
    """Environments are seeded once, at construction; an ended one resets at its next step, with reward 0.

    Rows come back in the reverse order of what was sent, as those of an asynchronous pool may: `info["env_id"]` says
    whose they are. Rewards are float32; an end at the time limit is a truncation alone. `sent` counts the actions of
    every environment.
    """

    def __init__(
        self, env_id: str, *, num_envs: int, num_threads: int, seed: list[int], max_episode_steps: int | None = None
    ) -> None:
        limit = {} if max_episode_steps is None else {"max_episode_steps": max_episode_steps}
        self.envs = [gymnasium.make(env_id, disable_env_checker=True, **limit) for _ in range(num_envs)]
        self.observation_space, self.action_space = self.envs[0].observation_space, self.envs[0].action_space
        self.seeds: list[int | None] = list(seed)
        self.has_ended = np.zeros(num_envs, bool)
        self.sent = np.zeros(num_envs, int)

    def _reset(self, env: int) -> Any:
        seed, self.seeds[env], self.has_ended[env] = self.seeds[env], None, False
        return self.envs[env].reset(seed=seed)[0]

    def reset(self, env_id: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        order = env_id[::-1]
        return np.stack([self._reset(int(env)) for env in order]), {"env_id": order}

    def step(self, action: np.ndarray, env_id: np.ndarray) -> tuple[Any, ...]:
        rows = []
        for env, choice in zip(env_id[::-1].tolist(), action[::-1], strict=True):
            self.sent[env] += 1
            if self.has_ended[env]:
                rows.append((self._reset(env), 0.0, False, False))
                continue
            rows.append(self.envs[env].step(choice if np.ndim(choice) else int(choice))[:4])
            self.has_ended[env] = rows[-1][2] or rows[-1][3]
        obs, reward, terminated, truncated = (np.array(part) for part in zip(*rows, strict=True))
        return obs, reward.astype(np.float32), terminated & ~truncated, truncated, {"env_id": env_id[::-1]}

    def close(self) -> None:
        for env in self.envs:
            env.close()


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the stand-in where `import envpool` looks."""
    module = ModuleType("envpool")
    module.__spec__ = ModuleSpec("envpool", None)
    vars(module)["make_gymnasium"] = PoolOfGymnasium
    monkeypatch.setitem(sys.modules, "envpool", module)
