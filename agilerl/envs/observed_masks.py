"""Action masks inside observations: the convention of PettingZoo, RLlib and Shimmy.

A Dict observation with a part "action_mask" that fits the actions is split: the mask is applied, and networks read the
rest. `{"observation": x, "action_mask": m}` is read as x; several other parts stay a Dict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from agilerl.core import tree as trees
from agilerl.core.spaces import MaskAsFeature, mask_width, parts_of
from agilerl.envs.masks import FINAL_MASK, MASK, ActionMasks, component_sizes
from agilerl.envs.protocol import Lanes, StepBatch, begin_step, finish_step
from agilerl.errors import EnvError, warn_once

REST = "observation"  # the key that is unwrapped if it is the only one beside the mask


def holds_mask(observation_space: Space[Any], action_space: Space[Any]) -> bool:
    """Whether observations are a Dict with a part "action_mask" that fits the actions; not in a `MaskAsFeature`."""
    if not isinstance(observation_space, spaces.Dict) or isinstance(observation_space, MaskAsFeature):
        return False
    part = observation_space.spaces.get(MASK)
    return part is not None and _fits(part, action_space)


def without_mask(observation_space: Any, action_space: Any) -> Any:
    """Return the observation space without the action mask, as networks read it; unchanged without a mask.

    Raises:
        EnvError: the mask is the only part.
    """
    if not holds_mask(observation_space, action_space):
        _warn_of_feature(observation_space, action_space)
        return observation_space
    rest = {key: space for key, space in observation_space.spaces.items() if key != MASK}
    if not rest:
        raise EnvError(
            f"observations hold {MASK!r} alone, so there is nothing for a network to read. fix: add a part "
            f"{REST!r}, Box(0, 0, (1,)) if there is nothing to see."
        )
    return rest[REST] if set(rest) == {REST} else spaces.Dict(rest)


def carries_mask(obs: object, space: Space[Any] | None) -> bool:
    """Whether observations carry a mask besides the parts in this agent's observation space; False for None."""
    if space is None or not (isinstance(obs, Mapping) or hasattr(obs, "keys")) or MASK not in obs.keys():  # noqa: SIM118 (TensorDict)
        return False
    return not (isinstance(space, spaces.Dict) and MASK in space.spaces)


def split_mask(obs: Any, space: Any = None) -> tuple[Any, Any]:
    """Split observations, one or a batch, that carry a mask: (observation, unconverted mask).

    Args:
        space: space of the observation, if known.
    """
    rest = {key: obs[key] for key in obs.keys() if key != MASK}  # noqa: SIM118 (a TensorDict iterates over rows)
    return (rest[REST] if set(rest) == {REST} and not _is_whole(space) else rest), obs[MASK]


def with_mask(rest: Any, mask: Any, space: Any) -> dict[str, Any]:
    """Invert `split_mask`."""
    return {**rest, MASK: mask} if _is_whole(space) else {REST: rest, MASK: mask}


def _is_whole(space: Space[Any]) -> bool:
    """Whether an agent reads a Dict whose only part is named like the rest beside a mask."""
    return isinstance(space, spaces.Dict) and set(space.spaces) == {REST}


def parted(obs: Any, space: Any) -> tuple[Any, Any]:
    """Return (observation for an agent of this observation space, the mask or None)."""
    return split_mask(obs, space) if carries_mask(obs, space) else (obs, None)


def by_row(mask: Any) -> Any:
    """Convert a mask from observations for `envs.masks`: a batch with one array per component [B, n] row by row."""
    if isinstance(mask, tuple) and all(map(_has_rows, mask)):
        return trees.unbind(tuple(np.asarray(part) for part in mask))
    return mask


def _has_rows(part: np.ndarray) -> bool:
    try:
        return np.ndim(part) > 1
    except ValueError:  # masks of several parts, of different lengths or None
        return False


def _fits(space: Space[Any], action_space: Space[Any]) -> bool:
    """Whether values of the space are action masks."""
    width = mask_width(action_space)
    if not width:
        return False
    parts = parts_of(space)
    if not parts:
        size = _flags(space)
        return size == width or (isinstance(action_space, spaces.MultiBinary) and 2 * size == width)
    acted = {name: part for name, part in parts_of(action_space).items() if mask_width(part)}
    if acted:
        return acted.keys() == parts.keys() and all(_fits(parts[name], part) for name, part in acted.items())
    by_component = [_flags(part) for part in parts.values()]
    return isinstance(space, spaces.Tuple) and by_component == component_sizes(action_space)


