"""Single environments stepped sequentially in this process, with minimal overhead.

Also defines `Contract`, the checks on environment results for all lanes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space

from agilerl.core import foreign
from agilerl.core import tree as trees
from agilerl.core.spaces import nested
from agilerl.core.tree import Tree
from agilerl.envs.generators import LaneGenerators, construct
from agilerl.envs.masks import FINAL_MASK, MASK, ActionMasks, translation, warn_of_misnamed
from agilerl.envs.protocol import DEFINED, StepBatch
from agilerl.envs.readable import readable
from agilerl.envs.returned import HEAL as HEAL
from agilerl.envs.returned import as_info, is_flag, numbers, reset_values, step_values, unpacking_hint
from agilerl.envs.returned import short as short
from agilerl.errors import AgileRLError, EnvError, ShapeError, warn_once

EnvFactory = Callable[[], Any]

UNMARKED = {MASK: True, DEFINED: np.nan}  # rows of lanes that give nothing: all actions are legal, none is defined
_NUMBERS = (float, int, np.floating, np.integer, np.bool_)

# Gymnasium wrappers whose running statistics are stored neither in checkpoints nor in policies.
_OBSERVATIONS = "RSNorm(agent), or normalize_observations=true with PPO"
_REWARDS = "normalize_rewards=true in the training section of a manifest"
STATISTICS = {
    gymnasium.wrappers.NormalizeObservation: _OBSERVATIONS,
    gymnasium.wrappers.vector.NormalizeObservation: _OBSERVATIONS,
    gymnasium.wrappers.NormalizeReward: _REWARDS,
    gymnasium.wrappers.vector.NormalizeReward: _REWARDS,
}


class LaneInfo(dict[str, np.ndarray]):
    """Action masks and environment-defined actions of L lanes, each [L, ...]; absent until a lane gives one."""

    def __init__(self, num_lanes: int) -> None:
        super().__init__()
        self.num_lanes = num_lanes

    def write(self, key: str, rows: Any, values: np.ndarray, width: int) -> None:
        """Write values to rows, or parts of them, of the array [L, `width`]."""
        if key not in self:
            self[key] = np.full((self.num_lanes, width), UNMARKED[key])
        self[key][rows] = values

    def unmark(self, rows: int | slice | Sequence[int]) -> None:
        """Reset rows."""
        for key, values in self.items():
            values[rows] = UNMARKED[key]

    def copies(self) -> dict[str, np.ndarray]:
        """Return copies of the arrays."""
        return {key: values.copy() for key, values in self.items()}

    def after_reset(self, before: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return copies, and the masks of the final observations: those in `before`, the copies before the reset."""
        info = self.copies()
        if MASK in info:  # an environment may give masks only at the start of an episode
            info[FINAL_MASK] = before[MASK] if MASK in before else np.ones_like(info[MASK])
        return info


