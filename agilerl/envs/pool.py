"""EnvPool's C++ environments as lanes, for the ids on which they have been compared with Gymnasium's."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space

from agilerl.envs.adapters import VectorLanes
from agilerl.envs.lanes import check_seeds
from agilerl.envs.protocol import StepBatch
from agilerl.errors import EnvError

# Ids that tests/unit/test_envs_pool.py compares with Gymnasium: add one there and here together.
CONFORMING = ("Acrobot-v1", "CartPole-v1", "LunarLander-v3", "MountainCar-v0")


class EnvPoolLanes:
    """L environments of one EnvPool; each lane's episodes depend on its own seed and actions alone.

    The dynamics are EnvPool's: equal to Gymnasium's to rounding, but the start states of a seed differ, so the back end
    is part of a run's identity. EnvPool takes seeds only when a pool is made, so `reset(seeds)` makes a new one (6 ms
    for 64 lanes). Its environments reset on the step after the end: that row has mask False. Lanes cannot rest: with
    `active` they are stepped all the same and the row is masked.

    Args:
        env_id: one of `CONFORMING`.
        num_lanes: L.
        num_threads: of the pool; results do not depend on it.
    """

    backend = "envpool"

    def __init__(self, env_id: str, num_lanes: int, *, num_threads: int = 1) -> None:
        if env_id not in CONFORMING:
            raise EnvError(
                f"backend 'envpool' is compared with Gymnasium for {', '.join(CONFORMING)}; got {env_id!r}. "
                "fix: leave backend out."
            )
        single = gymnasium.make(env_id, disable_env_checker=True)
        self.single_observation_space: Space[Any] = single.observation_space
        self.single_action_space: Space[Any] = single.action_space
        single.close()
        self.env_id, self.num_lanes, self.num_threads = env_id, num_lanes, num_threads
        self._lanes = self._make(None)

    def _make(self, seeds: list[int] | None) -> VectorLanes:
        try:
            import envpool
        except ImportError as exc:
            raise EnvError("backend 'envpool' needs EnvPool. fix: pip install \"agilerl[fast]\"") from exc
        entropy = np.random.SeedSequence().generate_state(self.num_lanes, np.uint32) >> 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the float32 bounds of its spaces
            pool = envpool.make_gymnasium(
                self.env_id,
                num_envs=self.num_lanes,
                num_threads=self.num_threads,
                seed=entropy.tolist() if seeds is None else [seed % 2**31 for seed in seeds],
            )
            _ = pool.observation_space, pool.action_space  # made at first use, with those warnings
        return VectorLanes(_Pool(pool, self.num_lanes))

    def reset(self, seeds: np.ndarray | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin a new episode in every lane; `seeds` [L] integers, or None to go on with each lane's generator."""
        numbers = check_seeds(seeds, self.num_lanes)
        if numbers is not None:
            self._lanes.close()
            self._lanes = self._make(numbers)
        return self._lanes.reset()

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> StepBatch:
        """Step every lane; see `protocol.Lanes.step`."""
        return self._lanes.step(np.asarray(actions, dtype=np.int32), active)

    def close(self) -> None:
        """Release the pool."""
        self._lanes.close()


class _Pool:
    """An EnvPool as a vector environment: copies of its arrays, whose memory the next step may use again."""

    def __init__(self, pool: Any, num_envs: int) -> None:
        self.pool, self.num_envs = pool, num_envs
        self.metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}

    def reset(self) -> tuple[np.ndarray, dict[str, Any]]:
        obs, _ = self.pool.reset()
        return np.array(obs), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = self.pool.step(actions)
        return np.array(obs), np.array(reward), np.array(terminated), np.array(truncated), {}

    def close(self) -> None:
        self.pool.close()
