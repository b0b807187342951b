"""Vectors of PettingZoo environments: dicts by agent go in and come out, as published; lanes of teams do the work."""

from __future__ import annotations

import importlib
import pkgutil
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
from gymnasium import Space

from agilerl import tree as trees
from agilerl.env_ids import TEAM_PACKAGES
from agilerl.envs.healing import check_options
from agilerl.envs.protocol import Lanes
from agilerl.envs.team_fast import FAST_TEAMS
from agilerl.envs.team_healing import HealingTeamLanes
from agilerl.envs.teams import AGENTS, DEFINED, PRESENT, Seen, Team, TeamLanes, is_parallel, team_of
from agilerl.errors import ConfigError, EnvError, nearest, unknown_name
from agilerl.rng import Purpose
from agilerl.rng import seeds as derive_seeds

EnvFactory = Callable[[], Any]


class PettingZooVecEnv(ABC):
    """Several copies of one environment of several agents, stepped together.

    An episode that ends is followed by a new one in the same step, and nothing of it is lost: infos hold the
    `final_observation` of each agent, and observations are `Seen`, from which `MultiAgentReplayBuffer` takes the final
    ones. `terminations` and `truncations` say how each agent's part ended.

    Args:
        env_fns: one for each copy; each makes a parallel environment.
        with_state: lanes show `env.state()` as `obs["state"]`.
        seed: makes the first reset without a seed repeatable; every copy gets a seed of its own.

    Attributes:
        num_envs: copies. possible_agents, agents: ids of all agents. team: who they are.
        observations: what the last reset or step has shown.
    """

    render_mode: str | None = None
    metadata: Mapping[str, Any] = {}
    backend: str | None = None
    env_id: str | None = None
    env_kwargs: Mapping[str, Any] | None = None  # of an environment that was made by its id

    def __init__(self, env_fns: Sequence[EnvFactory], *, with_state: bool = False, seed: int | None = None) -> None:
        if not env_fns:
            raise ConfigError(f"{type(self).__name__} needs at least one environment. fix: [make_env] * 8.")
        self.env_fns, self.with_state = list(env_fns), with_state
        self.num_envs, self._first_seed = len(self.env_fns), seed
        self.factory = self.env_fns[0]
        first = self.factory()
        self.team: Team = team_of(first, with_state=with_state)
        self.metadata = getattr(first, "metadata", None) or {}
        self.render_mode = getattr(first, "render_mode", None)
        first.close()
        self.possible_agents, self.agents = list(self.team.agents), list(self.team.agents)
        self.observations: dict[str, Any] = {}

    @property
    @abstractmethod
    def lanes(self) -> Any:
        """What steps the copies."""

    @abstractmethod
    def replicate(self, n: int, *, reset_ended: bool = True) -> Lanes:
        """n * num_envs new lanes of the same environment, as of `make_vect_envs`."""

    # --- spaces -------------------------------------------------------------------------------------------------------

    def single_observation_space(self, agent: str) -> Space[Any]:
        """Of one agent in one environment."""
        return self._of(self.team.observation_spaces, agent)

    def single_action_space(self, agent: str) -> Space[Any]:
        """Of one agent in one environment."""
        return self._of(self.team.action_spaces, agent)

    observation_space = single_observation_space
    action_space = single_action_space

    def _of(self, spaces: Mapping[str, Space[Any]], agent: str) -> Space[Any]:
        if agent not in spaces:
            raise ConfigError(unknown_name("agent", str(agent), spaces))
        return spaces[agent]

    # --- playing ------------------------------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: Any = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """New episodes: (agent -> [E, ...] observations, agent -> infos)."""
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
        """One step: observations, rewards [E] float, terminations, truncations [E] bool, infos, each by agent.

        Agents that are left out of `actions` must be absent in all copies.
        """
        unknown = [agent for agent in actions if agent not in self.team.action_spaces]
        if unknown:
            raise ConfigError(unknown_name("agent", str(unknown[0]), self.team.agents))
        given = {}
        for agent, values in actions.items():
            own, rows = self.team.columns[agent], np.asarray(values, np.float32)
            if rows.size != self.num_envs * (own.stop - own.start):
                raise ConfigError(
                    f"actions of {agent}: expected one of {self.team.action_spaces[agent]} for each of {self.num_envs} "
                    f"environments, got an array of shape {rows.shape}. fix: [num_envs, ...]."
                )
            given[agent] = np.nan_to_num(rows)  # NaN stands for an agent that does not act
        missing = [agent for agent in self.agents if agent not in given and self._is_there(agent)]
        if missing:
            raise ConfigError(
                f"{missing[0]} is there and has no action. fix: an action for each agent, [num_envs, ...]."
            )
        batch = self.lanes.step(self.team.join(given))
        assert batch.team is not None
        per_agent = [
            {agent: values[:, k].copy() for k, agent in enumerate(self.agents)}
            for values in (batch.team.reward, batch.team.terminated, batch.team.truncated)
        ]
        infos = self._infos(batch.obs, batch.info)
        ended = batch.terminated | batch.truncated
        per_lane = ended[:, None] | batch.team.truncated
        for k, agent in enumerate(self.agents):
            if per_lane[:, k].any():
                infos[agent]["final_observation"] = trees.copy(batch.final_obs[AGENTS][agent])
                infos[agent]["_final_observation"] = per_lane[:, k].copy()
            if "healed" in batch.info:
                infos[agent]["healed"] = batch.info["healed"].copy()
        self.observations = self._seen(batch.obs, batch.final_obs, batch.team.acted)
        return self.observations, *per_agent, infos

    def _is_there(self, agent: str) -> bool:
        return bool(self.observations) and bool(self.observations.present[agent].any())  # type: ignore[attr-defined]

    def _seen(self, obs: Any, final: Any = None, acted: np.ndarray | None = None) -> Seen:
        def by_agent(values: np.ndarray) -> dict[str, np.ndarray]:
            return {agent: values[:, k].astype(bool) for k, agent in enumerate(self.agents)}

        rows = {agent: obs[AGENTS][agent] for agent in self.agents}
        final_rows = None if final is None else {agent: final[AGENTS][agent] for agent in self.agents}
        return Seen(
            rows, by_agent(obs[PRESENT]), final_rows, None if final is None else by_agent(final[PRESENT]),
            None if acted is None else by_agent(acted),
        )  # fmt: skip

    def _infos(self, obs: Any, info: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        infos: dict[str, dict[str, Any]] = {}
        for k, agent in enumerate(self.agents):
            infos[agent] = {"present": obs[PRESENT][:, k].astype(bool)}
            own = self.team.mask_columns[agent]
            if "action_mask" in info and own.stop > own.start:
                infos[agent]["action_mask"] = info["action_mask"][:, own]
            decided = info[DEFINED][:, self.team.columns[agent]] if DEFINED in info else None
            if decided is not None and not np.isnan(decided).all():
                shape = self.team.action_spaces[agent].shape or ()
                infos[agent][DEFINED] = decided.reshape(self.num_envs, *shape)
        return infos

    # --- the copies themselves ----------------------------------------------------------------------------------------

    @abstractmethod
    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Attribute `name` of every copy, or what it returns where it is a method; copy by copy."""

    @abstractmethod
    def _set(self, name: str, values: list[Any]) -> None:
        """Give every copy its value."""

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Attribute `name` of every copy."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Give every copy the value, or one of a list of them; an attribute that there is not becomes one."""
        each = list(values) if isinstance(values, list | tuple) else [values] * self.num_envs
        if len(each) != self.num_envs:
            raise ConfigError(f"set_attr({name!r}): {len(each)} values for {self.num_envs} copies. fix: one for each.")
        self._set(name, each)

    def render(self) -> tuple[Any, ...]:
        """What every copy renders."""
        return self.call("render")

    @abstractmethod
    def close(self) -> None:
        """Release the copies."""

    def __enter__(self) -> PettingZooVecEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _copies(self, n: int) -> int:
        if n < 1:
            raise EnvError(f"replicate takes a positive number of copies; got {n}. fix: use 1 for one copy.")
        return n * self.num_envs


class SyncPettingZooVecEnv(PettingZooVecEnv):
    """The copies are stepped one after another in this process, which is faster than workers where a step is short."""

    _lanes: TeamLanes | None = None

    @property
    def lanes(self) -> TeamLanes:
        if self._lanes is None:
            self._lanes = TeamLanes(self.env_fns, with_state=self.with_state)
        return self._lanes

    def replicate(self, n: int, *, reset_ended: bool = True) -> Lanes:
        count = self._copies(n)
        given = self.env_kwargs
        if self.env_id in FAST_TEAMS and given is not None and given.keys() <= {"continuous_actions"}:
            return FAST_TEAMS[self.env_id](count, reset_ended=reset_ended, with_state=self.with_state, **given)
        return TeamLanes([self.factory] * count, reset_ended=reset_ended, with_state=self.with_state)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        found = [getattr(env, name) for env in self.lanes.envs]
        return tuple(value(*args, **kwargs) if callable(value) else value for value in found)

    def _set(self, name: str, values: list[Any]) -> None:
        for env, value in zip(self.lanes.envs, values, strict=True):
            setattr(env, name, value)

    def close(self) -> None:
        if self._lanes is not None:
            self._lanes.close()
            self._lanes = None


class AsyncPettingZooVecEnv(PettingZooVecEnv):
    """The copies are in worker processes; observations come through shared memory. For steps that cost more than a
    pipe, about 0.1 ms.

    Args:
        env_fns: one for each copy; they are sent to the workers where those are not forked, so lambdas will do.
        healing: replace a worker that dies, hangs, raises or gives what a team must not give (`HealingTeamLanes`);
            without it that is an error.
        num_workers: processes: one for each copy, or with healing and for replicas one per core and at most 4, where it
            is None. deadline_s: for a step. max_restarts: of healing.
    """

    _lanes: HealingTeamLanes | None = None

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
        super().__init__(env_fns, with_state=with_state, seed=seed)
        self.healing, self.num_workers = healing, num_workers
        self._options: dict[str, Any] = {
            "deadline_s": deadline_s, "max_restarts": max_restarts if healing else 0, "with_state": with_state
        }  # fmt: skip

    @property
    def lanes(self) -> HealingTeamLanes:
        if self._lanes is None:
            workers = self.num_workers if self.healing or self.num_workers else self.num_envs
            self._lanes = HealingTeamLanes(self.env_fns, num_workers=workers, **self._options)
        return self._lanes

    @property
    def processes(self) -> list[Any]:
        """The worker processes."""
        self.lanes.start()
        return [worker.process for worker in self.lanes.workers]

    def replicate(self, n: int, *, reset_ended: bool = True) -> HealingTeamLanes:
        factories = [self.factory] * self._copies(n)
        return HealingTeamLanes(factories, reset_ended=reset_ended, num_workers=self.num_workers, **self._options)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return self.lanes.call(name, *args, **kwargs)

    def _set(self, name: str, values: list[Any]) -> None:
        self.lanes.set_attr(name, values)

    def close(self) -> None:
        if self._lanes is not None:
            self._lanes.close()
            self._lanes = None


# --- by name, by module, by factory ---------------------------------------------------------------------------------


def make_multi_agent_vect_envs(
    env: Any,
    num_envs: int = 1,
    *,
    should_async_vector: bool | None = None,
    healing: bool = False,
    seed: int | None = None,
    num_workers: int | None = None,
    deadline_s: float = 60.0,
    max_restarts: int = 10,
    with_state: bool = False,
    **env_kwargs: Any,
) -> PettingZooVecEnv:
    """Copies of an environment of several agents.

    Args:
        env: what makes one parallel environment ("mpe2.simple_spread_v3" or any other module of mpe2 and PettingZoo, by
            name or imported; a class or a function). Of a game whose agents take turns a module is converted by
            PettingZoo's `turn_based_aec_to_parallel`.
        num_envs: copies.
        should_async_vector: True for worker processes. In this process is faster unless a step costs more than a pipe
            (about 0.1 ms a worker): a step of mpe2 costs 0.15 to 0.3 ms, and of two fast lanes 0.01 ms.
        healing: worker processes that are replaced when they fail. num_workers, deadline_s, max_restarts: of it.
        seed: makes the first reset without a seed repeatable.
        with_state: lanes show `env.state()`.
        **env_kwargs: for every copy.

    Raises:
        EnvError: an environment in place of what makes it, an unknown id, a package that is not installed, a number of
            environments below one.
    """
    if isinstance(num_envs, bool) or not isinstance(num_envs, int | np.integer) or num_envs < 1:
        raise EnvError(f"num_envs must be a positive integer (environments stepped at once); got {num_envs!r}. fix: 1.")
    if healing and should_async_vector is False:
        raise EnvError("healing=True needs worker processes. fix: leave should_async_vector out.")
    env_id, make = _maker(env)
    env_fns = [partial(make, **env_kwargs)] * int(num_envs)
    vector: PettingZooVecEnv
    if healing or should_async_vector:
        options = {"num_workers": num_workers, "deadline_s": deadline_s, "max_restarts": max_restarts}
        vector = AsyncPettingZooVecEnv(env_fns, healing=healing, with_state=with_state, seed=seed, **options)  # type: ignore[arg-type]
    else:
        if num_workers is not None or deadline_s != 60.0 or max_restarts != 10:
            raise EnvError("num_workers, deadline_s and max_restarts are options of healing=True. fix: healing=True.")
        vector = SyncPettingZooVecEnv(env_fns, with_state=with_state, seed=seed)
    vector.env_id, vector.env_kwargs = env_id, None if env_id is None else env_kwargs
    return vector


def _maker(env: Any) -> tuple[str | None, Callable[..., Any]]:
    """(id or None, what makes a parallel environment)."""
    if isinstance(env, str):
        env = team_module(env)
    if isinstance(env, ModuleType):
        package, _, name = env.__name__.partition(".")
        is_known = package in TEAM_PACKAGES and hasattr(env, "parallel_env")
        return (f"{package}.{name.rpartition('.')[2]}" if is_known else None), maker_of(env)
    if is_parallel(env) and not isinstance(env, type):
        raise EnvError(
            f"make_multi_agent_vect_envs needs what makes an environment, as there are several copies; got an "
            f"{type(env).__name__} object. fix: the function that made it, or lambda: {type(env).__name__}(...)."
        )
    if not callable(env) or hasattr(env, "agent_iter"):
        if hasattr(env, "agent_iter"):
            team_of(env)  # which names the conversion
        raise EnvError(
            f"make_multi_agent_vect_envs needs an id, a module or a function that makes an environment; got "
            f"{type(env).__name__}. fix: 'mpe2.simple_speaker_listener_v4'."
        )
    return None, env


def maker_of(module: ModuleType) -> Callable[..., Any]:
    """What makes a parallel environment of a module of PettingZoo's form."""
    if hasattr(module, "parallel_env"):
        parallel: Callable[..., Any] = module.parallel_env
        return parallel
    if not hasattr(module, "env"):
        raise EnvError(f"{module.__name__} has neither parallel_env nor env. fix: a module as mpe2.simple_spread_v3.")
    return partial(_in_turns, module.env)


def _in_turns(make: Callable[..., Any], **kwargs: Any) -> Any:
    conversions = importlib.import_module("pettingzoo.utils.conversions")
    return conversions.turn_based_aec_to_parallel(make(**kwargs))


def team_module(env_id: str) -> ModuleType:
    """The module that an id names: "mpe2.simple_spread_v3", "pettingzoo.classic.connect_four_v3".

    Raises:
        EnvError: another package, one that is not installed, or a module that it does not have, with the nearest.
    """
    package = env_id.partition(".")[0]
    if package not in TEAM_PACKAGES:
        raise EnvError(
            f"{env_id!r} is not the id of an environment of several agents: those begin with "
            f"{' or '.join(f'{name}.' for name in TEAM_PACKAGES)} fix: 'mpe2.simple_speaker_listener_v4', or the "
            "function that makes the environment."
        )
    try:
        parent = importlib.import_module(env_id.rpartition(".")[0] or package)
    except ImportError as error:
        if package in str(error):
            raise EnvError(f'{env_id}: {package} is not installed. fix: pip install "agilerl[marl]"') from None
        raise EnvError(f"{env_id}: {error}. fix: install what it names.") from None
    known = [
        f"{parent.__name__}.{found.name}"
        for found in pkgutil.iter_modules(getattr(parent, "__path__", ()))
        if re.search(r"_v\d+$", found.name)
    ]
    if env_id not in known:
        close = nearest(env_id, known, limit=3) or known[:3]
        raise EnvError(f"unknown environment {env_id!r}. fix: {', '.join(close) or 'mpe2.simple_spread_v3'}.")
    try:
        return importlib.import_module(env_id)
    except ImportError as error:
        raise EnvError(f"{env_id}: {' '.join(str(error).split())}. fix: install what it names.") from None
