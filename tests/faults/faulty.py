"""An environment that misbehaves on purpose: once per token file, at a given step of the lane that gets there first."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

MODES = ("raise", "exit", "kill", "hang", "nan", "inf", "none", "shape", "dtype", "string", "memory")


class Faulty(gymnasium.Env[np.ndarray, Any]):
    """Episodes of 12 steps, reward 1 each; at step `at` of some episode the fault `mode`, as often as there are tokens.

    Args:
        folder: holds one file per fault that is still to come; None: no faults. action_box: Box actions.
    """

    observation_space = gymnasium.spaces.Box(-10, 10, (3,), np.float32)
    action_space: Any = gymnasium.spaces.Discrete(2)

    def __init__(self, mode: str = "", folder: Path | None = None, at: int = 5) -> None:
        self.mode, self.folder, self.at, self.time = mode, folder, at, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time, self.place = 0, self.np_random.uniform(-1, 1)
        return self._obs(), {}

    def _obs(self) -> np.ndarray:
        return np.array([self.place, self.time / 12, 1.0], dtype=np.float32)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.time += 1
        obs, reward = self._obs(), 1.0
        if self.time == self.at and self._take():
            obs, reward = self._misbehave(obs, reward)
        return obs, reward, self.time >= 12, False, {}

    def _take(self) -> bool:
        for token in sorted(self.folder.iterdir()) if self.folder is not None else ():
            try:
                token.unlink()
                return True
            except FileNotFoundError:  # another worker was faster
                continue
        return False

    def _misbehave(self, obs: Any, reward: Any) -> tuple[Any, Any]:
        mode = self.mode
        if mode == "raise":
            raise ValueError("the simulator lost its mind")
        if mode == "exit":
            sys.exit(3)
        if mode == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if mode == "hang":
            time.sleep(3600)
        if mode == "memory":
            ask_for_too_much()
        changed = {
            "nan": np.array([np.nan, 0, 0], np.float32),
            "none": None,
            "shape": np.zeros((1, 3), np.float32),
            "dtype": np.array(["a", "b", "c"]),
        }
        return changed.get(mode, obs), {"inf": np.inf, "string": "1.0"}.get(mode, reward)


def limit_memory(extra: int) -> None:
    """From now on this process may have `extra` bytes of addresses more than it has."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + extra, hard))


def ask_for_too_much() -> None:
    """MemoryError, as where a simulator needs more than the process may have."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit_memory(2**26)
    try:
        np.ones(2**27)  # a gibibyte
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def tokens(folder: Path, count: int) -> Path:
    """A folder with `count` faults in it."""
    folder.mkdir()
    for number in range(count):
        (folder / f"{number}").touch()
    return folder