class LocalLanes:
    """L environments of this process, stepped sequentially: of single agents (`SyncLanes`), or of teams (`TeamLanes`).

    An environment that raises is an `EnvError` with its name and lane (`failure`). Draws from global generators follow
    a lane's seeds (`LaneGenerators`).

    Args:
        factories: one callable per lane, each returning a fresh environment.
        reset_ended: False leaves an ended lane unchanged: `obs` stays the final one and the lane must idle until the
            next `reset`. For evaluation, where an unused reset can cost as much as ten steps.
    """

    name: str
    generators: LaneGenerators
    is_team = False
    last_obs: Any = None

    def __init__(self, factories: Sequence[EnvFactory], *, reset_ended: bool = True) -> None:
        if not factories:
            raise EnvError("lanes need at least one environment factory; got none. fix: pass a factory per lane.")
        self.envs = construct(factories)
        self.num_lanes, self.reset_ended = len(self.envs), reset_ended
        self._info = LaneInfo(self.num_lanes)

    def _reset_lanes(self, seeds: list[int] | None) -> tuple[Any, dict[str, Any]]:
        """Reset all lanes: obs [L, ...] and info."""
        raise NotImplementedError

    def _step_lanes(self, actions: Any, active: np.ndarray | None) -> StepBatch:
        """Step all lanes, or those in `active` [L]."""
        raise NotImplementedError

    def reset(self, seeds: np.ndarray | None = None) -> tuple[Any, dict[str, Any]]:
        numbers, self.last_obs = check_seeds(seeds, self.num_lanes), None
        return self.generators.reset(numbers, partial(self._reset_lanes, numbers))

    def step(self, actions: Any, active: np.ndarray | None = None) -> StepBatch:
        """Step the lanes; see `protocol.Lanes.step`. `actions` [L, ...], nested like their space, or one per lane; of
        teams one row each, see `Team.join`, which is ignored for absent agents."""
        if self.last_obs is None:
            raise EnvError("lanes must be reset before the first step. fix: call reset() first.")
        if not self.generators.are_exchanged:
            return self._step_lanes(actions, active)
        return self.generators.step(partial(self._step_lanes, actions, active))

    def _reset_env(self, lane: int, seed: int | None) -> tuple[Any, Mapping[str, Any]]:
        """Reset the environment of one lane: its observation, unchecked, and info."""
        where = f"{self.name}, lane {lane}"
        try:
            result = self.generators.call(lane, self.envs[lane].reset, **({} if seed is None else {"seed": seed}))
        except (Exception, SystemExit) as error:
            raise failure(error, f"{where}: reset()") from error
        obs, info = reset_values(result, where, is_team=self.is_team)
        return obs, {} if info is None else info

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Get attribute `name` of every environment, or call it if it is a method; lane by lane."""
        attributes = [getattr(env, name) for env in self.envs]
        return tuple(value(*args, **kwargs) if callable(value) else value for value in attributes)

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Set attribute `name` of every environment to its value in `values` [L]."""
        for env, value in zip(self.envs, values, strict=True):
            setattr(env, name, value)

    def close(self) -> None:
        for env in self.envs:
            env.close()


