"""On-policy collector: the experience behind `train_on_policy`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from agilerl.algorithms.base.adapted import adapted
from agilerl.algorithms.base.observation_statistics import ObservationStatistics
from agilerl.collect.asynchronous_acting import Row, StepDraws
from agilerl.collect.collector import (
    GenerationPlan,
    Running,
    Shard,
    ShardResult,
    Shared,
    Steps,
    Tally,
    keep_finished,
    lanes_of,
    trained_with_masks,
)
from agilerl.collect.custom.member import CustomLearner
from agilerl.collect.custom.rollouts import CustomGeneration
from agilerl.collect.divergence import Watch
from agilerl.collect.lanes import LaneCollector
from agilerl.collect.rewards import NEW, RewardScale
from agilerl.components.rollout_store import RolloutStore
from agilerl.core import foreign
from agilerl.core import tree as trees
from agilerl.core.options import LoopOptions, OffPolicyOptions
from agilerl.core.rng import Purpose
from agilerl.core.tree import Tree
from agilerl.engine.learner import HiddenStates, Learner
from agilerl.engine.rollouts import Rollout, learn_rollout
from agilerl.envs.masks import MASK, ActionMasks
from agilerl.envs.protocol import begin_step, finish_step
from agilerl.envs.step import Lanes, StepBatch
from agilerl.errors import EnvError, warn_once
from agilerl.rollouts.on_policy import ActingStep, record

DRAWN_AHEAD = 1024  # vector steps of exploration noise drawn at once


class OnPolicyCollector(LaneCollector[LoopOptions]):
    """Members act in lockstep and learn from their own rollouts only.

    A member's rollout has `update_interval()` vector steps. A generation consists of whole rollouts and is rounded up,
    so it may be slightly longer than requested. Members of one group have rollouts of the same length and are updated
    in one pass.

    Args:
        env: training environment. eval_env: evaluation environment; `env` by default.
        collect: custom collection function `collect(agent, env, n_steps)`, see `rollouts.on_policy`; members then train
            one after another, each with its own `learn()`.
    """

    waits_for_lanes = ""

    def __init__(
        self, env: foreign.Env, options: LoopOptions, collect: Callable[..., Any] | None = None,
        eval_env: foreign.Env | None = None,
    ) -> None:  # fmt: skip
        rewards = NEW if options.normalize_rewards else None
        super().__init__(env, options, Shared(rewards=rewards), eval_env)
        self.collect = collect
        self._longest = 1  # rollout of a member, in vector steps
        self.alone = "" if collect is None else "collect_rollouts_fn collects"

    @classmethod
    def make(
        cls, env: foreign.Env, options: OffPolicyOptions, replay: Callable[[], Any], eval_env: foreign.Env | None = None
    ) -> OnPolicyCollector:
        """Create the collector; `replay` is ignored, as rollouts are discarded after use."""
        return cls(env, options, eval_env=eval_env)

    @property
    def generations(self) -> type[OnPolicyGeneration]:
        """Class that runs a generation."""
        return AsynchronousGeneration if self.is_asynchronous else OnPolicyGeneration

    def open(
        self, population: Sequence[Any], run_seed: int, check: Callable[[], None] | None = None, shards: int = 1
    ) -> None:
        for agent in population if self.ranks.size > 1 else ():
            agent.num_envs = self.env_steps_at_once  # over all ranks; determines the rollout length
        super().open(population, run_seed, check, shards)
        interval = foreign.method(population[0], "update_interval")
        if self.learner == CustomLearner.name or interval is None:
            return
        rollout = int(interval()) * self.env_steps_at_once
        self._longest = _longest_rollout(population)
        if rollout == 1:
            algo = population[0].algo
            warn_once(
                f"{algo} rollout of one step",
                f"{algo}: a rollout of one step has nothing to compare its advantage with, so that the policy learns "
                "nothing from it. fix: learn_step=128.",
            )
        ends = -(-self.options.max_steps // rollout) * rollout
        if ends != self.options.max_steps:
            self.notes.append(
                f"a member learns from whole rollouts of {rollout} steps: the budget of {self.options.max_steps} steps "
                f"ends at {ends} or later"
            )

    def steps_of_generation(self, evo_steps: int) -> int:
        """Round up to whole rollouts of the member whose rollouts are longest; in environment steps per member."""
        rollout = self._longest * self.env_steps_at_once
        return -(-super().steps_of_generation(evo_steps) // rollout) * rollout

    def plan(self, population: Sequence[Any], number: int, env_steps_before: int) -> GenerationPlan:
        if self.learner != CustomLearner.name:
            self._longest = _longest_rollout(population)
        return super().plan(population, number, env_steps_before)

    def run(self, shard: Shard, lanes: Lanes, learner: Learner) -> Steps:
        generation: OnPolicyGeneration | CustomGeneration
        if learner.name == CustomLearner.name:
            generation = CustomGeneration(shard, lanes, self.options, self.env, self.collect)
        else:
            generation = self.generations(shard, lanes, learner, self.options)
        result = yield from generation.run()
        self.seconds.learning += generation.learning_s
        return result

    def statistics(self, agents: Any) -> Mapping[str, Any] | None:
        """Statistics of the member with the most samples among those that normalise; None if none does."""
        normalised = [agent.observation_statistics for agent in agents if adapted(agent).normalize_observations]
        return max(normalised, key=lambda statistics: statistics.count, default=None)


def _longest_rollout(population: Sequence[Any]) -> int:
    """Vector steps of the longest rollout; 1 for agents of a user's class that do not say."""
    intervals = [foreign.method(agent, "update_interval") for agent in population]
    return max((int(interval()) for interval in intervals if interval is not None), default=1)


