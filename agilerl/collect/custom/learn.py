"""Training loops for agents with a custom `learn`: custom and duck-typed algorithms, wrappers, collection functions.

Agents are called through the published interface: `get_action(obs, ...)`, and `learn(experiences, ...)` with the
contents of their memory or rollout. Nothing else is required of them, so they train one after another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from agilerl.algorithms.base.adapted import adapted
from agilerl.algorithms.base.predict import environment_actions
from agilerl.algorithms.base.rollouts import RolloutExperiences
from agilerl.algorithms.base.single_agent import RLAlgorithm
from agilerl.algorithms.base.wrapped import name_with_wrappers, overrides, overrides_learn, unwrapped
from agilerl.algorithms.teams.base import MultiAgentRLAlgorithm
from agilerl.collect.collector import Shard, ShardResult, Steps, Tally, keep_finished
from agilerl.collect.custom.calls import check_calls, reported_loss
from agilerl.collect.divergence import is_finite
from agilerl.collect.replay import SharedReplay
from agilerl.collect.updates import Schedule
from agilerl.components.prioritized import beta_schedule
from agilerl.components.rollout_store import RolloutStore
from agilerl.core import foreign
from agilerl.core import tree as trees
from agilerl.core.options import LoopOptions, OffPolicyOptions
from agilerl.core.rng import Purpose
from agilerl.core.tree import map_leaves
from agilerl.engine.choose import no_engine_reason
from agilerl.envs.masks import ActionMasks
from agilerl.envs.returned import short
from agilerl.envs.step import Lanes, StepBatch, VectorLanes, as_lanes
from agilerl.errors import ConfigError, warn_once
from agilerl.rollouts.off_policy import EpisodeTracker
from agilerl.rollouts.on_policy import ActingStep, record

Chosen = tuple[list[Any], list[Any], list[Any]]
"""Actions, log probabilities and values, [E, ...] for every step."""


CALLED_BY_LEARN = ("learn_from", "learn_batch", "make_batch", "report", "learn_buffer")
NOT_CALLED = (
    "evaluate_actions", "soft_update", "action_noise", "reset_action_noise", "preprocess_observation", "policy_output",
    "act", "predict", "criterion",
)  # fmt: skip
"""Published methods that no training function calls; `CALLED_BY_LEARN` by `learn` alone."""


class CustomLearn:
    """Placeholder learner: every agent runs its own `learn`."""

    name: Literal["agents"] = "agents"

    def __init__(self, agents: Sequence[Any]) -> None:
        self.agents = list(agents)

    def release(self) -> None:
        """No-op: no tensors were adopted."""


def trains_by_learn(agent: Any) -> bool:
    """Whether no engine can run this agent's update, neither on stacked rows nor on its modules."""
    return not isinstance(agent, RLAlgorithm | MultiAgentRLAlgorithm) or no_engine_reason(agent) is not None


def reason_to_run_alone(agent: Any, acts: bool = True) -> str | None:
    """Return why an agent trains by its own methods, one member at a time; None if an engine can run it.

    Args:
        acts: whether members act in training, so that an overridden `get_action` is called.
    """
    if trains_by_learn(agent):
        return "brings its own learn()"
    return "brings its own get_action()" if acts and overrides(agent, "get_action") else None


def warn_of_uncalled(agent: Any, learner: str) -> None:
    """Warn about published methods that a subclass overrides and that training does not call."""
    if overrides(agent, "update", "learn"):
        return
    names = NOT_CALLED if learner == CustomLearn.name else (*NOT_CALLED, *CALLED_BY_LEARN)
    overridden = [name for name in names if overrides(agent, name)]
    if overridden:
        kind = type(unwrapped(agent)).__name__
        warn_once(
            f"{kind} overrides {overridden}",
            f"{kind} overrides {', '.join(overridden)}, which training does not call. fix: override "
            "update(engine, batch), or learn(experiences), by which members then train one after another.",
        )


# -- from replay -----------------------------------------------------------------------------------------------------


