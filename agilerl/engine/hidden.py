"""Groups of members, and the hidden states of recurrent ones while they play."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from agilerl.engine.protocol import Trainable
from agilerl.tree import leaves, map_leaves


@dataclass
class Group:
    """Members that learn in one call.

    Attributes:
        members: positions in the population, in row order.
        lead: the member whose `update` and options stand for all of them.
    """

    members: list[int]
    lead: Trainable


class Recurrent(Protocol):
    """What `Memory` asks of a learner."""

    @property
    def groups(self) -> Any:
        """The `Group`s."""

    def recur(self, group: int, obs: Any, hidden: dict[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """One step of a recurrent group."""


class Memory:
    """Hidden states of recurrent members while they play: [N_g, layers, E, units] of each group."""

    def __init__(self, learner: Recurrent) -> None:
        self.learner = learner
        self.hidden: list[dict[str, Tensor] | None] = [None] * len(learner.groups)

    def outputs(self, obs: Any) -> list[tuple[list[int], Tensor]]:
        """As `learner.outputs`, one step further."""
        found = []
        for number, group in enumerate(self.learner.groups):
            raw, _ = self.step(number, rows_of(obs, group.members))
            found.append((group.members, raw))
        return found

    def step(self, number: int, obs: Any) -> tuple[Tensor, Tensor]:
        """(raw output, values) of one group [N_g, E, ...]."""
        raw, value, self.hidden[number] = self.learner.recur(number, obs, self.of(number, obs))
        return raw, value

    def of(self, number: int, obs: Any) -> dict[str, Tensor]:
        """The hidden states of a group; zeros where an episode has not begun yet."""
        known = self.hidden[number]
        if known is not None:
            return known
        group: Any = self.learner.groups[number]
        members, lanes = next(leaves(obs)).shape[:2]
        start = group.lead.get_initial_hidden_state(lanes).items()
        return {key: part.expand(members, *part.shape).clone() for key, part in start}


def row_of(obs: Any, member: int) -> Any:
    """Observations [E, ...] of one member, from those of all."""
    return map_leaves(lambda x: x[member], obs)


def rows_of(obs: Any, members: list[int]) -> Any:
    """Observations [N_g, E, ...] of some members, from those of all."""
    return map_leaves(lambda x: x[members], obs)


def masks_of(agent: Trainable, mask: np.ndarray | None, members: Any) -> np.ndarray | None:
    """Masks of some members, as the outputs of their policies are laid out."""
    return None if mask is None else agent.legal_choices(mask[members])
