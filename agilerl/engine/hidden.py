"""Hidden states of recurrent members while they play."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from agilerl.tree import leaves

if TYPE_CHECKING:
    from agilerl.engine.learner import Group, Learner


class HiddenStates:
    """Hidden states of the members of a learner: [N_g, layers, E, units] of each group.

    Attributes:
        hidden: by group, key -> states; None where an episode has not begun yet.
    """

    def __init__(self, learner: Learner) -> None:
        self._groups: list[Group] = learner.groups
        self.hidden: list[dict[str, Tensor] | None] = [None] * len(learner.groups)

    def step(self, number: int, obs: Any) -> tuple[Tensor, Tensor]:
        """(raw output, values) of one group [N_g, E, ...]."""
        raw, value, self.hidden[number] = self._groups[number].recur(obs, self.of(number, obs))
        return raw, value

    def of(self, number: int, obs: Any) -> dict[str, Tensor]:
        """The hidden states of a group; zeros where an episode has not begun yet."""
        known = self.hidden[number]
        if known is not None:
            return known
        lead: Any = self._groups[number].lead
        members, lanes = next(leaves(obs)).shape[:2]
        start = lead.get_initial_hidden_state(lanes).items()
        return {key: part.expand(members, *part.shape).clone() for key, part in start}