class SyncLanes(LocalLanes):
    """L independent environments; each lane's episodes depend only on its seed and actions.

    An ended lane is reset immediately (the true final observation is in `final_obs`), so every row with mask True is a
    transition. Idle lanes cost nothing.

    Results are checked first: if an environment returns anything but finite numbers of its space's shape and kind, an
    `EnvError` names environment, lane and value (`Contract`).

    Args: see `LocalLanes`; the environments are Gymnasium's.
    """

    backend = "lanes"

    def __init__(self, factories: Sequence[EnvFactory], *, reset_ended: bool = True) -> None:
        super().__init__(factories, reset_ended=reset_ended)
        self.envs = list(map(readable, self.envs))
        self.single_observation_space, self.single_action_space = spaces_in(self.envs[0], is_required=False)
        self._steps = [env.step for env in self.envs]
        is_gymnasiums = all(_is_gymnasiums_own(env) for env in self.envs)
        self.generators = LaneGenerators(self.num_lanes, may_draw=not is_gymnasiums)
        # Gymnasium's own environments get Python integers, whose checks are 0.7 us faster than numpy's. Others get
        # numpy scalars as from SyncVectorEnv, since some call action.item().
        self._plain_actions = is_gymnasiums and isinstance(self.single_action_space, gymnasium.spaces.Discrete)
        self.name = name_of(self.envs[0])
        warn_of_statistics(self.envs[0])
        self._contract: Contract | None = None  # created at the first reset: without a space it defines the shapes
        self._masks = ActionMasks(self.single_action_space, self.name)
        self._translations = [translation(env) for env in self.envs]
        self._mask_methods = [mask_method(env) for env in self.envs] if self._masks.width else []
        self._tells_masks = any(self._mask_methods)

    def _reset_lanes(self, seeds: list[int] | None) -> tuple[Any, dict[str, Any]]:
        self._info.clear()
        rows, masks = [], {}
        for lane in range(self.num_lanes):
            obs, info = self._reset_lane(lane, None if seeds is None else seeds[lane])
            rows.append(obs)
            if MASK in info or self._tells_masks:
                masks[lane] = self._mask_of(lane, info)
            elif info and self._masks.width:
                warn_of_misnamed(info, self.name)
        self._keep_masks(masks, range(self.num_lanes), None)
        obs = trees.stack(self.single_observation_space, rows)
        self._checked(obs).finite(obs, call="reset()")
        self.last_obs = obs
        return trees.copy(self.last_obs), self._info.copies()

    def resume(self, obs: Tree) -> None:
        """Continue from other lanes over these environments; `obs` [L, ...] are the last observations."""
        self._checked(obs)
        self.last_obs = trees.copy(obs)

    def _checked(self, like: Tree | None = None) -> Contract:
        if self._contract is None:
            self._contract = Contract(self.single_observation_space, self.name, like)
        return self._contract

    def _reset_lane(self, lane: int, seed: int | None = None) -> tuple[Any, Mapping[str, Any]]:
        """Reset one lane and check its observation."""
        obs, info = self._reset_env(lane, seed)
        has_contract = self._contract is not None or self.single_observation_space is not None
        return (self._checked().row(obs, lane, "reset()") if has_contract else obs), info

    def _step_lanes(self, actions: Any, active: np.ndarray | None) -> StepBatch:
        actions = by_lane(self.single_action_space, actions)
        if len(actions) != self.num_lanes:
            raise ShapeError(f"actions need one row per lane, {self.num_lanes}; got {len(actions)}. fix: one each.")
        obs = trees.copy(self.last_obs)
        reward = np.zeros(self.num_lanes)
        terminated, truncated = np.zeros((2, self.num_lanes), dtype=bool)
        contract = self._checked()
        stepped = range(self.num_lanes) if active is None else np.flatnonzero(active).tolist()
        done_lanes, masks = self._step_envs(actions, stepped, obs, reward, terminated, truncated)
        self._keep_masks(masks, stepped, terminated | truncated)
        contract.finite(obs)
        contract.finite_rewards(reward)
        final_obs, info = obs, self._info.copies()
        if done_lanes and self.reset_ended:
            obs = trees.copy(obs)
            masks = {}
            for lane in done_lanes:
                row, lane_info = self._reset_lane(lane)
                trees.put(obs, lane, row)
                if MASK in lane_info or self._tells_masks:
                    masks[lane] = self._mask_of(lane, lane_info)
            self._keep_masks(masks, done_lanes, None)
            info = self._info.after_reset(info)
            contract.finite(obs, call="reset()")
        self.last_obs = obs
        mask = np.ones(self.num_lanes, dtype=bool) if active is None else np.array(active, dtype=bool)
        return StepBatch(trees.copy(obs), reward, terminated, truncated, final_obs, mask, info)

    def _step_envs(
        self,
        actions: Any,
        stepped: Sequence[int],
        obs: Any,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
    ) -> tuple[list[int], dict[int, Any]]:
        """Step the lanes `stepped` and write their rows of `obs`, `reward`, `terminated` and `truncated`.

        Returns the lanes whose episode has ended, and action masks by lane.
        """
        per_lane = actions.tolist() if self._plain_actions and np.ndim(actions) == 1 else actions
        flat = isinstance(obs, np.ndarray)
        contract = self._checked()
        check_row, check_reward = contract.row, contract.reward
        steps = self.generators.wrapped(self._steps)
        done_lanes, masks = list[int](), dict[int, Any]()
        for lane in stepped:
            try:
                result = steps[lane](per_lane[lane])
            except (Exception, SystemExit) as error:
                raise failure(error, f"{self.name}, lane {lane}: step()") from error
            if type(result) is not tuple or len(result) != 5:
                result = step_values(result, f"{self.name}, lane {lane}")
            row, raw_reward, is_terminated, is_truncated, info = result
            if type(info) is not dict:
                info = as_info(info, f"{self.name}, lane {lane}", "step()")
            row = check_row(row, lane)
            reward[lane] = raw_reward if type(raw_reward) is float else check_reward(raw_reward, lane)
            if flat:
                obs[lane] = row
            else:
                trees.put(obs, lane, row)
            if is_terminated is not False or is_truncated is not False:
                terminated[lane] = contract.flag(is_terminated, lane, "terminated")
                truncated[lane] = contract.flag(is_truncated, lane, "truncated")
                if terminated[lane] or truncated[lane]:
                    done_lanes.append(lane)
            if MASK in info or self._tells_masks:
                masks[lane] = self._mask_of(lane, info)
        return done_lanes, masks

    def _mask_of(self, lane: int, info: Mapping[str, Any]) -> Any:
        """Return one environment's action mask: from its info, else from `action_masks()`; None allows everything."""
        method = self._mask_methods[lane] if self._tells_masks else None
        if MASK in info or method is None:
            translate = self._translations[lane]
            return info.get(MASK) if translate is None else translate(info.get(MASK))
        try:
            return method()
        except (Exception, SystemExit) as error:
            raise failure(error, f"{self.name}, lane {lane}: action_masks()") from error

    def _keep_masks(self, lane_masks: dict[int, Any], lanes: Sequence[int], is_over: np.ndarray | None) -> None:
        """Store the masks of the just observed `lanes`; without a mask all actions are legal.

        Args:
            lane_masks: masks by lane. is_over: [L] bool, lanes whose episode has ended.
        """
        self._info.unmark(lanes)
        if lane_masks and not self._masks.width:
            self._masks.of({MASK: True}, self.num_lanes)  # warns that they are ignored
        elif lane_masks:
            numbers = list(lane_masks)
            over = None if is_over is None else is_over[numbers]
            rows = self._masks.rows(list(lane_masks.values()), f"info[{MASK!r}]", numbers, over)
            self._info.write(MASK, numbers, rows, self._masks.width)