def _flags(space: Any) -> int:
    """Return the number of binary values of a space; -1 for a space of others."""
    if isinstance(space, spaces.Box):
        is_flag = bool((space.low >= 0).all() and (space.high <= 1).all())
    elif isinstance(space, spaces.MultiDiscrete):
        is_flag = bool((space.nvec == 2).all() and (space.start == 0).all())
    else:
        is_flag = isinstance(space, spaces.MultiBinary)
    return int(np.prod(space.shape)) if is_flag else -1


def _warn_of_feature(space: Space[Any], action_space: Space[Any]) -> None:
    """Warn once about a part "action_mask" that does not fit the actions."""
    if isinstance(space, spaces.Dict) and not isinstance(space, MaskAsFeature) and MASK in space.spaces:
        width = mask_width(action_space)
        warn_once(
            f"no mask of {action_space}",
            f"the part {MASK!r} of observations, {space[MASK]}, is no mask of {action_space} and is read as a feature. "
            f"fix: {f'MultiBinary({width}) for that part' if width else 'another name for that part'}.",
        )


class MaskedObservations:
    """Wrap lanes whose observations carry masks: masks are moved to the info, and the rest is the observation.

    Masks in the environment's info take precedence.

    Attributes:
        whole: observations of the last reset or step, with masks.
    """

    def __init__(self, lanes: Lanes) -> None:
        self.lanes, self.num_lanes, self.backend = lanes, lanes.num_lanes, lanes.backend
        self.single_action_space = lanes.single_action_space
        self.single_observation_space: Space[Any] = without_mask(
            lanes.single_observation_space, lanes.single_action_space
        )
        self._masks = ActionMasks(lanes.single_action_space, lanes.backend)
        self.whole: Any = None

    def reset(self, seeds: np.ndarray | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.lanes.reset(seeds)
        self.whole = obs
        rest, mask = self._divided(obs, None)
        return rest, {MASK: mask, **info}

    def resumed(self, whole: trees.Tree, info: Mapping[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        """Return the result of `reset` or `step` when continuing from the observations `whole` and this info."""
        self.whole = whole
        rest, mask = self._divided(whole, np.ones(self.num_lanes, bool))
        return rest, {MASK: mask, **(info or {})}

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> StepBatch:
        return self._without_masks(self.lanes.step(actions, active))

    def begin_step(self, actions: np.ndarray, active: np.ndarray | None = None) -> Any:
        return begin_step(self.lanes, actions, active)

    def finish_step(self, pending: object) -> StepBatch:
        return self._without_masks(finish_step(self.lanes, pending))

    def _without_masks(self, batch: StepBatch) -> StepBatch:
        # The mask of an observation that is not acted on may allow nothing.
        is_over = batch.terminated | batch.truncated | ~batch.mask
        self.whole = batch.obs
        obs, mask = self._divided(batch.obs, is_over)
        final_obs, final_mask = self._divided(batch.final_obs, is_over)
        info = {MASK: mask, **batch.info}
        if FINAL_MASK not in info and MASK not in batch.info:
            info[FINAL_MASK] = final_mask
        return replace(batch, obs=obs, final_obs=final_obs, info=info)

    def _divided(self, obs: trees.Tree, is_over: np.ndarray | None) -> tuple[Any, np.ndarray]:
        rest, mask = split_mask(obs)
        return rest, self._masks.rows(trees.unbind(mask), f"the part {MASK!r} of an observation", is_over=is_over)

    def close(self) -> None:
        self.lanes.close()


def follow_masks(lanes: Lanes, observation_space: Any = None) -> Lanes:
    """Wrap lanes for an agent that reads `observation_space`, applying masks in observations.

    Args:
        observation_space: of the agent; lanes are unchanged if it reads the mask as a feature. None applies masks.
    """
    if not holds_mask(lanes.single_observation_space, lanes.single_action_space):
        return lanes
    if isinstance(observation_space, spaces.Dict) and MASK in observation_space.spaces:
        return lanes
    return MaskedObservations(lanes)
