"""Experience from the members' own rollouts: what `train_on_policy` puts into the loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from agilerl import tree as trees
from agilerl.algorithms.rollouts import remember
from agilerl.components.running import RunningMeanStd
from agilerl.engine.learner import Learner, Memory
from agilerl.engine.rollout_learning import learn_rollout, make_rollout
from agilerl.envs.step import StepBatch, action_mask
from agilerl.rng import Purpose
from agilerl.sources.collector import Collector
from agilerl.sources.hidden_states import HiddenStates
from agilerl.sources.options import LoopOptions
from agilerl.sources.rewards import RewardScale, check_learns_here
from agilerl.sources.rollout_loop import RolloutLoop
from agilerl.sources.source import MemberTally, Segment
from agilerl.sources.watch import Watch
from agilerl.spaces import mask_width
from agilerl.tree import map_leaves

DRAWN_AHEAD = 1024  # vector steps of exploration drawn at once

Collect = Callable[..., Any]


class OnPolicySource:
    """Members act in lockstep, and learn from their own rollouts alone.

    A member's rollout has `update_interval()` vector steps; a generation has as many whole rollouts as hold the steps
    asked for, so that it may end somewhat later. Members of one group have the same length: they are updated in one
    pass.

    Args:
        collect: replaces the collecting, `collect(agent, env, n_steps)` in the manner of `rollouts.on_policy`; members
            then train one after another, each with its own `learn()`.
        env: the environment for `collect`.
    """

    epsilon: float | None = None

    def __init__(self, options: LoopOptions, collect: Collect | None = None, env: Any = None) -> None:
        self.options, self.collect, self.env = options, collect, env
        self.rewards = RewardScale() if options.normalize_rewards else None

    @property
    def one_at_a_time(self) -> str:
        """Why members cannot train together; empty where they can."""
        return "collect_rollouts_fn collects" if self.collect is not None else ""

    def train(self, segment: Segment, learner: Learner) -> list[MemberTally]:
        """As the protocol says."""
        for agent in segment.agents:
            agent.set_training_mode(True)
            agent.num_envs = segment.num_envs
            agent.progress = min(1.0, segment.begun / self.options.max_steps)
        learner.refresh()
        return OnPolicyGeneration(segment, learner, self.options, self.rewards).run()

    def train_alone(self, segment: Segment) -> MemberTally:
        """As the protocol says."""
        check_learns_here(segment.agents[0], self.rewards)
        return RolloutLoop(segment, self.options, self.collect, self.env).run()

    def end_generation(self) -> None:
        """Nothing outlives a generation."""

    def memories(self) -> Mapping[str, Any]:
        """None: rollouts are used up."""
        return {}

    def state(self) -> dict[str, Any]:
        """The scale of rewards, where there is one."""
        return {} if self.rewards is None else {"rewards": self.rewards.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """As the protocol says."""
        if self.rewards is not None:
            self.rewards.load_state(state["rewards"])


class OnPolicyGeneration:
    """One generation's rollouts and updates of some members on their lanes."""

    def __init__(
        self, segment: Segment, learner: Learner, options: LoopOptions, rewards: RewardScale | None = None
    ) -> None:
        self.segment, self.learner, self.options, self.rewards = segment, learner, options, rewards
        self.agents, self.lanes, self.num_envs = segment.agents, segment.lanes, segment.num_envs
        self.tallies = [MemberTally() for _ in self.agents]
        if rewards is not None:
            rewards.begin(self.agents, self.num_envs)
        self.watch = Watch(learner, self.tallies)
        self.watch.weights()
        self.mask_width = mask_width(self.lanes.single_action_space)
        self._explore = segment.streams(Purpose.EXPLORATION)
        self._minibatches = segment.streams(Purpose.REPLAY)
        running = segment.episodes.begin(self.lanes, segment.lane_seeds)
        self.obs, self.info, self._tracker = running.obs, running.info, running.tracker
        legal = self.mask_width if self._mask() is not None else 0
        groups = [group.members for group in learner.groups]
        self.collectors = [Collector(i, members, segment, legal) for i, members in enumerate(groups)]
        self._memory, self._memories = Memory(learner), HiddenStates(segment, learner)
        self._memories.recall(self._memory, self.obs, running)
        self._statistics = _shared_statistics(self.agents)
        self._like = next(iter(self.agents[0].policy_module().parameters()))

    def run(self) -> list[MemberTally]:
        """Make the vector steps, learning wherever a rollout is full."""
        total = max(c.vector_steps for c in self.collectors)
        for start in range(0, total, DRAWN_AHEAD):
            count = min(DRAWN_AHEAD, total - start)
            draws = self._draw(count)
            for t in range(count):
                self._step(start + t, tuple(d[t] for d in draws))
        if self._statistics is not None:
            for agent in self.agents:
                agent.take_statistics(self._statistics)
        self.segment.episodes.keep(self.lanes, self.obs, self.info, self._tracker, self._memories.kept)
        return self.tallies

    def _draw(self, count: int) -> tuple[np.ndarray, ...]:
        """Exploration draws [count, N, E, ...] for the coming vector steps, each member from its own stream."""
        shape = (count, self.num_envs)
        each = [agent.draw_exploration(rng, shape) for agent, rng in zip(self.agents, self._explore, strict=True)]
        return tuple(np.stack(parts, axis=1) for parts in zip(*each, strict=True))

    def _mask(self) -> np.ndarray | None:
        if not (self.info and self.mask_width):
            return None
        return action_mask(self.info, self.lanes.num_lanes, self.mask_width)

    def _step(self, index: int, draws: tuple[np.ndarray, ...]) -> None:
        acting = [c for c in self.collectors if index < c.vector_steps]
        obs = trees.reshape(self.obs, len(self.agents), self.num_envs)
        mask = self._mask()
        grouped = None if mask is None else mask.reshape(len(self.agents), self.num_envs, -1)
        parts = [self._act(c, obs, draws, grouped) for c in self.collectors]
        taken = self._joined([action for action, *_ in parts])
        shape = (len(self.agents), self.num_envs, *taken.shape[1:])
        taken = self.watch.actions(taken.reshape(shape)).reshape(taken.shape)
        sound = self.watch.lanes(self.num_envs)
        batch = self.lanes.step(self.agents[0].environment_action(taken), self._active(acting, sound))
        # Lanes of a member that has diverged rest. It goes on learning from nothing, in its own row, to its end.
        valid = batch.mask if sound is None else batch.mask | ~sound
        self._count(batch, acting)
        reward = self.options.learned_reward(batch.reward)
        if self.rewards is not None:
            self.rewards.see(reward, batch)
            reward = reward * self.rewards.factor
        for collector in acting:
            action, log_prob, value, hidden = parts[collector.group]
            collector.buffer.add(
                collector.of(self.obs),
                action,
                collector.of(reward),
                collector.of(batch.terminated),
                collector.of(batch.truncated),
                log_prob,
                value,
                final_obs=collector.of(batch.final_obs),
                final_value=self._value(collector, batch.final_obs) if batch.truncated.any() else None,
                valid=collector.of(valid),
                legal=None if mask is None else collector.of(mask),
                hidden=hidden,
            )
            self._begin(collector, batch)
            if index + 1 == collector.vector_steps:  # from here on its lanes rest
                self._memories.keep(self._memory, collector.group)
        self.obs, self.info = batch.obs, batch.info
        due = [collector for collector in acting if collector.buffer.full]
        for collector in due:
            self._learn(collector)
        if due:
            self._normalise(due)
            for collector in due:
                collector.buffer.reset()
        self.segment.progress(sum(len(c.members) for c in acting) * self.num_envs)

    def _active(self, acting: list[Collector], sound: np.ndarray | None) -> np.ndarray | None:
        """[L] the lanes that are stepped: those of sound members whose rollouts go on; None for all."""
        if len(acting) == len(self.collectors):
            return sound
        active = np.zeros(self.lanes.num_lanes, bool)
        for collector in acting:
            active[collector.lanes] = True
        return active if sound is None else active & sound

    def _act(
        self, collector: Collector, obs: Any, draws: tuple[np.ndarray, ...], mask: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, dict[str, np.ndarray] | None]:
        """(actions, log probabilities, values, hidden states before the step) of a group's lanes.

        Values of feed-forward members are left for later: one pass then computes those of a whole rollout.
        """
        group = collector.group
        rows: Any = slice(None) if isinstance(collector.lanes, slice) else collector.members
        own = obs if isinstance(rows, slice) else trees.take(obs, rows)
        hidden = value = None
        if collector.agents[0].is_recurrent:
            before = self._memory.of(group, own)
            hidden = {key: part.transpose(0, 1).flatten(1, 2).cpu().numpy() for key, part in before.items()}
            raw, values = self._memory.step(group, own)
            value = values.flatten().cpu().numpy()
        else:
            raw = self.learner.outputs_of(group, own)
        legal = None if mask is None else mask[rows]
        action, log_prob = collector.agents[0].sample(raw, tuple(d[rows] for d in draws), legal)
        return action.reshape(-1, *action.shape[2:]), log_prob.reshape(-1), value, hidden

    def _value(self, collector: Collector, obs: Any) -> np.ndarray | None:
        """V of what came after the last step; None for feed-forward members, whose observations tell it."""
        if not collector.agents[0].is_recurrent:
            return None
        own = trees.reshape(collector.of(obs), len(collector.members), self.num_envs)
        hidden = self._memory.of(collector.group, own)
        value: np.ndarray = self.learner.recur(collector.group, own, hidden)[1].flatten().cpu().numpy()
        return value

    def _begin(self, collector: Collector, batch: StepBatch) -> None:
        """Hidden states of lanes in which an episode begins start at zero."""
        hidden = self._memory.hidden[collector.group]
        begins = collector.of(batch.terminated | batch.truncated | ~batch.mask)
        if hidden is None or not begins.any():
            return
        rows = torch.from_numpy(begins).view(len(collector.members), 1, -1, 1)
        self._memory.hidden[collector.group] = {
            key: part.masked_fill(rows.to(part.device), 0) for key, part in hidden.items()
        }

    def _joined(self, parts: list[np.ndarray]) -> np.ndarray:
        """Actions of all lanes, from those of each group."""
        if len(parts) == 1:
            return parts[0]
        chosen = np.empty((self.lanes.num_lanes, *parts[0].shape[1:]), parts[0].dtype)
        for collector, part in zip(self.collectors, parts, strict=True):
            chosen[collector.lanes] = part
        return chosen

    def _count(self, batch: StepBatch, acting: list[Collector]) -> None:
        finished = self._tracker.update(batch)
        for lane, score in zip(finished.lanes.tolist(), finished.returns.tolist(), strict=True):
            self.tallies[lane // self.num_envs].scores.append(score)
        for collector in acting:
            for member in collector.members:
                self.tallies[member].env_steps += self.num_envs

    def _learn(self, collector: Collector) -> None:
        buffer = collector.buffer
        buffer.last_obs = collector.of(self.obs)
        buffer.last_value = self._value(collector, self.obs)
        rollout = make_rollout(self.learner, collector.group, collector.agents, buffer, self._like)
        rngs = [self._minibatches[i] for i in collector.members]
        reports = learn_rollout(self.learner, collector.group, collector.agents, rollout, rngs)
        for row, (member, report) in enumerate(zip(collector.members, reports, strict=True)):
            self.tallies[member].updates += report.updates
            self.tallies[member].loss_sum += report.loss
            lanes = slice(row * self.num_envs, (row + 1) * self.num_envs)
            remember(self.agents[member], buffer, lanes)
        losses = torch.tensor([report.loss for report in reports])
        self.watch.losses(collector.members, losses)
        self.watch.weights()

    def _normalise(self, due: list[Collector]) -> None:
        """Take what was learned from into the population's observation statistics.

        Members get the new ones with the end of their own rollout: within a rollout nothing changes.
        """
        if self._statistics is None:
            return
        sound = [c for c in due if self.watch.sound[c.members].any()]
        if sound:
            seen = [c.agents[0].encoder_inputs(self._sound_observations(c)) for c in sound]
            self._statistics.update(np.concatenate(seen))
        for collector in due:
            for agent in collector.agents:
                agent.take_statistics(self._statistics)

    def _sound_observations(self, collector: Collector) -> Any:
        """Stored observations [T, L, ...] of a group's members that have not diverged."""
        stored = collector.buffer.stored("obs")
        if self.watch.all_sound:
            return stored
        sound = np.repeat(self.watch.sound[collector.members], self.num_envs)
        return map_leaves(lambda x: x[:, sound], stored)


def _shared_statistics(agents: list[Any]) -> RunningMeanStd | None:
    """The running statistics of a population: those of the member that has seen most; None where none is kept."""
    if not getattr(agents[0], "normalize_observations", False):
        return None
    each: list[RunningMeanStd] = [agent.running_statistics() for agent in agents]
    return max(each, key=lambda statistics: statistics.count)
