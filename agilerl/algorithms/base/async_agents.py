"""Published wrapper for multi-agent algorithms whose agents act at different frequencies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from agilerl.algorithms.base.rollouts import EXTRA, FIELDS, entries_of
from agilerl.algorithms.base.wrapped import AgentWrapper, is_on_policy
from agilerl.algorithms.teams.base import MultiAgentRLAlgorithm
from agilerl.core import tree
from agilerl.core.spaces import nested
from agilerl.envs.observed_masks import parted
from agilerl.envs.protocol import SeenByTeam, TeamObservations
from agilerl.errors import AlgorithmError, ConfigError


class AsyncAgentsWrapper(AgentWrapper):
    """Train IPPO, MAPPO, MADDPG or MATD3 in a custom loop where only some agents are observed at each step.

    Training functions do not need this wrapper: the environment reports which agents are present, and rewards received
    while waiting are credited to the last action. They train the wrapped algorithm. In a custom loop:

    * an agent that is missing from the observations, or whose row is NaN, is absent in that environment; ignore its row
      in the result of `get_action`;
    * lists of steps for `learn` contain None where an agent was absent, in observations, actions, log probabilities and
      values. Rewards and ends of those steps are still given: they belong to the agent's last action;
    * lists of IPPO may contain only the steps in which an agent acted, so lengths may differ by agent. A reward is then
      the sum until the agent acts again, and discounting counts the agent's own steps.

    Raises:
        AlgorithmError: not a multi-agent algorithm.
    """

    trains_unwrapped = True

    def __init__(self, agent: Any) -> None:
        if not hasattr(agent, "agent_ids"):
            kind = type(agent).__name__
            raise AlgorithmError(f"AsyncAgentsWrapper is for teams; got {kind}. fix: IPPO, MAPPO, MADDPG or MATD3.")
        super().__init__(agent)

    def observe(self, obs: Any, count: bool = False) -> Any:
        """Return observations by agent with NaN replaced by zeros, and presence masks; absent agents are dropped."""
        if not isinstance(obs, Mapping):
            return obs
        declared = SeenByTeam.of(obs).present
        rows: dict[str, Any] = {}
        present: dict[str, np.ndarray] = {}
        for agent, agent_obs in obs.items():
            space = self.agent.possible_observation_spaces.get(agent)
            if space is None or agent_obs is None:  # e.g. the state
                rows |= {} if agent_obs is None else {agent: agent_obs}
                continue
            is_present = _is_present(nested(space), parted(agent_obs, space)[0])
            if declared is not None:
                is_present = is_present & np.asarray(declared[agent], bool)
            if is_present.any():
                rows[agent] = tree.map_leaves(lambda x: np.nan_to_num(np.asarray(x)), agent_obs)
                present[agent] = is_present
        return TeamObservations(rows, present)

    def learn(self, *experiences: Any, **kwargs: Any) -> Any:
        """Call the multi-agent `learn`; see the class for the format of rollout lists.

        Raises:
            ConfigError: no experiences, or lists of different lengths with a centralised critic.
        """
        if not experiences:
            raise ConfigError(f"{type(self).__name__}.learn needs experiences. fix: those of {self.agent.algo}.learn.")
        rollout = experiences[0]
        if is_on_policy(self.agent):
            rollout = _completed(self.agent, rollout)
        return self.agent.learn(rollout, *experiences[1:], **kwargs)

    published_learn = learn


def _is_present(space: Any, obs: Any) -> np.ndarray:
    """Return [E] bool (or a scalar): rows without NaN."""

    def leaf(part: spaces.Space[Any], values: Any) -> np.ndarray:
        array = np.asarray(values)
        rows = array.reshape(*array.shape[: array.ndim - len(part.shape or ())], -1)
        return ~np.isnan(rows).any(-1) if rows.dtype.kind == "f" else np.ones(rows.shape[:-1], bool)

    return np.atleast_1d(np.logical_and.reduce(list(tree.leaves(tree.map_leaves(leaf, space, obs)))))


def _completed(team: MultiAgentRLAlgorithm, experiences: Any) -> dict[str, Any]:
    """Return a rollout by name in which lists of all agents have the same length and contain no None.

    Absent steps are put before the first step of an agent with a shorter list: they are not learned from, and its last
    step stays the last one. A missing log probability marks absent agents.
    """
    fields = entries_of(experiences, team.algo, "as listed")
    rewards = fields["rewards"]
    lengths = {agent: len(entries) for agent, entries in rewards.items()}
    longest = max(lengths.values(), default=0)
    if set(lengths.values()) - {longest} and not team.reads_alone:
        raise ConfigError(
            f"{team.algo} got lists of different lengths: {lengths}; its values read what all agents see in one step. "
            "fix: None for a step in which an agent was not there, or IPPO."
        )
    lanes = max(np.asarray(reward).size for entries in rewards.values() for reward in entries)
    for name in (*FIELDS[:6], *EXTRA):
        lists = fields.get(name) or {}
        for agent, entries in lists.items():
            absent = _absent(team, agent, name, lanes)
            steps = [absent if entry is None else entry for entry in entries]
            fields[name] = {**fields[name], agent: [absent] * (longest - len(steps)) + steps}
    return fields


def _absent(team: MultiAgentRLAlgorithm, agent: str, name: str, lanes: int) -> Any:
    """Return the entry of a list for a step in which an agent is absent."""
    if name in ("observations", "final_observations"):
        space = nested(team.possible_observation_spaces[agent])
        return tree.map_leaves(lambda s: np.zeros((lanes, *(s.shape or ())), s.dtype), space)
    if name == "actions":
        return np.zeros((lanes, team.actions.of_agent(agent).columns))
    return np.full(lanes, np.nan if name in ("log_probs", "values") else 0.0)
