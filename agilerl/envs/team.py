"""Agents of a multi-agent environment, their spaces, and the layout of their data in rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from agilerl.core import foreign
from agilerl.core.spaces import MaskAsFeature, mask_width, nested
from agilerl.core.tree import Tree, count_rows, leaves, map_leaves
from agilerl.envs.lanes import name_of as class_of
from agilerl.envs.protocol import AGENTS, DEFINED, PRESENT, STATE, TeamObservations
from agilerl.envs.returned import short
from agilerl.errors import EnvError, ShapeError

MASKED = ("observation", "action_mask")  # keys of an observation of PettingZoo's board games


@dataclass(frozen=True)
class Team:
    """Agents of a multi-agent environment and their spaces.

    Attributes:
        agents: ids as strings, in the order of every axis of agents.
        observation_spaces, action_spaces: by agent.
        state_space: of the environment's global state, if it is shown.
        keys: agent -> its id in the environment, for example an integer or a tuple; by default the string.
    """

    agents: tuple[str, ...]
    observation_spaces: Mapping[str, Space[Any]]
    action_spaces: Mapping[str, Space[Any]]
    state_space: Space[Any] | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)

    def key_of(self, agent: str) -> Any:
        """Return the environment's own id of an agent."""
        return self.keys.get(agent, agent)

    @cached_property
    def joint_space(self) -> spaces.Dict:
        """Observation space of all agents."""
        return spaces.Dict(OrderedDict((agent, self.observation_spaces[agent]) for agent in sorted(self.agents)))

    @cached_property
    def observation_space(self) -> spaces.Dict:
        """Observation space of the lanes: observations of all agents, presence masks, and the state if requested."""
        parts: dict[str, Space[Any]] = {AGENTS: self.joint_space, PRESENT: spaces.MultiBinary(len(self.agents))}
        return spaces.Dict(parts if self.state_space is None else {**parts, STATE: self.state_space})

    @cached_property
    def action_space(self) -> spaces.Dict:
        """Action space of all agents."""
        return spaces.Dict(OrderedDict((agent, self.action_spaces[agent]) for agent in self.agents))

    @cached_property
    def columns(self) -> dict[str, slice]:
        """Columns of each agent in a joint action row: an index for discrete actions, else one number per component."""
        return slices({agent: action_columns(self.action_spaces[agent]) for agent in self.agents})

    @cached_property
    def width(self) -> int:
        """Length of a joint action row."""
        return sum(columns.stop - columns.start for columns in self.columns.values())

    @cached_property
    def mask_columns(self) -> dict[str, slice]:
        """Columns of each agent in a joint action mask; empty for agents without discrete actions."""
        return slices({agent: mask_width(self.action_spaces[agent]) for agent in self.agents})

    def split(self, action: np.ndarray) -> dict[str, Any]:
        """Split joint actions [..., A] by agent, in the form of their spaces."""
        return {agent: as_action(self.action_spaces[agent], action[..., span]) for agent, span in self.columns.items()}

    def join(self, actions: Mapping[str, Any]) -> np.ndarray:
        """Join actions of all agents, each [L, ...], to one row of numbers per lane [L, A] float32."""
        count = count_rows(next(iter(actions.values())))
        joined = np.zeros((count, self.width), np.float32)
        for agent, span in self.columns.items():
            if agent in actions:
                joined[:, span] = as_columns(self.action_spaces[agent], actions[agent]).reshape(count, -1)
        return joined

    def wrong_rows(self, actions: np.ndarray, lanes: int) -> ShapeError:
        """Build the error for actions other than one row of `join` per lane."""
        return ShapeError(
            f"actions of a team must be one row of numbers per lane: expected {(lanes, self.width)}, got "
            f"{actions.shape}. fix: Team.join(actions by agent)."
        )

    def join_decided(self, actions: Mapping[str, Any]) -> np.ndarray:
        """Join actions in which NaN marks agents that do not act; their columns are 0."""
        joined: np.ndarray = np.nan_to_num(self.join(actions))
        return joined

    def by_agent(self, obs: Any, final: Any = None, acted: np.ndarray | None = None) -> TeamObservations:
        """Return observations of lanes by agent, with the presence of agents; see `TeamObservations`."""

        def flags(values: Tree) -> dict[str, np.ndarray]:
            columns = np.asarray(values).astype(bool)
            return {agent: columns[:, k] for k, agent in enumerate(self.agents)}

        rows, final_rows = (
            None if part is None else {agent: part[AGENTS][agent] for agent in self.agents} for part in (obs, final)
        )
        final_present = None if final is None else flags(final[PRESENT])
        has_acted = None if acted is None else flags(acted)
        return TeamObservations(rows or {}, flags(obs[PRESENT]), final_rows, final_present, has_acted, obs.get(STATE))

    def infos(self, obs: Any, info: Mapping[str, Any], mask: np.ndarray | None) -> dict[str, dict[str, Any]]:
        """Return infos of lanes by agent: presence, masks of legal actions, actions decided by the environment."""
        present = np.asarray(obs[PRESENT]).astype(bool)
        infos: dict[str, dict[str, Any]] = {a: {"present": present[:, k]} for k, a in enumerate(self.agents)}
        for agent in self.agents:
            columns = self.mask_columns[agent]
            if mask is not None and columns.stop > columns.start:
                infos[agent]["action_mask"] = mask[:, columns]
            decided = info[DEFINED][:, self.columns[agent]] if DEFINED in info else None
            if decided is not None and not np.isnan(decided).all():
                infos[agent][DEFINED] = decided.reshape(len(present), *(self.action_spaces[agent].shape or ()))
        return infos


