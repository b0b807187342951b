"""The published wrapper around teams whose agents act at different frequencies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from agilerl import tree
from agilerl.algorithms.base.transitions import present_of
from agilerl.algorithms.base.wrapped import AgentWrapper, is_on_policy
from agilerl.envs.observed_masks import parted
from agilerl.envs.teams import TeamObservations
from agilerl.errors import AlgorithmError, ConfigError
from agilerl.spaces import nested


class AsyncAgentsWrapper(AgentWrapper):
    """A team (IPPO, MAPPO, MADDPG, MATD3) in a loop of one's own, in which only some agents are observed in a step.

    Training functions need no wrapper for that: they know from the environment who is there, and what an agent gets
    while it waits is what its last action was worth. They train what is in the wrapper. In a loop of one's own:

    * an agent that is left out of the observations, or whose row of them is NaN, is not there in that lane, and its row
      of what `get_action` gives is not to be read;
    * lists of steps for `learn` hold None where an agent was not there, in observations, actions, log probabilities and
      values. Its rewards and ends of those steps are given: they belong to what it did last;
    * lists of IPPO may hold only the steps in which an agent acted, so that agents have lists of different lengths. A
      reward is then all that the agent got until it acted again, and discounts count its own steps.

    Raises:
        AlgorithmError: not a team.
    """

    trains_unwrapped = True

    def __init__(self, agent: Any) -> None:
        if not hasattr(agent, "agent_ids"):
            raise AlgorithmError(
                f"AsyncAgentsWrapper is for teams; got {type(agent).__name__}. fix: IPPO, MAPPO, MADDPG or MATD3."
            )
        super().__init__(agent)

    def observe(self, obs: Any, count: bool = False) -> Any:
        """Observations by agent with zeros for NaN, and who was there; agents that were in no lane are left out."""
        if not isinstance(obs, Mapping):
            return obs
        said = present_of(obs)
        rows: dict[str, Any] = {}
        present: dict[str, np.ndarray] = {}
        for agent, seen in obs.items():
            if agent not in self.agent.possible_observation_spaces or seen is None:  # the state, say
                rows |= {} if seen is None else {agent: seen}
                continue
            space = self.agent.possible_observation_spaces[agent]
            there = _there(nested(space), parted(seen, space)[0])
            if said is not None:
                there = there & np.asarray(said[agent], bool)
            if there.any():
                rows[agent] = tree.map_leaves(lambda x: np.nan_to_num(np.asarray(x)), seen)
                present[agent] = there
        return TeamObservations(rows, present)

    def learn(self, *experiences: Any, **kwargs: Any) -> Any:
        """The team's `learn`; see the class for what a list of steps of a rollout holds.

        Raises:
            ConfigError: no experiences, or agents of different lengths whose values read what all see.
        """
        if not experiences:
            raise ConfigError(
                f"{type(self).__name__}.learn needs experiences. fix: what {self.agent.algo}.learn takes."
            )
        given = experiences[0]
        if is_on_policy(self.agent):
            given = _filled(self.agent, _aligned(self.agent, given))
        return self.agent.learn(given, *experiences[1:], **kwargs)

    published_learn = learn


def _there(space: Any, seen: Any) -> np.ndarray:
    """[E] bool (or one): whose rows have no NaN."""
    found = []

    def leaf(own: Any, values: Any) -> None:
        array = np.asarray(values)
        rows = array.reshape(*array.shape[: array.ndim - len(own.shape or ())], -1)
        if rows.dtype.kind == "f":
            found.append(~np.isnan(rows).any(-1))
        else:
            found.append(np.ones(rows.shape[:-1], bool))

    tree.map_leaves(leaf, space, seen)
    return np.atleast_1d(np.logical_and.reduce(found))


BY_STEP = {
    0: "observations", 1: "actions", 2: "log_probs", 3: "rewards", 4: "dones", 5: "values", 8: "truncateds",
    9: "final_observations",
}  # fmt: skip


def _aligned(team: Any, experiences: Any) -> Any:
    """Lists of one length: steps in which an agent was not there before the first one of a shorter list.

    What stands before an agent's first step is learned from by nobody, and its last step stays the last one.
    """
    from_tuple = not isinstance(experiences, Mapping)
    fields = dict(enumerate(experiences)) if from_tuple else dict(experiences)
    names = [key for place, name in BY_STEP.items() if fields.get(key := place if from_tuple else name) is not None]
    rewards = fields[3] if from_tuple else fields["rewards"]
    lengths = {agent: len(own) for agent, own in rewards.items()}
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
            agent: [_empty(own, name, name in zeros)] * (longest - len(own)) + list(own)
            for agent, own in fields[name].items()
        }
    return tuple(fields.values()) if from_tuple else fields


def _empty(own: Any, name: Any, is_number: bool) -> Any:
    """What stands for a step before an agent's first one, in a list of such entries."""
    if name in (9, "final_observations"):  # not read: nobody is cut there
        return own[0]
    return np.zeros_like(np.asarray(own[0], float)) if is_number else None


def _filled(team: Any, experiences: Any) -> Any:
    """The experiences of a rollout with rows in the place of None; a missing log probability says who did not act."""
    from_tuple = not isinstance(experiences, Mapping)
    fields = dict(enumerate(experiences)) if from_tuple else dict(experiences)
    names = (0, 1, 2, 5) if from_tuple else ("observations", "actions", "log_probs", "values")
    rewards = fields[3] if from_tuple else fields["rewards"]
    lanes = max(np.size(x) for own in rewards.values() for x in own)
    for name in names:
        fields[name] = {
            agent: [_nothing(team, agent, name, lanes) if x is None else x for x in own]
            for agent, own in fields[name].items()
        }
    return tuple(fields.values()) if from_tuple else fields


def _nothing(team: Any, agent: str, name: Any, lanes: int) -> Any:
    if name in (0, "observations"):
        space = nested(team.possible_observation_spaces[agent])
        return tree.map_leaves(lambda s: np.zeros((lanes, *(s.shape or ())), s.dtype), space)
    if name in (1, "actions"):
        return np.zeros((lanes, team.actions.of_agent(agent).columns))
    return np.full(lanes, np.nan)
