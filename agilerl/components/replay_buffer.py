"""The replay buffers under their published names."""

from __future__ import annotations

from typing import Any

from agilerl.components.prioritized import PrioritizedReplayBuffer
from agilerl.components.uniform import ReplayBuffer
from agilerl.errors import NotAvailableYetError

__all__ = ["MultiStepReplayBuffer", "PrioritizedReplayBuffer", "ReplayBuffer"]


class MultiStepReplayBuffer:
    """n-step replay; comes with the next release."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotAvailableYetError("MultiStepReplayBuffer comes with the next release. fix: use ReplayBuffer.")
