"""Hidden states of recurrent members whose episodes go on over the end of a generation."""

from __future__ import annotations

from typing import Any

import torch

from agilerl import tree as trees
from agilerl.engine.learner import Learner, Memory
from agilerl.sources.episodes import Running
from agilerl.sources.source import Segment


class HiddenStates:
    """Takes them out of the groups of one generation, by member, and puts them into those of the next one.

    A member that acts in the lanes of another one, or whose network has changed, begins with zeros: what it would take
    over belongs to other weights.

    Attributes:
        kept: member id -> (slot, key -> [layers, E, units]).
    """

    def __init__(self, segment: Segment, learner: Learner) -> None:
        self.segment, self.learner = segment, learner
        self.kept: dict[int, tuple[int, dict[str, torch.Tensor]]] = {}

    def recall(self, memory: Memory, obs: Any, running: Running) -> None:
        """Fill `memory` with the hidden states of the episodes that go on; `obs` [L, ...] is what the lanes show."""
        if not running.memories:
            return
        shown = trees.reshape(obs, len(self.segment.agents), self.segment.num_envs)
        for number, group in enumerate(self.learner.groups):
            if not self.segment.agents[group.members[0]].is_recurrent:
                continue
            start = memory.of(number, trees.take(shown, group.members))
            for row, position in enumerate(group.members):
                like = {key: part[row] for key, part in start.items()}
                member, slot = self.segment.agents[position].index, self.segment.slots[position]
                for key, part in (running.memory(member, slot, like) or {}).items():
                    start[key][row] = part
            memory.hidden[number] = start

    def keep(self, memory: Memory, number: int) -> None:
        """The members of a group have made their last vector step of the generation."""
        hidden = memory.hidden[number]
        if hidden is None or not self.segment.episodes.carry:
            return
        for row, position in enumerate(self.learner.groups[number].members):
            own = {key: part[row].clone() for key, part in hidden.items()}
            self.kept[self.segment.agents[position].index] = self.segment.slots[position], own
