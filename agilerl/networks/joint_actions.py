"""Choices as numbers: what a Discrete or MultiDiscrete space offers, counted from 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from agilerl.errors import AlgorithmError

MOST = 4096  # joint actions; each is an output of the network


@dataclass(frozen=True)
class JointActions:
    """All combinations of the components of an action, numbered with the last component fastest (C order).

    Attributes:
        sizes: choices of each component. start: lowest value of each. shape: of an action; () for Discrete.
    """

    sizes: tuple[int, ...]
    start: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def of(cls, space: spaces.Space[Any], owner: str) -> JointActions:
        """The choices of a space. `owner` names who needs it, for the messages.

        Raises:
            AlgorithmError: another kind of space, or more combinations than a network can list.
        """
        if isinstance(space, spaces.Discrete):
            return cls((int(space.n),), (int(space.start),), ())
        if not isinstance(space, spaces.MultiDiscrete):
            raise AlgorithmError(
                f"{owner}: Action space must be either Discrete or MultiDiscrete; got {type(space).__name__} {space}. "
                "fix: SAC, TD3 or DDPG for Box actions."
            )
        made = cls(tuple(space.nvec.ravel().tolist()), tuple(space.start.ravel().tolist()), space.nvec.shape)
        if made.count > MOST:
            raise AlgorithmError(
                f"{owner} has one value per combination of actions; {space} has {made.count} combinations, more than "
                f"{MOST}. fix: PPO, whose policy chooses each component by itself."
            )
        return made

    @property
    def count(self) -> int:
        """Number of combinations."""
        return int(np.prod(self.sizes, dtype=object))

    def encode(self, action: np.ndarray) -> np.ndarray:
        """Actions [..., *shape] of the space as numbers [...] int64."""
        lead = action.shape[: action.ndim - len(self.shape)]
        parts = action.reshape(*lead, len(self.sizes)).astype(np.int64) - np.array(self.start)
        number: np.ndarray = np.ravel_multi_index(tuple(np.moveaxis(parts, -1, 0)), self.sizes)
        return number

    def decode(self, number: np.ndarray) -> np.ndarray:
        """Numbers [...] as actions [..., *shape] int64 of the space."""
        parts = np.stack(np.unravel_index(np.asarray(number, np.int64), self.sizes), axis=-1) + np.array(self.start)
        action: np.ndarray = parts.reshape(*np.shape(number), *self.shape)
        return action

    def legal(self, mask: np.ndarray) -> np.ndarray:
        """Masks [..., Σ sizes] of the components, 1 = legal, as masks [..., count] of the combinations."""
        if len(self.sizes) == 1:
            return mask
        joint = np.ones((*mask.shape[:-1], 1), bool)
        for part in np.split(mask.astype(bool), np.cumsum(self.sizes)[:-1], axis=-1):
            joint = (joint[..., :, None] & part[..., None, :]).reshape(*mask.shape[:-1], -1)
        return joint
