"""Replay buffers: transitions in preallocated rows, and the published interfaces. Imports are lazy."""

from agilerl.core.lazy import attributes

__all__ = [
    "HindsightReplayBuffer", "MultiAgentReplayBuffer", "MultiStepReplayBuffer", "PrioritizedReplayBuffer",
    "ReplayBuffer", "RolloutBuffer", "Transition",
]  # fmt: skip
_HOMES = {
    "data": "Transition",
    "hindsight": "HindsightReplayBuffer",
    "multi_agent_replay_buffer": "MultiAgentReplayBuffer",
    "multi_step": "MultiStepReplayBuffer",
    "prioritized": "PrioritizedReplayBuffer",
    "rollout_buffer": "RolloutBuffer",
    "uniform": "ReplayBuffer",
}
__getattr__, __dir__ = attributes(__name__, _HOMES)
