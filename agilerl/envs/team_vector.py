"""Vector environments of PettingZoo environments, in this process or in workers, based on multi-agent lanes."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from agilerl.core.signatures import also_takes
from agilerl.envs.healing import Description, HealingLanes, PendingStep, check_options, describe
from agilerl.envs.limits import limited
from agilerl.envs.protocol import Lanes, StepBatch
from agilerl.envs.replacing import ReplacingLanes
from agilerl.envs.simulators.team_fast import FAST_TEAMS
from agilerl.envs.team_ids import maker
from agilerl.envs.team_ids import team_module as team_module
from agilerl.envs.team_vector_env import EnvFactory
from agilerl.envs.team_vector_env import PettingZooVecEnv as PettingZooVecEnv
from agilerl.envs.teams import TeamLanes
from agilerl.errors import EnvError


class SyncPettingZooVecEnv(PettingZooVecEnv):
    """Step the copies sequentially in this process, which is faster than workers if a step is short."""

    _lanes: TeamLanes | None = None

    @property
    def lanes(self) -> TeamLanes:
        if self._lanes is None:
            self._lanes = TeamLanes(self.env_fns, with_state=self.with_state)
        return self._lanes

    def _describe(self) -> Description:
        with contextlib.closing(TeamLanes([self.factory], with_state=self.with_state)) as lanes:
            return describe(lanes)

    def _new_lanes(self, count: int, reset_ended: bool) -> Lanes:
        env_kwargs = self.env_kwargs
        fast = FAST_TEAMS.get(self.env_id or "")
        if fast is not None and env_kwargs is not None and env_kwargs.keys() <= fast.keywords and self._limits(fast):
            lanes: Lanes = fast(count, reset_ended=reset_ended, with_state=self.with_state, **env_kwargs)
            if self.max_episode_steps is not None:
                lanes.limit = min(lanes.limit, self.max_episode_steps)  # type: ignore[attr-defined]
            return lanes
        build = partial(TeamLanes, [self.factory] * count, reset_ended=reset_ended, with_state=self.with_state)
        return ReplacingLanes(build, self.replacements) if self.replacements else build()

    def _limits(self, fast: Any) -> bool:
        """Whether these lanes can truncate episodes at the vector's limit."""
        return self.max_episode_steps is None or hasattr(fast, "limit")

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        self._check_idle("call")
        return self.lanes.call(name, *args, **kwargs)

    def _set(self, name: str, values: list[Any]) -> None:
        self.lanes.set_attr(name, values)

    def close(self) -> None:
        self._pending = None
        if self._lanes is not None:
            self._lanes.close()
            self._lanes = None


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

    _lanes: HealingLanes | None = None

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
        self._options: dict[str, Any] = {
            "deadline_s": deadline_s, "max_restarts": max_restarts if healing else 0,
            "build": partial(TeamLanes, with_state=with_state),
        }  # fmt: skip
        super().__init__(env_fns, with_state=with_state, seed=seed)

    def _describe(self) -> Description:
        description = self.lanes.description
        self._options["description"] = description
        return description

    @property
    def lanes(self) -> HealingLanes:
        if self._lanes is None:
            workers = self.num_workers if self.healing or self.num_workers else self.num_envs
            self._lanes = HealingLanes(self.env_fns, num_workers=workers, **self._options)
        return self._lanes

    @property
    def processes(self) -> list[Any]:
        """The worker processes."""
        self.lanes.start()
        return [worker.process for worker in self.lanes.workers]

    def _begin_step(self, joined: np.ndarray) -> PendingStep:
        return self.lanes.begin_step(joined)

    def _finish_step(self, pending: PendingStep, timeout: float | None) -> StepBatch:
        if timeout is not None and not pending.is_ready(timeout):
            self._pending = "step", pending
            raise multiprocessing.TimeoutError(f"no answer after {timeout:g} s. fix: step_wait() again, or close().")
        return self.lanes.finish_step(pending)

    def _new_lanes(self, count: int, reset_ended: bool) -> HealingLanes:
        factories = [self.factory] * count
        return HealingLanes(factories, reset_ended=reset_ended, num_workers=self.num_workers, **self._options)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        self._check_idle("call")
        return self.lanes.call(name, *args, **kwargs)

    def _set(self, name: str, values: list[Any]) -> None:
        self.lanes.set_attr(name, values)

    def close(self) -> None:
        self._pending = None
        if self._lanes is not None:
            self._lanes.close()
            self._lanes = None


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
    if isinstance(num_envs, bool) or not isinstance(num_envs, int | np.integer) or num_envs < 1:
        raise EnvError(f"num_envs must be a positive integer (environments stepped at once); got {num_envs!r}. fix: 1.")
    healing = healing or max_restarts != 10
    has_workers = healing or should_async_vector or num_workers is not None or deadline_s != 60.0
    if has_workers and should_async_vector is False:
        raise EnvError("healing=True needs worker processes. fix: leave should_async_vector out.")
    env_id, make = maker(env)
    env_fn = (
        partial(make, **env_kwargs)
        if max_episode_steps is None
        else partial(limited, make, max_episode_steps, **env_kwargs)
    )
    env_fns = [env_fn] * int(num_envs)
    vector: PettingZooVecEnv
    if has_workers:
        options = {"num_workers": num_workers, "deadline_s": deadline_s, "max_restarts": max_restarts}
        vector = AsyncPettingZooVecEnv(env_fns, healing=healing, with_state=with_state, seed=seed, **options)  # type: ignore[arg-type]
    else:
        vector = SyncPettingZooVecEnv(env_fns, with_state=with_state, seed=seed)
    vector.env_id, vector.env_kwargs = env_id, None if env_id is None else env_kwargs
    vector.max_episode_steps, vector.lane_seed = max_episode_steps, seed
    return vector
