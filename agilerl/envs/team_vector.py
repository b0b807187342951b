"""Vector environments of PettingZoo environments, in this process or in workers, with inputs and outputs as dicts by
agent; based on multi-agent lanes."""

from __future__ import annotations

import contextlib
import multiprocessing
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector.utils import batch_space

from agilerl.core import foreign
from agilerl.core import tree as trees
from agilerl.core.signatures import also_takes
from agilerl.envs.healing import Description, HealingLanes, PendingStep, check_options, describe
from agilerl.envs.lanes import EnvFactory
from agilerl.envs.limits import limited
from agilerl.envs.masks import MASK
from agilerl.envs.protocol import AGENTS, Lanes, SeenByTeam, StepBatch, begin_step, finish_step
from agilerl.envs.returned import short
from agilerl.envs.simulators.team_fast import FAST_TEAMS
from agilerl.envs.team import Team, as_columns
from agilerl.envs.team_ids import maker
from agilerl.envs.team_ids import team_module as team_module
from agilerl.envs.teams import TeamLanes
from agilerl.envs.vector import Replicable, check_num_envs
from agilerl.errors import ConfigError, EnvError, unknown_choice


class PettingZooVecEnv(Replicable, ABC):
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
    _lanes: Any = None

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
    def lanes(self) -> Any:
        """Lanes that step the copies."""
        if self._lanes is None:
            self._lanes = self._make_lanes()
        return self._lanes

    @abstractmethod
    def _make_lanes(self) -> Any:
        """Create the lanes that step the copies."""

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
        self, *, seed: int | Sequence[int] | None = None, options: object = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start new episodes: (agent -> [E, ...] observations, agent -> infos)."""
        self._check_idle("reset")
        if options is not None:
            raise EnvError("reset(options=) is not handed on to copies of an environment. fix: set it in env_fns.")
        obs, info = self.lanes.reset(self._lane_seeds(seed))
        self.observations = self.team.by_agent(obs)
        return self.observations, self.team.infos(obs, info, info.get(MASK))

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
        self._begin_call("step", begin_step(self.lanes, self._joined(self._mapped(actions))))

    def step_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Wait for and return the result of `step_async`.

        Raises:
            NoAsyncCallError: no step is pending. TimeoutError: of multiprocessing: no answer after `timeout` seconds;
                the step stays pending.
        """
        pending = self._end_call("step")
        if timeout is not None and isinstance(pending, PendingStep) and not pending.is_ready(timeout):
            self._pending = "step", pending
            raise multiprocessing.TimeoutError(f"no answer after {timeout:g} s. fix: step_wait() again, or close().")
        return self._stepped(finish_step(self.lanes, pending))

    def reset_async(self, seed: int | Sequence[int] | None = None, options: object = None) -> None:
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
            raise AlreadyPendingCallError(f"{name}: a {pending} was not waited for. fix: {pending}_wait().", pending)

    def _begin_call(self, name: str, what: object) -> None:
        self._check_idle(name)
        self._pending = name, what

    def _end_call(self, name: str) -> Any:
        if self._pending is None or self._pending[0] != name:
            raise NoAsyncCallError(f"{name}_wait: no {name} was begun. fix: {name}_async(...) first.", name)
        what, self._pending = self._pending[1], None
        return what

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
        joined = np.zeros((self.num_envs, self.team.width), np.float32)
        for agent, values in actions.items():
            columns, rows = self.team.columns[agent], as_columns(self.team.action_spaces[agent], values)
            if rows.size != self.num_envs * (columns.stop - columns.start):
                raise ConfigError(
                    f"actions of {agent}: expected one of {self.team.action_spaces[agent]} for each of {self.num_envs} "
                    f"environments, got an array of shape {rows.shape}. fix: [num_envs, ...]."
                )
            joined[:, columns] = np.nan_to_num(rows).reshape(self.num_envs, -1)  # NaN marks agents that do not act
        present = SeenByTeam.of(self.observations).present or {}
        missing = [agent for agent in present if agent not in actions and present[agent].any()]
        if missing:
            raise ConfigError(f"{missing[0]} has no action. fix: an action for each agent, [num_envs, ...].")
        return joined

    def _stepped(self, batch: StepBatch) -> tuple[Any, ...]:
        """Convert a step of the lanes to the result of `step`."""
        assert batch.team is not None
        per_agent = [
            {agent: values[:, k].copy() for k, agent in enumerate(self.agents)}
            for values in (batch.team.reward, batch.team.terminated, batch.team.truncated)
        ]
        infos = self.team.infos(batch.obs, batch.info, batch.info.get(MASK))
        done = batch.terminated | batch.truncated
        per_lane = done[:, None] | batch.team.truncated
        for k, agent in enumerate(self.agents):
            if per_lane[:, k].any():
                infos[agent]["final_observation"] = trees.copy(batch.final_obs[AGENTS][agent])
                infos[agent]["_final_observation"] = per_lane[:, k].copy()
            if batch.healed is not None:
                infos[agent]["healed"] = batch.healed.copy()
        self.observations = self.team.by_agent(batch.obs, batch.final_obs, batch.team.acted)
        return self.observations, *per_agent, infos

    # --- access to the copies -----------------------------------------------------------------------------------------

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Get attribute `name` of every copy, or call it if it is a method; copy by copy."""
        self._check_idle("call")
        values: tuple[Any, ...] = self.lanes.call(name, *args, **kwargs)
        return values

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Get attribute `name` of every copy."""
        return self.call(name)

    def set_attr(self, name: str, values: object) -> None:
        """Set an attribute on every copy to the value, or to one of a list of values; it is created if missing."""
        self._check_idle("set_attr")
        lane_values = list(values) if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(lane_values) != self.num_envs:
            raise ConfigError(
                f"set_attr({name!r}): {len(lane_values)} values for {self.num_envs} copies. fix: one for each."
            )
        self.lanes.set_attr(name, lane_values)

    def render(self) -> tuple[Any, ...]:
        """Render every copy."""
        return self.call("render")

    def close(self) -> None:
        """Release the copies."""
        self._pending = None
        if self._lanes is not None:
            self._lanes.close()
            self._lanes = None

    def __enter__(self) -> PettingZooVecEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SyncPettingZooVecEnv(PettingZooVecEnv):
    """Step the copies sequentially in this process, which is faster than workers if a step is short."""

    def _make_lanes(self) -> TeamLanes:
        return TeamLanes(self.env_fns, with_state=self.with_state)

    def _describe(self) -> Description:
        with contextlib.closing(TeamLanes([self.factory], with_state=self.with_state)) as lanes:
            return describe(lanes)

    def _new_lanes(self, count: int, reset_ended: bool) -> Lanes:
        fast: Any = FAST_TEAMS.get(self.env_id or "")
        kwargs, can_limit = self.env_kwargs or {}, self.max_episode_steps is None or hasattr(fast, "limit")
        if fast is not None and can_limit and kwargs.keys() <= fast.keywords:
            lanes: Lanes = fast(count, reset_ended=reset_ended, with_state=self.with_state, **kwargs)
            if self.max_episode_steps is not None:
                lanes.limit = min(lanes.limit, self.max_episode_steps)  # type: ignore[attr-defined]
            return lanes
        factories = [self.factory] * count
        return self._replacing(partial(TeamLanes, factories, reset_ended=reset_ended, with_state=self.with_state))


