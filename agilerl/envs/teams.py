"""Environments of several agents (PettingZoo's parallel interface) as lanes: one team in each lane.

A team's observation is one tree, its action one row of numbers, its reward one number for each agent. Who is there is
said, never guessed: `obs["present"]` and `TeamStep.acted` are masks, and what stands for an agent that is not there is
zero and is not read.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from agilerl import tree as trees
from agilerl.envs.lanes import Contract, check_seeds, failure
from agilerl.envs.lanes import name_of as class_of
from agilerl.envs.protocol import AGENTS as AGENTS
from agilerl.envs.protocol import PRESENT as PRESENT
from agilerl.envs.protocol import STATE as STATE
from agilerl.envs.protocol import StepBatch, TeamStep
from agilerl.errors import EnvError, ShapeError, unknown_name
from agilerl.spaces import mask_width, nested

JOINT = "joint"  # of a prepared one: what networks read that see all agents
MASKED = ("observation", "action_mask")  # what an observation of PettingZoo's board games consists of
DEFINED = "env_defined_actions"  # key of infos: what the environment does in an agent's place


@dataclass(frozen=True)
class Team:
    """Who plays, what each of them sees and does.

    Attributes:
        agents: ids, in the order of every axis of agents.
        observation_spaces, action_spaces: of each agent.
        state_space: of the environment's own state, where it is shown.
    """

    agents: tuple[str, ...]
    observation_spaces: Mapping[str, Space[Any]]
    action_spaces: Mapping[str, Space[Any]]
    state_space: Space[Any] | None = None

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
        return _slices({agent: action_columns(self.action_spaces[agent]) for agent in self.agents})

    @cached_property
    def mask_columns(self) -> dict[str, slice]:
        """Where each agent's legal choices stand in a team's mask; empty for agents that do not choose."""
        return _slices({agent: mask_width(self.action_spaces[agent]) for agent in self.agents})

    def split(self, action: np.ndarray) -> dict[str, np.ndarray]:
        """Actions [..., A] of a team as those of its agents, in the form of their spaces."""
        return {agent: as_action(self.action_spaces[agent], action[..., own]) for agent, own in self.columns.items()}

    def join(self, actions: Mapping[str, np.ndarray]) -> np.ndarray:
        """Actions of all agents, each [L, ...], as one row of numbers a lane [L, A] float32."""
        count = len(next(iter(actions.values())))
        joined = np.zeros((count, sum(own.stop - own.start for own in self.columns.values())), np.float32)
        for agent, own in self.columns.items():
            if agent in actions:
                joined[:, own] = np.asarray(actions[agent]).reshape(count, -1)
        return joined


def _slices(widths: Mapping[str, int]) -> dict[str, slice]:
    ends = np.cumsum(list(widths.values())).tolist()
    return {name: slice(end - width, end) for (name, width), end in zip(widths.items(), ends, strict=True)}


def action_columns(space: Space[Any]) -> int:
    """Numbers that say an action of the space."""
    if isinstance(space, spaces.Discrete):
        return 1
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return int(np.prod(space.shape))
    raise EnvError(
        f"agents take Box, Discrete, MultiDiscrete or MultiBinary actions; got {space}. fix: a wrapper around it."
    )


def as_action(space: Space[Any], columns: np.ndarray) -> np.ndarray:
    """Numbers [..., k] as actions of the space [..., *shape]."""
    if isinstance(space, spaces.Discrete):
        return np.asarray(np.rint(columns[..., 0]).astype(np.int64))
    shaped = columns.reshape(*columns.shape[:-1], *(space.shape or ()))
    return np.asarray((shaped if isinstance(space, spaces.Box) else np.rint(shaped)).astype(space.dtype))


def name_of(env: Any) -> str:
    """What an environment is called: its class, or what its metadata say where that is PettingZoo's `raw_env`."""
    name = class_of(env)
    said = (getattr(env, "metadata", None) or {}).get("name")
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
    agents = tuple(str(agent) for agent in env.possible_agents)
    observations = {agent: env.observation_space(agent) for agent in agents}
    shown = {agent: space[MASKED[0]] if is_masked(space) else space for agent, space in observations.items()}
    acted = {agent: env.action_space(agent) for agent in agents}
    for agent in agents:
        action_columns(acted[agent])  # or an error that says what is not taken
    return Team(agents, shown, acted, _state_space(env) if with_state else None)


def _state_space(env: Any) -> Space[Any]:
    """The space of `env.state()`; where the environment does not say, any numbers of the shape of its first state."""
    known = getattr(env, "state_space", None)
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
    """Whether observations of the space carry the mask of legal actions beside them."""
    return isinstance(space, spaces.Dict) and set(space.spaces) == set(MASKED)


