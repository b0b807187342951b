"""Both halves of learning from transitions for one agent with a custom `get_action` or `learn`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from agilerl.algorithms.teams.transitions import TeamExperiences
from agilerl.collect.acting import Acting
from agilerl.collect.collector import Shard
from agilerl.collect.custom.calls import reported_loss
from agilerl.collect.teams.idle_agents import without_terminated
from agilerl.collect.updates import Schedule, Updates
from agilerl.components.prioritized import beta_schedule
from agilerl.core.options import OffPolicyOptions
from agilerl.envs.protocol import AGENTS, PRESENT, TeamObservations
from agilerl.envs.step import StepBatch


class CustomActing(Acting):
    """`Acting` of one agent by its `get_action`."""

    def _explored(self, rows: Any, draws: tuple[np.ndarray, ...], legal: np.ndarray | None) -> np.ndarray:
        mask, member = None if legal is None else legal[0], self._lead
        explored: np.ndarray = member.explore(self.obs, self.info, self.epsilon, mask, self.lanes)[None]
        return explored

    def _stored(self, obs: Any, action: np.ndarray, batch: StepBatch) -> tuple[Any, np.ndarray, StepBatch]:
        return obs, action, batch if batch.team is None else without_terminated(self._lead.team, batch)


class CustomUpdates(Updates):
    """`Updates` of one agent by its `learn`, with the published arguments for its kind of memory."""

    def __init__(self, shard: Shard, *args: Any, **named: Any) -> None:
        super().__init__(shard, *args, **named)
        (self.member,), replay = shard.agents, self.replay
        self.memory, self.size = replay.memory, int(self.member.batch_size)
        self.schedule = self.schedule or Schedule.of(self.member.learn_step, self.watch.num_envs)
        needed = {"per": replay.prioritized, "n_experiences": replay.n_step_memory is not None}
        random_steps = self.options.random_steps if isinstance(self.options, OffPolicyOptions) else 0
        self.member.check(random_steps, [name for name, is_needed in needed.items() if is_needed])

    def learn(self, index: int, is_whole: bool = True) -> None:
        assert self.schedule is not None
        if self.replay.added() <= self.options.learning_delay or index % self.schedule.interval:
            return
        for _ in range(self.schedule.count if len(self.memory) >= self.size else 0):
            experiences, named = self._sampled(index)
            result, (tally,) = self.member.agent.learn(experiences, **named), self.tallies
            if self.replay.prioritized:
                result, indices, priorities = result
                if self.watch.priorities(0, torch.as_tensor(priorities).numpy(force=True)):
                    self.memory.update_priorities(indices, priorities)
            tally.updates += 1
            if (loss := reported_loss(result)) is not None:
                tally.loss_sum += loss
                self.watch.losses([0], torch.tensor([loss]))
            if not self.watch.all_sound:
                return

    def _beta(self, index: int) -> float:
        """Return the exponent of importance weights after vector step `index`."""
        done = self._begun + (index + 1) * self.watch.num_envs
        return beta_schedule(float(self.member.beta), done, self.options.max_steps)

    def _sampled(self, index: int) -> tuple[Any, dict[str, Any]]:
        """Return the experiences of one update, and the other arguments of `learn`."""
        memory, later, is_prioritized = self.memory, self.replay.n_step_memory, self.replay.prioritized
        optional: dict[str, Any] = {"per": True} if is_prioritized else {}
        if is_prioritized:
            experiences = memory.sample(self.size, self._beta(index))
        else:
            experiences = memory.sample(self.size, **({} if later is None else {"return_idx": True}))
        if later is not None:
            optional["n_experiences"] = later.sample_from_indices(experiences["idxs"])
        return experiences, optional


class CustomOfflineUpdates(CustomUpdates):
    """`CustomUpdates` from a data set."""

    def _sampled(self, index: int) -> tuple[Any, dict[str, Any]]:
        return self.memory.sample_from_indices(self.memory.sample_indices(self._rngs[0], self.size)), {}


class CustomTeamUpdates(CustomUpdates):
    """`CustomUpdates` for a team, with dictionaries by agent.

    `experiences` are the five published dictionaries, as returned by `MultiAgentReplayBuffer.sample`: discrete actions
    as environment indices, continuous components in [-1, 1], NaN for absent agents. As a `TeamExperiences` they also
    carry masks of legal actions, n-step discounts, and importance weights of prioritized replay.
    """

    def _sampled(self, index: int) -> tuple[Any, dict[str, Any]]:
        indices = self.memory.sample_indices(self._rngs[0], (self.size,))
        optional: dict[str, Any] = {"idxs": indices}
        if self.replay.prioritized:
            optional["weights"] = self.replay.weights(indices, self._beta(index))
        team, layout, rows = self.member.team, self.member.layout, self.replay.rows.gather(indices)
        assert team is not None
        present = rows["obs"][PRESENT].bool()
        optional |= {name: rows[name] for name in ("discount", "obs_mask", "next_mask") if name in rows}
        obs, next_obs = (
            TeamObservations(
                {a: rows[name][AGENTS][a] for a in team.agents},
                dict(zip(team.agents, flags.numpy(force=True).T, strict=True)),
            )
            for name, flags in (("obs", present), ("next_obs", rows["next_obs"][PRESENT]))
        )
        action = rows["action"].clone()
        for agent, columns in team.columns.items() if layout is not None else ():
            starts = layout.of_agent(agent).starts or 0
            action[:, columns] += torch.tensor(starts, dtype=action.dtype, device=action.device)
        numbers = [rows[name].to(torch.float32).masked_fill(~present, torch.nan) for name in ("reward", "done")]
        reward, done = ({a: x[:, k : k + 1] for k, a in enumerate(team.agents)} for x in numbers)
        actions = {agent: action[:, columns] for agent, columns in team.columns.items()}
        experiences = TeamExperiences((obs, actions, reward, next_obs, done), optional)
        return experiences, {"per": True} if self.replay.prioritized else {}