class AsyncPettingZooVecEnv(PettingZooVecEnv):
    """Copies in worker processes; observations are passed in shared memory. For steps that cost more than a pipe, about
    0.1 ms.

    Args:
        env_fns: one per copy; they are pickled with cloudpickle if the workers are not forked, so lambdas are allowed.
        healing: replace a worker that dies, hangs, raises or returns invalid results (`HealingLanes`); otherwise
            that is an error.
        num_workers: processes. None: one per copy, or with healing and for replicas one per core and at most 4.
        deadline_s: maximum seconds for a step. max_restarts: limit of healing.
    """

    @also_takes(copy=None, context=None)
    def __init__(
        self,
        env_fns: Sequence[EnvFactory],
        *,
        healing: bool = False,
        num_workers: int | None = None,
        deadline_s: float = 60.0,
        max_restarts: int = 10,
        with_state: bool = False,
        seed: int | None = None,
    ) -> None:
        check_options(num_workers, deadline_s, max_restarts)
        self.healing, self.num_workers = healing, num_workers
        self.takes_part = num_workers is not None and not healing and deadline_s == 60.0  # see `make_vect_envs`
        self._options: dict[str, Any] = {
            "deadline_s": deadline_s, "max_restarts": max_restarts if healing else 0,
            "build": partial(TeamLanes, with_state=with_state),
        }  # fmt: skip
        super().__init__(env_fns, with_state=with_state, seed=seed)

    def _describe(self) -> Description:
        description: Description = self.lanes.description
        self._options["description"] = description
        return description

    def _make_lanes(self) -> HealingLanes:
        workers = self.num_workers if self.healing or self.num_workers else self.num_envs
        return HealingLanes(self.env_fns, num_workers=workers, **self._options)

    @property
    def processes(self) -> list[Any]:
        """The worker processes."""
        self.lanes.start()
        return [worker.process for worker in self.lanes.workers]

    def _new_lanes(self, count: int, reset_ended: bool) -> HealingLanes:
        factories = [self.factory] * count
        options = {**self._options, "max_restarts": self._options["max_restarts"] or self.replacements}
        return HealingLanes(
            factories, reset_ended=reset_ended, num_workers=self.num_workers, takes_part=self.takes_part, **options
        )


