"""Where experience comes from: the one thing in which the training functions differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from agilerl.engine.learner import Learner
from agilerl.envs.step import Lanes
from agilerl.rng import Purpose, seeds, stream
from agilerl.sources.episodes import Episodes


@dataclass
class MemberTally:
    """What one member did in one generation; `fault` says why it was quarantined (see `training.quarantine`)."""

    env_steps: int = 0
    updates: int = 0
    loss_sum: float = 0.0
    scores: list[float] = field(default_factory=list)
    fault: str | None = None

    @property
    def loss(self) -> float | None:
        """Mean loss of the generation's updates, None without any."""
        return self.loss_sum / self.updates if self.updates else None


@dataclass(frozen=True)
class Segment:
    """One generation of some members on their lanes.

    Attributes:
        agents: the members. slots: their slots in the population (keys of their random streams).
        lanes: len(agents) * E lanes; member i owns lanes [i·E, (i+1)·E).
        run_seed, number: keys of the random streams; `number` counts generations from 0.
        begun: environment steps of one member before this generation.
        vector_steps: how many to make.
        progress: called with the environment steps of each vector step (all members).
        episodes: those that run in the lanes, over several generations where the run carries them over.
    """

    agents: list[Any]
    slots: list[int]
    lanes: Lanes
    run_seed: int
    number: int
    begun: int
    vector_steps: int
    progress: Callable[[int], None]
    episodes: Episodes = field(default_factory=Episodes)

    @property
    def num_envs(self) -> int:
        """Lanes of one member."""
        return self.lanes.num_lanes // len(self.agents)

    def streams(self, purpose: Purpose) -> list[np.random.Generator]:
        """One generator for each member."""
        return [stream(self.run_seed, purpose, self.number, slot) for slot in self.slots]

    def lane_seeds(self) -> np.ndarray:
        """With what the lanes start the generation [len(agents) * E]."""
        each = (seeds(self.run_seed, Purpose.ENVIRONMENT, self.num_envs, self.number, slot) for slot in self.slots)
        return np.concatenate(list(each))


class Source(Protocol):
    """Collects experience and learns from it, one generation at a time."""

    @property
    def epsilon(self) -> float | None:
        """Exploration rate of the next vector step, for the records; None for an algorithm without one."""

    @property
    def one_at_a_time(self) -> str:
        """Why members cannot train together; empty where they can."""

    def train(self, segment: Segment, learner: Learner) -> list[MemberTally]:
        """One generation of members whose rows `learner` holds."""

    def train_alone(self, segment: Segment) -> MemberTally:
        """One generation of one agent that brings its own `learn`."""

    def end_generation(self) -> None:
        """All members have had their generation."""

    def memories(self) -> Mapping[str, Any]:
        """Replay buffers by name, for checkpoints; none of a source that keeps nothing between generations."""

    def state(self) -> dict[str, Any]:
        """What else the next generation depends on: plain numbers."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` gave."""
