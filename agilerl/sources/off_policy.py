"""Experience from shared replay: what `train_off_policy` puts into the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agilerl.engine.learner import Learner
from agilerl.envs.step import Lanes
from agilerl.options import OffPolicyOptions
from agilerl.sources.acting import Acting
from agilerl.sources.lanes import LaneSource
from agilerl.sources.own_learn import OwnTransitions
from agilerl.sources.replay import SharedReplay
from agilerl.sources.rewards import RewardScale
from agilerl.sources.source import Shard, ShardResult, Shared, Steps, Tally
from agilerl.sources.updates import Updates
from agilerl.sources.watch import Watch
from agilerl.spaces import mask_width


class OffPolicySource(LaneSource[OffPolicyOptions]):
    """Members store what they see in one replay and learn from samples of it.

    Args:
        env: to train in. memory: shared replay buffer. n_step_memory: n-step transitions beside it, see
            `sources.replay`. eval_env: to evaluate in; `env` by default.

    Attributes:
        epsilon: with this rate every member begins its generation; the last member's last rate begins the next one.
    """

    def __init__(
        self, env: Any, memory: Any, options: OffPolicyOptions, n_step_memory: Any = None, eval_env: Any = None
    ) -> None:
        rewards = RewardScale().state() if options.normalize_rewards else None
        memories = SharedReplay(memory, n_step_memory).named()
        super().__init__(env, options, Shared(options.eps_start, rewards, memories=memories), eval_env)

    @classmethod
    def make(cls, env: Any, options: Any, replay: Callable[[], Any], eval_env: Any = None) -> OffPolicySource:
        """With the memory that `replay` makes."""
        return cls(env, replay(), options, eval_env=eval_env)

    def run(self, shard: Shard, lanes: Lanes, learner: Learner) -> Steps:
        """One generation of a shard, all of its members at once."""
        return Generation(shard, lanes, learner, self.options).run()

    def run_own(self, shard: Shard, lanes: Lanes) -> Steps:
        """One generation of an agent that brings its own `learn`."""
        return OwnTransitions(shard, lanes, self.options).run()

    def state(self) -> dict[str, Any]:
        """The exploration rate, and the scale of rewards where there is one."""
        return {"epsilon": self.epsilon, **super().state()}


class Generation:
    """One generation of some members on their lanes: they act, and learn from what all have stored.

    Args:
        shard: the members and what they begin with.
        lanes: len(shard.agents) * E lanes. learner: adopted learner of exactly these members. options: of the run.
    """

    def __init__(self, shard: Shard, lanes: Lanes, learner: Learner, options: OffPolicyOptions) -> None:
        self.shard, num_envs = shard, lanes.num_lanes // len(shard.agents)
        for agent in shard.agents:
            agent.set_training_mode(True)
        tallies = self.tallies = [Tally() for _ in shard.agents]
        replay = SharedReplay(**shard.shared.memories)
        self.rewards = rewards = RewardScale.of(shard.shared.rewards, shard.agents, num_envs)
        watch = Watch(learner, tallies, num_envs)
        self.acting = Acting(shard, lanes, learner, replay, options, watch, tallies, rewards)
        has_masks = mask_width(lanes.single_action_space) > 0
        self.updates = Updates(shard, learner, replay, options, watch, tallies, rewards, num_envs, has_masks)

    def run(self) -> Steps:
        """Make the shard's vector steps, and learn as they are made."""
        acting, updates, env_steps = self.acting, self.updates, self.acting.lanes.num_lanes
        for index in range(self.shard.vector_steps):
            if acting.step():
                updates.learn(index)
                yield env_steps
        running = acting.end()
        updates.end()
        scale = None if self.rewards is None else self.rewards.state()
        shared = Shared(acting.epsilon, scale, running=running, memories=self.shard.shared.memories)
        return ShardResult(dict(zip(self.shard.slots, self.tallies, strict=True)), shared)
