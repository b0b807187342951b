"""Experience from shared replay: what `train_off_policy` puts into the loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agilerl.engine.learner import Learner
from agilerl.sources.agent_loop import AgentLoop
from agilerl.sources.collect import Generation
from agilerl.sources.options import OffPolicyOptions
from agilerl.sources.replay import SharedReplay
from agilerl.sources.rewards import RewardScale, check_learns_here
from agilerl.sources.source import MemberTally, Segment


class OffPolicySource:
    """Members store what they see in one replay and learn from samples of it.

    Args:
        memory: shared replay buffer. n_step_memory: n-step transitions beside it, see `sources.replay`.

    Attributes:
        epsilon: with this rate every member begins its generation; the last member's last rate begins the next one.
    """

    one_at_a_time = ""

    def __init__(self, memory: Any, options: OffPolicyOptions, n_step_memory: Any = None) -> None:
        self.replay, self.options = SharedReplay(memory, n_step_memory), options
        self.epsilon: float = options.eps_start
        self._next = self.epsilon
        self.rewards = RewardScale() if options.normalize_rewards else None

    def train(self, segment: Segment, learner: Learner) -> list[MemberTally]:
        """As the protocol says."""
        for agent in segment.agents:
            agent.set_training_mode(True)
        part = Generation(segment, learner, self.replay, self.options, self.epsilon, self.rewards)
        self._next = part.run()
        return part.tallies

    def train_alone(self, segment: Segment) -> MemberTally:
        """As the protocol says."""
        check_learns_here(segment.agents[0], self.rewards)
        part = AgentLoop(segment, self.replay, self.options, self.epsilon)
        self._next = part.run()
        return part.tally

    def end_generation(self) -> None:
        """The exploration rate moves on."""
        self.epsilon = self._next

    def memories(self) -> Mapping[str, Any]:
        """The replay buffers."""
        named = {"memory": self.replay.memory, "n_step_memory": self.replay.n_step_memory}
        return {name: memory for name, memory in named.items() if memory is not None}

    def state(self) -> dict[str, Any]:
        """The exploration rate, and the scale of rewards where there is one."""
        return {"epsilon": self.epsilon} | ({} if self.rewards is None else {"rewards": self.rewards.state()})

    def load_state(self, state: Mapping[str, Any]) -> None:
        """As the protocol says."""
        self.epsilon = self._next = float(state["epsilon"])
        if self.rewards is not None:
            self.rewards.load_state(state["rewards"])
