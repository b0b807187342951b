"""What the loop asks of the place where a run is saved."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from agilerl.training.loop import TrainingLoop


class Store(Protocol):
    """Where a run is saved after every generation, and where it goes on from: `folder`, the run's directory."""

    folder: Path

    def restore(self, loop: TrainingLoop) -> bool:
        """Put the loop where the run was saved last; False for a new run."""

    def save(self, loop: TrainingLoop) -> None:
        """Save the run as it stands between two generations."""
