"""Environments of others as lanes: vector ones in any of Gymnasium's three autoreset modes, EnvPool's, loose ones."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from agilerl import tree as trees
from agilerl.envs.lanes import HEAL, Contract, check_seeds, failure, short, warn_of_statistics
from agilerl.envs.masks import FINAL_MASK, MASK, ActionMasks
from agilerl.envs.protocol import Lanes, StepBatch
from agilerl.errors import EnvError, warn_once
from agilerl.spaces import (
    count_words,
    holds_text,
    observation_space_channels_to_first,
    swap_channels,
    without_texts,
)


class VectorLanes:
    """A Gymnasium vector environment (or something with its `num_envs`, `reset` and `step`) as lanes.

    What differs between the modes is settled here: where the final observation is, and which rows are transitions.
    Lanes of a vector environment cannot rest: with `active` they are stepped all the same and the row is masked.

    Gymnasium's SyncVectorEnv and AsyncVectorEnv take a seed per lane. Others take one integer at most (so says
    Gymnasium's base class): they get the first seed, and their lanes' episodes may depend on one another.

    Args:
        env: the vector environment; `env.metadata["autoreset_mode"]` says how it resets, NEXT_STEP if it does not say.
            An environment that says nothing but gives `final_obs` (or the older `final_observation`) in its info is
            taken as SAME_STEP from then on.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        warn_of_statistics(env)
        self.num_lanes = int(env.num_envs)
        self._given: Any = getattr(env, "single_observation_space", None)
        self._texts = holds_text(self._given)
        self.single_observation_space: Space[Any] = without_texts(self._given)
        self.single_action_space: Space[Any] = getattr(env, "single_action_space", None)  # type: ignore[assignment]
        self.backend = f"{type(env).__module__.split('.')[0]}.{type(env).__name__}"
        self._masks = ActionMasks(self.single_action_space, self.backend)
        self._mask_method = vector_mask_method(env) if self._masks.width else None
        declared = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
        self._is_declared = declared is not None
        self.mode = AutoresetMode.NEXT_STEP if declared is None else _mode(declared)
        inner = getattr(env, "unwrapped", env)
        own = getattr(inner, "takes_seed_per_lane", False)
        self._takes_seed_per_lane = own or isinstance(inner, SyncVectorEnv | AsyncVectorEnv)
        self._takes_seed = self._takes_seed_per_lane or _takes_seed(env)
        self._resets_now = np.zeros(self.num_lanes, dtype=bool)  # NEXT_STEP: lanes whose next step is a reset
        self._contract: Contract | None = None

    def reset(self, seeds: np.ndarray | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        self._resets_now = np.zeros(self.num_lanes, dtype=bool)
        numbers = check_seeds(seeds, self.num_lanes)
        if numbers is not None and not self._takes_seed:
            _warn_unseeded(self.backend)
            numbers = None
        given = {} if numbers is None else {"seed": numbers if self._takes_seed_per_lane else numbers[0]}
        obs, info = self._call("reset()", self.env.reset, **given)
        obs = self._numbers(self._read(obs))
        self._contract = Contract(None, self.backend, obs)
        self._contract.finite(obs, call="reset()")
        return obs, self._with_masks(info, None)

    def _call(self, what: str, function: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (Exception, SystemExit) as error:
            raise failure(error, f"{self.backend}: {what}") from error

    def _read(self, obs: Any) -> Any:
        """A copy of observations, one or a batch, with counts of words in place of texts."""
        return _own(count_words(self._given, obs) if self._texts else obs)

    def _numbers(self, obs: Any) -> Any:
        for part in trees.leaves(obs):
            if part.dtype.kind not in "biufc" or not part.shape or len(part) != self.num_lanes:
                raise EnvError(
                    f"{self.backend} gave observations of {part.dtype}, shape {part.shape}; expected numbers, "
                    f"one row for each of {self.num_lanes} environments. {HEAL}"
                )
        return obs

    def resume(self, ended: np.ndarray) -> None:
        """Go on where other lanes over this environment stopped: `ended` [L] says which ended in their last step."""
        if self.mode is AutoresetMode.NEXT_STEP:
            self._resets_now = np.asarray(ended, dtype=bool).reshape(self.num_lanes).copy()

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> StepBatch:
        obs, reward, terminated, truncated, info = self._call("step()", self.env.step, actions)
        obs = self._numbers(self._read(obs))
        terminated, truncated = (np.asarray(f, dtype=bool).reshape(self.num_lanes) for f in (terminated, truncated))
        healed = np.asarray(info.get("healed", np.zeros(self.num_lanes)), dtype=bool)
        ended = (terminated | truncated) & ~healed  # a healed lane has begun its new episode already: no reset follows
        if not self._is_declared and ended.any() and _final_key(info) is not None:
            self.mode, self._is_declared = AutoresetMode.SAME_STEP, True
        mask = ~self._resets_now
        final_obs = obs
        is_same_step = self.mode is AutoresetMode.SAME_STEP
        # An observation that nobody acts on may carry a mask that allows nothing.
        info = self._with_masks(info, None if is_same_step or not ended.any() else ended)
        if self.mode is AutoresetMode.NEXT_STEP:
            self._resets_now = ended & mask
            terminated, truncated = terminated & mask, truncated & mask
        elif ended.any() and self.mode is AutoresetMode.SAME_STEP:
            final_obs = self._final_observations(obs, ended, info)
            info = self._with_final_mask(info, ended, self._final_masks(info, ended))
        elif ended.any():
            final_masks = info.get(MASK)
            obs, info = self._reset_ended(obs, ended, info)
            info = self._with_final_mask(info, ended, final_masks)
        if active is not None:
            mask = mask & active
        mask = mask & ~healed
        reward = np.where(mask, self._rewards(reward), 0.0)
        contract = self._contract or Contract(None, self.backend, obs)
        contract.finite(obs)
        if final_obs is not obs:
            contract.finite(final_obs)
        contract.finite_rewards(reward, mask)
        truncated = (truncated & mask) | healed  # no transition, but the end of an episode
        return StepBatch(obs, reward, terminated & mask, truncated, final_obs, mask, info)

    def _rewards(self, reward: Any) -> np.ndarray:
        given = np.asarray(reward)
        if given.dtype.kind not in "biuf" or given.size != self.num_lanes:
            raise EnvError(
                f"{self.backend} gave the rewards {short(reward)}; expected one number for each of {self.num_lanes} "
                f"environments. {HEAL}"
            )
        return given.astype(np.float64).reshape(self.num_lanes)

    def _final_observations(self, obs: Any, ended: np.ndarray, info: dict[str, Any]) -> Any:
        key = _final_key(info)
        if key is None:
            raise EnvError(
                f"{self.backend} resets in the same step but its info has no 'final_obs' for the lanes that ended: "
                f"the transition's next observation is lost. fix: give info['final_obs'], or use NEXT_STEP autoreset."
            )
        final = trees.copy(obs)
        given = info[key]
        for lane in np.flatnonzero(ended).tolist():
            by_lane = isinstance(given, np.ndarray | list) or (isinstance(given, tuple) and not isinstance(obs, tuple))
            row = given[lane] if by_lane else trees.take(given, lane)
            trees.put(final, lane, count_words(self._given, row) if self._texts else row)
        return final

    def _with_masks(self, info: dict[str, Any], is_over: np.ndarray | None) -> dict[str, Any]:
        """`info` with masks of legal actions in the one form in which lanes hand them on, see `envs.masks`."""
        if self._mask_method is not None and info.get(MASK) is None:
            info = {**info, MASK: tuple(self._call("action_masks()", self._mask_method))}
        masks = self._masks.of(info, self.num_lanes, is_over)
        if masks is None:
            return info
        return {**{key: value for key, value in info.items() if key != f"_{MASK}"}, MASK: masks}

    def _final_masks(self, info: dict[str, Any], ended: np.ndarray) -> np.ndarray | None:
        """What SAME_STEP environments say was legal in the final observations."""
        final = info.get("final_info")
        if isinstance(final, np.ndarray | list | tuple):  # a dictionary for each lane that has ended, else None
            final = {MASK: [one.get(MASK) if isinstance(one, dict) else None for one in final]}
        masks: np.ndarray | None = self._masks.of(final, self.num_lanes, ended)
        return masks

    def _with_final_mask(self, info: dict[str, Any], ended: np.ndarray, final: np.ndarray | None) -> dict[str, Any]:
        """`info` with the masks of the final observations; all actions where an ended lane does not tell."""
        present = self._masks.of(info, self.num_lanes)
        if present is None and final is None:
            return info
        masks = np.ones((self.num_lanes, self._masks.width), bool) if present is None else present.copy()
        masks[ended] = True if final is None else final[ended]
        return {**info, FINAL_MASK: masks}

    def _reset_ended(self, obs: Any, ended: np.ndarray, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        begun, reset_info = self.env.reset(options={"reset_mask": ended.copy()})
        masks = [
            None if masks is None else np.asarray(masks)
            for masks in (self._with_masks(reset_info, ~ended).get(MASK), info.get(MASK))
        ]
        known = next((part for part in masks if part is not None), None)
        if known is None or not self._masks.width:
            return trees.choose(ended, self._read(begun), obs), info
        first, then = (np.ones_like(known) if part is None else part for part in masks)
        return trees.choose(ended, self._read(begun), obs), {**info, MASK: np.where(ended[:, None], first, then)}

    def close(self) -> None:
        if hasattr(self.env, "close"):
            self.env.close()


class LooseEnv:
    """A single environment that is not a `gymnasium.Env`: rewards and flags may be arrays of length 1."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space = getattr(env, "observation_space", None)
        self.action_space = getattr(env, "action_space", None)
        self.spec = None

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """The seed is passed on when there is one and the environment takes it."""
        if seed is not None and not _takes_seed(self.env):
            _warn_unseeded(type(self.env).__name__)
            seed = None
        obs, info = self.env.reset() if seed is None else self.env.reset(seed=seed)
        return obs, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Flags become plain booleans; the reward is checked by the lanes."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        ended, cut = (np.asarray(value).reshape(-1)[0] for value in (terminated, truncated))
        return obs, reward, bool(ended), bool(cut), info

    def close(self) -> None:
        if hasattr(self.env, "close"):
            self.env.close()


# Ids that tests/unit/test_envs_pool.py compares with Gymnasium: add one there and here together.
CONFORMING = ("Acrobot-v1", "CartPole-v1", "LunarLander-v3", "MountainCar-v0")


class EnvPoolLanes:
    """L environments of one EnvPool; each lane's episodes depend on its own seed and actions alone.

    The dynamics are EnvPool's: equal to Gymnasium's to rounding, but the start states of a seed differ, so the back end
    is part of a run's identity. EnvPool takes seeds only when a pool is made, so `reset(seeds)` makes a new one (6 ms
    for 64 lanes). Its environments reset on the step after the end: that row has mask False. Lanes cannot rest: with
    `active` they are stepped all the same and the row is masked.

    Args:
        env_id: one of `CONFORMING`. num_lanes: L. num_threads: of the pool; results do not depend on it.
    """

    backend = "envpool"

    def __init__(self, env_id: str, num_lanes: int, *, num_threads: int = 1) -> None:
        if env_id not in CONFORMING:
            known = ", ".join(CONFORMING)
            raise EnvError(
                f"backend 'envpool' is compared with Gymnasium for {known}; got {env_id!r}. fix: no backend."
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
        numbers = check_seeds(seeds, self.num_lanes)
        if numbers is not None:
            self._lanes.close()
            self._lanes = self._make(numbers)
        return self._lanes.reset()

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> StepBatch:
        return self._lanes.step(np.asarray(actions, dtype=np.int32), active)

    def close(self) -> None:
        self._lanes.close()


class _Pool:
    """An EnvPool as a vector environment: copies of its arrays, whose memory the next step may use again."""

    def __init__(self, pool: Any, num_envs: int) -> None:
        self.pool, self.num_envs = pool, num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def reset(self) -> tuple[np.ndarray, dict[str, Any]]:
        obs, _ = self.pool.reset()
        return np.array(obs), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = self.pool.step(actions)
        return np.array(obs), np.array(reward), np.array(terminated), np.array(truncated), {}

    def close(self) -> None:
        self.pool.close()


class ChannelsFirstLanes:
    """Other lanes, with every image [H, W, C] in their observations as [C, H, W]; inside Dict and Tuple spaces too.

    For agents that were built for such observations while the environment gives channels last.
    """

    def __init__(self, lanes: Lanes) -> None:
        self.lanes, self.num_lanes, self.backend = lanes, lanes.num_lanes, lanes.backend
        self._space = lanes.single_observation_space
        self.single_observation_space: Space[Any] = observation_space_channels_to_first(self._space)
        self.single_action_space = lanes.single_action_space

    def reset(self, seeds: np.ndarray | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.lanes.reset(seeds)
        return swap_channels(obs, self._space), info

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> StepBatch:
        batch = self.lanes.step(actions, active)
        obs, final_obs = (swap_channels(part, self._space) for part in (batch.obs, batch.final_obs))
        return replace(batch, obs=obs, final_obs=final_obs)

    def close(self) -> None:
        self.lanes.close()


def vector_mask_method(env: Any) -> Callable[[], Any] | None:
    """What gives the masks of all environments of a vector that has them by `action_masks()`; None without it."""
    inner = getattr(env, "unwrapped", env)
    if not isinstance(inner, SyncVectorEnv | AsyncVectorEnv) or not all(inner.call("has_wrapper_attr", "action_masks")):
        return None
    return partial(inner.call, "action_masks")


def _own(obs: Any) -> Any:
    """A copy: vector environments may write the next observations into the same memory."""
    return trees.copy(obs) if isinstance(obs, dict | tuple) else np.array(obs)


def _takes_seed(env: Any) -> bool:
    parameters = inspect.signature(env.reset).parameters.values()
    return any(p.name == "seed" or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def _warn_unseeded(name: str) -> None:
    message = f"{name}.reset() takes no seed: its episodes are not repeatable. fix: def reset(self, *, seed=None, ...)."
    warn_once(f"unseeded:{name}", message)


def _mode(declared: Any) -> AutoresetMode:
    try:
        return declared if isinstance(declared, AutoresetMode) else AutoresetMode(declared)
    except ValueError as exc:
        known = ", ".join(repr(mode.value) for mode in AutoresetMode)
        raise EnvError(f"metadata['autoreset_mode'] must be one of {known}; got {declared!r}.") from exc


def _final_key(info: dict[str, Any]) -> str | None:
    return next((key for key in ("final_obs", "final_observation") if key in info), None)
