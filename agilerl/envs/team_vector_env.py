"""Published interface of PettingZoo vector environments, with inputs and outputs as dicts by agent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector.utils import batch_space

from agilerl.core import tree as trees
from agilerl.core.rng import Purpose
from agilerl.core.rng import seeds as derive_seeds
from agilerl.envs.generators import Construction, constructing
from agilerl.envs.healing import Description
from agilerl.envs.protocol import AGENTS, DEFINED, PRESENT, STATE, Lanes, StepBatch, TeamObservations
from agilerl.envs.returned import short
from agilerl.envs.team import Team, as_columns
from agilerl.errors import ConfigError, EnvError, unknown_choice

EnvFactory = Callable[[], Any]


class PettingZooVecEnv(ABC):
    """Several copies of one multi-agent environment, stepped together.

    An episode that ends is followed by a new one in the same step without loss of data: infos contain the
    `final_observation` of each agent, and observations are `TeamObservations`, from which `MultiAgentReplayBuffer`
    takes the final ones. `terminations` and `truncations` are given by agent.

    Args:
        env_fns: one per copy; each creates a parallel environment.
        with_state: lanes include `env.state()` as `obs["state"]`, and observations of this vector as `obs.state`.
        seed: makes the first reset without a seed repeatable; every copy gets a different seed.

    Attributes:
        num_envs: copies. possible_agents, agents: ids of all agents; num_agents: their number. team: agents and their
            spaces.
        name: environment name.
        observations: result of the last reset or step.
    """

    render_mode: str | None = None
    metadata: Mapping[str, Any] = {}
    backend: str | None = None
    env_id: str | None = None
    env_kwargs: Mapping[str, Any] | None = None  # of an environment created by id
    max_episode_steps: int | None = None  # in addition to the environment's own limit
    lane_seed: int | None = None  # see `envs.vector.Replicable`
    replacements = 0

    def __init__(self, env_fns: Sequence[EnvFactory], *, with_state: bool = False, seed: int | None = None) -> None:
        if not env_fns:
            raise ConfigError(f"{type(self).__name__} needs at least one environment. fix: [make_env] * 8.")
        self.env_fns, self.with_state = list(env_fns), with_state
        self.num_envs, self._first_seed = len(self.env_fns), seed
        self.factory = self.env_fns[0]
        described = self._describe()
        self.team: Team = described.team
        self.name, self.metadata, self.render_mode = described.name, described.metadata, described.render_mode
        self.possible_agents, self.agents = list(self.team.agents), list(self.team.agents)
        self.num_agents = len(self.agents)
        self._pending: tuple[str, Any] | None = None  # pending asynchronous operation: its name, and the call
        self.observations: dict[str, Any] = {}

    @property
    @abstractmethod
    def lanes(self) -> Any:
        """Lanes that step the copies."""

    def replicate(self, n: int, *, reset_ended: bool = True) -> Lanes:
        """Create n * num_envs new lanes of the same environment, see `make_vect_envs`."""
        if n < 1:
            raise EnvError(f"replicate takes a positive number of copies; got {n}. fix: use 1 for one copy.")
        with constructing(Construction(self.lane_seed, reset_ended)):
            return self._new_lanes(n * self.num_envs, reset_ended)

    @abstractmethod
    def _describe(self) -> Description:
        """Describe one environment."""

    @abstractmethod
    def _new_lanes(self, count: int, reset_ended: bool) -> Lanes:
        """Create lanes; see `replicate`."""

    # --- spaces -------------------------------------------------------------------------------------------------------

    def single_observation_space(self, agent: str) -> Space[Any]:
        """Space of one agent in one environment."""
        return self._of(self.team.observation_spaces, agent)

    def single_action_space(self, agent: str) -> Space[Any]:
        """Space of one agent in one environment."""
        return self._of(self.team.action_spaces, agent)

    def observation_space(self, agent: str) -> Space[Any]:
        """Space of one agent in all environments: [num_envs, ...]."""
        return batch_space(self.single_observation_space(agent), self.num_envs)

    def action_space(self, agent: str) -> Space[Any]:
        """Space of one agent in all environments: [num_envs, ...]."""
        return batch_space(self.single_action_space(agent), self.num_envs)

    def _of(self, spaces: Mapping[str, Space[Any]], agent: str) -> Space[Any]:
        if str(agent) not in spaces:
            raise ConfigError(unknown_choice("agent", str(agent), spaces))
        return spaces[str(agent)]

    # --- playing ------------------------------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: Any = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start new episodes: (agent -> [E, ...] observations, agent -> infos)."""
        self._check_idle("reset")
        if options is not None:
            raise EnvError("reset(options=) is not handed on to copies of an environment. fix: set it in env_fns.")
        first, self._first_seed = self._first_seed, None
        if seed is None:
            seeds = None if first is None else derive_seeds(first, Purpose.ENVIRONMENT, self.num_envs)
        else:
            whole = isinstance(seed, int | np.integer)
            seeds = np.arange(self.num_envs) + seed if whole else np.asarray(seed)  # type: ignore[operator]
        obs, info = self.lanes.reset(seeds)
        self.observations = self._seen(obs)
        return self.observations, self._infos(obs, info)

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, ...]:
        """Perform one step: observations, rewards [E] float, terminations, truncations [E] bool, infos, each by agent.

        Agents missing from `actions` must be absent in all copies. With one environment actions may lack the axis of
        environments.
        """
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Mapping[str, Any] | Sequence[Any]) -> None:
        """Start a step; `step_wait` returns its result.

        Args:
            actions: as in `step`; or a list with one entry per environment, each a mapping by agent or a list in the
                order of the agents.

        Raises:
            AlreadyPendingCallError: another operation is pending.
        """
        self._check_idle("step")
        self._begin_call("step", self._begin_step(self._joined(self._mapped(actions))))

    def step_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Wait for and return the result of `step_async`.

        Raises:
            NoAsyncCallError: no step is pending. TimeoutError: of multiprocessing: no answer after `timeout` seconds;
                the step stays pending.
        """
        return self._stepped(self._finish_step(self._end_call("step"), timeout))

    def reset_async(self, seed: int | Sequence[int] | None = None, options: Any = None) -> None:
        """Request a reset, which is performed by `reset_wait`; arguments as in `reset`."""
        self._begin_call("reset", {"seed": seed, "options": options})

    def reset_wait(self, timeout: float | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Perform the reset requested by `reset_async`; `timeout` is ignored, since the reset runs here."""
        return self.reset(**self._end_call("reset"))

    def call_async(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Request a `call`, which is performed by `call_wait`."""
        self._begin_call("call", (name, args, kwargs))

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Perform the call requested by `call_async`; `timeout` is ignored, since the call runs here."""
        name, args, kwargs = self._end_call("call")
        return self.call(name, *args, **kwargs)

    def _check_idle(self, name: str) -> None:
        if self._pending is not None:
            pending = self._pending[0]
            raise AlreadyPendingCallError(
                f"{name}: a {pending} was begun and not waited for. fix: {pending}_wait().", pending
            )

    def _begin_call(self, name: str, what: Any) -> None:
        self._check_idle(name)
        self._pending = name, what

    def _end_call(self, name: str) -> Any:
        if self._pending is None or self._pending[0] != name:
            raise NoAsyncCallError(f"{name}_wait: no {name} was begun. fix: {name}_async(...) first.", name)
        what, self._pending = self._pending[1], None
        return what

    def _begin_step(self, joined: np.ndarray) -> Any:
        """Start a step of the lanes; here it is performed on waiting."""
        return joined

    def _finish_step(self, pending: Any, timeout: float | None) -> StepBatch:
        batch: StepBatch = self.lanes.step(pending)
        return batch

    def _mapped(self, actions: Mapping[str, Any] | Sequence[Any]) -> Mapping[str, Any]:
        """Return actions by agent, also from a list by environment."""
        if isinstance(actions, Mapping):
            return actions
        if not isinstance(actions, list | tuple) or len(actions) != self.num_envs:
            raise ConfigError(
                f"actions must be a mapping by agent, or a list with an entry for each of {self.num_envs} "
                f"environments; got {short(actions)}. fix: {{agent: [num_envs, ...]}}."
            )
        lane_actions = [
            row if isinstance(row, Mapping) else dict(zip(self.agents, row, strict=True)) for row in actions
        ]
        return {agent: np.stack([np.asarray(row[agent]) for row in lane_actions]) for agent in lane_actions[0]}

    def _joined(self, actions: Mapping[str, Any]) -> np.ndarray:
        """Convert actions by agent to rows of the lanes."""
        actions = {str(agent): values for agent, values in actions.items()}
        unknown = [agent for agent in actions if agent not in self.team.action_spaces]
        if unknown:
            raise ConfigError(unknown_choice("agent", str(unknown[0]), self.team.agents))
        rows_by_agent = {}
        for agent, values in actions.items():
            columns, rows = self.team.columns[agent], as_columns(self.team.action_spaces[agent], values)
            if rows.size != self.num_envs * (columns.stop - columns.start):
                raise ConfigError(
                    f"actions of {agent}: expected one of {self.team.action_spaces[agent]} for each of {self.num_envs} "
                    f"environments, got an array of shape {rows.shape}. fix: [num_envs, ...]."
                )
            rows_by_agent[agent] = np.nan_to_num(rows).reshape(self.num_envs, -1)  # NaN marks agents that do not act
        missing = [agent for agent in self.agents if agent not in rows_by_agent and self._is_there(agent)]
        if missing:
            raise ConfigError(
                f"{missing[0]} is there and has no action. fix: an action for each agent, [num_envs, ...]."
            )
        return self.team.join(rows_by_agent)

    def _stepped(self, batch: StepBatch) -> tuple[Any, ...]:
        """Convert a step of the lanes to the result of `step`."""
        assert batch.team is not None
        per_agent = [
            {agent: values[:, k].copy() for k, agent in enumerate(self.agents)}
            for values in (batch.team.reward, batch.team.terminated, batch.team.truncated)
        ]
        infos = self._infos(batch.obs, batch.info)
        done = batch.terminated | batch.truncated
        per_lane = done[:, None] | batch.team.truncated
        for k, agent in enumerate(self.agents):
            if per_lane[:, k].any():
                infos[agent]["final_observation"] = trees.copy(batch.final_obs[AGENTS][agent])
                infos[agent]["_final_observation"] = per_lane[:, k].copy()
            if batch.healed is not None:
                infos[agent]["healed"] = batch.healed.copy()
        self.observations = self._seen(batch.obs, batch.final_obs, batch.team.acted)
        return self.observations, *per_agent, infos

    def _is_there(self, agent: str) -> bool:
        return bool(self.observations) and bool(self.observations.present[agent].any())  # type: ignore[attr-defined]

    def _seen(self, obs: Any, final: Any = None, acted: np.ndarray | None = None) -> TeamObservations:
        def by_agent(values: np.ndarray) -> dict[str, np.ndarray]:
            return {agent: values[:, k].astype(bool) for k, agent in enumerate(self.agents)}

        rows = {agent: obs[AGENTS][agent] for agent in self.agents}
        final_rows = None if final is None else {agent: final[AGENTS][agent] for agent in self.agents}
        return TeamObservations(
            rows, by_agent(obs[PRESENT]), final_rows, None if final is None else by_agent(final[PRESENT]),
            None if acted is None else by_agent(acted), obs.get(STATE),
        )  # fmt: skip

    def _infos(self, obs: Any, info: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        infos: dict[str, dict[str, Any]] = {}
        for k, agent in enumerate(self.agents):
            infos[agent] = {"present": obs[PRESENT][:, k].astype(bool)}
            columns = self.team.mask_columns[agent]
            if "action_mask" in info and columns.stop > columns.start:
                infos[agent]["action_mask"] = info["action_mask"][:, columns]
            decided = info[DEFINED][:, self.team.columns[agent]] if DEFINED in info else None
            if decided is not None and not np.isnan(decided).all():
                shape = self.team.action_spaces[agent].shape or ()
                infos[agent][DEFINED] = decided.reshape(self.num_envs, *shape)
        return infos

    # --- access to the copies -----------------------------------------------------------------------------------------

    @abstractmethod
    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Get attribute `name` of every copy, or call it if it is a method; copy by copy."""

    @abstractmethod
    def _set(self, name: str, values: list[Any]) -> None:
        """Set the attribute on every copy."""

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Get attribute `name` of every copy."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute on every copy to the value, or to one of a list of values; it is created if missing."""
        self._check_idle("set_attr")
        lane_values = list(values) if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(lane_values) != self.num_envs:
            raise ConfigError(
                f"set_attr({name!r}): {len(lane_values)} values for {self.num_envs} copies. fix: one for each."
            )
        self._set(name, lane_values)

    def render(self) -> tuple[Any, ...]:
        """Render every copy."""
        return self.call("render")

    @abstractmethod
    def close(self) -> None:
        """Release the copies."""

    def __enter__(self) -> PettingZooVecEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
