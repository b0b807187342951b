"""Off-policy collector: the experience behind `train_off_policy`."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from gymnasium import spaces

from agilerl.algorithms.base.adapted import adapted
from agilerl.collect.acting import Acting
from agilerl.collect.asynchronous_acting import AsynchronousActing
from agilerl.collect.collector import Shard, ShardResult, Shared, Steps, Tally, cut
from agilerl.collect.custom.member import CustomLearner
from agilerl.collect.custom.transitions import CustomActing, CustomUpdates
from agilerl.collect.divergence import Watch, check_interval
from agilerl.collect.lanes import LaneCollector
from agilerl.collect.replay import SharedReplay
from agilerl.collect.rewards import NEW, RewardScale
from agilerl.collect.updates import Schedule, Updates
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core import foreign
from agilerl.core.options import OffPolicyOptions
from agilerl.engine.learner import Learner
from agilerl.envs.step import Lanes
from agilerl.errors import AgileRLWarning


class OffPolicyCollector(LaneCollector[OffPolicyOptions]):
    """Members store transitions in one shared replay buffer and learn from samples of it.

    Args:
        env: training environment. memory: shared replay buffer. n_step_memory: buffer of n-step transitions, see
            `collect.replay`. eval_env: evaluation environment; `env` by default.

    Attributes:
        epsilon: exploration rate at the start of a generation, for every member; the last member's final rate carries
            over to the next generation.
    """

    waits_for_lanes = ""
    acting: type[Acting] = Acting
    updating: type[Updates] = Updates
    custom_updating: type[CustomUpdates] = CustomUpdates

    def __init__(
        self, env: foreign.Env, memory: Any, options: OffPolicyOptions, n_step_memory: Any = None,
        eval_env: foreign.Env | None = None,
    ) -> None:  # fmt: skip
        rewards = NEW if options.normalize_rewards else None
        memories = SharedReplay(memory, n_step_memory).named()
        super().__init__(env, options, Shared(options.eps_start, rewards, memories=memories), eval_env)
        self.is_repeatable = not self.is_asynchronous

    @classmethod
    def make(
        cls, env: foreign.Env, options: OffPolicyOptions, replay: Callable[[], Any], eval_env: foreign.Env | None = None
    ) -> OffPolicyCollector:
        """Create the collector with a memory from `replay`."""
        return cls(env, replay(), options, eval_env=eval_env)

    def open(
        self, population: Sequence[Any], run_seed: int, check: Callable[[], None] | None = None, shards: int = 1
    ) -> None:
        super().open(population, run_seed, check, shards)
        self.has_own_memories = shards > 1 and self.options.share == "shard"
        for shard in range(1, shards if self.has_own_memories else 1):
            memories = {name: copy.deepcopy(memory) for name, memory in self.shared[0].memories.items()}
            self.shared[shard] = replace(self.shared[shard], memories=memories)
        for memory in self.memories().values() if self.learner == CustomLearner.name else ():
            if isinstance(memory, ReplayBuffer):  # custom agents learn from `sample`, which has its own generator
                memory.follow_seed(run_seed)

    def foresee(self, population: Sequence[Any]) -> None:
        needs = {(int(a.batch_size), Schedule.of(a.learn_step, self.env_steps_at_once).interval)
                 for a in map(adapted, population)}  # fmt: skip
        for size, interval in sorted(needs):
            stored = self._stored_when_due(population, interval)
            if 0 < stored < max(size, self.options.learning_delay + 1):
                warnings.warn(
                    f"members with batch_size={size} make no update within the budget: {stored:,} transitions are "
                    f"stored when the last one is due, which must be a whole batch and more than learning_delay="
                    f"{self.options.learning_delay}. fix: more steps, or a smaller batch_size, learning_delay or "
                    "learn_step.",
                    AgileRLWarning,
                    stacklevel=7,
                )

    def _stored_when_due(self, population: Sequence[Any], interval: int) -> int:
        """Return the number of transitions added when the last update of this run is due; 0 if no step is left."""
        at_once, memory = self.env_steps_at_once, self.shared[0].memories["memory"]
        before = SharedReplay(memory).added() * self.ranks.size
        of_shard = len(cut(len(population), self.shards)[0])  # others' rows arrive after a generation
        members = of_shard if self.has_own_memories else len(population)
        first = env_steps = min(int(agent.steps[-1]) for agent in population)
        stored, budget = 0, min(self.options.max_steps, self.options.stop_after or self.options.max_steps)
        while env_steps < budget:
            remaining = -(-(budget - env_steps) // at_once)
            length = max(1, min(self._vector_steps(self.options.generation_steps(env_steps)), remaining))
            due = (length - 1) // interval * interval + 1
            stored = before + members * (env_steps - first) + of_shard * due * at_once
            env_steps += length * at_once
        return stored

    def run(self, shard: Shard, lanes: Lanes, learner: Learner) -> Steps:
        """Run one generation of a shard: members act in `lanes` and learn from the shared replay."""
        num_envs, replay = lanes.num_lanes // len(shard.agents), SharedReplay(**shard.shared.memories)
        for agent in shard.agents:
            agent.set_training_mode(True)
        is_custom = learner.name == CustomLearner.name
        interval = 1 if is_custom else check_interval(learner.groups[0].device)
        watch = Watch(learner, [Tally() for _ in shard.agents], num_envs, interval)
        rewards = RewardScale.of(shard, num_envs)
        kind = AsynchronousActing if self.is_asynchronous else CustomActing if is_custom else self.acting
        acting = kind(shard, lanes, replay, self.options, watch, rewards)
        are_choices = isinstance(lanes.single_action_space, spaces.Discrete | spaces.MultiDiscrete)
        updating = self.custom_updating if is_custom else self.updating
        updates = updating(shard, replay, self.options, watch, rewards, are_choices)
        if isinstance(acting, AsynchronousActing):
            steps = self._lane_by_lane(acting, updates)
        else:
            make = self._overlapping if self.options.overlap else self._one_after_another
            steps = make(shard.vector_steps, acting, updates)
        for env_steps in steps:
            yield env_steps * shard.ranks.size
        running = acting.end()
        updates.end()
        if rewards is not None:
            rewards.keep()
        shared = Shared(acting.epsilon, shard.shared.rewards, running=running, memories=shard.shared.memories)
        return ShardResult(dict(zip(shard.slots, watch.tallies, strict=True)), shared)

    def _one_after_another(self, count: int, acting: Acting, updates: Updates) -> Iterator[int]:
        """Make vector steps, and after each the updates that are due; yield environment steps."""
        for index in range(count):
            if acting.step():
                start = time.perf_counter()
                updates.learn(index)
                self.seconds.learning += time.perf_counter() - start
                yield acting.lanes.num_lanes

    def _overlapping(self, count: int, acting: Acting, updates: Updates) -> Iterator[int]:
        """Make vector steps, and during the next one the updates that are due after each; yield environment steps."""
        for index in range(count + 1):
            is_going_on = index < count and acting.begin()
            start = time.perf_counter()
            try:
                if index:
                    updates.begin(index - 1)
                stepping = time.perf_counter()
                batch = acting.wait() if is_going_on else None
            finally:  # of an exception too: the calls in the background use memory of the learner
                stepped = time.perf_counter()
                updates.finish()
            self.seconds.learning += time.perf_counter() - start - (stepped - stepping)
            if batch is None:
                return
            acting.keep(batch)
            yield acting.lanes.num_lanes

    def _lane_by_lane(self, acting: AsynchronousActing, updates: Updates) -> Iterator[int]:
        """Make steps in lanes that do not wait for each other, and the updates that are due; yield transitions."""
        learned, is_going_on = 0, True
        while is_going_on:
            due, learned = range(learned, acting.vector_steps), acting.vector_steps
            if self.options.overlap:
                is_going_on = acting.begin()
            start = time.perf_counter()
            for index in due:
                updates.learn(index)
            self.seconds.learning += time.perf_counter() - start
            if not self.options.overlap:
                is_going_on = acting.begin()
            if is_going_on:
                acting.finish()
                yield acting.transitions
