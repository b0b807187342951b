"""On-policy training of teams with a custom `learn`, called as published with dictionaries by agent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from agilerl.algorithms.base.adapted import adapted
from agilerl.algorithms.base.rollouts import RolloutExperiences
from agilerl.algorithms.base.wrapped import name_with_wrappers, unwrapped
from agilerl.collect.collector import Shard, keep_finished
from agilerl.collect.custom.learn import NEEDED, CustomRollouts
from agilerl.collect.teams.idle_agents import ends_of_agents, without_terminated
from agilerl.core import foreign
from agilerl.core.options import LoopOptions
from agilerl.envs.masks import ActionMasks
from agilerl.envs.protocol import AGENTS, PRESENT
from agilerl.envs.step import Lanes, StepBatch
from agilerl.envs.team import Team
from agilerl.errors import ConfigError
from agilerl.rollouts.off_policy import EpisodeTracker


class CustomTeamRollouts(CustomRollouts):
    """`CustomRollouts` for a team: `get_action(observations, infos)` and `learn(experiences)` by agent.

    `experiences` are the eight published entries, followed by `truncateds` and `final_observations`; see
    `agilerl.algorithms.teams.on_policy.learn`. The log probability and the value are NaN in steps in which an agent did
    not act. For teams of this package whose infos have masks, `experiences.more["action_masks"]` holds them.

    Args:
        team: of the environment.

    Raises:
        ConfigError: a recurrent team; these entries do not hold hidden states.
    """

    def __init__(self, shard: Shard, lanes: Lanes, options: LoopOptions, team: Team) -> None:
        super().__init__(shard, lanes, options, None, None)
        self.team, self._masks = team, ActionMasks(lanes.single_action_space, lanes.backend)
        inner = unwrapped(self.agent)
        if adapted(inner).is_recurrent:
            is_wrapped = inner is not self.agent
            way = f"{type(inner).__name__} without its wrapper" if is_wrapped else "override update(engine, batch)"
            raise ConfigError(
                f"{name_with_wrappers(self.agent)} brings its own learn() and has a memory, whose hidden states "
                f"learn() is not given. fix: recurrent=False, or {way}."
            )
        self._takes_infos = foreign.takes(self.agent, "get_action", "infos")
        self._convert = foreign.method(
            self.agent, "environment_actions"
        )  # of IPPO and MAPPO, whose actions are sampled

    def _with_lanes(self) -> Iterator[None]:
        obs, info = self.lanes.reset(self.shard.lane_seeds(self.lanes.num_lanes))
        tracker = EpisodeTracker(self.lanes.num_lanes)
        before = np.zeros((self.lanes.num_lanes, len(self.team.agents)), bool)
        while True:
            rows = _Rows(self.team, before)
            for _ in range(self.length):
                mask = self._mask(info)
                chosen = self._act(obs, info, mask)
                actions = chosen[0] if self._convert is None else self._convert(chosen[0])
                row = self.team.join_decided(actions)
                batch = without_terminated(self.team, self.lanes.step(row))
                assert batch.team is not None
                rows.add(obs, mask, chosen, self.options.learned_reward(batch.team.reward), batch)
                keep_finished([self.tally], tracker.update(batch), self.lanes.num_lanes)
                obs, info = batch.obs, batch.info
            self._learn(rows.experiences(obs))
            before = rows.dones[-1]
            yield

    def _mask(self, info: dict[str, Any]) -> np.ndarray | None:
        mask: np.ndarray | None = self._masks.of(info, self.lanes.num_lanes)
        return mask

    def _act(self, obs: Any, info: dict[str, Any], mask: np.ndarray | None) -> tuple[Any, ...]:
        """Return (actions, log probabilities, values) by agent.

        Raises:
            ConfigError: `get_action` returned a different format.
        """
        infos = {"infos": self.team.infos(obs, info, mask)} if self._takes_infos else {}
        result = self.agent.get_action(self.team.by_agent(obs), **infos)
        if not isinstance(result, tuple) or len(result) < 4 or not all(isinstance(x, Mapping) for x in result[:4]):
            kind = type(unwrapped(self.agent)).__name__
            raise ConfigError(
                f"{kind}.get_action must return four dictionaries by agent: {', '.join(NEEDED)}. "
                "fix: train_multi_agent_off_policy for a team that learns from replay."
            )
        action, log_prob, _, value = result[:4]
        return action, log_prob, value


class _Rows:
    """Steps of one rollout, by agent.

    Args:
        before: [E, M] bool, agents whose episodes start with the first step.
    """

    def __init__(self, team: Team, before: np.ndarray) -> None:
        self.team, self.dones = team, [before]
        names = ("observations", "actions", "log_probs", "rewards", "values", "final_observations", "action_masks")
        self.lists: dict[str, dict[str, list[Any]]] = {name: {a: [] for a in team.agents} for name in names}
        self.truncateds: list[np.ndarray] = []
        self.has_masks = False

    def add(
        self, obs: Any, mask: np.ndarray | None, chosen: tuple[Any, ...], reward: np.ndarray, batch: StepBatch
    ) -> None:
        """Add one vector step; `chosen` holds actions, log probabilities and values by agent."""
        step, (action, log_prob, value) = batch.team, chosen
        assert step is not None
        decided = step.acted & batch.mask[:, None]
        final, (terminated, cut) = self.team.by_agent(batch.final_obs), ends_of_agents(batch)
        replaced = ~batch.mask  # not a transition: the step before it is truncated
        if replaced.any() and self.truncateds:
            gap = replaced[:, None] & ~self.dones[-1]
            self.truncateds[-1], self.dones[-1] = self.truncateds[-1] | gap, self.dones[-1] | gap
        self.has_masks |= mask is not None
        for k, agent in enumerate(self.team.agents):
            columns = self.team.columns[agent]
            acted = decided[:, k]
            if step.defined is not None:
                acted = acted & np.isnan(step.defined[:, columns]).all(1)
            legal = self.team.mask_columns[agent]
            entries = {
                "observations": obs[AGENTS][agent],
                "actions": np.nan_to_num(np.asarray(action[agent])) if agent in action else self._nothing(agent),
                "log_probs": self._numbers(log_prob, agent, acted),
                "rewards": reward[:, k].copy(),
                "values": self._numbers(value, agent, acted),
                "final_observations": final[agent],
                "action_masks": np.ones((len(acted), legal.stop - legal.start), bool)
                if mask is None
                else mask[:, legal],
            }
            for name, entry in entries.items():
                self.lists[name][agent].append(entry)
        self.truncateds.append(cut)
        self.dones.append(terminated | cut | replaced[:, None])

    def _nothing(self, agent: str) -> np.ndarray:
        space = self.team.action_spaces[agent]
        return np.zeros((len(self.dones[0]), *(space.shape or ())), space.dtype)

    def _numbers(self, by_agent: Mapping[str, Any], agent: str, decided: np.ndarray) -> np.ndarray:
        """Return values [E], NaN where the agent did not act."""
        values = np.asarray(by_agent[agent], float).reshape(-1) if agent in by_agent else np.nan
        return np.where(decided, values, np.nan)

    def experiences(self, obs: Any) -> RolloutExperiences:
        """Return the whole rollout, bootstrapped from the observations after the last step."""
        lists, agents = self.lists, self.team.agents

        def flags(values: list[np.ndarray]) -> dict[str, list[np.ndarray]]:
            return {a: [x[:, k].astype(float) for x in values] for k, a in enumerate(agents)}

        present = np.asarray(obs[PRESENT]).astype(bool)
        is_known = present | self.dones[-1]  # the flag of a waiting agent is NaN: its next observation is still to come
        last = {a: np.where(is_known[:, k], self.dones[-1][:, k], np.nan) for k, a in enumerate(agents)}
        chooses = [a for a in agents if self.team.mask_columns[a].stop > self.team.mask_columns[a].start]
        optional = {"action_masks": {a: lists["action_masks"][a] for a in chooses}} if self.has_masks else {}
        return RolloutExperiences(
            (
                lists["observations"],
                lists["actions"],
                lists["log_probs"],
                lists["rewards"],
                flags(self.dones[:-1]),
                lists["values"],
                self.team.by_agent(obs),
                last,
                flags(self.truncateds),
                lists["final_observations"],
            ),
            optional,
        )