def by_lane(space: Space[Any], actions: Tree) -> Any:
    """Split actions [L, ...], nested like their space, into one per lane; arrays of a Box without axes stay
    arrays."""
    is_nested = isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple)
    if not (is_nested and isinstance(actions, Mapping | tuple)) and not (
        isinstance(space, gymnasium.spaces.Box) and space.shape == ()
    ):
        return actions
    space_tree = nested(space)

    def row(lane: int) -> Any:  # arrays for a Box, plain numbers for discrete actions
        return trees.map_leaves(lambda part, x: x[lane, ...] if _is_box(part) else x[lane], space_tree, actions)

    return [row(lane) for lane in range(trees.count_rows(actions))]


def _is_box(space: Space[Any]) -> bool:
    return isinstance(space, gymnasium.spaces.Box)


def check_seeds(seeds: np.ndarray | Sequence[int] | None, num_lanes: int) -> list[int] | None:
    """Return `seeds` as Python integers; ShapeError unless there is exactly one per lane."""
    if seeds is None:
        return None
    numbers = np.asarray(seeds)
    if numbers.shape != (num_lanes,):
        raise ShapeError(
            f"seeds must have one integer per lane: expected shape ({num_lanes},), got {numbers.shape}. "
            f"fix: agilerl.core.rng.seeds(run_seed, purpose, {num_lanes})."
        )
    return [int(number) for number in numbers]


def mask_method(env: foreign.Env) -> Callable[[], Any] | None:
    """Return the method `env.action_masks`, also inside wrappers (sb3-contrib's convention); None without one."""
    inner = env
    while (method := foreign.method(inner, "action_masks")) is None:
        if not isinstance(inner, gymnasium.Wrapper):
            return None
        inner = inner.env
    translate = translation(env, lambda one: one is inner)
    return method if translate is None else lambda: translate(method())


def spaces_in(env: foreign.Env, prefix: str = "", *, is_required: bool = True) -> tuple[Space[Any], Space[Any]]:
    """Return (observation space, action space) of an environment.

    Args:
        prefix: "single_" for a vector. is_required: False allows missing spaces, for agents that know theirs.

    Raises:
        EnvError: not a Gymnasium space.
    """
    env_spaces = [foreign.observation_space(env, prefix), foreign.action_space(env, prefix)]
    for name, space in zip(("observation_space", "action_space"), env_spaces, strict=True):
        if isinstance(space, Space) or (space is None and not is_required):
            continue
        example = (
            "gymnasium.spaces.Box(-np.inf, np.inf, (4,))"
            if name == "observation_space"
            else "gymnasium.spaces.Discrete(2)"
        )
        raise EnvError(
            f"{name_of(env)}: {prefix}{name} is {short(space)}; expected a space of gymnasium. "
            f"fix: self.{prefix}{name} = {example}, say."
        )
    return env_spaces[0], env_spaces[1]