def slices(widths: Mapping[str, int]) -> dict[str, slice]:
    ends = np.cumsum(list(widths.values())).tolist()
    return {name: slice(end - width, end) for (name, width), end in zip(widths.items(), ends, strict=True)}


def nothing(space: Space[Any], count: int) -> Any:
    """Return placeholder observations for `count` lanes of an absent agent, nested like the space: zeros, or the lowest
    value if the space excludes zero."""

    def leaf(part: Space[Any]) -> np.ndarray:
        start = part.start if isinstance(part, spaces.Discrete | spaces.MultiDiscrete) else 0
        return np.array(np.broadcast_to(np.asarray(start, part.dtype), (count, *(part.shape or ()))))

    return map_leaves(leaf, nested(space))


def action_columns(space: Space[Any]) -> int:
    """Return the number of columns of an action of the space."""
    if isinstance(space, spaces.Discrete):
        return 1
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return int(np.prod(space.shape))
    if isinstance(space, spaces.Dict | spaces.Tuple) and len(space.spaces):
        return sum(map(action_columns, leaves(nested(space))))
    raise EnvError(
        f"agents take Box, Discrete, MultiDiscrete or MultiBinary actions, or a Dict or Tuple of these; got {space}. "
        "fix: a wrapper around it."
    )


def by_name(values: object) -> Any:
    """Convert the agent ids of a mapping to strings; other values are unchanged."""
    if not isinstance(values, Mapping) or all(isinstance(agent, str) for agent in values):
        return values
    return {str(agent): value for agent, value in values.items()}


def as_action(space: Space[Any], columns: np.ndarray) -> Any:
    """Convert numbers [..., k] to actions of the space [..., *shape], nested like the space."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        ends = np.cumsum([action_columns(part) for part in leaves(nested(space))])[:-1]
        pieces = iter(np.split(columns, ends, -1))
        return map_leaves(lambda part: as_action(part, next(pieces)), nested(space))
    if isinstance(space, spaces.Discrete):
        return np.asarray(np.rint(columns[..., 0]).astype(np.int64))
    shaped = columns.reshape(*columns.shape[:-1], *(space.shape or ()))
    is_real = isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)
    return np.asarray((shaped if is_real else np.rint(shaped)).astype(space.dtype))


def as_columns(space: Space[Any], action: Tree) -> np.ndarray:
    """Invert `as_action`: actions [L, ...], nested like the space or numeric, to [L, k] float32."""
    is_nested = isinstance(space, spaces.Dict | spaces.Tuple) and isinstance(action, Mapping | tuple)
    arrays = [np.asarray(x, np.float32) for x in (leaves(action) if is_nested else [action])]
    return np.concatenate([x.reshape(len(x), -1) for x in map(np.atleast_1d, arrays)], -1)


def name_of(env: foreign.EnvLike) -> str:
    """Return the name of an environment: its class, or its metadata's name for PettingZoo's `raw_env`."""
    name = env.__name__ if isinstance(env, type) else class_of(foreign.unlimited(env))
    declared = foreign.metadata(env).get("name")
    return str(declared) if declared and name in ("raw_env", "parallel_env", "env") else name


def is_parallel(env: foreign.Env) -> bool:
    """Whether it has PettingZoo's parallel interface."""
    needed = ("observation_space", "action_space", "reset", "step")
    return (
        foreign.possible_agents(env) is not None
        and all(hasattr(env, name) for name in needed)
        and not hasattr(env, "agent_iter")
    )


