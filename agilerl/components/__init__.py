"""Replay buffers: transitions in preallocated rows, and the published interfaces.

Published names are re-exported here with lazy imports.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "MultiAgentReplayBuffer": "agilerl.components.multi_agent_replay_buffer",
    "MultiStepReplayBuffer": "agilerl.components.multi_step",
    "PrioritizedReplayBuffer": "agilerl.components.prioritized",
    "ReplayBuffer": "agilerl.components.uniform",
    "RolloutBuffer": "agilerl.components.rollout_buffer",
    "Transition": "agilerl.components.data",
}
__all__ = [
    "MultiAgentReplayBuffer",
    "MultiStepReplayBuffer",
    "PrioritizedReplayBuffer",
    "ReplayBuffer",
    "RolloutBuffer",
    "Transition",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'agilerl.components' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
