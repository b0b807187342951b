"""Who plays in an environment of several agents, what they see and do, and how that is laid out in rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from agilerl import foreign
from agilerl.envs.lanes import name_of as class_of
from agilerl.envs.protocol import AGENTS, PRESENT, STATE
from agilerl.envs.returned import short
from agilerl.errors import EnvError
from agilerl.spaces import MaskAsFeature, mask_width, nested
from agilerl.tree import count_rows, leaves, map_leaves

MASKED = ("observation", "action_mask")  # what an observation of PettingZoo's board games consists of


@dataclass(frozen=True)
class Team:
    """Who plays, what each of them sees and does.

    Attributes:
        agents: ids, in the order of every axis of agents, as text.
        observation_spaces, action_spaces: of each agent.
        state_space: of the environment's own state, where it is shown.
        keys: agent -> its id as the environment has it, an integer or a tuple say; without one it is the text.
    """

    agents: tuple[str, ...]
    observation_spaces: Mapping[str, Space[Any]]
    action_spaces: Mapping[str, Space[Any]]
    state_space: Space[Any] | None = None
    keys: Mapping[str, Any] = field(default_factory=dict)

    def key_of(self, agent: str) -> Any:
        """The id of an agent as its environment has it."""
        return self.keys.get(agent, agent)

    @cached_property
    def joint_space(self) -> spaces.Dict:
        """The observations of all agents."""
        return spaces.Dict(OrderedDict((agent, self.observation_spaces[agent]) for agent in sorted(self.agents)))

    @cached_property
    def observation_space(self) -> spaces.Dict:
        """What lanes show: the observations of all agents, who is there, and the state where it is asked for."""
        parts: dict[str, Space[Any]] = {AGENTS: self.joint_space, PRESENT: spaces.MultiBinary(len(self.agents))}
        return spaces.Dict(parts if self.state_space is None else {**parts, STATE: self.state_space})

    @cached_property
    def action_space(self) -> spaces.Dict:
        """The actions of all agents."""
        return spaces.Dict(OrderedDict((agent, self.action_spaces[agent]) for agent in self.agents))

    @cached_property
    def columns(self) -> dict[str, slice]:
        """Where the actions of each agent stand in a team's action: an integer for a choice, a number a component."""
        return slices({agent: action_columns(self.action_spaces[agent]) for agent in self.agents})

    @cached_property
    def mask_columns(self) -> dict[str, slice]:
        """Where each agent's legal choices stand in a team's mask; empty for agents that do not choose."""
        return slices({agent: mask_width(self.action_spaces[agent]) for agent in self.agents})

    def split(self, action: np.ndarray) -> dict[str, Any]:
        """Actions [..., A] of a team as those of its agents, in the form of their spaces."""
        return {agent: as_action(self.action_spaces[agent], action[..., own]) for agent, own in self.columns.items()}

    def join(self, actions: Mapping[str, Any]) -> np.ndarray:
        """Actions of all agents, each [L, ...], as one row of numbers a lane [L, A] float32."""
        count = count_rows(next(iter(actions.values())))
        joined = np.zeros((count, sum(own.stop - own.start for own in self.columns.values())), np.float32)
        for agent, own in self.columns.items():
            if agent in actions:
                joined[:, own] = as_columns(self.action_spaces[agent], actions[agent]).reshape(count, -1)
        return joined


def slices(widths: Mapping[str, int]) -> dict[str, slice]:
    ends = np.cumsum(list(widths.values())).tolist()
    return {name: slice(end - width, end) for (name, width), end in zip(widths.items(), ends, strict=True)}


def nothing(space: Space[Any], count: int) -> Any:
    """What stands for `count` observations of an agent that is not there, nested as the space is: zeros, or the lowest
    value where zero is none of the space."""

    def leaf(own: Space[Any]) -> np.ndarray:
        start = own.start if isinstance(own, spaces.Discrete | spaces.MultiDiscrete) else 0
        return np.array(np.broadcast_to(np.asarray(start, own.dtype), (count, *(own.shape or ()))))

    return map_leaves(leaf, nested(space))


def action_columns(space: Space[Any]) -> int:
    """Numbers that say an action of the space."""
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


def by_name(given: Any) -> Any:
    """A mapping by agent with the agents' ids as strings; anything else as it is."""
    if not isinstance(given, Mapping) or all(isinstance(agent, str) for agent in given):
        return given
    return {str(agent): value for agent, value in given.items()}