class Seen(dict[str, Any]):
    """Observations by agent [E, ...], as a vector of environments gives them, and what they do not say.

    Attributes:
        present: agent -> [E] bool, who was observed.
        final: agent -> [E, ...], where a step led: the final observation where an episode has ended and the next one
            has begun, else what is seen. None after a reset. final_present: who was there then, and did not terminate.
        acted: agent -> [E] bool, who was there and acted in the step that led here. None after a reset.
    """

    def __init__(
        self,
        rows: Mapping[str, Any],
        present: Mapping[str, np.ndarray],
        final: Mapping[str, Any] | None = None,
        final_present: Mapping[str, np.ndarray] | None = None,
        acted: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        super().__init__(rows)
        self.present, self.final, self.final_present, self.acted = present, final, final_present, acted


@dataclass(frozen=True, slots=True)
class _Player:
    """What the lanes know of one agent: its place among the agents, what its observations must be, its columns."""

    agent: str
    number: int
    contract: Contract
    is_masked: bool
    actions: slice
    masks: slice


class TeamLanes:
    """L environments of one team, stepped one after another in this process; a lane's episodes depend on its own seed
    and actions alone.

    An episode ends when no agent is left: `env.agents` is empty, or all in it have ended. `StepBatch` says of it what
    it says of any episode (the reward is the sum over agents, both ends are of the whole team); `StepBatch.team` says
    it of every agent. Who is there:

    * An agent that was observed is there and acts next; one that was not observed is absent and is given no action.
    * An agent that ends while others go on is absent from then on (in `obs`), until it is observed again. In
      `final_obs` it is there if it was truncated: that observation is what its transition bootstraps from.
    * Of a game of turns (`infos[agent]["active_agent"]`) the agent whose turn it is is there alone.
    * An agent that leaves `env.agents` and has neither terminated nor been truncated has vanished, which is an error.

    `info["action_mask"]` [L, W] holds the legal choices of all agents (`Team.mask_columns`), from
    `infos[agent]["action_mask"]` or from observations {"observation", "action_mask"}. `info["env_defined_actions"]`
    [L, A] is there where the environment says what an agent does next (`infos[agent]["env_defined_actions"]`, or
    `"env_defined_action"`), NaN elsewhere; it is done in place of the agent's own choice, and `TeamStep.defined` says
    so of the step.

    Args:
        factories: one for each lane; each makes a parallel environment.
        reset_ended: as of `SyncLanes`.
        with_state: show `env.state()` as `obs["state"]`.

    Raises:
        EnvError: what an environment gives is not what it must be: names environment, agent and lane.
    """

    backend = "teams"

    def __init__(
        self, factories: Sequence[Callable[[], Any]], *, reset_ended: bool = True, with_state: bool = False
    ) -> None:
        if not factories:
            raise EnvError("lanes need at least one environment factory; got none. fix: pass a factory per lane.")
        self.envs = [factory() for factory in factories]
        self.num_lanes, self.reset_ended = len(self.envs), reset_ended
        self.team = team_of(self.envs[0], with_state=with_state)
        self.name = name_of(self.envs[0])
        self.single_observation_space: Space[Any] = self.team.observation_space
        self.single_action_space: Space[Any] = self.team.action_space
        own, team = self.team.observation_spaces, self.team
        self._players = [
            _Player(
                agent, number, Contract(own[agent], f"{self.name}, agent {agent}"),
                is_masked(self.envs[0].observation_space(agent)), team.columns[agent], team.mask_columns[agent],
            )
            for number, agent in enumerate(team.agents)
        ]  # fmt: skip
        self._shown_state = None if team.state_space is None else Contract(team.state_space, f"{self.name}, state()")
        self._width = sum(part.stop - part.start for part in team.columns.values())
        conversions = sys.modules.get("pettingzoo.utils.conversions")
        turns = getattr(conversions, "turn_based_aec_to_parallel_wrapper", ())
        self._takes_turns = [isinstance(env, turns) for env in self.envs]
        self._obs: Any = None
        self._masks: np.ndarray | None = None
        self._defined: np.ndarray | None = None

    def reset(self, seeds: np.ndarray | None = None) -> tuple[Any, dict[str, Any]]:
        numbers = check_seeds(seeds, self.num_lanes)
        obs, self._masks, self._defined = self._nothing(), None, None
        for lane in range(self.num_lanes):
            self._begin(obs, lane, None if numbers is None else numbers[lane])
        self._finite(obs, "reset()")
        self._obs = obs
        return trees.copy(obs), self._info()

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> StepBatch:
        """Step the lanes; `actions` [L, A] as `Team.join` gives them, those of absent agents are not read."""
        if self._obs is None:
            raise EnvError("lanes must be reset before the first step. fix: call reset() first.")
        actions = np.asarray(actions)
        if actions.shape != (self.num_lanes, self._width):
            raise ShapeError(
                f"actions of a team must be one row of numbers per lane: expected {(self.num_lanes, self._width)}, got "
                f"{actions.shape}. fix: Team.join(actions by agent)."
            )
        lanes, players = self.num_lanes, self._players
        mask = np.ones(lanes, bool) if active is None else np.array(active, bool)
        acted = self._obs[PRESENT].astype(bool) & mask[:, None]
        defined = self._decided(acted)
        if defined is not None:
            actions = np.where(np.isnan(defined), actions, defined)
        per_agent = {agent: list(rows) for agent, rows in self.team.split(actions).items()}
        reward = np.zeros((lanes, len(players)))
        terminated, truncated = np.zeros((2, lanes, len(players)), bool)
        over, left = np.zeros(lanes, bool), False
        obs = trees.copy(self._obs)
        for lane, there in zip(np.flatnonzero(mask).tolist(), acted[mask].tolist(), strict=True):
            env = self.envs[lane]
            chosen = {p.agent: per_agent[p.agent][lane] for p in players if there[p.number]}
            try:
                seen, rewards, ends, cuts, infos = env.step(chosen)
            except (Exception, SystemExit) as error:
                raise failure(error, f"{self.name}, lane {lane}: step()") from error
            staying = set(env.agents)
            for p in players:
                agent, number = p.agent, p.number
                if agent in rewards:
                    got = rewards[agent]
                    reward[lane, number] = got if type(got) is float else p.contract.reward(got, lane)
                if ends.get(agent):
                    terminated[lane, number] = True
                elif cuts.get(agent):
                    truncated[lane, number] = True
                elif there[number] and agent not in staying:
                    raise p.contract.error(lane, "has taken the agent out of env.agents, neither terminated nor cut")
                else:
                    continue
                left = True
                staying.discard(agent)
            over[lane] = not staying
            self._see(obs, lane, seen, infos, "step()", terminated[lane], truncated[lane])
        self._finite(obs, "step()")
        if not np.isfinite(reward).all():
            lane, number = np.argwhere(~np.isfinite(reward))[0].tolist()
            raise players[number].contract.error(lane, f"gave the reward {reward[lane, number]}")
        final, info = obs, self._info() if not left else {}
        if left:
            if self._masks is not None:
                info["final_action_mask"] = self._masks.copy()
            obs = trees.copy(obs)
            self._leave(obs, truncated & ~over[:, None])
            for lane in np.flatnonzero(over).tolist() if self.reset_ended else ():
                self._begin(obs, lane, None)
            self._finite(obs, "reset()")
            info |= self._info()
        self._obs = obs
        is_cut = over & truncated.any(1)
        team = TeamStep(reward, terminated, truncated, acted, defined)
        return StepBatch(trees.copy(obs), reward.sum(1), over & ~is_cut, is_cut, final, mask, info, team)

    def _decided(self, acted: np.ndarray) -> np.ndarray | None:
        """[L, A] what the environments decide in place of agents that act now, NaN elsewhere; None where nothing."""
        if self._defined is None:
            return None
        decided = self._defined.copy()
        for p in self._players:
            decided[~acted[:, p.number], p.actions] = np.nan
        return None if np.isnan(decided).all() else decided

    def _nothing(self) -> Any:
        """An observation of all lanes in which nobody is there."""
        return trees.map_leaves(
            lambda space: np.zeros((self.num_lanes, *(space.shape or ())), space.dtype),
            nested(self.single_observation_space),
        )

    def _begin(self, obs: Any, lane: int, seed: int | None) -> None:
        try:
            seen, infos = self.envs[lane].reset() if seed is None else self.envs[lane].reset(seed=seed)
        except (Exception, SystemExit) as error:
            raise failure(error, f"{self.name}, lane {lane}: reset()") from error
        infos = infos or {}
        if self._takes_turns[lane]:  # PettingZoo's conversion says whose turn it is after each step, but not here
            turn = self.envs[lane].aec_env.agent_selection
            infos = {agent: {**(infos.get(agent) or {}), "active_agent": turn} for agent in seen}
        self._see(obs, lane, seen, infos, "reset()")

    def _leave(self, obs: Any, gone: np.ndarray) -> None:
        """Agents `gone` [L, M] are not there any more, while others go on."""
        obs[PRESENT][gone] = 0
        for lane, number in np.argwhere(gone).tolist():
            _clear(obs[AGENTS][self.team.agents[number]], lane)
            if self._masks is not None:
                self._masks[lane, self._players[number].masks] = True

    def _see(
        self,
        obs: Any,
        lane: int,
        seen: Mapping[str, Any],
        infos: Mapping[str, Any],
        call: str,
        terminated: np.ndarray | None = None,
        truncated: np.ndarray | None = None,
    ) -> None:
        """Write what the agents see into one lane, in place; who has ended by then sees for the last time."""
        if self._masks is not None:
            self._masks[lane] = True
        if self._defined is not None:
            self._defined[lane] = np.nan
        rows, present, found = obs[AGENTS], obs[PRESENT], 0
        for p in self._players:
            agent, number = p.agent, p.number
            row = seen.get(agent)
            if row is None:
                found += agent in seen
                present[lane, number] = 0
                _clear(rows[agent], lane)
                continue
            found += 1
            info = infos.get(agent)
            mask = info.get("action_mask") if info else None
            if p.is_masked:
                row, mask = row[MASKED[0]], row[MASKED[1]]
            row, into = p.contract.row(row, lane, call), rows[agent]
            if type(into) is np.ndarray:
                into[lane] = row
            else:
                trees.put(into, lane, row)
            has_ended = terminated is not None and truncated is not None and (terminated[number] or truncated[number])
            waits = info is not None and info.get("active_agent", agent) != agent
            present[lane, number] = not waits if not has_ended else truncated[number]  # type: ignore[index]
            if mask is not None and not waits:
                self._keep_mask(p, lane, mask, is_needed=not has_ended)
            if info and not has_ended:
                self._keep_defined(p, lane, info)
        if found != len(seen):
            unknown = next(str(agent) for agent in seen if agent not in self.team.observation_spaces)
            raise EnvError(
                f"{self.name}, lane {lane}: {call} gave observations of an "
                f"{unknown_name('agent', unknown, self.team.agents)} fix: name it in possible_agents."
            )
        if self._shown_state is not None:
            try:
                state = self.envs[lane].state()
            except (Exception, SystemExit) as error:
                raise failure(error, f"{self.name}, lane {lane}: state()") from error
            trees.put(obs[STATE], lane, self._shown_state.row(state, lane, call))

    def _keep_mask(self, p: _Player, lane: int, mask: Any, is_needed: bool) -> None:
        flat = np.concatenate([np.ravel(part) for part in mask]) if isinstance(mask, tuple | list) else np.ravel(mask)
        space, wanted = self.team.action_spaces[p.agent], p.masks.stop - p.masks.start
        if len(flat) != wanted:
            raise EnvError(
                f"{self.name}, agent {p.agent}, lane {lane}: an action mask of {len(flat)} entries; its actions "
                f"{space} have {wanted} choices. fix: one entry a choice."
            )
        legal = flat.astype(bool)
        if is_needed and isinstance(space, spaces.Discrete) and not legal.any():
            raise EnvError(
                f"{self.name}, agent {p.agent}, lane {lane}: an action mask without a legal action. fix: observe the "
                "agent when it can act, or let infos[agent]['active_agent'] say whose turn it is."
            )
        if self._masks is None:
            self._masks = np.ones((self.num_lanes, mask_width(self.team.action_space)), bool)
        self._masks[lane, p.masks] = legal

    def _keep_defined(self, p: _Player, lane: int, info: Mapping[str, Any]) -> None:
        given = info.get(DEFINED, info.get(DEFINED[:-1]))
        if given is None:
            return
        row = np.asarray(given, np.float64).reshape(-1)
        if len(row) != p.actions.stop - p.actions.start:
            raise EnvError(
                f"{self.name}, agent {p.agent}, lane {lane}: {DEFINED} of {len(row)} numbers; its actions "
                f"{self.team.action_spaces[p.agent]} have {p.actions.stop - p.actions.start}. fix: one action."
            )
        if self._defined is None:
            self._defined = np.full((self.num_lanes, self._width), np.nan)
        self._defined[lane, p.actions] = row

    def _finite(self, obs: Any, call: str) -> None:
        for p in self._players:
            p.contract.finite(obs[AGENTS][p.agent], call)
        if self._shown_state is not None:
            self._shown_state.finite(obs[STATE], call)

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {} if self._masks is None else {"action_mask": self._masks.copy()}
        if self._defined is not None:
            info[DEFINED] = self._defined.copy()
        return info

    def close(self) -> None:
        for env in self.envs:
            env.close()


def _clear(rows: Any, lane: int) -> None:
    """Zeros in one lane."""
    for leaf in trees.leaves(rows):
        leaf[lane] = 0
