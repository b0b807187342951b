"""The running episodes of the lanes: begun anew with every generation, or going on over its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from agilerl.envs.step import Lanes
from agilerl.rollouts.off_policy import EpisodeTracker

if TYPE_CHECKING:
    from agilerl.sources.source import Shard

CARRIED_NOTE = (
    "carry_envs: episodes go on over the end of a generation. A resumed run begins them anew, so it equals one that "
    "never stopped only statistically, not bit for bit"
)


@dataclass
class Running:
    """What the lanes show between two vector steps.

    Attributes:
        obs: [L, ...] what is acted on next. info: of it.
        tracker: scores of the running episodes.
        is_new: whether the lanes have just been reset.
        memories: of recurrent members, by id: hidden states, key -> [layers, E, units], and the slot of their lanes.
    """

    obs: Any
    info: dict[str, Any]
    tracker: EpisodeTracker
    is_new: bool = True
    memories: dict[int, tuple[int, dict[str, Tensor]]] = field(default_factory=dict)

    @classmethod
    def begin(cls, shard: Shard, lanes: Lanes) -> Running:
        """The episodes that go on in `lanes`; where there are none, new ones from the shard's seeds."""
        if shard.shared.running is not None:
            return shard.shared.running
        obs, info = lanes.reset(shard.lane_seeds(lanes.num_lanes // len(shard.agents)))
        return cls(obs, info, EpisodeTracker(lanes.num_lanes))

    def going_on(
        self, obs: Any, info: dict[str, Any], memories: Mapping[int, tuple[int, dict[str, Tensor]]] | None = None
    ) -> Running:
        """As the lanes stand at the end of a generation; scores of ended episodes are forgotten."""
        tracker = EpisodeTracker(self.tracker.num_lanes)
        tracker.returns, tracker.lengths = self.tracker.returns, self.tracker.lengths
        return Running(obs, info, tracker, is_new=False, memories=dict(memories or {}))

    def memory(self, member: int, slot: int, like: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Hidden states of the member, if it acts in the lanes that they are of, and they fit its network.

        Args:
            like: key -> [layers, E, units], as the network has them now.
        """
        then, known = self.memories.get(member, (-1, {}))
        fits = known.keys() == like.keys() and all(known[key].shape == part.shape for key, part in like.items())
        return known if then == slot and fits else None


def lanes_of(members: Sequence[int], num_envs: int) -> np.ndarray:
    """The numbers of the lanes of some members, [len(members) * num_envs]."""
    return (np.asarray(members, dtype=np.int64)[:, None] * num_envs + np.arange(num_envs)).ravel()
