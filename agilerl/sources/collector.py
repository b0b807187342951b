"""The lanes of members whose rollouts are filled and learned from together."""

from __future__ import annotations

from typing import Any

import numpy as np

from agilerl import tree as trees
from agilerl.components.rollout_buffer import RolloutBuffer
from agilerl.sources.source import Segment


class Collector:
    """The lanes of one group of members, and the rollout that they fill.

    Attributes:
        members: positions in the segment. lanes: theirs, as a slice or index array. vector_steps: how many to make.
    """

    def __init__(self, group: int, members: list[int], segment: Segment, num_legal: int) -> None:
        lead, width = segment.agents[members[0]], segment.num_envs
        self.group, self.members = group, members
        self.agents = [segment.agents[i] for i in members]
        together = len(members) == len(segment.agents)
        every = np.arange(segment.lanes.num_lanes).reshape(-1, width)[members].ravel()
        self.lanes: Any = slice(None) if together else every
        length = lead.update_interval()
        self.vector_steps = -(-segment.vector_steps // length) * length
        self.buffer: RolloutBuffer = lead.make_buffer(length, len(every), num_legal)

    def of(self, rows: Any) -> Any:
        """The group's rows of something over all lanes."""
        return rows if isinstance(self.lanes, slice) else trees.take(rows, self.lanes)
