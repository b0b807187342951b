"""Agents of a team by name: groups, spaces and networks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
from gymnasium import Space

from agilerl.components.rows import check_distinct
from agilerl.core import foreign
from agilerl.core.spaces import differ
from agilerl.envs.team import beside_mask, by_name, is_masked
from agilerl.errors import AlgorithmError, ConfigError, unknown_name

Spaces = Sequence[gym.Space[Any]] | Mapping[str, gym.Space[Any]]


def keep_ids(method: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a method that takes and returns mappings by agent, to support agent ids that are not strings.

    Teams use strings. The ids of the first mapping are converted to strings, and results by agent have the original
    ids, as the environment expects.
    """

    first = list(inspect.signature(method).parameters)[1]

    @functools.wraps(method)
    def call(team: foreign.Agent, *args: Any, **kwargs: Any) -> Any:
        by_agent = args[0] if args else kwargs.get(first)
        if not isinstance(by_agent, Mapping) or all(isinstance(agent, str) for agent in by_agent):
            return method(team, *args, **kwargs)
        ids = {str(agent): agent for agent in by_agent}
        result = method(team, *map(by_name, args), **{key: by_name(value) for key, value in kwargs.items()})
        return tuple(_with_ids(part, ids) for part in result) if isinstance(result, tuple) else _with_ids(result, ids)

    return call


def _with_ids(part: Any, ids: Mapping[str, Any]) -> Any:
    """Return a mapping by agent with these ids; hidden states, which have other keys, are unchanged."""
    is_by_agent = isinstance(part, dict) and set(part) <= set(ids)
    return {ids[agent]: value for agent, value in part.items()} if is_by_agent else part


class Named(Mapping[str, Any]):
    """The attributes `<prefix>.<group>` of a team by group: `team.actors["speaker"]`, `team.actors.speaker`.

    An agent's id maps to its group: `team.actors["speaker_0"]`.
    """

    def __init__(self, owner: Any, prefix: str) -> None:
        self.__dict__["_owner"], self.__dict__["_prefix"] = owner, prefix

    def __getitem__(self, name: str) -> Any:
        key = self._key(name)
        if not hasattr(self._owner, key):
            raise ConfigError(f"{self._owner.algo}: {unknown_name(self._prefix, name, self)}")
        return getattr(self._owner, key)

    @property
    def optimizer(self) -> dict[str, Any]:
        """The torch optimisers by group, of `actor_optimizers` and its like."""
        return {group: wrapper.optimizer for group, wrapper in self.items()}

    def _key(self, name: object) -> str:
        key = f"{self._prefix}.{name}"
        is_agent = not hasattr(self._owner, key) and name in self._owner.agent_ids
        return f"{self._prefix}.{group_of(str(name))}" if is_agent else key

    def __iter__(self) -> Iterator[str]:
        return iter([group for group in self._owner.grouped_agents if hasattr(self._owner, f"{self._prefix}.{group}")])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return hasattr(self._owner, self._key(name))

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"{self._owner.algo} has no {self._key(name)}")
        return self[name]


class Losses(dict[str, Any]):
    """Result of `learn` by group; an agent's id maps to its group."""

    def __missing__(self, name: str) -> Any:
        group = group_of(str(name))
        if group == name or group not in self:
            raise KeyError(name)
        return self[group]


def group_of(agent: str) -> str:
    """Return an agent's group: its id up to the last underscore, "speaker" for "speaker_0"; else the whole id."""
    return agent.rpartition("_")[0] or agent


def groups_of(
    algo: str, observed: Mapping[str, gym.Space[Any]], acted: Mapping[str, gym.Space[Any]]
) -> dict[str, list[str]]:
    """Return group -> its agents, in their order.

    Raises:
        AlgorithmError: agents of one group with different spaces.
    """
    groups: dict[str, list[str]] = {}
    for agent in observed:
        groups.setdefault(group_of(agent), []).append(agent)
    for group, agents in groups.items():
        for what, spaces in (("observe", observed), ("act in", acted)):
            other = next((agent for agent in agents if differ(spaces[agents[0]], spaces[agent])), None)
            if other is not None:
                raise AlgorithmError(
                    f"{algo}: {agents[0]} and {other} are the group {group!r}, which has one set of networks, "
                    f"but {what} different spaces: {spaces[agents[0]]} and {spaces[other]}. fix: names that differ "
                    "before the last underscore."
                )
    return groups


def spaces_by_agent(
    algo: str, observation_spaces: Mapping[str, Space[Any]] | Sequence[Space[Any]],
    action_spaces: Mapping[str, Space[Any]] | Sequence[Space[Any]], agent_ids: Sequence[str] | None,
) -> tuple[dict[str, gym.Space[Any]], dict[str, gym.Space[Any]], list[str]]:  # fmt: skip
    """Return observation spaces and action spaces by agent, and the agents in their order."""
    by_kind = {"observation": observation_spaces, "action": action_spaces}
    for what, spaces in by_kind.items():
        if isinstance(spaces, gym.spaces.Dict) and not is_masked(spaces):
            by_kind[what] = dict(spaces.spaces)
        elif not isinstance(spaces, Mapping | list | tuple):
            raise TypeError(
                f"{what.capitalize()} spaces must be a list or dictionary; got {type(spaces).__name__}. fix: "
                f"{{agent: env.{what}_space(agent) for agent in env.possible_agents}}."
            )
    for what, spaces in by_kind.items():
        if isinstance(spaces, Mapping):  # ids may be integers or tuples; networks and files use strings
            by_kind[what] = {str(agent): space for agent, space in spaces.items()}
    ids = None if agent_ids is None else [str(agent) for agent in agent_ids]
    check_distinct(f"{algo}: agent_ids", ids or ())
    if ids is None:
        keyed = next((spaces for spaces in by_kind.values() if isinstance(spaces, Mapping)), None)
        if keyed is None:
            raise AlgorithmError(f"{algo}: lists of spaces need the agents' names. fix: agent_ids=env.possible_agents.")
        ids = [str(agent) for agent in keyed]
    by_agent = []
    for what, spaces in by_kind.items():
        if isinstance(spaces, Mapping):
            missing = [agent for agent in ids if agent not in spaces]
            if missing or len(spaces) != len(ids):
                raise AlgorithmError(
                    f"{algo}: {what} spaces are of {sorted(spaces)}; the agents are {ids}. "
                    f"fix: {{agent: env.{what}_space(agent) for agent in agent_ids}}."
                )
            by_agent.append({agent: spaces[agent] for agent in ids})
        else:
            if len(spaces) != len(ids):
                raise AlgorithmError(f"{algo}: {len(spaces)} {what} spaces for {len(ids)} agents. fix: one for each.")
            by_agent.append(dict(zip(ids, spaces, strict=True)))
    # networks read the observation without its action mask
    shown = {agent: beside_mask(space) for agent, space in by_agent[0].items()}
    return shown, by_agent[1], ids
