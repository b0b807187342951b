"""Off-policy training of teams with a custom `learn`, called as published with dictionaries by agent, one at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from agilerl.algorithms.base.adapted import adapted
from agilerl.algorithms.base.wrapped import unwrapped
from agilerl.algorithms.teams.transitions import TeamExperiences
from agilerl.collect.collector import Shard
from agilerl.collect.custom.learn import CustomTransitions
from agilerl.collect.teams.idle_agents import without_terminated
from agilerl.components.prioritized import beta_schedule
from agilerl.core import foreign
from agilerl.core.options import OffPolicyOptions
from agilerl.core.rng import Purpose
from agilerl.envs.protocol import AGENTS, PRESENT, TeamObservations
from agilerl.envs.step import Lanes, StepBatch
from agilerl.envs.team import Team
from agilerl.errors import ConfigError

NEEDED = ("write", "sample_indices", "gather")


class CustomTeamTransitions(CustomTransitions):
    """`CustomTransitions` for a team: `get_action(observations, infos)` and `learn(experiences)` by agent.

    `experiences` are the five published dictionaries, as returned by `MultiAgentReplayBuffer.sample`: discrete actions
    as environment indices, continuous components in [-1, 1], NaN for absent agents. As a `TeamExperiences` they also
    carry masks of legal actions, n-step discounts, and importance weights of prioritized replay.

    Args:
        team: of the environment.

    Raises:
        ConfigError: the memory does not support teams.
    """

    def __init__(self, shard: Shard, lanes: Lanes, options: OffPolicyOptions, team: Team) -> None:
        super().__init__(shard, lanes, options)
        self.team, self._rows = team, self.replay.rows
        (self._sampling,) = shard.streams(Purpose.REPLAY)
        missing = [name for name in NEEDED if not foreign.has_methods(self.memory, name)]
        if missing:
            raise ConfigError(
                f"the memory is a {type(self.memory).__name__} without {', '.join(missing)}, which teams store and "
                "sample by. fix: MultiAgentReplayBuffer(memory_size, field_names, agent_ids)."
            )
        inner = unwrapped(self.agent)
        self._layout = inner.actions if hasattr(inner, "actions") else None
        self._takes_infos = foreign.takes(self.agent, "get_action", "infos")

    def _act(self, mask: np.ndarray | None) -> np.ndarray:
        if self._stored() < self.options.random_steps:
            return super()._act(mask)
        agent_obs = self.team.by_agent(self.obs)
        infos = self.team.infos(self.obs, self.info, mask)
        result = self.agent.get_action(agent_obs, **({"infos": infos} if self._takes_infos else {}))
        chosen = result[0] if isinstance(result, tuple) else result
        row = self.team.join_decided(chosen)
        return row if self._environment_action is None or self._layout is None else self._layout.stored(row)

    def _outcome(self, action: np.ndarray) -> StepBatch:
        return without_terminated(self.team, super()._outcome(action))

    def _learn_once(self, size: int, index: int) -> Any:
        indices = self.memory.sample_indices(self._sampling, (size,))
        optional: dict[str, Any] = {"idxs": indices}
        if self.replay.prioritized:
            done = self.shard.begun + (index + 1) * self.lanes.num_lanes
            beta = beta_schedule(float(adapted(self.agent).beta), done, self.options.max_steps)
            optional["weights"] = self.replay.weights(indices, beta)
        experiences = self._by_agent(self._rows.gather(indices), optional)
        if not self.replay.prioritized:
            return self.agent.learn(experiences)
        loss, indices, priorities = self.agent.learn(experiences, per=True)
        if not bool(torch.as_tensor(priorities).isfinite().all()):
            return math.nan
        self.memory.update_priorities(indices, priorities)
        return loss

    def _by_agent(self, rows: Mapping[str, Any], optional: dict[str, Any]) -> TeamExperiences:
        """Convert rows of the memory to the published tuple."""
        present = rows["obs"][PRESENT].bool()
        optional |= {name: rows[name] for name in ("discount", "obs_mask", "next_mask") if name in rows}
        agent_obs = [
            TeamObservations(
                {a: rows[k][AGENTS][a] for a in self.team.agents}, dict(zip(self.team.agents, here.T, strict=True))
            )
            for k, here in (
                ("obs", present.numpy(force=True)),
                ("next_obs", rows["next_obs"][PRESENT].numpy(force=True)),
            )
        ]
        action, columns = rows["action"].clone(), self.team.columns
        if self._layout is not None and self._environment_action is not None:
            for agent, agent_columns in columns.items():
                one = self._layout.of_agent(agent)
                action[:, agent_columns] += torch.tensor(one.starts or 0, dtype=action.dtype, device=action.device)
        numbers = [rows[name].to(torch.float32).masked_fill(~present, torch.nan) for name in ("reward", "done")]
        reward, done = ({a: x[:, k : k + 1] for k, a in enumerate(self.team.agents)} for x in numbers)
        actions = {agent: action[:, agent_columns] for agent, agent_columns in columns.items()}
        return TeamExperiences((agent_obs[0], actions, reward, agent_obs[1], done), optional)