def make_multi_agent_vect_envs(
    env: foreign.EnvLike,
    num_envs: int = 1,
    *,
    should_async_vector: bool | None = None,
    healing: bool = False,
    seed: int | None = None,
    num_workers: int | None = None,
    deadline_s: float = 60.0,
    max_restarts: int = 10,
    with_state: bool = False,
    max_episode_steps: int | None = None,
    **env_kwargs: Any,
) -> PettingZooVecEnv:
    """Create a vector environment of copies of a multi-agent environment.

    Args:
        env: factory of one parallel environment ("mpe2.simple_spread_v3" or any other module of mpe2 and PettingZoo, by
            name or imported; a class or a function). Modules of turn-based games are converted by PettingZoo's
            `turn_based_aec_to_parallel`.
        num_envs: number of copies.
        should_async_vector: True for worker processes. In-process stepping is faster unless a step costs more than a
            pipe (about 0.1 ms per worker): a step of mpe2 costs 0.15 to 0.3 ms, and of two fast lanes 0.01 ms.
        healing: use worker processes that are replaced if they fail, `max_restarts` times at most. num_workers,
            deadline_s: use worker processes, see `make_vect_envs`.
        seed: makes the first reset without a seed repeatable.
        with_state: include `env.state()` in observations of the lanes.
        max_episode_steps: truncate all agents after this many steps; the environment's own earlier limit (`max_cycles`)
            still applies.
        **env_kwargs: passed to every copy.

    Raises:
        EnvError: an environment instead of a factory, an unknown id, a missing package, or less than one environment.
    """
    check_num_envs(num_envs)
    healing = healing or max_restarts != 10
    has_workers = healing or should_async_vector or num_workers is not None or deadline_s != 60.0
    if has_workers and should_async_vector is False:
        raise EnvError("healing=True needs worker processes. fix: leave should_async_vector out.")
    env_id, make = maker(env)
    make = make if max_episode_steps is None else partial(limited, make, max_episode_steps)
    env_fns = [partial(make, **env_kwargs)] * int(num_envs)
    vector: PettingZooVecEnv
    if has_workers:
        options = {"num_workers": num_workers, "deadline_s": deadline_s, "max_restarts": max_restarts}
        vector = AsyncPettingZooVecEnv(env_fns, healing=healing, with_state=with_state, seed=seed, **options)  # type: ignore[arg-type]
    else:
        vector = SyncPettingZooVecEnv(env_fns, with_state=with_state, seed=seed)
    vector.env_id, vector.env_kwargs = env_id, None if env_id is None else env_kwargs
    vector.max_episode_steps, vector.lane_seed = max_episode_steps, seed
    return vector