class CustomTransitions:
    """One off-policy generation of one agent with custom `get_action` and `learn`."""

    def __init__(self, shard: Shard, lanes: Lanes, options: OffPolicyOptions) -> None:
        (self.agent,) = shard.agents
        if options.random_steps and not foreign.has_methods(self.agent, "random_action"):
            raise ConfigError(
                f"random_steps={options.random_steps} needs agents with random_action(rng, shape, mask); "
                f"{type(self.agent).__name__} has none. fix: random_steps=0, or write the method."
            )
        agent, shared = self.agent, shard.shared
        assert shared.epsilon is not None
        self.shard, self.lanes, self.options, self.epsilon = shard, lanes, options, shared.epsilon
        self.replay = SharedReplay(**shared.memories)
        self.memory = self.replay.memory
        self.tally = Tally()
        (self._rng,) = shard.streams(Purpose.EXPLORATION)
        self.replay.interrupt()
        self.obs, self.info = lanes.reset(shard.lane_seeds(lanes.num_lanes))
        adapted(agent).set_training_mode(True)  # before anything else: actions depend on the mode
        self._check_learn()
        self._takes_epsilon, self._takes_mask = (
            foreign.takes(agent, "get_action", k) for k in ("epsilon", "action_mask")
        )
        acts_raw = adapted(agent).acts_raw  # stored actions may be raw
        self._environment_action = foreign.method(agent, "environment_action") if acts_raw else None
        self._masks = ActionMasks(lanes.single_action_space, lanes.backend)
        self._tracker = EpisodeTracker(lanes.num_lanes)
        self._schedule = Schedule.of(adapted(agent).learn_step, lanes.num_lanes)

    def _check_learn(self) -> None:
        """Check the signature of `learn`. ConfigError if it does not fit the memories."""
        check_calls(self.agent, "learn")
        needed = {"per": self.replay.prioritized, "n_experiences": self.replay.n_step_memory is not None}
        for name, is_needed in needed.items():
            if is_needed and not foreign.takes(self.agent, "learn", name):
                kind = type(unwrapped(self.agent)).__name__
                full = "learn(experiences, n_experiences=None, per=False)"
                raise ConfigError(
                    f"{kind}.learn takes no argument {name!r}, which this memory requires. fix: {full}, "
                    "which with per=True returns (loss, idxs, priorities); or train from a plain ReplayBuffer."
                )

    def run(self) -> Steps:
        """Make the shard's vector steps."""
        for index in range(self.shard.vector_steps):
            if not is_finite(self.agent):
                self.tally.fault = "its weights are not finite"
            if self.tally.fault is None and self._step(index):
                yield self.lanes.num_lanes
        (slot,) = self.shard.slots
        return ShardResult({slot: self.tally}, replace(self.shard.shared, epsilon=self.epsilon))

    def _act(self, mask: np.ndarray | None) -> np.ndarray:
        """Return actions [L, ...]; `mask` [L, A] marks the legal ones."""
        arguments: dict[str, Any] = {"epsilon": self.epsilon} if self._takes_epsilon else {}
        if mask is not None and self._takes_mask:
            arguments["action_mask"] = mask
        if self._stored() < self.options.random_steps:
            random: np.ndarray = self.agent.random_action(self._rng, (self.lanes.num_lanes,), mask)
            convert = foreign.method(self.agent, "environment_action")
            if self._environment_action is None and convert is not None:
                random = convert(random)  # in the format of this agent's get_action
            return random
        action = self.agent.get_action(self.obs, **arguments)
        action = action[0] if isinstance(action, tuple) else action
        if isinstance(action, Tensor):
            action = action.detach().cpu().numpy()
        space = self.lanes.single_action_space
        if space is None:  # duck-typed environment: any action format, one row per lane
            return np.asarray(action).reshape(self.lanes.num_lanes, *np.shape(action)[1:])
        if self._environment_action is not None:  # raw: the shape is defined by the algorithm
            return np.asarray(action)
        if isinstance(unwrapped(self.agent), RLAlgorithm):
            return np.asarray(environment_actions(self.agent, action, self.lanes.num_lanes))
        return np.asarray(action).reshape(self.lanes.num_lanes, *(space.shape or ()))

    def _step(self, index: int) -> bool:
        """Make one vector step; False if there was no finite action."""
        mask = self._masks.of(self.info, self.lanes.num_lanes)
        action, legal = self._act(mask), mask if adapted(self.agent).learns_from_obs_mask else None
        if action.dtype.kind == "f" and not np.isfinite(action).all():
            self.tally.fault = "its actions are not finite"
            return False
        self.epsilon = max(self.options.eps_end, self.epsilon * self.options.eps_decay)
        batch = self._outcome(action if self._environment_action is None else self._environment_action(action))
        reward = self.options.learned_reward(batch.reward if batch.team is None else batch.team.reward)
        if foreign.has_methods(self.memory, "write"):
            self.replay.write(self.obs, action, reward, batch, self._masks, legal)
        else:
            self._store_elsewhere(action, reward, batch)
        keep_finished([self.tally], self._tracker.update(batch), self.lanes.num_lanes)
        self.obs, self.info = batch.obs, batch.info
        self.tally.env_steps += self.lanes.num_lanes
        if self._stored() > self.options.learning_delay and index % self._schedule.interval == 0:
            self._learn(index)
        return True

    def _outcome(self, action: np.ndarray) -> StepBatch:
        """Step all lanes."""
        return self.lanes.step(action)

    def _stored(self) -> int:
        """Transitions added so far; for memories without a counter, the current size."""
        return int(self.memory.counter if hasattr(self.memory, "counter") else len(self.memory))

    def _store_elsewhere(self, action: np.ndarray, reward: np.ndarray, batch: StepBatch) -> None:
        keep = batch.mask
        fields = (self.obs, action, reward, batch.final_obs, batch.terminated)
        self.memory.save_to_memory(*(map_leaves(lambda x: np.asarray(x)[keep], f) for f in fields), is_vectorised=True)

    def _learn(self, index: int) -> None:
        size = int(adapted(self.agent).batch_size)
        if len(self.memory) < size:
            return
        for _ in range(self._schedule.count):
            loss = reported_loss(self._learn_once(size, index))
            self.tally.updates += 1
            if loss is not None:
                self.tally.loss_sum += loss
                if not math.isfinite(loss):
                    self.tally.fault = "its loss is not finite"
                    return

    def _learn_once(self, size: int, index: int) -> Any:
        """Call `learn` once with the published arguments for this kind of memory; return the reported loss."""
        n_step_memory = self.replay.n_step_memory
        if not self.replay.prioritized and n_step_memory is None:
            return self.agent.learn(self.memory.sample(size))
        if not self.replay.prioritized:
            experiences = self.memory.sample(size, return_idx=True)
            return self.agent.learn(experiences, n_experiences=n_step_memory.sample_from_indices(experiences["idxs"]))
        done = self.shard.begun + (index + 1) * self.lanes.num_lanes
        beta = beta_schedule(float(adapted(self.agent).beta), done, self.options.max_steps)
        experiences = self.memory.sample(size, beta)
        extra = {}
        if n_step_memory is not None:
            extra["n_experiences"] = n_step_memory.sample_from_indices(experiences["idxs"])
        loss, indices, priorities = self.agent.learn(experiences, per=True, **extra)
        if not bool(torch.as_tensor(priorities).isfinite().all()):
            return math.nan  # such priorities would corrupt every member that samples by them
        self.memory.update_priorities(indices, priorities)
        return loss