class Group:
    """Members with joint rollouts and updates.

    Attributes:
        number: in the learner. members: positions in the shard. lead: representative of all of them.
        rows: their rows in arrays over all members, as a slice or index list. lanes: their lanes, as a slice or index
            array.
        is_all: whether the group is the whole shard.
        vector_steps: number of steps to make. buffer: rollout buffer of the group.
    """

    def __init__(self, number: int, members: list[int], shard: Shard, num_envs: int, num_legal: int) -> None:
        self.number, self.members = number, members
        self.agents = [shard.agents[i] for i in members]
        self.lead = self.agents[0]
        self.is_recurrent = bool(self.lead.is_recurrent)
        self.is_all = len(members) == len(shard.agents)
        lanes = lanes_of(members, num_envs)
        self.lanes: Any = slice(None) if self.is_all else lanes
        self.rows: Any = slice(None) if self.is_all else members
        length = int(self.lead.update_interval())
        self.vector_steps: int = -(-shard.vector_steps // length) * length
        self.buffer: RolloutStore = self.lead.make_buffer(length, len(lanes), num_legal)

    def of(self, rows: Tree | None) -> Any:
        """Select the group's rows from data over all lanes."""
        return rows if self.is_all or rows is None else trees.take(rows, self.lanes)


class OnPolicyGeneration:
    """Rollouts and updates of one generation of some members, with one recorder for all of them.

    Recorder state: `full`, whether all rollouts of the generation are complete, and `active`, the lanes still running.

    Args:
        shard: the members and their initial state.
        lanes: len(shard.agents) * E lanes. learner: adopted learner of exactly these members. options: of the run.
    """

    def __init__(self, shard: Shard, lanes: Lanes, learner: Learner, options: LoopOptions) -> None:
        self.shard, self.lanes, self.learner, self.options = shard, lanes, learner, options
        self.agents, self.num_envs = shard.agents, lanes.num_lanes // len(shard.agents)
        for agent in self.agents:
            agent.set_training_mode(True)
            agent.num_envs = self.num_envs * shard.ranks.size  # a rollout has `learn_step` steps over all ranks
            agent.progress = min(1.0, shard.begun / options.max_steps)
        learner.refresh()
        self.tallies = [Tally() for _ in self.agents]
        self.rewards = RewardScale.of(shard, self.num_envs)
        self._changes_rewards = self.rewards is not None or options.changes_rewards
        self.watch = Watch(learner, self.tallies, self.num_envs)
        self.watch.weights()
        self._streams = list(zip(self.agents, shard.streams(Purpose.EXPLORATION), strict=True))
        self._minibatches = shard.streams(Purpose.REPLAY)
        self._running = Running.begin(shard, lanes)
        self.obs, info, self._tracker = self._running.obs, self._running.info, self._running.tracker
        masks = ActionMasks(lanes.single_action_space, lanes.backend)
        legal = 0 if masks.of(info, lanes.num_lanes) is None else masks.width
        members = [group.members for group in learner.groups]
        self.groups = [Group(i, positions, shard, self.num_envs, legal) for i, positions in enumerate(members)]
        self._acting = self.groups  # groups with incomplete rollouts
        self.active: np.ndarray | None = None
        self.full = False
        self._hidden_states = HiddenStates(learner)
        self._kept: dict[int, tuple[int, dict[str, torch.Tensor]]] = {}
        self._recall()
        before = shard.shared.statistics
        self._statistics = None if before is None else ObservationStatistics(before).running()
        self._total: int = max(group.vector_steps for group in self.groups)
        self._index = self._begin = self._end = 0  # current vector step, and the range covered by the draws
        self._draws: tuple[np.ndarray, ...] = ()
        self._acted: list[Any] = []
        self.learning_s = 0.0  # seconds of all updates

    def run(self) -> Steps:
        """Make the vector steps, and learn whenever a rollout is full."""
        info = self._running.info
        for step in self._recorded(info):
            self.obs, info = step.batch.obs, step.batch.info
            acting = self._acting
            due = [group for group in acting if group.buffer.position == group.buffer.capacity]
            if due:
                start = time.perf_counter()
                # The first rollout initialises the statistics used to learn from it, but keeps the
                # log probabilities of its actions as sampled.
                is_kept = self._statistics is not None
                first = [group for group in due if is_kept and not group.lead.observation_statistics.count]
                self._normalise(first)
                for group in due:
                    self._learn(group)
                self._normalise([group for group in due if group not in first])
                for group in due:
                    group.buffer.reset()
                self._acting = [group for group in acting if self._index < group.vector_steps]
                self.learning_s += time.perf_counter() - start
            yield sum(len(group.members) for group in acting) * self.num_envs * self.shard.ranks.size
        if MASK in info:
            trained_with_masks(self.agents)
        if self._statistics is not None:
            for agent in self.agents:
                agent.take_statistics(self._statistics)
        running = self._running.going_on(self.obs, info, self._kept) if self.options.carry_envs else None
        if self.rewards is not None:
            self.rewards.keep()
        shared = Shared(None, self.shard.shared.rewards, None, running, self.shard.shared.memories)
        return ShardResult(dict(zip(self.shard.slots, self.tallies, strict=True)), shared)

    def _recorded(self, info: dict[str, Any]) -> Iterator[ActingStep]:
        """Make the vector steps of the generation; yield each after it is stored. `info`: of the first observations."""
        return record(self, self.lanes, self.obs, info, self._learned if self._changes_rewards else None)

    # -- recorder interface: see `rollouts.on_policy.record` ---------------------------------------------------------

    def act(self, obs: Tree, mask: np.ndarray | None) -> Any:
        """Return environment actions of all lanes; finished lanes are masked in `active`."""
        if self._index == self._end:
            self._draw_ahead()
        shape = (len(self.agents), self.num_envs)
        rows = obs.reshape(*shape, *obs.shape[1:]) if isinstance(obs, np.ndarray) else trees.reshape(obs, *shape)
        legal = None if mask is None else mask.reshape(*shape, -1)
        now = self._index - self._begin
        draws = tuple(part[now] for part in self._draws)
        self._mask, self._acted = mask, [self._act(group, rows, draws, legal) for group in self.groups]
        taken = self._acted[0][0]
        if len(self.groups) > 1:
            taken = np.empty((self.lanes.num_lanes, *taken.shape[1:]), taken.dtype)
            for group, (part, *_) in zip(self.groups, self._acted, strict=True):
                taken[group.lanes] = part
        taken = self.watch.actions(taken.reshape(*shape, *taken.shape[1:])).reshape(taken.shape)
        self.active = self.watch.lanes
        if len(self._acting) < len(self.groups):
            going_on = np.zeros(self.lanes.num_lanes, bool)
            for group in self._acting:
                going_on[group.lanes] = True
            self.active = going_on if self.active is None else going_on & self.active
        # By group: in a resumed run, founders may use other action units than members of an earlier version.
        kinds = [group.lead.environment_action(group.of(taken)) for group in self.groups]
        return kinds[0] if len(kinds) == 1 else self._joined(kinds)

    def _joined(self, parts: list[Any]) -> Any:
        """Concatenate the groups' data in lane order."""
        whole = trees.map_leaves(lambda x: np.empty((self.lanes.num_lanes, *x.shape[1:]), x.dtype), parts[0])
        for group, part in zip(self.groups, parts, strict=True):
            trees.put(whole, group.lanes, part)
        return whole

    def store(self, reward: np.ndarray, batch: StepBatch) -> None:
        """Store one step in the buffers of groups with incomplete rollouts."""
        sound = self.watch.lanes
        # Lanes of a diverged member rest. Its row of the update continues without effect on the others.
        valid = batch.mask if sound is None else batch.mask | ~sound
        finished = self._tracker.update(batch)
        if len(finished.lanes):
            keep_finished(self.tallies, finished, self.num_envs)
        is_cut = bool(batch.truncated.any())
        outcome = (reward, batch.terminated, batch.truncated, valid)
        if batch.team is not None:
            outcome = self._by_agent(batch)
        rests = ~batch.mask if batch.team is None else ~batch.mask[:, None]
        ends = outcome[1] | outcome[2] | rests  # per agent for teams
        has_ends = bool(ends.any())
        lanes = (self.obs, *outcome[:3], batch.final_obs, outcome[3], self._mask)
        self._index += 1
        self.full = self._index >= self._total
        for group in self._acting:
            for member in group.members:
                self.tallies[member].env_steps += self.num_envs
            action, log_prob, value, hidden = self._acted[group.number]
            group_data = lanes if group.is_all else [group.of(part) for part in lanes]
            obs, gain, terminated, truncated, final_obs, sound_rows, legal = group_data
            final_value = self._value(group, batch.final_obs) if is_cut else None
            extra = {"final_obs": final_obs, "final_value": final_value, "valid": sound_rows, "legal": legal}
            group.buffer.add(obs, action, gain, terminated, truncated, log_prob, value, **extra, hidden=hidden)
            if group.is_recurrent and has_ends:
                self._begin_episodes(group, ends)
            if self._index == group.vector_steps:  # its lanes rest from now on
                self._keep(group)

    def finish(self, obs: Tree) -> None:
        """No-op: every rollout has already been learned from."""

    def _rollout(self, group: Group) -> Rollout:
        """Convert a group's full buffer to a rollout."""
        rollout: Rollout = group.lead.rollout(self.learner, group.number, group.agents, group.buffer)
        return rollout

    def _by_agent(self, batch: StepBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return (reward, terminated, truncated, valid) to store for multi-agent lanes; teams only."""
        raise EnvError(f"{type(self.agents[0]).__name__} trains one agent; these lanes have several. fix: algo='IPPO'.")

    # ----------------------------------------------------------------------------------------------------------------

    def _learned(self, batch: StepBatch) -> np.ndarray:
        """Rewards to learn from, before scaling."""
        reward = self.options.learned_reward(batch.reward) if self.options.changes_rewards else batch.reward
        if self.rewards is not None:  # stored unscaled: the scale is unreliable in the first steps of a run
            self.rewards.see(reward, batch)
        return reward

    def _draw_ahead(self) -> None:
        """Draw exploration noise [count, N, E, ...] for the next vector steps, from one stream per member."""
        self._begin, self._end = self._end, min(self._end + DRAWN_AHEAD, self._total)
        self._draws = self._draw(self._end - self._begin)

    def _draw(self, count: int) -> tuple[np.ndarray, ...]:
        """Draw exploration noise [count, N, E, ...], from one stream per member."""
        member_draws = [agent.draw_exploration(rng, (count, self.num_envs)) for agent, rng in self._streams]
        return tuple(np.stack(parts, axis=1) for parts in zip(*member_draws, strict=True))

    def _act(
        self, group: Group, obs: Tree, draws: tuple[np.ndarray, ...], mask: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, dict[str, np.ndarray] | None]:
        """Return (actions, log probabilities, values, hidden states before the step) of a group's lanes.

        Values of feed-forward members are deferred: one pass computes them for the whole rollout.
        """
        rows = group.rows
        group_obs = obs if group.is_all else trees.take(obs, rows)
        hidden = value = None
        if group.is_recurrent:
            before = self._hidden_states.of(group.number, group_obs)
            hidden = {key: part.transpose(0, 1).flatten(1, 2).cpu().numpy() for key, part in before.items()}
            raw, values = self._hidden_states.step(group.number, group_obs)
            value = values.flatten(0, 1).cpu().numpy()
        else:
            raw = self.learner.outputs_of(group.number, group_obs)
        legal = None if mask is None else mask[rows]
        action, log_prob = group.lead.sample(raw, draws if group.is_all else tuple(d[rows] for d in draws), legal)
        return action.reshape(-1, *action.shape[2:]), log_prob.reshape(-1, *log_prob.shape[2:]), value, hidden

    def _value(self, group: Group, obs: Tree) -> np.ndarray | None:
        """Bootstrap value after the last step; None for feed-forward members, which compute it from observations."""
        if not group.is_recurrent:
            return None
        group_obs = trees.reshape(group.of(obs), len(group.members), self.num_envs)
        hidden = self._hidden_states.of(group.number, group_obs)
        return self.learner.recur(group.number, group_obs, hidden)[1].flatten(0, 1).cpu().numpy()

    def _begin_episodes(self, group: Group, ends: np.ndarray) -> None:
        """Reset the hidden states of lanes in which an episode begins; per agent for teams."""
        begins = group.of(ends)
        self._hidden_states.forget(group.number, begins.reshape(len(group.members), -1, *begins.shape[1:]))

    def _learn(self, group: Group) -> None:
        buffer = group.buffer
        buffer.last_obs = group.of(self.obs)
        buffer.last_value = self._value(group, self.obs)
        if self.rewards is not None:
            stored = buffer.stored("reward")  # [T, L], or [T, L, M] for teams
            factors = np.repeat(self.rewards.factors[group.members], self.num_envs).astype(stored.dtype)
            stored *= factors.reshape(-1, *(1,) * (stored.ndim - 2))
        rollout = self._rollout(group)
        rngs = [self._minibatches[i] for i in group.members]
        reports = learn_rollout(self.learner, group.number, group.agents, rollout, rngs)
        for row, (member, report) in enumerate(zip(group.members, reports, strict=True)):
            self.tallies[member].updates += report.updates
            self.tallies[member].loss_sum += report.loss
            self.agents[member].remember_rollout(buffer, slice(row * self.num_envs, (row + 1) * self.num_envs))
        self.watch.losses(group.members, torch.tensor([report.loss for report in reports]))
        self.watch.weights()

    def _normalise(self, due: list[Group]) -> None:
        """Update the population's observation statistics with the data just learned from.

        Members receive the new statistics at the end of their rollout, so that statistics are constant within a
        rollout. The first ones are applied before the first rollout is learned from.
        """
        due = [group for group in due if group.lead.normalize_observations]
        if self._statistics is None or not due:
            return
        rows = []
        for group in due:
            sound, obs = self.watch.is_finite[group.members], group.buffer.stored("obs")  # [T, L, ...]
            if not sound.all():  # skip diverged members
                obs = trees.take(obs, (slice(None), np.repeat(sound, self.num_envs)))
            rows.append(group.lead.encoder_inputs(obs))
        self._statistics.add(rows, self.shard.ranks)
        for group in due:
            for agent in group.agents:
                agent.take_statistics(self._statistics)

    # -- hidden states of episodes that continue across generations --------------------------------------------------

    def _recall(self) -> None:
        """Restore the hidden states left by the last generation.

        A member that moved to another member's lanes, or whose network changed, starts from zeros: the stored states
        belong to other weights.
        """
        if not self._running.hidden:
            return
        shown = trees.reshape(self.obs, len(self.agents), self.num_envs)
        for group in self.groups:
            if not group.is_recurrent:
                continue
            start = self._hidden_states.of(group.number, trees.take(shown, group.members))
            for row, position in enumerate(group.members):
                like = {key: part[row] for key, part in start.items()}
                stored = self._running.hidden_of(self.agents[position].index, self.shard.slots[position], like)
                for key, part in (stored or {}).items():
                    start[key][row] = part
            self._hidden_states.hidden[group.number] = start

    def _keep(self, group: Group) -> None:
        """Store the state of a group's members after their last vector step of the generation."""
        hidden = self._hidden_states.hidden[group.number]
        if hidden is None or not self.options.carry_envs:
            return
        for row, position in enumerate(group.members):
            states = {key: part[row].clone() for key, part in hidden.items()}
            self._kept[self.agents[position].index] = self.shard.slots[position], states


class AsynchronousGeneration(OnPolicyGeneration):
    """Rollouts that are filled lane by lane (`envs.ready.ReadyLanes`).

    A lane makes its next step of the rollout as soon as the last one has completed, and rests once it has made all of
    them. A vector step is stored when all lanes have made it, in order, and members learn when a rollout is full. The
    policy does not change within a rollout and noise belongs to a lane and its step, so that results are those of lanes
    that wait for each other.
    """

    def _recorded(self, info: dict[str, Any]) -> Iterator[ActingStep]:
        masks, lanes = ActionMasks(self.lanes.single_action_space, self.lanes.backend), self.lanes.num_lanes
        draws = StepDraws(self._draw, DRAWN_AHEAD, self._total, (len(self.agents), self.num_envs))
        obs, rows, pending = self.obs, dict[int, Row](), None
        steps, in_progress = np.zeros(lanes, np.int64), np.zeros(lanes, bool)  # completed by each lane; and now
        while not self.full:
            chosen = ~in_progress & (steps < self._limits())
            if chosen.any():
                mask = masks.of(info, lanes)
                actions = self._act_with(draws.of(steps, chosen), obs, mask)
                chosen &= steps < self._limits()  # acting may have shown that a member has diverged
                pending = begin_step(self.lanes, actions, chosen)
                is_new, in_progress = pending.mask & ~in_progress, pending.mask.copy()
                for step in np.unique(steps[is_new]).tolist():
                    if step not in rows:
                        rows[step] = Row(obs, mask, self._acted)
                    beginning = is_new & (steps == step)
                    of_groups = [group.of(beginning) for group in self.groups]
                    rows[step].begin(beginning, obs, mask, self._acted, of_groups)
            if in_progress.any():
                batch = finish_step(self.lanes, pending)
                done = in_progress & (batch.mask if batch.healed is None else batch.mask | batch.healed)
                for step in np.unique(steps[done]).tolist():
                    rows[step].finish(done & (steps == step), batch)
                steps += done
                in_progress &= ~done
                obs, info = batch.obs, batch.info
            while not self.full and not (in_progress | (steps < self._limits()))[steps <= self._index].any():
                if self._index not in rows:  # all members have diverged
                    everywhere = np.ones(lanes, bool)
                    self._act_with(draws.of(steps, everywhere), obs, masks.of(info, lanes))
                    rows[self._index] = Row(obs, self._mask, self._acted)
                yield self._stored(rows.pop(self._index), info)

    def _act_with(self, draws: tuple[np.ndarray, ...], obs: Tree, mask: np.ndarray | None) -> Any:
        """Act with the noise [N, E, ...] of each lane's next step, in place of that of one vector step."""
        self._draws, self._begin, self._end = tuple(part[None] for part in draws), self._index, self._index + 1
        return self.act(obs, mask)

    def _limits(self) -> np.ndarray:
        """Return the number of steps [L] that each lane can make before its members learn; 0 for diverged members."""
        limits = np.zeros(self.lanes.num_lanes, np.int64)
        for group in self._acting:
            length = group.buffer.capacity
            limits[group.lanes] = (self._index // length + 1) * length
        return limits if self.watch.lanes is None else np.where(self.watch.lanes, limits, 0)

    def _stored(self, row: Row, info: dict[str, Any]) -> ActingStep:
        """Store a vector step that all lanes have made."""
        out = row.outcome
        healed = out.healed if out.healed is not None and out.healed.any() else None
        batch = StepBatch(
            out.obs, out.reward, out.terminated, out.truncated, out.final_obs, out.mask, info, healed=healed
        )
        self.obs, self._mask, self._acted = row.obs, row.mask, row.acted
        reward = self._learned(batch) if self._changes_rewards else batch.reward
        self.store(reward, batch)
        return ActingStep(row.obs, row.mask, reward, batch)
