"""The running episodes of the lanes: begun anew with every generation, or carried over its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from agilerl.envs.step import Lanes
from agilerl.rollouts.off_policy import EpisodeTracker

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

    def memory(self, member: int, slot: int, like: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Hidden states of the member, if it acts in the lanes that they are of, and they fit its network.

        Args:
            like: key -> [layers, E, units], as the network has them now.
        """
        then, known = self.memories.get(member, (-1, {}))
        fits = known.keys() == like.keys() and all(known[key].shape == part.shape for key, part in like.items())
        return known if then == slot and fits else None


class Episodes:
    """Keeps the running episodes between two generations, where a run carries them over.

    Args:
        carry: False begins new episodes in every generation.
    """

    def __init__(self, carry: bool = False) -> None:
        self.carry = carry
        self._kept: Running | None = None
        self._lanes: Lanes | None = None

    def begin(self, lanes: Lanes, seeds: Callable[[], np.ndarray]) -> Running:
        """The episodes that go on in `lanes`; where there are none, new ones from `seeds()` [L]."""
        kept, self._kept = self._kept, None
        if kept is not None and self._lanes is lanes:
            return kept
        return Running(*lanes.reset(seeds()), EpisodeTracker(lanes.num_lanes))

    def keep(
        self,
        lanes: Lanes,
        obs: Any,
        info: dict[str, Any],
        tracker: EpisodeTracker,
        memories: Mapping[int, tuple[int, dict[str, Tensor]]] | None = None,
    ) -> None:
        """The generation is over; its episodes may go on in the next one. Without `carry` nothing happens."""
        if not self.carry:
            return
        going_on = EpisodeTracker(lanes.num_lanes)
        going_on.returns, going_on.lengths = tracker.returns, tracker.lengths
        self._kept, self._lanes = Running(obs, info, going_on, is_new=False, memories=dict(memories or {})), lanes


def lanes_of(members: Sequence[int], num_envs: int) -> np.ndarray:
    """The numbers of the lanes of some members, [len(members) * num_envs]."""
    return (np.asarray(members, dtype=np.int64)[:, None] * num_envs + np.arange(num_envs)).ravel()
