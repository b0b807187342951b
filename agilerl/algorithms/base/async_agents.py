"""Published wrapper for multi-agent algorithms whose agents act at different frequencies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from agilerl.algorithms.base.wrapped import AgentWrapper, is_on_policy
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
            raise AlgorithmError(f"AsyncAgentsWrapper is for teams; got {type(agent).__name__}. fix: IPPO, say.")
        super().__init__(agent)

    def observe(self, obs: Any, count: bool = False) -> Any:
        """Return observations by agent with NaN replaced by zeros, and presence masks; absent agents are dropped."""
        if not isinstance(obs, Mapping):
            return obs
        declared = SeenByTeam.of(obs).present
        rows: dict[str, Any] = {}
        present: dict[str, np.ndarray] = {}
        for agent, seen in obs.items():
            if agent not in self.agent.possible_observation_spaces or seen is None:  # e.g. the state
                rows |= {} if seen is None else {agent: seen}
                continue
            space = self.agent.possible_observation_spaces[agent]
            there = _there(nested(space), parted(seen, space)[0])
            if declared is not None:
                there = there & np.asarray(declared[agent], bool)
            if there.any():
                rows[agent] = tree.map_leaves(lambda x: np.nan_to_num(np.asarray(x)), seen)
                present[agent] = there
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
            rollout = _filled(self.agent, _aligned(self.agent, rollout))
        return self.agent.learn(rollout, *experiences[1:], **kwargs)

    published_learn = learn


def _there(space: Any, seen: Any) -> np.ndarray:
    """Return [E] bool (or a scalar): rows without NaN."""
    masks = []

    def leaf(part: Any, values: Any) -> None:
        array = np.asarray(values)
        rows = array.reshape(*array.shape[: array.ndim - len(part.shape or ())], -1)
        if rows.dtype.kind == "f":
            masks.append(~np.isnan(rows).any(-1))
        else:
            masks.append(np.ones(rows.shape[:-1], bool))

    tree.map_leaves(leaf, space, seen)
    return np.atleast_1d(np.logical_and.reduce(masks))


BY_STEP = {
    0: "observations", 1: "actions", 2: "log_probs", 3: "rewards", 4: "dones", 5: "values", 8: "truncateds",
    9: "final_observations",
}  # fmt: skip


def _aligned(team: Any, experiences: Any) -> Any:
    """Pad lists to one length with absent steps at the start of the shorter ones.

    Steps before an agent's first one are not learned from, and its last step stays the last one.
    """
    from_tuple = not isinstance(experiences, Mapping)
    fields = dict(enumerate(experiences)) if from_tuple else dict(experiences)
    names = [key for place, name in BY_STEP.items() if fields.get(key := place if from_tuple else name) is not None]
    rewards = fields[3] if from_tuple else fields["rewards"]
    lengths = {agent: len(entries) for agent, entries in rewards.items()}
    longest = max(lengths.values(), default=0)
    if all(length == longest for length in lengths.values()):
        return experiences
    if not team.reads_alone:
        raise ConfigError(
            f"{team.algo} got lists of different lengths: {lengths}; its values read what all agents see in one step. "
            "fix: None for a step in which an agent was not there, or IPPO."
        )
    zeros = (3, 4, 8, "rewards", "dones", "truncateds")
    for name in names:
        fields[name] = {
            agent: [_empty(entries, name, name in zeros)] * (longest - len(entries)) + list(entries)
            for agent, entries in fields[name].items()
        }
    return tuple(fields.values()) if from_tuple else fields


def _empty(entries: Any, name: Any, is_number: bool) -> Any:
    """Return the placeholder for a step before an agent's first one, in a list of such entries."""
    if name in (9, "final_observations"):  # not read: no episode is cut there
        return entries[0]
    return np.zeros_like(np.asarray(entries[0], float)) if is_number else None


def _filled(team: Any, experiences: Any) -> Any:
    """Replace None in a rollout by rows; a missing log probability marks absent agents."""
    from_tuple = not isinstance(experiences, Mapping)
    fields = dict(enumerate(experiences)) if from_tuple else dict(experiences)
    names = (0, 1, 2, 5) if from_tuple else ("observations", "actions", "log_probs", "values")
    rewards = fields[3] if from_tuple else fields["rewards"]
    lanes = max(np.asarray(x).size for entries in rewards.values() for x in entries)
    for name in names:
        fields[name] = {
            agent: [_nothing(team, agent, name, lanes) if x is None else x for x in entries]
            for agent, entries in fields[name].items()
        }
    return tuple(fields.values()) if from_tuple else fields


def _nothing(team: Any, agent: str, name: Any, lanes: int) -> Any:
    if name in (0, "observations"):
        space = nested(team.possible_observation_spaces[agent])
        return tree.map_leaves(lambda s: np.zeros((lanes, *(s.shape or ())), s.dtype), space)
    if name in (1, "actions"):
        return np.zeros((lanes, team.actions.of_agent(agent).columns))
    return np.full(lanes, np.nan)
