"""Lanes over EnvPool: Gymnasium's environments in C++, stepped together. Needs `pip install "agilerl[fast]"`."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space

from agilerl.core.tree import Tree
from agilerl.envs.lanes import Contract, check_seeds
from agilerl.envs.protocol import StepBatch
from agilerl.envs.simulators.classic import FAST
from agilerl.errors import EnvError, ShapeError

# Ids compared with Gymnasium by tests/unit/envs/test_envs_pool.py: extend both together.
CONFORMING = (
    "Acrobot-v1", "BipedalWalker-v3", "CartPole-v1", "LunarLander-v3", "LunarLanderContinuous-v3", "MountainCar-v0",
)  # fmt: skip
INSTALL = 'pip install "agilerl[fast]"'
LIMIT = "max_episode_steps"  # the keyword of an environment that EnvPool takes too


def is_installed() -> bool:
    """Whether EnvPool is installed; does not import it."""
    return importlib.util.find_spec("envpool") is not None


def reason_against(env_id: str, kwargs: Mapping[str, Any]) -> str:
    """Return why EnvPool cannot step this environment here, with the fix; empty if it can."""
    if env_id not in CONFORMING:
        return (
            f"EnvPool is compared with Gymnasium for {', '.join(CONFORMING)}; got {env_id!r}. fix: backend=gymnasium."
        )
    if others := sorted(set(kwargs) - {LIMIT}):
        return (
            f"EnvPool takes no keywords of Gymnasium's environments; got {', '.join(others)}. fix: backend=gymnasium."
        )
    return "" if is_installed() else f"EnvPool is not installed. fix: {INSTALL}, or backend=gymnasium."


def is_faster(env_id: str, kwargs: Mapping[str, Any]) -> bool:
    """Whether EnvPool can step this environment here, and no lanes of this package step it as arrays."""
    return env_id not in FAST and not reason_against(env_id, kwargs)


class EnvPoolLanes:
    """L environments of one EnvPool; each lane's episodes depend only on its seed and actions.

    An ended lane is reset in the same step (the true final observation is in `final_obs`). A step sends the actions
    of the active lanes with their numbers (`env_id`); lanes that idle are not stepped.

    Returns agree with Gymnasium's within the error of the comparison (docs/decisions.md), but the start states of a
    seed differ, so the back end is part of a run's identity. An episode that terminates in the very step of its time
    limit is reported as truncated only. EnvPool takes seeds only at construction, so `reset(seeds)` creates a new pool
    (1 ms for 64 lanes).

    Args:
        env_id: one of `CONFORMING`. num_lanes: L.
        reset_ended: False leaves an ended lane unchanged: it must idle until the next `reset`.
        max_episode_steps: time limit in steps, instead of the environment's.
        num_threads: threads of the pool; they do not affect results.
    """

    backend = "envpool"

    def __init__(
        self,
        env_id: str,
        num_lanes: int,
        *,
        reset_ended: bool = True,
        max_episode_steps: int | None = None,
        num_threads: int = 1,
    ) -> None:
        if reason := reason_against(env_id, {}):
            raise EnvError(f"backend 'envpool': {reason}")
        single = gymnasium.make(env_id, disable_env_checker=True)
        self.single_observation_space: Space[Any] = single.observation_space
        self.single_action_space: Space[Any] = single.action_space
        single.close()
        self.env_id, self.num_lanes, self.reset_ended = env_id, num_lanes, reset_ended
        self.max_episode_steps, self.num_threads = max_episode_steps, num_threads
        self._contract = Contract(self.single_observation_space, f"{env_id} (EnvPool)")
        self._obs: np.ndarray | None = None
        self._pool = self._make(None)

    def _make(self, seeds: list[int] | None) -> Any:
        import envpool

        entropy = np.random.SeedSequence().generate_state(self.num_lanes, np.uint32) >> 1
        limit = {} if self.max_episode_steps is None else {LIMIT: self.max_episode_steps}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the float32 bounds of its spaces
            pool = envpool.make_gymnasium(
                self.env_id,
                num_envs=self.num_lanes,
                num_threads=self.num_threads,
                seed=entropy.tolist() if seeds is None else [seed % 2**31 for seed in seeds],
                **limit,
            )
            _ = pool.observation_space, pool.action_space  # created on first use, with those warnings
        return pool

    def reset(self, seeds: np.ndarray | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        numbers = check_seeds(seeds, self.num_lanes)
        if numbers is not None:
            self._pool.close()
            self._pool = self._make(numbers)
        self._obs = self._begin(np.zeros((self.num_lanes, *self._shape), np.float32), np.arange(self.num_lanes))
        return self._obs.copy(), {}

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> StepBatch:
        """Step the lanes; see `protocol.Lanes.step`. EnvError: not reset, or an action outside of the space."""
        if self._obs is None:
            raise EnvError("lanes must be reset before the first step. fix: call reset() first.")
        actions = self._check(actions)
        mask = np.ones(self.num_lanes, dtype=bool) if active is None else np.array(active, dtype=bool)
        lanes, obs, reward = np.flatnonzero(mask).astype(np.int32), self._obs.copy(), np.zeros(self.num_lanes)
        terminated, truncated = np.zeros((2, self.num_lanes), dtype=bool)
        if len(lanes):
            rows, rewards, ends, cuts, info = self._pool.step(actions[lanes], lanes)
            stepped = info["env_id"]
            obs[stepped], reward[stepped], terminated[stepped], truncated[stepped] = rows, rewards, ends, cuts
            self._contract.finite(obs)
            self._contract.finite_rewards(reward)
        final_obs, done_lanes = obs, np.flatnonzero(terminated | truncated)
        if self.reset_ended and len(done_lanes):
            obs = self._begin(obs, done_lanes)
        self._obs = obs
        return StepBatch(obs.copy(), reward, terminated, truncated, final_obs, mask, {})

    def _begin(self, obs: np.ndarray, lanes: np.ndarray) -> np.ndarray:
        """Reset these lanes; return a copy of `obs` [L, ...] with their first observations."""
        rows, info = self._pool.reset(lanes.astype(np.int32))
        obs = obs.copy()
        obs[info["env_id"]] = rows
        self._contract.finite(obs, call="reset()")
        return obs

    @property
    def _shape(self) -> tuple[int, ...]:
        return self.single_observation_space.shape or ()

    def _check(self, values: Tree) -> np.ndarray:
        space, actions = self.single_action_space, np.asarray(values)
        expected = (self.num_lanes, *(space.shape or ()))
        if actions.shape != expected:
            raise ShapeError(f"{self.env_id} takes actions of shape {expected}; got {actions.shape}.")
        if isinstance(space, gymnasium.spaces.Discrete):
            if actions.dtype.kind not in "iu" or actions.min() < 0 or actions.max() >= space.n:
                raise EnvError(f"{self.env_id} takes 0..{space.n - 1}; got {actions.min()}..{actions.max()}.")
            return actions.astype(np.int32)
        if not np.isfinite(actions).all():
            raise EnvError(f"{self.env_id} takes finite actions; got {actions[~np.isfinite(actions)][0]}.")
        return actions.astype(np.float32)

    def close(self) -> None:
        self._pool.close()
