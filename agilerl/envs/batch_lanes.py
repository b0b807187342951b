"""Lanes whose state is one array: all of them advance in one NumPy expression, with a generator per lane."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space
from gymnasium.utils import seeding

from agilerl.envs.lanes import check_seeds
from agilerl.envs.protocol import StepBatch
from agilerl.errors import EnvError


class BatchLanes:
    """Lanes whose state is one float64 array [L, S]: seeds, time limit, resets and resting are here.

    A subclass gives `_advance` (the dynamics), `_observe` and `_initial`. Every lane owns the generator that
    Gymnasium's single environment would have for that seed, so its episodes are the same, whatever other lanes do.
    """

    backend: str
    env_id: str

    def __init__(self, num_lanes: int, *, reset_ended: bool = True) -> None:
        spec = gymnasium.spec(self.env_id)
        single = gymnasium.make(self.env_id, disable_env_checker=True)
        self.num_lanes = num_lanes
        self.reset_ended = reset_ended
        self.single_observation_space: Space[Any] = single.observation_space
        self.single_action_space: Space[Any] = single.action_space
        single.close()
        assert spec.max_episode_steps is not None
        self._limit = spec.max_episode_steps
        self._generators = [seeding.np_random()[0] for _ in range(num_lanes)]
        self._state = np.empty((num_lanes, 0))
        self._obs = np.empty((num_lanes, 0))
        self._elapsed = np.zeros(num_lanes, dtype=np.int64)

    def _initial(self, rng: np.random.Generator) -> np.ndarray:
        """One lane's state [S] at the start of an episode, drawn as Gymnasium's environment draws it."""
        raise NotImplementedError

    def _observe(self, state: np.ndarray) -> np.ndarray:
        """States [L, S] float64 -> observations [L, O] float32."""
        raise NotImplementedError

    def _observe_initial(self, state: np.ndarray) -> np.ndarray:
        """Observations [K, O] of states [K, S] at the start of an episode, where they differ in rounding."""
        return self._observe(state)

    def _advance(self, state: np.ndarray, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One step of every lane: new state [L, S], reward [L] float64, terminated [L] bool."""
        raise NotImplementedError

    def reset(self, seeds: np.ndarray | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin a new episode in every lane; `seeds` [L] integers, or None to go on with each lane's generator."""
        numbers = check_seeds(seeds, self.num_lanes)
        if numbers is not None:
            self._generators = [seeding.np_random(number)[0] for number in numbers]
        self._state = np.stack([self._initial(rng) for rng in self._generators])
        self._elapsed = np.zeros(self.num_lanes, dtype=np.int64)
        self._obs = self._observe_initial(self._state)
        return self._obs.copy(), {}

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> StepBatch:
        """Step the lanes; see `protocol.Lanes.step`. `actions` [L] integers, or [L, A].

        Raises:
            EnvError: not reset yet, or an action outside of the space.
        """
        if self._state.shape[1] == 0:
            raise EnvError("lanes must be reset before the first step. fix: call reset() first.")
        actions = self._check(actions)
        mask = np.ones(self.num_lanes, dtype=bool) if active is None else np.array(active, dtype=bool)
        state, reward, terminated = self._advance(self._state, actions)
        obs = self._observe(state)
        if active is not None:
            state = np.where(mask[:, None], state, self._state)
            obs = np.where(mask[:, None], obs, self._obs)
            reward, terminated = np.where(mask, reward, 0.0), terminated & mask
        self._elapsed += mask
        truncated = (self._elapsed >= self._limit) & mask
        self._state = state
        final_obs = obs
        ended = terminated | truncated
        if self.reset_ended and ended.any():
            obs = self._begin_again(np.flatnonzero(ended), obs)
        self._obs = obs
        return StepBatch(obs.copy(), reward, terminated, truncated, final_obs, mask, {})

    def _check(self, actions: np.ndarray) -> np.ndarray:
        space = self.single_action_space
        if isinstance(space, gymnasium.spaces.Discrete):
            actions, wanted = np.asarray(actions), f"one action in 0..{space.n - 1} per lane"
            fits = actions.shape == (self.num_lanes,) and actions.min() >= 0 and actions.max() < space.n
        else:
            actions, wanted = np.asarray(actions, dtype=space.dtype), f"finite actions {space.shape} per lane"
            fits = actions.shape == (self.num_lanes, *(space.shape or ())) and bool(np.isfinite(actions).all())
        if not fits:
            expected = (self.num_lanes, *(space.shape or ()))
            raise EnvError(
                f"{self.env_id} takes {wanted}: expected shape {expected}, got shape {actions.shape}"
                + (f", values {actions.min()}..{actions.max()}." if actions.size else ".")
            )
        return actions

    def _begin_again(self, ended: np.ndarray, obs: np.ndarray) -> np.ndarray:
        state, obs = self._state.copy(), obs.copy()
        for lane in ended.tolist():
            state[lane] = self._initial(self._generators[lane])
        obs[ended] = self._observe_initial(state[ended])
        self._state = state
        self._elapsed[ended] = 0
        return obs

    def close(self) -> None:
        """Nothing to release."""
