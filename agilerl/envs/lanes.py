"""Single environments stepped one after the other in this process, with as little around them as possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space

from agilerl import tree as trees
from agilerl.envs.contract import Contract, is_signal, name_of, raised
from agilerl.envs.kept_statistics import warn_of_statistics
from agilerl.envs.protocol import StepBatch
from agilerl.errors import EnvError, ShapeError

EnvFactory = Callable[[], Any]


class SyncLanes:
    """L independent environments; each lane's episodes depend on its own seed and actions alone.

    An ended lane is reset at once (the true final observation is kept in `final_obs`), so every row with mask True is
    a transition. Resting lanes cost nothing.

    What an environment returns is checked here, before anybody sees it: an environment that raises, or gives anything
    but finite numbers of its space's shape and kind, ends in an `EnvError` that says environment, lane and what was
    got (`agilerl.envs.contract`).

    Args:
        factories: one callable per lane, each giving a fresh Gymnasium environment.
        reset_ended: False leaves an ended lane as it is: `obs` stays the final one and the lane must rest until the
            next `reset`. For evaluation, where a reset that nobody uses can cost as much as ten steps.
    """

    backend = "lanes"

    def __init__(self, factories: Sequence[EnvFactory], *, reset_ended: bool = True) -> None:
        if not factories:
            raise EnvError("lanes need at least one environment factory; got none. fix: pass a factory per lane.")
        self.envs = [factory() for factory in factories]
        self.num_lanes = len(self.envs)
        self.reset_ended = reset_ended
        self.single_observation_space: Space[Any] = self.envs[0].observation_space
        self.single_action_space: Space[Any] = self.envs[0].action_space
        self._steps = [env.step for env in self.envs]
        # Gymnasium's own environments take Python integers, which their checks accept 0.7 us faster than numpy's;
        # others get numpy scalars as from SyncVectorEnv, since some call action.item().
        self._plain_actions = all(_is_gymnasiums_own(env) for env in self.envs)
        self.name = name_of(self.envs[0])
        warn_of_statistics(self.envs[0])
        self._contract: Contract | None = None  # made at the first reset: without a space that tells the shapes
        self._obs: Any = None
        self._action_masks: np.ndarray | None = None

    def reset(self, seeds: np.ndarray | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin a new episode in every lane; `seeds` [L] integers, or None to go on with each lane's generator.

        Returns:
            obs [L, ...], and info with `action_mask` [L, A] where the environments give one.
        """
        numbers = check_seeds(seeds, self.num_lanes)
        self._action_masks = None
        self._obs = None
        rows = []
        for lane in range(self.num_lanes):
            obs, info = self._reset_lane(lane, numbers[lane] if numbers is not None else None)
            rows.append(obs)
            if "action_mask" in info:
                self._keep_mask(lane, info["action_mask"])
        obs = trees.stack(self.single_observation_space, rows)
        self._checked(obs).finite(obs, call="reset()")
        self._obs = obs
        return trees.copy(self._obs), self._info()

    def _checked(self, like: Any = None) -> Contract:
        if self._contract is None:
            self._contract = Contract(self.single_observation_space, self.name, like)
        return self._contract

    def _reset_lane(self, lane: int, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """A new episode in one lane; its observation has been checked."""
        try:
            result = self.envs[lane].reset() if seed is None else self.envs[lane].reset(seed=seed)
            obs, info = result
        except (Exception, SystemExit) as error:
            raise self._failed(lane, error, "reset()") from error
        known = self._contract is not None or self.single_observation_space is not None
        return (self._checked().row(obs, lane, "reset()") if known else obs), info

    def _failed(self, lane: int, error: BaseException, call: str = "step()") -> EnvError:
        """What is raised where an environment raises: itself, if it speaks our language already."""
        if isinstance(error, EnvError):
            return error
        if is_signal(error):
            raise error
        return Contract(None, self.name, np.zeros((1, 1))).error(lane, raised(error), call)

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> StepBatch:
        """Step the lanes; see `protocol.Lanes.step`. `actions` [L, ...] (or per lane, for Dict and Tuple spaces)."""
        if self._obs is None:
            raise EnvError("lanes must be reset before the first step. fix: call reset() first.")
        if len(actions) != self.num_lanes:
            raise ShapeError(f"actions must have one row per lane: expected {self.num_lanes}, got {len(actions)}.")
        obs = trees.copy(self._obs)
        reward = np.zeros(self.num_lanes)
        terminated, truncated = np.zeros((2, self.num_lanes), dtype=bool)
        per_lane = actions.tolist() if self._plain_actions and np.ndim(actions) == 1 else actions
        flat = isinstance(obs, np.ndarray)
        contract = self._checked()
        check_row, check_reward = contract.row, contract.reward
        ended = []
        for lane in range(self.num_lanes) if active is None else np.flatnonzero(active).tolist():
            try:
                row, got, is_terminated, is_truncated, info = self._steps[lane](per_lane[lane])
            except (Exception, SystemExit) as error:
                raise self._failed(lane, error) from error
            row = check_row(row, lane)
            reward[lane] = got if type(got) is float else check_reward(got, lane)
            if flat:
                obs[lane] = row
            else:
                trees.put(obs, lane, row)
            if is_terminated or is_truncated:
                terminated[lane], truncated[lane] = is_terminated, is_truncated
                ended.append(lane)
            if "action_mask" in info:
                self._keep_mask(lane, info["action_mask"])
        contract.finite(obs)
        contract.finite_rewards(reward)
        final_obs: Any = obs
        final_info: dict[str, Any] = {}
        if ended and self.reset_ended:
            obs = trees.copy(obs)
            if self._action_masks is not None:
                final_info = {"final_action_mask": self._action_masks.copy()}
            self._begin_again(ended, obs)
        self._obs = obs
        mask = np.ones(self.num_lanes, dtype=bool) if active is None else np.array(active, dtype=bool)
        return StepBatch(
            trees.copy(obs), reward, terminated, truncated, final_obs, mask, {**self._info(), **final_info}
        )

    def _begin_again(self, ended: list[int], obs: Any) -> None:
        for lane in ended:
            row, info = self._reset_lane(lane)
            trees.put(obs, lane, row)
            if "action_mask" in info:
                self._keep_mask(lane, info["action_mask"])
        self._checked().finite(obs, call="reset()")

    def _keep_mask(self, lane: int, action_mask: Any) -> None:
        row = np.asarray(action_mask, dtype=bool)
        if self._action_masks is None:
            self._action_masks = np.ones((self.num_lanes, *row.shape), dtype=bool)
        self._action_masks[lane] = row

    def _info(self) -> dict[str, Any]:
        return {} if self._action_masks is None else {"action_mask": self._action_masks.copy()}

    def close(self) -> None:
        """Close every environment."""
        for env in self.envs:
            env.close()


def check_seeds(seeds: np.ndarray | Sequence[int] | None, num_lanes: int) -> list[int] | None:
    """`seeds` as Python integers, one per lane.

    Raises:
        ShapeError: not exactly one seed per lane.
    """
    if seeds is None:
        return None
    numbers = np.asarray(seeds)
    if numbers.shape != (num_lanes,):
        raise ShapeError(
            f"seeds must have one integer per lane: expected shape ({num_lanes},), got {numbers.shape}. "
            f"fix: agilerl.rng.seeds(run_seed, purpose, {num_lanes})."
        )
    return [int(number) for number in numbers]


def _is_gymnasiums_own(env: Any) -> bool:
    if not isinstance(env, gymnasium.Env) or env.spec is None:
        return False
    is_plain = type(env.unwrapped).__module__.startswith("gymnasium.envs.")
    return is_plain and isinstance(env.action_space, gymnasium.spaces.Discrete) and not env.spec.additional_wrappers
