"""What a run and the place where it is saved ask of each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from agilerl.telemetry.record import Birth

Trees = tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]
"""The population, the best agent, and everything else without the rows of replay."""


class Savable(Protocol):
    """A run between two generations, as plain data and back."""

    @property
    def generations(self) -> int:
        """How many there were."""

    @property
    def best_generation(self) -> int:
        """That in which the best agent was found."""

    @property
    def births(self) -> Sequence[Birth]:
        """Every birth so far, founders first."""

    def facts(self) -> dict[str, Any]:
        """JSON values: seed, learner, env_backend, num_envs, threads, env_id, deterministic, and the options."""

    def usual_options(self) -> dict[str, Any]:
        """The options' defaults: an option that came after a run was saved had its default."""

    def counters(self) -> dict[str, Any]:
        """How far the run is, as JSON values."""

    def lost(self) -> list[str]:
        """What of the agents will not be saved; AlgorithmError for an agent that cannot be saved at all."""

    def memories(self) -> Mapping[str, Any]:
        """Replay buffers by name; RunError for one of a kind that cannot be saved piece by piece."""

    def trees(self) -> Trees:
        """The state."""

    def load(self, trees: Trees, facts: Mapping[str, Any]) -> None:
        """Become the run of which `trees` and `facts` were taken; the rows of replay follow."""


class Store(Protocol):
    """Where a run is saved after every generation, and where it goes on from: `folder`, the run's directory."""

    folder: Path

    def restore(self, run: Savable) -> bool:
        """Put the run where it was saved last; False for a new one."""

    def save(self, run: Savable) -> None:
        """Save the run as it stands between two generations."""