def as_action(space: Space[Any], columns: np.ndarray) -> Any:
    """Numbers [..., k] as actions of the space [..., *shape], nested as the space is."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        ends = np.cumsum([action_columns(part) for part in leaves(nested(space))])[:-1]
        own = iter(np.split(columns, ends, -1))
        return map_leaves(lambda part: as_action(part, next(own)), nested(space))
    if isinstance(space, spaces.Discrete):
        return np.asarray(np.rint(columns[..., 0]).astype(np.int64))
    shaped = columns.reshape(*columns.shape[:-1], *(space.shape or ()))
    is_real = isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)
    return np.asarray((shaped if is_real else np.rint(shaped)).astype(space.dtype))


def as_columns(space: Space[Any], action: Any) -> np.ndarray:
    """The inverse of `as_action`: actions [L, ...], nested as the space is or as numbers, as [L, k] float32."""
    is_nested = isinstance(space, spaces.Dict | spaces.Tuple) and isinstance(action, Mapping | tuple)
    arrays = [np.asarray(x, np.float32) for x in (leaves(action) if is_nested else [action])]
    return np.concatenate([x.reshape(len(x), -1) for x in map(np.atleast_1d, arrays)], -1)


def name_of(env: Any) -> str:
    """What an environment is called: its class, or what its metadata say where that is PettingZoo's `raw_env`."""
    name = env.__name__ if isinstance(env, type) else class_of(foreign.unlimited(env))
    said = foreign.metadata(env).get("name")
    return str(said) if said and name in ("raw_env", "parallel_env", "env") else name


def is_parallel(env: Any) -> bool:
    """Whether it has PettingZoo's parallel interface."""
    needed = ("possible_agents", "observation_space", "action_space", "reset", "step")
    return all(hasattr(env, name) for name in needed) and not hasattr(env, "agent_iter")


def team_of(env: Any, *, with_state: bool = False) -> Team:
    """The team of an environment with PettingZoo's parallel interface.

    A board game's observation {"observation", "action_mask"} is the first part alone; the second one is the mask.

    Raises:
        EnvError: one with agents that take turns, or no such environment; `with_state` of one without a state.
    """
    if hasattr(env, "agent_iter"):
        raise EnvError(
            f"{name_of(env)} has agents that take turns (PettingZoo's AEC interface); teams act at the same time. "
            "fix: pettingzoo.utils.conversions.aec_to_parallel(env), or turn_based_aec_to_parallel of a game of turns."
        )
    if not is_parallel(env):
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
        action_columns(space)  # or an error that says what is not taken
    own = {agent: key for agent, key in keys.items() if agent is not key}
    return Team(tuple(keys), shown, acted, _state_space(env) if with_state else None, own)


def _keys_of(env: Any) -> dict[str, Any]:
    """Agent, as text -> its id in the environment."""
    ids = env.possible_agents
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise EnvError(f"{name_of(env)}: possible_agents is {short(ids)}; expected a list of ids. fix: ['agent_0'].")
    ids = list(ids)
    keys = {str(key): key for key in ids}
    if not ids or len(keys) != len(ids):
        what = "is empty" if not ids else f"{ids} has an agent twice (ids are compared as text)"
        raise EnvError(f"{name_of(env)}: possible_agents {what}. fix: one id of its own for each agent.")
    return keys


def space_of(env: Any, method: str, key: Any) -> Space[Any]:
    """`env.observation_space(agent)` or `env.action_space(agent)`, by the environment's own id."""
    known = getattr(env, method)
    try:
        space = known(key) if callable(known) else known[key]
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
    """The space of `env.state()`; where the environment does not say, any numbers of the shape of its first state."""
    known = foreign.own_state_space(env)
    if isinstance(known, Space):
        return known
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
    """Whether observations of the space carry the mask of legal actions beside what is read."""
    is_dict = isinstance(space, spaces.Dict) and not isinstance(space, MaskAsFeature)
    return is_dict and MASKED[1] in space.spaces and len(space.spaces) > 1  # type: ignore[attr-defined]


def beside_mask(space: Space[Any]) -> Space[Any]:
    """Space of what networks read beside a mask: the part "observation" where it is the only one, else a Dict of all
    others; the space itself where there is no mask."""
    if not is_masked(space):
        return space
    rest = {key: part for key, part in space.spaces.items() if key != MASKED[1]}  # type: ignore[attr-defined]
    return rest[MASKED[0]] if set(rest) == {MASKED[0]} else spaces.Dict(rest)


class SeenByTeam(dict[str, Any]):
    """Observations by agent, and what is known of them beside: nothing, here; see `TeamObservations`."""

    present: Mapping[str, Any] | None = None
    final: Mapping[str, Any] | None = None
    final_present: Mapping[str, Any] | None = None
    acted: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, obs: Any) -> SeenByTeam:
        """The observations, where they say more than themselves; else an empty one, which says nothing."""
        return obs if isinstance(obs, SeenByTeam) else cls()


class TeamObservations(SeenByTeam):
    """Observations by agent [E, ...], as a vector of environments gives them, and what they do not say.

    Attributes:
        present: agent -> [E] bool, who was observed.
        final: agent -> [E, ...], where a step led: the final observation where an episode has ended and the next one
            has begun, else what is seen. None after a reset. final_present: who was there then, and did not terminate.
        acted: agent -> [E] bool, who was there and acted in the step that led here. None after a reset.
        state: [E, ...] of the environments' own state, where they show it.
    """

    def __init__(
        self,
        rows: Mapping[str, Any],
        present: Mapping[str, np.ndarray],
        final: Mapping[str, Any] | None = None,
        final_present: Mapping[str, np.ndarray] | None = None,
        acted: Mapping[str, np.ndarray] | None = None,
        state: Any = None,
    ) -> None:
        super().__init__(rows)
        self.present: Mapping[str, np.ndarray] = present
        self.final, self.final_present, self.acted = final, final_present, acted
        self.state = state
