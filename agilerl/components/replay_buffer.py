"""The replay buffers under their published names."""

from __future__ import annotations

from agilerl.components.hindsight import HindsightReplayBuffer
from agilerl.components.multi_step import MultiStepReplayBuffer, PrioritizedMultiStepReplayBuffer
from agilerl.components.prioritized import PrioritizedReplayBuffer, beta_schedule
from agilerl.components.uniform import ReplayBuffer

__all__ = [
    "HindsightReplayBuffer", "MultiStepReplayBuffer", "PrioritizedMultiStepReplayBuffer", "PrioritizedReplayBuffer",
    "ReplayBuffer", "beta_schedule",
]  # fmt: skip
