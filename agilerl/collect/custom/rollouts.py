"""Rollouts of one agent, or one team, with a custom `get_action`, `learn` or collection function."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from agilerl.algorithms.base.rollouts import RolloutExperiences
from agilerl.algorithms.base.wrapped import name_with_wrappers
from agilerl.collect.collector import Shard, ShardResult, Steps, Tally, keep_finished
from agilerl.collect.custom.calls import check_calls, reported_loss
from agilerl.collect.custom.member import CustomMember
from agilerl.collect.teams.idle_agents import ends_of_agents, without_terminated
from agilerl.components.rollout_store import RolloutStore
from agilerl.core import tree as trees
from agilerl.core.options import LoopOptions
from agilerl.core.ranges import StepsPerUpdate, check
from agilerl.envs.protocol import AGENTS, PRESENT
from agilerl.envs.returned import short
from agilerl.envs.step import Lanes, StepBatch, VectorLanes, as_lanes
from agilerl.envs.team import Team
from agilerl.errors import ConfigError
from agilerl.rollouts.off_policy import EpisodeTracker
from agilerl.rollouts.on_policy import ActingStep, record

Chosen = tuple[list[Any], list[Any], list[Any]]
"""Actions, log probabilities and values, [E, ...] for every step; for teams by agent."""
RESULTS = "actions, log probabilities, entropies, values"
LEARN_STEP = 128  # environment steps per rollout, for agents without `learn_step`


class CustomGeneration:
    """Collect whole rollouts of one generation, and let the agent learn from each.

    An agent that can record rollouts (`recorder`, as in PPO) acts through its recorder: with masks of legal actions,
    and with its hidden state, which is zeroed at the start of an episode. It then learns from its rollout buffer,
    unless it has a custom `learn`, which is called with the published tuple. Other agents act through `get_action`.

    A team gets and returns dictionaries by agent: the eight published entries, followed by `truncateds` and
    `final_observations`; see `agilerl.algorithms.teams.on_policy.learn`. The log probability and the value are NaN in
    steps in which an agent did not act. If infos have masks, `experiences.more["action_masks"]` holds them.

    Args:
        collect: `collect(agent, env, n_steps)`, after which `agent.learn()` learns from its rollout buffer; None steps
            the lanes here.

    Raises:
        ConfigError: a recurrent agent whose hidden states would be lost.
    """

    learning_s = 0.0  # seconds of all updates

    def __init__(
        self, shard: Shard, lanes: Lanes, options: LoopOptions, env: Any, collect: Callable[..., Any] | None = None
    ) -> None:
        (member,) = shard.agents
        self.member: CustomMember = member
        self.shard, self.lanes, self.options, self.env, self.collect = shard, lanes, options, env, collect
        self.tally = Tally()
        learn_step = member.learn_step if hasattr(member.agent, "learn_step") else LEARN_STEP
        check("learn_step", learn_step, StepsPerUpdate, LEARN_STEP)
        self.length = -(-int(learn_step) // lanes.num_lanes)
        if member.is_recurrent and not member.records:
            method, way = "get_action()", "override explore(outputs, draws, epsilon, mask)"
            if member.team is not None:
                method, way = "learn()", "override update(engine, batch)"
            way = f"{member.kind} without its wrapper" if member.is_wrapped else way
            raise ConfigError(
                f"{name_with_wrappers(member.agent)} brings its own {method} and has a memory, which a rollout would "
                f"not keep. fix: recurrent=False, or {way}."
            )
        if collect is None and member.learns_from_tuples:
            check_calls(member.agent, "learn")

    def run(self) -> Steps:
        """Collect whole rollouts, rounded up from the shard's vector steps."""
        member, agent, lanes = self.member, self.member.agent, self.lanes
        member.set_training_mode(True)
        if hasattr(agent, "num_envs"):
            agent.num_envs = lanes.num_lanes
        if hasattr(agent, "progress") and isinstance(agent.progress, int | float):  # for schedules over the run
            agent.progress = min(1.0, self.shard.begun / self.options.max_steps)
        rollouts = self._in_lanes() if self.collect is None else self._by_function(self.collect)
        for _ in range(-(-self.shard.vector_steps // self.length)):
            next(rollouts)
            self.tally.env_steps += self.length * lanes.num_lanes
            yield self.length * lanes.num_lanes
        (slot,) = self.shard.slots
        return ShardResult({slot: self.tally}, self.shard.shared)

    def _learn(self, *experiences: Any) -> None:
        start = time.perf_counter()
        loss = reported_loss(self.member.agent.learn(*experiences))
        self.learning_s += time.perf_counter() - start
        self.tally.updates += 1
        self.tally.loss_sum += loss or 0.0

    def _learned(self, batch: StepBatch) -> np.ndarray:
        return self.options.learned_reward(batch.reward if batch.team is None else batch.team.reward)

    def _by_function(self, collect: Callable[..., Any]) -> Iterator[None]:
        """Collect with the user's function, which may continue from its last return value."""
        # The function resets the environment without a seed, so seed its generators here.
        lanes = VectorLanes(self.env) if isinstance(self.env, VectorEnv) else as_lanes(self.env)
        lanes.reset(self.shard.lane_seeds(self.lanes.num_lanes))
        names, last = ("last_obs", "last_done", "last_scores", "last_info"), ()
        while True:
            result = collect(self.member.agent, self.env, self.length, **dict(zip(names, last, strict=False)))
            if isinstance(result, tuple) and len(result) == 5:
                scores, *last = result  # type: ignore[assignment]
                self.tally.scores += [float(s) for s in scores]
            self._learn()
            yield

    def _in_lanes(self) -> Iterator[None]:
        """Collect in the lanes, and call the agent's `learn` on each rollout."""
        member, lanes, team = self.member, self.lanes, self.member.team
        obs, info = lanes.reset(self.shard.lane_seeds(lanes.num_lanes))
        tracker, is_new = EpisodeTracker(lanes.num_lanes), True
        begins = np.zeros(lanes.num_lanes if team is None else (lanes.num_lanes, len(team.agents)), bool)
        takes_masks = team is not None or "action_mask" in member.get_action_takes
        while True:
            recorder: Any = (
                member.agent.recorder(self.length) if member.records else GetAction(member, self.length, info)
            )
            if is_new:
                recorder.restart()
                is_new = False
            steps: list[ActingStep] = []
            for step in record(recorder, lanes, obs, info, self._learned, takes_masks):
                if member.learns_from_tuples:
                    steps.append(step)
                keep_finished([self.tally], tracker.update(step.batch), lanes.num_lanes)
                obs, info = step.batch.obs, step.batch.info
            if not member.learns_from_tuples:
                self._learn()
            elif team is not None:
                experiences, begins = team_experiences_of(team, steps, begins, recorder.chosen(), obs)
                self._learn(experiences)
            else:
                buffer = recorder.buffer if member.records else None
                rows = experiences_of(steps, begins, recorder.chosen(), obs, buffer)
                last = steps[-1].batch
                begins = last.terminated | last.truncated | ~last.mask
                if buffer is not None:
                    buffer.reset()
                if rows is not None:
                    self._learn(rows)
            yield


class GetAction:
    """Recorder interface for an agent that cannot record and acts through `get_action`.

    Args:
        info: of the current observations.
    """

    active: np.ndarray | None = None

    def __init__(self, member: CustomMember, length: int, info: dict[str, Any]) -> None:
        self.member, self.length, self._info = member, length, info
        self._chosen: Chosen = ([], [], [])

    @property
    def full(self) -> bool:
        """Whether the rollout is complete."""
        return len(self._chosen[0]) >= self.length

    def restart(self) -> None:
        """No-op: such an agent has no hidden state known to this loop."""

    def act(self, obs: Any, mask: np.ndarray | None) -> Any:
        """Return environment actions for observations [E, ...].

        Raises:
            ConfigError: `get_action` returned a different format.
        """
        member = self.member
        result, is_team = member.get_action(obs, self._info, mask), member.team is not None
        is_result = isinstance(result, tuple) and len(result) >= 4
        if not is_result or (is_team and not all(isinstance(x, Mapping) for x in result[:4])):
            form, function = ("four dictionaries by agent: ", "multi_agent_") if is_team else ("", "")
            raise ConfigError(
                f"{member.kind}.get_action must return {form}{RESULTS} in on-policy training; it returned "
                f"{short(result)}. fix: the four, or train_{function}off_policy for an agent that learns from replay."
            )
        action, log_prob, _, value = result[:4]
        for column, entry in zip(self._chosen, (action, log_prob, value), strict=True):
            column.append(entry)
        return member.rollout_action(action)

    def store(self, reward: np.ndarray, batch: StepBatch) -> None:
        """Remember the info of the next observations; the steps are stored by the caller."""
        self._info = batch.info

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

    def at(entries: list[Any], moment: np.ndarray) -> Any:
        """Select lane e of entry moment[..., e], with the nesting of the entries."""
        return trees.map_leaves(lambda *parts: np.stack(parts)[moment, lanes], *entries)

    def picked(entries: list[Any]) -> list[Any]:
        """Entry t holds row rows[t, e] of lane e."""
        return entries if valid.all() else trees.unbind(at(entries, rows))

    action, log_prob, value = chosen
    dones, after = list(done[rows, lanes]), rows[-1] + 1
    optional: dict[str, Any] = {}
    first_mask = next((step.mask for step in steps if step.mask is not None), None)
    if first_mask is not None:
        everything = np.ones_like(first_mask)
        optional["action_masks"] = picked([everything if step.mask is None else step.mask for step in steps])
    if recorded is not None and recorded.hidden_state_architecture:
        optional |= _hidden_and_values(recorded, rows, after)
    return RolloutExperiences(
        (
            picked([step.obs for step in steps]),
            picked(action),
            picked(log_prob),
            picked([step.reward for step in steps]),
            [np.where(rows[0] == 0, begins, True), *dones[:-1]],
            picked(value),
            next_obs if valid.all() else at([*(step.obs for step in steps), next_obs], after),
            dones[-1],
            list(truncated[rows, lanes]),
            picked([step.batch.final_obs for step in steps]),
        ),
        optional,
    )


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


def team_experiences_of(
    team: Team, steps: Sequence[ActingStep], begins: np.ndarray, chosen: Chosen, next_obs: Any
) -> tuple[RolloutExperiences, np.ndarray]:
    """Convert a rollout of E teams to the published tuple by agent, and return the ends [E, M] of its last step.

    Args:
        begins: [E, M] bool, agents whose episodes start with the first step.
        chosen: actions, log probabilities and values of every step by agent.
        next_obs: [E, ...] observations after the last step.
    """
    batches = [without_terminated(team, step.batch) for step in steps]
    finals = [team.by_agent(batch.final_obs) for batch in batches]
    valid = np.stack([batch.mask for batch in batches])[..., None]  # [T, E, 1]
    terminated, truncated = map(np.stack, zip(*map(ends_of_agents, batches), strict=True))
    done = terminated | truncated | ~valid
    gap = np.concatenate((~valid[1:], np.zeros_like(valid[:1]))) & ~done  # the row after a gap is not its successor
    truncated, done = truncated | gap, done | gap
    dones, decided = np.concatenate((begins[None], done)), np.stack([_decided(team, batch) for batch in batches])
    # The flag of a waiting agent is NaN: its next observation is still to come.
    next_done = np.where(np.asarray(next_obs[PRESENT]).astype(bool) | done[-1], done[-1], np.nan)

    def of_agent(k: int, agent: str) -> tuple[Any, ...]:
        """Return the entries of one agent, and its masks of legal actions."""
        space, columns = team.action_spaces[agent], team.mask_columns[agent]
        nothing = np.zeros((len(begins), *(space.shape or ())), space.dtype)
        everything = np.ones((len(begins), columns.stop - columns.start), bool)

        def numbers(by_step: list[Any]) -> list[np.ndarray]:
            """Values [E] of every step, NaN where the agent did not act."""
            values = [np.asarray(by_agent.get(agent, np.nan), float).reshape(-1) for by_agent in by_step]
            return [np.where(acts, x, np.nan) for acts, x in zip(decided[..., k], values, strict=True)]

        return (
            [step.obs[AGENTS][agent] for step in steps],
            [np.nan_to_num(np.asarray(action.get(agent, nothing))) for action in chosen[0]],
            numbers(chosen[1]),
            [step.reward[:, k].copy() for step in steps],
            list(dones[:-1, :, k].astype(float)),
            numbers(chosen[2]),
            next_done[:, k],
            list(truncated[..., k].astype(float)),
            [final[agent] for final in finals],
            [everything if step.mask is None else step.mask[:, columns] for step in steps],
        )

    entries = zip(*(of_agent(k, agent) for k, agent in enumerate(team.agents)), strict=True)
    *first, last_done, cuts, last_obs, masks = (dict(zip(team.agents, entry, strict=True)) for entry in entries)
    experiences = RolloutExperiences((*first, team.by_agent(next_obs), last_done, cuts, last_obs))
    if any(step.mask is not None for step in steps):
        experiences.more["action_masks"] = {a: masks[a] for a in team.agents if masks[a][0].shape[1]}
    return experiences, done[-1]


def _decided(team: Team, batch: StepBatch) -> np.ndarray:
    """Return [E, M] bool: agents that chose their action in this step; the environment may have replaced it."""
    step = batch.team
    assert step is not None
    decided: np.ndarray = step.acted & batch.mask[:, None]
    if step.defined is not None:
        decided &= np.stack([np.isnan(step.defined[:, span]).all(1) for span in team.columns.values()], -1)
    return decided