def team_of(env: foreign.Env, *, with_state: bool = False) -> Team:
    """Return the team of an environment with PettingZoo's parallel interface.

    A board game's observation {"observation", "action_mask"} becomes its first part; the second one is the mask.

    Raises:
        EnvError: a turn-based or unsupported environment; `with_state` without a state.
    """
    if hasattr(env, "agent_iter"):
        raise EnvError(
            f"{name_of(env)} has agents that take turns (PettingZoo's AEC interface); teams act at the same time. "
            "fix: pettingzoo.utils.conversions.aec_to_parallel(env), or turn_based_aec_to_parallel of a game of turns."
        )
    if not is_parallel(env):
        if hasattr(env, "possible_agents"):
            _keys_of(env)  # raises if they are None or no list
        raise EnvError(
            f"{type(env).__name__} is not an environment of several agents: it needs possible_agents, "
            "observation_space(agent), action_space(agent), reset and step, as PettingZoo's parallel interface has "
            "them. fix: mpe2.simple_spread_v3.parallel_env, say."
        )
    keys = _keys_of(env)
    observations: dict[str, Any] = {agent: space_of(env, "observation_space", key) for agent, key in keys.items()}
    shown = {agent: beside_mask(space) for agent, space in observations.items()}
    acted = {agent: space_of(env, "action_space", key) for agent, key in keys.items()}
    for space in acted.values():
        action_columns(space)  # raises for unsupported spaces
    renamed = {agent: key for agent, key in keys.items() if agent is not key}
    return Team(tuple(keys), shown, acted, _state_space(env) if with_state else None, renamed)


def _keys_of(env: Any) -> dict[str, Any]:
    """Return agent, as a string -> its id in the environment."""
    ids = env.possible_agents
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise EnvError(f"{name_of(env)}: possible_agents is {short(ids)}; expected a list of ids. fix: ['agent_0'].")
    ids = list(ids)
    keys = {str(key): key for key in ids}
    if not ids or len(keys) != len(ids):
        what = "is empty" if not ids else f"{ids} has an agent twice (ids are compared as text)"
        raise EnvError(f"{name_of(env)}: possible_agents {what}. fix: a unique id for each agent.")
    return keys


def space_of(env: foreign.Env, method: str, key: object) -> Space[Any]:
    """Return `env.observation_space(agent)` or `env.action_space(agent)`, by the environment's own id."""
    declared = getattr(env, method)
    try:
        space = declared(key) if callable(declared) else declared[key]
    except (KeyError, TypeError, AttributeError) as error:
        text = " ".join(str(error).split())
        raise EnvError(
            f"{name_of(env)}: {method}({key!r}) raised {type(error).__name__}: {text}. "
            f"fix: a method {method}(agent) with a space for each of possible_agents."
        ) from error
    if not isinstance(space, Space):
        raise EnvError(
            f"{name_of(env)}: {method}({key!r}) is {short(space)}; expected a space of gymnasium. "
            "fix: gymnasium.spaces.Box(-1, 1, (3,)), say."
        )
    return space


def _state_space(env: Any) -> Space[Any]:
    """Return the space of `env.state()`; if undeclared, an unbounded one with the shape of its first state."""
    declared = foreign.own_state_space(env)
    if isinstance(declared, Space):
        return declared
    try:
        env.reset()
        first = np.asarray(env.state())
    except (AttributeError, NotImplementedError) as error:
        raise EnvError(
            f"{name_of(env)} has no state(), which with_state=True asks for. fix: leave it out: critics then read the "
            "observations of all agents."
        ) from error
    if first.dtype.kind != "f":
        bounds = (0, 1) if first.dtype.kind == "b" else (np.iinfo(first.dtype).min, np.iinfo(first.dtype).max)
        return spaces.Box(*bounds, first.shape, first.dtype.type)
    return spaces.Box(-np.inf, np.inf, first.shape, first.dtype.type)


def is_masked(space: Space[Any]) -> bool:
    """Whether observations of the space contain an action mask."""
    is_dict = isinstance(space, spaces.Dict) and not isinstance(space, MaskAsFeature)
    return is_dict and MASKED[1] in space.spaces and len(space.spaces) > 1  # type: ignore[attr-defined]


def beside_mask(space: Space[Any]) -> Space[Any]:
    """Return the space without the mask, as networks read it: the part "observation" if it is the only one, else a Dict
    of all others; unchanged without a mask."""
    if not is_masked(space):
        return space
    rest = {key: part for key, part in space.spaces.items() if key != MASKED[1]}  # type: ignore[attr-defined]
    return rest[MASKED[0]] if set(rest) == {MASKED[0]} else spaces.Dict(rest)