# -- from rollouts ---------------------------------------------------------------------------------------------------


NEEDED = ("actions", "log probabilities", "entropies", "values")
LEARN_STEP = 128  # environment steps per rollout, for agents without `learn_step`


class CustomRollouts:
    """Collect whole rollouts, and let the agent learn from each.

    An agent that can record rollouts (`recorder`, as in PPO) acts through its recorder: with masks of legal actions,
    and with its hidden state, which is zeroed at the start of an episode. It then learns from its rollout buffer,
    unless it has a custom `learn`, which is called with the published tuple. Other agents act through `get_action`.

    Args:
        collect: `collect(agent, env, n_steps)`, after which `agent.learn()` learns from its rollout buffer; None steps
            the lanes here.
    """

    def __init__(
        self, shard: Shard, lanes: Lanes, options: LoopOptions, collect: Callable[..., Any] | None, env: Any
    ) -> None:
        (self.agent,) = shard.agents
        self.shard, self.lanes, self.options, self.collect, self.env = shard, lanes, options, collect, env
        self.tally = Tally()
        steps = self.agent.learn_step if hasattr(self.agent, "learn_step") else LEARN_STEP
        self.length = -(-int(steps) // lanes.num_lanes)
        custom_method = overrides(self.agent, "get_action")
        self._records = foreign.has_methods(unwrapped(self.agent), "recorder") and custom_method is None
        self._trains_by_learn = not self._records or overrides_learn(self.agent)
        self._takes_mask = foreign.takes(self.agent, "get_action", "action_mask")

    def run(self) -> Steps:
        """Collect whole rollouts, rounded up from the shard's vector steps."""
        agent, lanes = self.agent, self.lanes
        if not self._records and adapted(agent).is_recurrent:
            raise ConfigError(
                f"{name_with_wrappers(agent)} brings its own get_action() and has a memory, which a rollout "
                "would not keep. fix: recurrent=False, or override explore(outputs, draws, epsilon, mask)."
            )
        if self.collect is None and self._trains_by_learn:
            check_calls(agent, "learn")
        adapted(agent).set_training_mode(True)
        if hasattr(agent, "num_envs"):
            agent.num_envs = lanes.num_lanes
        if hasattr(agent, "progress") and isinstance(agent.progress, int | float):  # for schedules over the run
            agent.progress = min(1.0, self.shard.begun / self.options.max_steps)
        rollouts = self._with_lanes() if self.collect is None else self._with_function(self.collect)
        for _ in range(-(-self.shard.vector_steps // self.length)):
            next(rollouts)
            self.tally.env_steps += self.length * lanes.num_lanes
            yield self.length * lanes.num_lanes
        (slot,) = self.shard.slots
        return ShardResult({slot: self.tally}, self.shard.shared)

    def _learn(self, *experiences: Any) -> None:
        loss = reported_loss(self.agent.learn(*experiences))
        self.tally.updates += 1
        self.tally.loss_sum += loss or 0.0

    def _learned(self, batch: StepBatch) -> np.ndarray:
        return self.options.learned_reward(batch.reward)

    def _with_function(self, collect: Callable[..., Any]) -> Iterator[None]:
        """Collect with the user's function, which may continue from its last return value."""
        # The function resets the environment without a seed, so seed its generators here.
        lanes = VectorLanes(self.env) if isinstance(self.env, VectorEnv) else as_lanes(self.env)
        lanes.reset(self.shard.lane_seeds(self.lanes.num_lanes))
        names, last = ("last_obs", "last_done", "last_scores", "last_info"), ()
        while True:
            result = collect(self.agent, self.env, self.length, **dict(zip(names, last, strict=False)))
            if isinstance(result, tuple) and len(result) == 5:
                scores, *last = result  # type: ignore[assignment]
                self.tally.scores += [float(s) for s in scores]
            self._learn()
            yield

    def _with_lanes(self) -> Iterator[None]:
        """Collect in the lanes, and call the agent's `learn` on each rollout."""
        obs, info = self.lanes.reset(self.shard.lane_seeds(self.lanes.num_lanes))
        begins = np.zeros(self.lanes.num_lanes, bool)  # as published: the first flags are unset
        tracker = EpisodeTracker(self.lanes.num_lanes)
        is_new = True
        while True:
            recorder: Any = self.agent.recorder(self.length) if self._records else GetAction(self.agent, self.length)
            if is_new:
                recorder.restart()
                is_new = False
            steps: list[ActingStep] = []
            first_obs = begins
            for step in record(recorder, self.lanes, obs, info, self._learned, self._takes_mask):
                if self._trains_by_learn:
                    steps.append(step)
                batch = step.batch
                self.tally.scores += tracker.update(batch).returns.tolist()
                obs, info, begins = batch.obs, batch.info, batch.terminated | batch.truncated | ~batch.mask
            if not self._trains_by_learn:
                self._learn()
            else:
                buffer = recorder.buffer if self._records else None
                experiences = experiences_of(steps, first_obs, recorder.chosen(), obs, buffer)
                if buffer is not None:
                    buffer.reset()
                if experiences is not None:
                    self._learn(experiences)
            yield


class GetAction:
    """Recorder interface for an agent that cannot record and acts through `get_action`."""

    active: np.ndarray | None = None

    def __init__(self, agent: Any, length: int) -> None:
        self.agent, self.length = agent, length
        self._convert = foreign.method(agent, "environment_action")
        self._chosen: Chosen = ([], [], [])

    @property
    def full(self) -> bool:
        """Whether the rollout is complete."""
        return len(self._chosen[0]) >= self.length

    def restart(self) -> None:
        """No-op: such an agent has no hidden state known to this loop."""

    def act(self, obs: Any, mask: np.ndarray | None) -> Any:
        """Return environment actions for observations [E, ...]."""
        result = self.agent.get_action(obs, **({} if mask is None else {"action_mask": mask}))
        if not isinstance(result, tuple) or len(result) < 4:
            raise ConfigError(
                f"{type(unwrapped(self.agent)).__name__}.get_action must return {', '.join(NEEDED)} in on-policy "
                f"training; it returned {short(result)}. fix: the four, or train_off_policy for an agent that learns "
                "from replay."
            )
        action, log_prob, _, value = result[:4]
        for column, entry in zip(self._chosen, (action, log_prob, value), strict=True):
            column.append(entry)
        return action if self._convert is None else self._convert(action)

    def store(self, reward: np.ndarray, batch: StepBatch) -> None:
        """No-op."""

    def finish(self, obs: Any) -> None:
        """No-op."""

    def chosen(self) -> Chosen:
        return self._chosen


def experiences_of(
    steps: Sequence[ActingStep], begins: np.ndarray, chosen: Chosen, next_obs: Any, recorded: RolloutStore | None = None
) -> RolloutExperiences | None:
    """Convert a rollout of E lanes to the published tuple, with `truncateds` and `final_observations`.

    Rows that are not transitions (autoreset steps, steps of a replaced lane) are dropped. Lanes may then differ in
    length; all are cut to the shortest. The `next_obs` of a cut lane is the observation after its last remaining row.
    Entry t of the lists holds the t-th transition of every lane, so its rows may come from different time steps.

    Args:
        begins: [E] bool, lanes in which an episode starts with the first step.
        chosen: actions, log probabilities and values of every step.
        next_obs: [E, ...] observations after the last step.
        recorded: the same steps in a buffer, with the hidden states and values needed by a recurrent agent.

    Returns:
        None if any lane has no transition.
    """
    valid = np.stack([step.batch.mask for step in steps])  # [T, E]
    lanes = np.arange(valid.shape[1])
    count = int(valid.sum(0).min())
    if not count:
        return None
    rows = np.argsort(~valid, axis=0, kind="stable")[:count]  # [n, E] first transitions of each lane, in order
    terminated, truncated = (
        np.stack(flags) for flags in zip(*((s.batch.terminated, s.batch.truncated) for s in steps), strict=True)
    )
    # A row before a gap is truncated: the row after the gap is not its successor.
    before_gap = np.concatenate((~valid[1:], np.zeros((1, len(lanes)), bool)))
    truncated = truncated | (before_gap & ~terminated)
    done = terminated | truncated

    def picked(entries: list[Any]) -> list[Any]:
        """Entry t holds row rows[t, e] of lane e."""
        return entries if valid.all() else [_lanes_at(entries, moment) for moment in rows]

    def flags(values: np.ndarray) -> list[np.ndarray]:
        return list(values[rows, lanes])

    action, log_prob, value = chosen
    obs = [step.obs for step in steps]
    dones = flags(done)
    first = np.where(rows[0] == 0, begins, True)
    after = rows[-1] + 1
    optional: dict[str, Any] = {}
    first_mask = next((step.mask for step in steps if step.mask is not None), None)
    if first_mask is not None:
        optional["action_masks"] = picked(
            [np.ones_like(first_mask) if step.mask is None else step.mask for step in steps]
        )
    if recorded is not None and recorded.hidden_state_architecture:
        optional |= _hidden_and_values(recorded, rows, after)
    return RolloutExperiences(
        (
            picked(obs),
            picked(action),
            picked(log_prob),
            picked([step.reward for step in steps]),
            [first, *dones[:-1]],
            picked(value),
            _lanes_at([*obs, next_obs], after),
            dones[-1],
            flags(truncated),
            picked([step.batch.final_obs for step in steps]),
        ),
        optional,
    )


def _lanes_at(entries: list[Any], moment: np.ndarray) -> Any:
    """Select lane e of entry moment[e], [E, ...], with the nesting of the entries."""
    chosen: Any = None
    for t in np.unique(moment).tolist():
        entry = entries[t]
        chosen = entry if chosen is None else trees.choose(moment == t, entry, chosen)
    return chosen


def _hidden_and_values(recorded: RolloutStore, rows: np.ndarray, after: np.ndarray) -> Mapping[str, Any]:
    """Return hidden states before each selected row, and the values that depend on them."""
    lanes = np.arange(rows.shape[1])
    stored, value = recorded.stored("hidden"), recorded.stored("value")
    hidden = [{key: np.moveaxis(part[moment, lanes], 1, 0) for key, part in stored.items()} for moment in rows]
    assert recorded.last_value is not None
    following = np.concatenate((value, recorded.last_value[None].astype(recorded.fields["value"].dtype)))
    final = following[1:].copy()
    for part in recorded.truncations:
        if part.value is not None:
            final[part.step, part.lanes] = part.value
    return {"hidden_states": hidden, "final_values": list(final[rows, lanes]), "last_values": following[after, lanes]}
