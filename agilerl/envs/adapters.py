"""Adapters from third-party environments to lanes: Gymnasium vectors in any autoreset mode, and single ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from agilerl.core import foreign
from agilerl.core import tree as trees
from agilerl.core.spaces import (
    count_words,
    holds_text,
    observation_space_channels_to_first,
    swap_channels,
    without_texts,
)
from agilerl.core.tree import Tree
from agilerl.envs.lanes import HEAL, Contract, check_seeds, failure, short, spaces_in, warn_of_statistics
from agilerl.envs.masks import FINAL_MASK, MASK, ActionMasks, translation
from agilerl.envs.protocol import Lanes, StepBatch, begin_step, finish_step
from agilerl.envs.returned import (
    HEALED,
    as_vector_info,
    final_key,
    is_flag,
    numbers,
    plain,
    reset_values,
    step_values,
)
from agilerl.errors import EnvError, warn_once


class VectorLanes:
    """A Gymnasium vector environment (or an object with its `num_envs`, `reset` and `step`) as lanes.

    Handles differences between autoreset modes: the location of the final observation, and which rows are transitions.
    Lanes of a vector environment cannot idle: with `active` they are stepped anyway and the row is masked.

    Gymnasium's SyncVectorEnv and AsyncVectorEnv take a seed per lane. Others take at most one integer (as in
    Gymnasium's base class): they get the first seed, and episodes of their lanes may not be independent.

    Args:
        env: the vector environment; `env.metadata["autoreset_mode"]` gives its mode, NEXT_STEP by default. An
            environment without a declared mode whose info contains `final_obs` (or `final_observation`,
            `terminal_observation`) is treated as SAME_STEP from then on; without either it is treated as NEXT_STEP,
            with a warning.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        warn_of_statistics(env)
        self.num_lanes = int(env.num_envs)
        self._given: Any
        self.single_action_space: Space[Any]
        self._given, self.single_action_space = spaces_in(env, "single_", is_required=False)
        self._texts = holds_text(self._given)
        self.single_observation_space: Space[Any] = without_texts(self._given)
        shape = foreign.shape(self.single_observation_space)
        self._shape = None if shape is None else (self.num_lanes, *shape)  # of array observations
        self.backend = f"{type(env).__module__.split('.')[0]}.{type(env).__name__}"
        self._masks = ActionMasks(self.single_action_space, self.backend)
        self._mask_method = vector_mask_method(env) if self._masks.width else None
        singles = [one for one in foreign.copies(foreign.bare(env))[:1] if isinstance(one, gymnasium.Env)]
        self._translations = [f for f in map(translation, [*singles, env]) if f is not None]
        declared = foreign.metadata(env).get("autoreset_mode")
        self._is_declared = declared is not None
        self.mode = AutoresetMode.NEXT_STEP if declared is None else _mode(declared)
        inner = foreign.bare(env)
        declares_lane_seeds = foreign.takes_seed_per_lane(inner)
        self._takes_seed_per_lane = declares_lane_seeds or isinstance(inner, SyncVectorEnv | AsyncVectorEnv)
        self._takes_seed = self._takes_seed_per_lane or _takes_seed(env)
        self._resets_now = np.zeros(self.num_lanes, dtype=bool)  # NEXT_STEP: lanes whose next step is a reset
        self._guess: _Guess | None = None  # for an undeclared mode
        self._contract: Contract | None = None

    def reset(self, seeds: np.ndarray | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        self._resets_now = np.zeros(self.num_lanes, dtype=bool)
        numbers = check_seeds(seeds, self.num_lanes)
        if numbers is not None and not self._takes_seed:
            _warn_unseeded(self.backend)
            numbers = None
        seed_kwargs = {} if numbers is None else {"seed": numbers if self._takes_seed_per_lane else numbers[0]}
        obs, info = self._begin(seed_kwargs)
        self._contract = Contract(None, self.backend, obs)
        self._contract.finite(obs, call="reset()")
        self._guess = None if self._is_declared else _Guess(self.backend, obs)
        return obs, self._with_masks(info, None)

    def _begin(self, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Reset with these keywords and return observations and info."""
        result = self._call("reset()", self.env.reset, **options)
        obs, info = reset_values(result, self.backend, is_vector=True)
        return self._read(obs, "reset()"), as_vector_info(info, self.num_lanes, self.backend, "reset()")

    def _call(self, what: str, function: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except (Exception, SystemExit) as error:
            raise failure(error, f"{self.backend}: {what}") from error

    def _read(self, obs: Any, call: str) -> Any:
        """Copy a batch of observations as arrays, with word counts instead of texts."""
        if type(obs) is np.ndarray and obs.shape == self._shape and obs.dtype.kind in "biuf" and not self._texts:
            return np.array(obs)
        try:
            arrays = _owned(count_words(self._given, obs) if self._texts else obs, self.single_observation_space)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            got = f"{short(obs)} ({type(error).__name__}: {' '.join(str(error).split())})"
            raise EnvError(
                f"{self.backend}: {call} gave the observations {got}; expected those of "
                f"{self.single_observation_space}, one row for each of {self.num_lanes} environments. {HEAL}"
            ) from error
        self._check_rows(arrays, self.single_observation_space, call)
        return arrays

    def _check_rows(self, obs: Any, space: Any, call: str) -> None:
        if isinstance(obs, dict | tuple):
            parts = obs.items() if isinstance(obs, dict) else enumerate(obs)
            for key, part in parts:
                self._check_rows(part, None if space is None else space.spaces[key], call)
            return
        shape = None if space is None or space.shape is None else (self.num_lanes, *space.shape)
        is_shaped = shape is None or _without_ones(obs.shape) == _without_ones(shape)
        if obs.dtype.kind not in "biuf" or obs.shape[:1] != (self.num_lanes,) or not is_shaped:
            wanted = f"numbers of shape {shape}" if shape else f"numbers, one row for each of {self.num_lanes} lanes"
            raise EnvError(
                f"{self.backend}: {call} gave observations of {obs.dtype}, shape {obs.shape}; expected {wanted}. {HEAL}"
            )

    def resume(self, done: np.ndarray) -> None:
        """Continue from other lanes over this environment; `done` [L] marks lanes that ended in their last step."""
        if self.mode is AutoresetMode.NEXT_STEP:
            self._resets_now = np.asarray(done, dtype=bool).reshape(self.num_lanes).copy()

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> StepBatch:
        result = self._call("step()", self.env.step, actions)
        raw_obs, rewards, ends, cuts, raw_info = step_values(result, self.backend, is_vector=True)
        obs, info = self._read(raw_obs, "step()"), as_vector_info(raw_info, self.num_lanes, self.backend, "step()")
        terminated, truncated = self._flags(ends, "terminated"), self._flags(cuts, "truncated")
        reward = self._rewards(rewards)
        healed = np.asarray(info.get(HEALED, np.zeros(self.num_lanes)), dtype=bool)
        done = (terminated | truncated) & ~healed  # healed lanes are already in their new episode: no reset follows
        if not self._is_declared and done.any() and final_key(info) is not None:
            self.mode, self._is_declared, self._guess = AutoresetMode.SAME_STEP, True, None
        if self._guess is not None:
            self._guess.compare(self._resets_now, reward, obs, done)
        mask = ~self._resets_now
        final_obs = obs
        is_same_step = self.mode is AutoresetMode.SAME_STEP
        # Without a following action, a mask may allow nothing.
        info = self._with_masks(info, None if is_same_step or not done.any() else done)
        if self.mode is AutoresetMode.NEXT_STEP:
            self._resets_now = done & mask
            terminated, truncated = terminated & mask, truncated & mask
        elif done.any() and self.mode is AutoresetMode.SAME_STEP:
            final_obs = self._final_observations(obs, done, info)
            info = self._with_final_mask(info, done, self._final_masks(info, done))
        elif done.any():
            final_masks = info.get(MASK)
            obs, info = self._reset_ended(obs, done, info)
            info = self._with_final_mask(info, done, final_masks)
        if active is not None:
            mask = mask & active
        mask = mask & ~healed
        reward = np.where(mask, reward, 0.0)
        contract = self._contract or Contract(None, self.backend, obs)
        contract.finite(obs)
        if final_obs is not obs:
            contract.finite(final_obs)
        contract.finite_rewards(reward, mask)
        truncated = (truncated & mask) | healed  # not a transition, but the end of an episode
        replaced = healed if healed.any() else None
        return StepBatch(obs, reward, terminated & mask, truncated, final_obs, mask, info, healed=replaced)

    def _rewards(self, reward: Tree) -> np.ndarray:
        array = numbers(reward)
        if array is None or array.size != self.num_lanes:
            raise EnvError(
                f"{self.backend}: step() gave the rewards {short(reward)}; expected one number for each of "
                f"{self.num_lanes} environments. {HEAL}"
            )
        return array.astype(np.float64).reshape(self.num_lanes)

    def _flags(self, flags: Tree, name: str) -> np.ndarray:
        if type(flags) is np.ndarray and flags.dtype == np.bool_ and flags.shape == (self.num_lanes,):
            return flags
        array = numbers(flags)
        if array is None or array.size != self.num_lanes or not is_flag(array):
            raise EnvError(
                f"{self.backend}: step() gave {name} = {short(flags)}; expected True or False for each of "
                f"{self.num_lanes} environments. {HEAL}"
            )
        return array.astype(bool).reshape(self.num_lanes)

    def _final_observations(self, obs: Tree, done: np.ndarray, info: dict[str, Any]) -> Any:
        key = final_key(info)
        if key is None:
            raise EnvError(
                f"{self.backend} resets in the same step but its info has no 'final_obs' for the lanes that ended: "
                f"the transition's next observation is lost. fix: give info['final_obs'], or use NEXT_STEP autoreset."
            )
        final = trees.copy(obs)
        final_rows = plain(info[key])
        by_lane = isinstance(final_rows, np.ndarray | list) or (
            isinstance(final_rows, tuple) and not isinstance(obs, tuple)
        )
        for lane in np.flatnonzero(done).tolist():
            try:
                row = final_rows[lane] if by_lane else trees.take(final_rows, lane)
                arrays = _owned(count_words(self._given, row) if self._texts else row, self.single_observation_space)
                shapes = zip(trees.leaves(arrays), trees.leaves(trees.take(obs, lane)), strict=True)
                if any(part.size != like.size for part, like in shapes):
                    raise ValueError("another shape")
                trees.put(final, lane, arrays)
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise EnvError(
                    f"{self.backend}: info[{key!r}] of environment {lane}, which has ended, is no observation of "
                    f"{self.single_observation_space} ({type(error).__name__}: {' '.join(str(error).split())}). "
                    f"fix: an observation for each environment that ended."
                ) from error
        return final

    def _with_masks(self, info: dict[str, Any], is_over: np.ndarray | None) -> dict[str, Any]:
        """Return `info` with action masks in canonical form, see `envs.masks`."""
        if self._mask_method is not None and info.get(MASK) is None:
            info = {**info, MASK: tuple(self._call("action_masks()", self._mask_method))}
        info = self._translated(info)
        masks = self._masks.of(info, self.num_lanes, is_over)
        if masks is None:
            return info
        return {**{key: value for key, value in info.items() if key != f"_{MASK}"}, MASK: masks}

    def _final_masks(self, info: dict[str, Any], done: np.ndarray) -> np.ndarray | None:
        """Return the action masks of final observations in SAME_STEP environments."""
        final = info.get("final_info")
        if isinstance(final, np.ndarray | list | tuple):  # one dictionary per ended lane, else None
            final = {MASK: [one.get(MASK) if isinstance(one, dict) else None for one in final]}
        final = self._translated(final) if isinstance(final, Mapping) else None
        masks: np.ndarray | None = self._masks.of(final, self.num_lanes, done)
        return masks

    def _translated(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """Return `info` with masks of the outermost wrapper's actions, see `masks.translation`."""
        rows = info.get(MASK)
        if rows is not None:
            for translate in self._translations:
                rows = [translate(row) for row in rows]
        return {**info, **({} if rows is None else {MASK: rows})}

    def _with_final_mask(self, info: dict[str, Any], done: np.ndarray, final: np.ndarray | None) -> dict[str, Any]:
        """Return `info` with the masks of the final observations; all actions if an ended lane has none."""
        present = self._masks.of(info, self.num_lanes)
        if present is None and final is None:
            return info
        masks = np.ones((self.num_lanes, self._masks.width), bool) if present is None else present.copy()
        masks[done] = True if final is None else final[done]
        return {**info, FINAL_MASK: masks}

    def _reset_ended(self, obs: Tree, done: np.ndarray, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        first_obs, reset_info = self._begin({"options": {"reset_mask": done.copy()}})
        masks = [
            None if masks is None else np.asarray(masks)
            for masks in (self._with_masks(reset_info, ~done).get(MASK), info.get(MASK))
        ]
        template = next((part for part in masks if part is not None), None)
        if template is None or not self._masks.width:
            return trees.choose(done, first_obs, obs), info
        first, then = (np.ones_like(template) if part is None else part for part in masks)
        return trees.choose(done, first_obs, obs), {**info, MASK: np.where(done[:, None], first, then)}

    def close(self) -> None:
        if hasattr(self.env, "close"):
            self.env.close()


class _Guess:
    """NEXT_STEP, assumed for an undeclared autoreset mode: a warning is issued, and the assumption is checked against
    the environment's behaviour.

    Args:
        name: environment name. first: [L, ...] observations of its last reset.
    """

    def __init__(self, name: str, first: Any) -> None:
        self.name, self.first = name, first
        self.begins = np.zeros(len(next(trees.leaves(first))), dtype=bool)

    def compare(self, resets: np.ndarray, reward: np.ndarray, obs: Tree, done: np.ndarray) -> None:
        """Check one step.

        A lane that ended with the observation of a reset, and whose next step has a reward and leads elsewhere, was
        reset in the same step: a reset step has no reward and ends at the start. Either sign alone may have other
        causes (a goal at the start, a wrapper that shifts rewards).

        Args:
            resets: [L] lanes whose step should have been a reset. reward: [L]. obs: [L, ...]. done: [L].

        Raises:
            EnvError: it resets in the same step.
        """
        at_start = self._is_first(obs)
        if (resets & self.begins & (reward != 0) & ~at_start).any():
            raise EnvError(
                f"{self.name} resets in the same step as an episode ends, which it does not declare: its final "
                "observations are lost. fix: metadata = {'autoreset_mode': gymnasium.vector.AutoresetMode.SAME_STEP} "
                "and info['final_obs']."
            )
        self.begins = done & at_start
        if done.any():
            warn_once(
                f"autoreset of {self.name}",
                f"{self.name} does not declare metadata['autoreset_mode'] and gives no info['final_obs']: it is taken "
                "as NEXT_STEP, and the step after an end is skipped as a reset. fix: metadata = {'autoreset_mode': "
                "gymnasium.vector.AutoresetMode.NEXT_STEP}, or SAME_STEP with info['final_obs'].",
                stacklevel=4,
            )

    def _is_first(self, obs: Any) -> np.ndarray:
        """Return [L]: whether a lane's observation equals that of the reset."""
        pairs = zip(trees.leaves(obs), trees.leaves(self.first), strict=True)
        rows = [(one == other).reshape(len(one), -1).all(axis=1) for one, other in pairs]
        same: np.ndarray = np.logical_and.reduce(rows)
        return same


class LooseEnv(gymnasium.Env[Any, Any]):
    """A single environment that is not a `gymnasium.Env`: rewards and flags may be arrays of length 1."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.observation_space = foreign.observation_space(env)
        self.action_space = foreign.action_space(env)
        self.metadata = dict(foreign.metadata(env))
        self.render_mode = foreign.render_mode(env)

    @property
    def unwrapped(self) -> Any:
        """The environment itself, whose name is used in messages."""
        return self.env

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset, passing the seed if there is one and the environment accepts it."""
        if seed is not None and not _takes_seed(self.env):
            _warn_unseeded(type(self.env).__name__)
            seed = None
        return self.env.reset() if seed is None else self.env.reset(seed=seed)

    def step(self, action: Any) -> Any:
        """Step the environment and return its raw result."""
        return self.env.step(action)

    def render(self) -> Any:
        """Render the environment."""
        return self.env.render()

    def close(self) -> None:
        if hasattr(self.env, "close"):
            self.env.close()


class ChannelsFirstLanes:
    """Wrap lanes and transpose every image [H, W, C] in their observations to [C, H, W], also in Dict and Tuple spaces.

    For agents with channels-first inputs in a channels-last environment.
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
        return self._swapped(self.lanes.step(actions, active))

    def begin_step(self, actions: np.ndarray, active: np.ndarray | None = None) -> Any:
        return begin_step(self.lanes, actions, active)

    def finish_step(self, pending: Any) -> StepBatch:
        return self._swapped(finish_step(self.lanes, pending))

    def _swapped(self, batch: StepBatch) -> StepBatch:
        obs, final_obs = (swap_channels(part, self._space) for part in (batch.obs, batch.final_obs))
        return replace(batch, obs=obs, final_obs=final_obs)

    def close(self) -> None:
        self.lanes.close()


def vector_mask_method(env: foreign.Env) -> Callable[[], Any] | None:
    """Return the `action_masks()` method of a vector environment that has one, else None."""
    inner = foreign.bare(env)
    if not isinstance(inner, SyncVectorEnv | AsyncVectorEnv) or not all(inner.call("has_wrapper_attr", "action_masks")):
        return None
    return partial(inner.call, "action_masks")


def _owned(obs: Any, space: Space[Any] | None) -> Any:
    """Copy observations, nested like the space: environments may reuse the memory."""
    parts = foreign.parts(space)
    if isinstance(parts, Mapping):
        return {key: _owned(obs[key], part) for key, part in parts.items()}
    if parts is not None:
        return tuple(_owned(part, part_space) for part, part_space in zip(obs, parts, strict=True))
    if space is None and isinstance(obs, Mapping):
        return {key: _owned(part, None) for key, part in obs.items()}
    if space is None and isinstance(obs, tuple):
        return tuple(_owned(part, None) for part in obs)
    rows = [plain(row) for row in obs] if isinstance(obs, list | tuple) else plain(obs)
    return np.array(rows)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Drop superfluous trailing axes of length 1."""
    while len(shape) > 1 and shape[-1] == 1:
        shape = shape[:-1]
    return shape


def _takes_seed(env: foreign.Env) -> bool:
    parameters = inspect.signature(env.reset).parameters.values()
    return any(p.name == "seed" or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def _warn_unseeded(name: str) -> None:
    message = f"{name}.reset() takes no seed: its episodes are not repeatable. fix: def reset(self, *, seed=None, ...)."
    warn_once(f"unseeded:{name}", message)


def _mode(declared: object) -> AutoresetMode:
    try:
        return declared if isinstance(declared, AutoresetMode) else AutoresetMode(declared)
    except ValueError as exc:
        valid_modes = ", ".join(repr(mode.value) for mode in AutoresetMode)
        raise EnvError(f"metadata['autoreset_mode'] must be one of {valid_modes}; got {declared!r}.") from exc