def warn_of_statistics(env: foreign.Env) -> None:
    """Warn once about each wrapper around `env` with statistics, which differ between copies of the environment."""
    while isinstance(env, gymnasium.Wrapper | gymnasium.vector.VectorWrapper):
        if type(env) in STATISTICS:
            name = type(env).__name__
            warn_once(
                f"statistics of {name}",
                f"{name} keeps its running statistics in the environment: every lane and every evaluation has others, "
                f"and no checkpoint and no saved policy holds them. fix: {STATISTICS[type(env)]}.",
            )
        env = env.env


def _is_gymnasiums_own(env: foreign.Env) -> bool:
    if not isinstance(env, gymnasium.Env) or env.spec is None:
        return False
    return type(env.unwrapped).__module__.startswith("gymnasium.envs.") and not env.spec.additional_wrappers


# -- checks on environment results at the package boundary: here by row, elsewhere by batch ----------------------------


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array of an observation: path, shape, dtype (None if any number is accepted)."""

    path: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None


class Contract:
    """Checks for single observations, rewards and flags of one environment.

    Observations may be lists, have another width of the same kind of number (float64 for float32), or be integers for
    floating-point; lossy conversions and non-finite values are errors.

    Args:
        space: of one observation; None if unknown, then `like` is used.
        name: environment name, for messages.
        like: a batch [L, ...] of first observations, for environments without a space.
    """

    def __init__(self, space: Space[Any] | None, name: str, like: Tree | None = None) -> None:
        self.name = name
        self._tree = _tree(like if space is None else nested(space), ())
        self._leaves = list(trees.leaves(self._tree))
        self._plain = self._tree if isinstance(self._tree, Leaf) else None

    def error(self, lane: int, what: str, call: str = "step()") -> EnvError:
        """Build an error with environment, lane and actual value."""
        return EnvError(f"{self.name}, lane {lane}: {call} {what}. {HEAL}")

    def row(self, obs: Tree, lane: int, call: str = "step()") -> Any:
        """Convert one observation to arrays of the right shape and dtype; finiteness is checked by batch, see `finite`.

        EnvError: None, wrong shape, wrong kind of number, missing parts.
        """
        plain = self._plain
        if plain is not None and type(obs) is np.ndarray and obs.dtype == plain.dtype and obs.shape == plain.shape:
            return obs
        return self._row(self._tree, obs, lane, call, ())

    def _row(self, node: Any, obs: Any, lane: int, call: str, path: tuple[Any, ...]) -> Any:
        if isinstance(node, Leaf):
            return self._array(node, obs, lane, call)
        parts = {}
        for key in node if isinstance(node, dict) else range(len(node)):
            try:
                part = obs[key]
            except (KeyError, IndexError, TypeError):
                missing = "/".join(map(str, (*path, key)))
                what = f"gave an observation without its part {missing!r}: {short(obs)}"
                raise self.error(lane, what, call) from None
            parts[key] = self._row(node[key], part, lane, call, (*path, key))
        return parts if isinstance(node, dict) else tuple(parts.values())

    def _array(self, leaf: Leaf, value: object, lane: int, call: str) -> np.ndarray:
        part = f", part {'/'.join(map(str, leaf.path))!r}," if leaf.path else ""
        array = numbers(value)
        if array is None:
            raise self.error(lane, f"gave an observation{part} of {short(value)}; expected numbers", call)
        if array.shape != leaf.shape:
            raise self.error(lane, f"gave an observation{part} of shape {array.shape}; expected {leaf.shape}", call)
        dtype = leaf.dtype
        if dtype is None or array.dtype == dtype:
            return array
        whole = array.dtype.kind in "biu" and dtype.kind in "biu"  # then the values are compared
        fits = whole or np.can_cast(array.dtype, dtype, "same_kind")
        converted = array.astype(dtype) if fits else array
        if not fits or (whole and not np.array_equal(converted, array)):
            raise self.error(lane, f"gave an observation{part} of {array.dtype}; expected {dtype}", call)
        return converted

    def reward(self, value: Any, lane: int) -> float:
        """Return the reward as a plain number, also from an array of one number; EnvError if it is not a number."""
        if not isinstance(value, _NUMBERS):
            array = numbers(value)
            if array is None or array.size != 1:
                raise self.error(lane, f"gave the reward {short(value)}; expected a number")
            value = array.reshape(-1)[0]
        return float(value)

    def flag(self, value: object, lane: int, name: str) -> bool:
        """Return an end-of-episode flag as a boolean, also from an array of one; EnvError if it is not a boolean."""
        if isinstance(value, bool | np.bool_):
            return bool(value)
        array = numbers(value)
        if array is None or array.size != 1 or not is_flag(array):
            raise self.error(lane, f"gave {name} = {short(value)}; expected True or False")
        return bool(array.reshape(-1)[0])

    def finite(self, batch: Any, call: str = "step()") -> None:
        """Check that all observations [L, ...] are finite; otherwise an EnvError names the first lane."""
        for leaf in self._leaves:
            part = batch
            for key in leaf.path:
                part = part[key]
            if part.dtype.kind not in "fc" or math.isfinite(_square(part)) or np.isfinite(part).all():
                continue
            lane = int(np.argmin(np.isfinite(part.reshape(len(part), -1)).all(axis=1)))
            raise self.error(lane, f"gave an observation that is not finite: {short(part[lane])}", call)

    def finite_rewards(self, reward: np.ndarray, rows: np.ndarray | None = None) -> None:
        """Check that all rewards [L] (of `rows` [L] bool) are finite; otherwise an EnvError names the first lane."""
        if math.isfinite(_square(reward)):
            return
        bad = ~np.isfinite(reward) & (True if rows is None else rows)
        if bad.any():
            lane = int(np.argmax(bad))
            raise self.error(lane, f"gave the reward {reward[lane]}; expected a finite number")


def _square(values: np.ndarray) -> float:
    """Return the sum of squares: not finite if a value is not (or on overflow), and cheaper than elementwise checks."""
    flat = values.reshape(-1)
    return float(np.vdot(flat, flat).real)


def name_of(env: foreign.Env) -> str:
    """Return the name of an environment: its registered id, else its class."""
    return str(foreign.env_id(env) or type(foreign.bare(env)).__name__)


def failure(error: BaseException, where: str, fix: str = HEAL) -> BaseException:
    """Return the exception to raise if an environment's call raises: itself, if it is ours or ends the run.

    Signal handlers end a run by SystemExit (exit code 128 + number): that is not the environment's fault.
    """
    is_end = isinstance(error, SystemExit) and isinstance(error.code, int) and 128 < error.code < 160
    if is_end or isinstance(error, EnvError):
        return error
    text = " ".join(str(error).split())[:300].rstrip(".")
    text = f"{where} raised {type(error).__name__}{f': {text}' if text else ''}."
    return EnvError(f"{text}{unpacking_hint(error, where.rpartition(': ')[2])} {fix}")


def failure_of_make(error: BaseException, env_id: str) -> BaseException:
    """Return the exception to raise if `gymnasium.make` raises: itself, if it names the fix; else see `failure`."""
    if isinstance(error, AgileRLError | gymnasium.error.Error | ImportError):
        return error
    return failure(
        error, f"{env_id}: gymnasium.make()", "fix: correct it, or its keywords; a run makes it several times."
    )


def _tree(node: Any, path: tuple[Any, ...]) -> Any:
    """Return leaves nested like `node`: a tree of spaces, or a batch of first observations."""
    if isinstance(node, dict):
        return {key: _tree(part, (*path, key)) for key, part in node.items()}
    if isinstance(node, tuple):
        return tuple(_tree(part, (*path, i)) for i, part in enumerate(node))
    shape = tuple(node.shape or ()) if isinstance(node, Space) else node.shape[1:]
    return Leaf(path, shape, None if node.dtype is None else np.dtype(node.dtype))
