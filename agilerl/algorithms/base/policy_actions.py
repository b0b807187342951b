"""Convert actions of a stochastic policy between three forms: of its distribution, as stored, of the environment.

Stored actions are arrays [..., *shape], where `shape` is that of the space; of a Dict or Tuple space rows of the
numbers of all parts [..., K].
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agilerl.core.spaces import nested
from agilerl.core.transfer import to_device
from agilerl.core.tree import map_leaves
from agilerl.engine.protocol import Mask
from agilerl.networks.actors import box_action
from agilerl.networks.distributions import ActionDistribution, distribution_of, uniform_action


def legal_tensor(mask: Mask, like: Tensor) -> Tensor | None:
    """Return a mask of legal actions as a tensor on the device of `like`."""
    return None if mask is None else to_device(torch.as_tensor(np.array(mask)), like.device).bool()


def stored_shape(space: gym.Space[Any]) -> tuple[int, ...]:
    """Return the shape of a stored action: that of the space; for a Dict or Tuple [K], the numbers of all parts."""
    if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        return (distribution_of(space).columns,)
    return tuple(space.shape or ())


def stored(space: gym.Space[Any], action: Tensor) -> np.ndarray:
    """Return sampled actions [..., A] in the form to store."""
    array: np.ndarray = action.cpu().numpy()
    if isinstance(space, gym.spaces.Discrete | gym.spaces.Dict | gym.spaces.Tuple):
        return array
    return array.reshape(*array.shape[:-1], *(space.shape or ()))


def as_drawn(space: gym.Space[Any], action: Tensor) -> Tensor:
    """Return stored actions [..., *shape] in the form of the distribution: [..., A], or [...] for one choice."""
    rank = len(space.shape or ())
    if not rank and isinstance(space, gym.spaces.Box):
        return action.unsqueeze(-1)
    return action.flatten(-rank) if rank > 1 else action


def log_prob_and_entropy(
    kind: ActionDistribution, raw: Tensor, action: Tensor, legal: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return (log probability, entropy) of sampled actions [..., A]; −log π estimates the entropy of squashed ones."""
    log_prob = kind.log_prob(raw, action, legal)
    return log_prob, -log_prob if kind.kind == "squashed" else kind.entropy(raw, legal)


def random_stored(
    space: gym.Space[Any],
    kind: ActionDistribution,
    rng: np.random.Generator,
    shape: tuple[int, ...],
    mask: Mask = None,
) -> np.ndarray:
    """Draw uniformly random legal actions to store, flat [*shape, K]; int64 for MultiDiscrete."""
    actions = uniform_action(kind, space, rng, shape, mask)
    return actions.astype(np.int64) if isinstance(space, gym.spaces.MultiDiscrete) else actions


def in_environment(space: gym.Space[Any], kind: ActionDistribution, action: np.ndarray) -> Any:
    """Return stored actions [..., *] in the form of the environment, nested like the space."""
    if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple):
        leading, spaces = action.shape[:-1], nested(space)
        ends = np.cumsum([part.columns for part in kind.parts]).tolist()
        columns = iter(zip(kind.parts, ends, strict=True))

        def leaf(part: gym.Space[Any]) -> Any:
            one, end = next(columns)
            row = action[..., end - one.columns : end]
            if not one.is_continuous:
                row = np.rint(row).astype(np.int64)
            return in_environment(part, one, row.reshape(*leading, *(part.shape or ())))

        return map_leaves(leaf, spaces)
    if isinstance(space, gym.spaces.Box):
        return box_action(action, space.low, space.high, kind).astype(space.dtype, copy=False)
    if isinstance(space, gym.spaces.MultiBinary):
        return action.astype(np.int8)
    if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
        return action + space.start
    return action
