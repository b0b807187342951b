"""Multi-agent environments (PettingZoo's parallel interface) as lanes: one environment with all agents per lane.

Joint observations are one tree, joint actions one row of numbers, rewards one number per agent. Presence is explicit:
`obs["present"]` and `TeamStep.acted` are masks; entries of absent agents are zero and ignored.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import Space

from agilerl.core import foreign
from agilerl.core import tree as trees
from agilerl.core.spaces import mask_width
from agilerl.core.tree import Tree
from agilerl.envs.generators import LaneGenerators
from agilerl.envs.lanes import Contract, LocalLanes, by_lane, failure
from agilerl.envs.masks import MASK, MISNAMED, ActionMasks, warn_of_misnamed
from agilerl.envs.observed_masks import split_mask
from agilerl.envs.protocol import AGENTS, DEFINED, PRESENT, STATE, StepBatch, TeamStep
from agilerl.envs.returned import as_info, by_agent, short, step_values
from agilerl.envs.team import MASKED, is_masked, name_of, nothing, space_of, team_of
from agilerl.errors import EnvError, unknown_name

STEP_PARTS = ("observations", "rewards", "terminations", "truncations")
ALL_DICTS = [dict] * 5
ALL = "__all__"  # key that ends all agents at once
WHOSE_TURN = "observe the agent when it can act, or let infos[agent]['active_agent'] say whose turn it is"


@dataclass(frozen=True, slots=True)
class _Player:
    """Data of the lanes about one agent: its id as a string and in the environment, its index among the agents, the
    checks on its observations, and the reader of its masks."""

    agent: str
    key: Any
    number: int
    contract: Contract
    masks: ActionMasks
    is_masked: bool


class TeamLanes(LocalLanes):
    """L multi-agent environments stepped sequentially in this process; a lane's episodes depend only on its seed and
    actions.

    An episode ends when no agent is left: `env.agents` is empty, or all in it have ended. `StepBatch` has its usual
    meaning (the reward is the sum over agents, both ends refer to the whole episode); `StepBatch.team` has the data by
    agent. Presence of agents:

    * An observed agent is present and acts next; an unobserved agent is absent and gets no action.
    * An agent that ends while others continue is absent from then on (in `obs`), until it is observed again. In
      `final_obs` it is present if it was truncated: its transition bootstraps from that observation.
    * In turn-based games (`infos[agent]["active_agent"]`) only the agent to move is present.
    * It is an error if an agent leaves `env.agents` without being terminated or truncated.
    * An agent that acted and is observed afterwards, or has ended, needs a reward, a termination and a truncation (an
      entry "__all__" replaces all flags); otherwise it is an error. Unobserved, waiting agents may lack them.

    `info["action_mask"]` [L, W] contains the action masks of all agents (`Team.mask_columns`), from
    `infos[agent]["action_mask"]` or from observations {"observation", "action_mask"}. `info["env_defined_actions"]`
    [L, A] is set if the environment defines an agent's next action (`infos[agent]["env_defined_actions"]`, or
    `"env_defined_action"`), with NaN elsewhere; it replaces the agent's choice, and `TeamStep.defined` records it for
    the step.

    Args:
        factories: one per lane; each creates a parallel environment.
        reset_ended: see `SyncLanes`.
        with_state: include `env.state()` as `obs["state"]`.

    Raises:
        EnvError: invalid environment result; names environment, agent and lane.
    """

    backend, is_team = "teams", True

    def __init__(
        self, factories: Sequence[Callable[[], Any]], *, reset_ended: bool = True, with_state: bool = False
    ) -> None:
        super().__init__(factories, reset_ended=reset_ended)
        self.generators = LaneGenerators(self.num_lanes)
        self.team = team_of(self.envs[0], with_state=with_state)
        self.name = name_of(self.envs[0])
        self.single_observation_space: Space[Any] = self.team.observation_space
        self.single_action_space: Space[Any] = self.team.action_space
        self._mask_width = mask_width(self.single_action_space)
        observation_spaces, team, first = self.team.observation_spaces, self.team, self.envs[0]
        self._players = []
        for number, agent in enumerate(team.agents):
            key, name = team.key_of(agent), f"{self.name}, agent {agent}"
            masks = ActionMasks(team.action_spaces[agent], name, nothing_legal=WHOSE_TURN, fills=False)
            has_mask = is_masked(space_of(first, "observation_space", key))
            self._players.append(
                _Player(agent, key, number, Contract(observation_spaces[agent], name), masks, has_mask)
            )
        self._shown_state = None if team.state_space is None else Contract(team.state_space, f"{self.name}, state()")
        self._nobody = {agent: trees.take(nothing(observation_spaces[agent], 1), 0) for agent in team.agents}
        conversions = sys.modules.get("pettingzoo.utils.conversions")
        turns = foreign.turn_based(conversions)
        self._takes_turns = [isinstance(foreign.unlimited(env), turns) for env in self.envs]

    def _reset_lanes(self, seeds: list[int] | None) -> tuple[Any, dict[str, Any]]:
        obs = nothing(self.single_observation_space, self.num_lanes)
        self._info.clear()
        for lane in range(self.num_lanes):
            self._begin(obs, lane, None if seeds is None else seeds[lane])
        self._finite(obs, "reset()")
        self.last_obs = obs
        return trees.copy(obs), self._info.copies()

    def _step_lanes(self, actions: np.ndarray, active: np.ndarray | None) -> StepBatch:
        actions = np.asarray(actions)
        if actions.shape != (self.num_lanes, self.team.width):
            raise self.team.wrong_rows(actions, self.num_lanes)
        lanes, players = self.num_lanes, self._players
        mask = np.ones(lanes, bool) if active is None else np.array(active, bool)
        acted = self.last_obs[PRESENT].astype(bool) & mask[:, None]
        defined = self._decided(acted)
        if defined is not None:
            actions = np.where(np.isnan(defined), actions, defined)
        action_spaces = self.team.action_spaces
        per_agent = {
            agent: list(by_lane(action_spaces[agent], rows)) for agent, rows in self.team.split(actions).items()
        }
        reward = np.zeros((lanes, len(players)))
        terminated, truncated = np.zeros((2, lanes, len(players)), bool)
        over, has_left = np.zeros(lanes, bool), False
        obs = trees.copy(self.last_obs)
        for lane, is_present in zip(np.flatnonzero(mask).tolist(), acted[mask].tolist(), strict=True):
            env = self.envs[lane]
            chosen = {p.key: per_agent[p.agent][lane] for p in players if is_present[p.number]}
            try:
                result = self.generators.call(lane, env.step, chosen)
            except (Exception, SystemExit) as error:
                raise failure(error, f"{self.name}, lane {lane}: step()") from error
            agent_obs, rewards, ends, cuts, infos = self._five(result, lane)
            staying = self._living(env, lane)
            for p in players:
                key, number = p.key, p.number
                is_done, cut = ends.get(key), cuts.get(key)
                if type(is_done) is not bool:
                    is_done = self._flag(p, lane, ends, "terminations", is_present[number] and key in agent_obs)
                if type(cut) is not bool:
                    cut = self._flag(p, lane, cuts, "truncations", is_present[number] and (is_done or key in agent_obs))
                if key in rewards:
                    raw_reward = rewards[key]
                    reward[lane, number] = (
                        raw_reward if type(raw_reward) is float else p.contract.reward(raw_reward, lane)
                    )
                elif is_present[number] and (is_done or cut or key in agent_obs):
                    raise self._incomplete(p, lane, "rewards")
                if is_done:
                    terminated[lane, number] = True
                elif cut:
                    truncated[lane, number] = True
                elif is_present[number] and key not in staying:
                    raise p.contract.error(lane, "has taken the agent out of env.agents, neither terminated nor cut")
                else:
                    continue
                has_left = True
                staying.discard(key)
            over[lane] = not staying
            self._see(obs, lane, agent_obs, infos, "step()", terminated[lane], truncated[lane])
        self._finite(obs, "step()")
        if not np.isfinite(reward).all():
            lane, number = np.argwhere(~np.isfinite(reward))[0].tolist()
            raise players[number].contract.error(
                lane, f"gave the reward {reward[lane, number]}; expected a finite number"
            )
        final, info = obs, self._info.copies()
        if has_left:
            obs = trees.copy(obs)
            self._leave(obs, (terminated | truncated) & ~over[:, None])
            for lane in np.flatnonzero(over).tolist() if self.reset_ended else ():
                self._begin(obs, lane, None)
            self._finite(obs, "reset()")
            info = self._info.after_reset(info)
        self.last_obs = obs
        is_cut = over & truncated.any(1)
        team = TeamStep(reward, terminated, truncated, acted, defined)
        return StepBatch(trees.copy(obs), reward.sum(1), over & ~is_cut, is_cut, final, mask, info, team)

    def _five(self, result: object, lane: int) -> tuple[Any, ...]:
        """Return the five parts of a step's result, each a mapping by agent."""
        if type(result) is tuple and list(map(type, result)) == ALL_DICTS:
            return result
        where = f"{self.name}, lane {lane}"
        *parts, infos = step_values(result, where, is_team=True)
        named = zip(STEP_PARTS, parts, strict=True)
        return *(by_agent(part, name, where, "step()") for name, part in named), as_info(
            infos, where, "step()", "infos"
        )

    def _living(self, env: Any, lane: int) -> set[Any]:
        try:
            return set(env.agents)
        except (AttributeError, TypeError) as error:
            raise EnvError(
                f"{self.name}, lane {lane}: env.agents cannot be read ({error}); expected a list of the agents that go "
                "on. fix: self.agents = list(self.possible_agents) in reset()."
            ) from error

    def _flag(self, player: _Player, lane: int, flags: Mapping[Any, Any], name: str, is_needed: bool) -> bool:
        """Return one agent's entry, else that of "__all__" (used by RLlib's environments), else False.

        Raises:
            EnvError: not a flag, or missing although `is_needed`.
        """
        key = player.key if player.key in flags else ALL
        if key in flags:
            return player.contract.flag(flags[key], lane, f"{name}[{key!r}]")
        if is_needed:
            raise self._incomplete(player, lane, name)
        return False

    def _incomplete(self, player: _Player, lane: int, name: str) -> EnvError:
        """Build the error for an agent that acted, and was observed afterwards or has ended, without a reward or a
        flag.

        PettingZoo provides all of them for every live agent. An unobserved, waiting agent may lack them: later rewards
        belong to its last action.
        """
        return player.contract.error(
            lane, f"gave {name} without {player.key!r}, which acted; expected one for each agent that acts"
        )

    def _begin(self, obs: Tree, lane: int, seed: int | None) -> None:
        where, (agent_obs, infos) = f"{self.name}, lane {lane}", self._reset_env(lane, seed)
        if not self._living(self.envs[lane], lane):
            raise EnvError(
                f"{where}: env.agents is empty after reset(), so that nobody can act. "
                "fix: self.agents = list(self.possible_agents) in reset()."
            )
        agent_obs = by_agent(agent_obs, "observations", where, "reset()")
        if self._takes_turns[lane]:  # PettingZoo's conversion names the agent to move after each step, but not here
            turn = self.envs[lane].aec_env.agent_selection
            infos = {agent: {**(infos.get(agent) or {}), "active_agent": turn} for agent in agent_obs}
        self._see(obs, lane, agent_obs, infos, "reset()")

    def _leave(self, obs: dict[str, Any], absent: np.ndarray) -> None:
        """Mark agents `absent` [L, M] as absent while others continue."""
        obs[PRESENT][absent] = 0
        for lane, number in np.argwhere(absent).tolist():
            agent = self.team.agents[number]
            trees.put(obs[AGENTS][agent], lane, self._nobody[agent])
            if MASK in self._info:
                self._info[MASK][lane, self.team.mask_columns[agent]] = True

    def _see(
        self,
        obs: Any,
        lane: int,
        agent_obs: Mapping[str, Any],
        infos: Mapping[str, Any],
        call: str,
        terminated: np.ndarray | None = None,
        truncated: np.ndarray | None = None,
    ) -> None:
        """Write the agents' observations of one lane in place; for ended agents it is the last one."""
        self._info.unmark(lane)
        rows, present, num_seen = obs[AGENTS], obs[PRESENT], 0
        for p in self._players:
            agent, number = p.agent, p.number
            row = agent_obs.get(p.key)
            if row is None:
                num_seen += p.key in agent_obs
                present[lane, number] = 0
                trees.put(rows[agent], lane, self._nobody[agent])
                continue
            num_seen += 1
            info = infos.get(p.key)
            if info is not None and type(info) is not dict:
                info = as_info(info, f"{self.name}, lane {lane}", call, f"infos[{p.key!r}]")
            mask = info.get("action_mask") if info else None
            if info and not MISNAMED.isdisjoint(info) and mask_width(self.team.action_spaces[agent]):
                warn_of_misnamed(info, self.name)
            if p.is_masked:
                try:
                    row, mask = split_mask(row, self.team.observation_spaces[agent])
                except (AttributeError, KeyError, IndexError, TypeError) as error:
                    what = f"gave the observation {short(row)}; expected a dictionary with the parts {MASKED}"
                    raise p.contract.error(lane, what, call) from error
            row, into = p.contract.row(row, lane, call), rows[agent]
            if type(into) is np.ndarray:
                into[lane] = row
            else:
                trees.put(into, lane, row)
            has_ended = terminated is not None and truncated is not None and (terminated[number] or truncated[number])
            waits = info is not None and info.get("active_agent", p.key) != p.key
            present[lane, number] = not waits if not has_ended else truncated[number]  # type: ignore[index]
            if mask is not None and not waits:
                legal = p.masks.rows([mask], lanes=[lane], is_over=np.array([has_ended]))[0]
                self._info.write(MASK, (lane, self.team.mask_columns[agent]), legal, self._mask_width)
            if info and not has_ended:
                self._define(agent, lane, info)
        if num_seen != len(agent_obs):
            players = {p.key for p in self._players}
            unknown = next(str(key) for key in agent_obs if key not in players)
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

    def _define(self, agent: str, lane: int, info: Mapping[str, Any]) -> None:
        """Store the action that infos define for the agent, if any; EnvError if it is outside of its space."""
        action = info.get(DEFINED, info.get(DEFINED[:-1]))
        if action is None:
            return
        row, columns = np.asarray(action, np.float64).reshape(-1), self.team.columns[agent]
        if len(row) != columns.stop - columns.start:
            raise EnvError(
                f"{self.name}, agent {agent}, lane {lane}: {DEFINED} of {len(row)} numbers; its actions "
                f"{self.team.action_spaces[agent]} have {columns.stop - columns.start}. fix: one action."
            )
        self._info.write(DEFINED, (lane, columns), row, self.team.width)

    def _decided(self, acted: np.ndarray) -> np.ndarray | None:
        """Return [L, A]: actions that the environments define for agents that act now ([L, M]), NaN elsewhere; None
        without any."""
        if DEFINED not in self._info:
            return None
        decided = self._info[DEFINED].copy()
        for p in self._players:
            decided[~acted[:, p.number], self.team.columns[p.agent]] = np.nan
        return None if np.isnan(decided).all() else decided

    def _finite(self, obs: dict[str, Any], call: str) -> None:
        for p in self._players:
            p.contract.finite(obs[AGENTS][p.agent], call)
        if self._shown_state is not None:
            self._shown_state.finite(obs[STATE], call)
