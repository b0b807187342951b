"""Vector environments by id or factory, which can be replicated."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Env
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from agilerl.core import foreign
from agilerl.core import tree as trees
from agilerl.core.env_ids import check_lookup, registered_id
from agilerl.core.ranges import Count, check
from agilerl.core.rng import Purpose
from agilerl.core.rng import seeds as derive_seeds
from agilerl.core.tree import Tree
from agilerl.envs.adapters import LooseEnv
from agilerl.envs.generators import Construction, check_distinct, constructing
from agilerl.envs.healing import HealingLanes, check_options
from agilerl.envs.lanes import EnvFactory, SyncLanes, failure_of_make, spaces_in
from agilerl.envs.pool import LIMIT, EnvPoolLanes, is_faster, reason_against
from agilerl.envs.protocol import Lanes
from agilerl.envs.readable import readable
from agilerl.envs.ready import ReadyLanes
from agilerl.envs.replacing import ReplacingLanes
from agilerl.envs.returned import HEALED
from agilerl.envs.simulators.classic import FAST
from agilerl.envs.simulators.mujoco import step_lanes
from agilerl.errors import ConfigError, EnvError, unknown_choice, warn_once

Wrapper = Callable[[Any], Any]


def _atari(env: Env[Any, Any]) -> Any:
    try:
        frames = AtariPreprocessing(env, noop_max=30, frame_skip=4, screen_size=84, grayscale_obs=True)
    except ImportError as error:
        raise EnvError(f'Atari preprocessing: {error} fix: pip install "agilerl[atari]"') from error
    return FrameStackObservation(frames, 4)


# Name -> wrapper of every single environment, and keywords required for its construction.
# "atari": up to 30 no-ops, the maximum of the last two of 4 repeated frames, grey 84 x 84, 4 frames stacked
# (Mnih et al. 2015, methods; Machado et al. 2018, arXiv:1709.06009, who do not end episodes on life loss).
PREPROCESSING: dict[str, tuple[Wrapper, dict[str, Any]]] = {"atari": (_atari, {"frameskip": 1})}


class Replicable:
    """Mixin for vector environments of `make_vect_envs` and `make_multi_agent_vect_envs`: new lanes of the same
    environment, and a seed for the first reset."""

    factory: EnvFactory
    env_id: str | None
    num_envs: int
    is_plain: bool  # a registered environment without keywords or wrappers
    has_wrappers: bool  # user-defined ones
    backend: str | None  # of the replicas: "gymnasium" (the fastest lanes with its results) or "envpool"
    limit: int | None  # max_episode_steps, if it was given as a keyword
    spec: EnvSpec | None
    lane_seed: int | None = None  # of a run, for what environments draw from global generators when they are made
    replacements = 0  # of environments that fail in lanes of this process
    takes_part = False  # whether this process steps some replicas; with a deadline of the user's own workers step all
    _first_seed: int | None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """Reset as in Gymnasium; without a seed the first reset uses the one given to `make_vect_envs`."""
        return super().reset(seed=self._seeds(seed), options=options)  # type: ignore[misc]

    def _seeds(self, seed: int | list[int | None] | None) -> int | list[int | None] | None:
        """Return the given seed of this reset, else once those derived from the seed of `make_vect_envs`."""
        first, self._first_seed = self._first_seed, None
        if seed is not None or first is None:
            return seed
        return list(derive_seeds(first, Purpose.ENVIRONMENT, self.num_envs).tolist())

    def _lane_seeds(self, seed: Any) -> np.ndarray | None:
        """Return the seed of each lane in this reset: consecutive ones for a number, as in Gymnasium."""
        seeds: Any = self._seeds(seed)
        if isinstance(seeds, int | np.integer):
            seeds = np.arange(self.num_envs) + seeds
        return None if seeds is None else np.asarray(seeds)

    def replicate(self, n: int, *, reset_ended: bool = True) -> Lanes:
        """Create n * num_envs new lanes of the same environment, one block of lanes per member.

        They are in this process, or in separate worker processes if this environment uses workers.

        Args:
            n: members.
            reset_ended: False for evaluation: an ended lane is unchanged until the next `reset`.
        """
        if n < 1:
            raise EnvError(f"replicate takes a positive number of copies; got {n}. fix: use 1 for one copy.")
        with constructing(Construction(self.lane_seed, reset_ended)):
            return self._new_lanes(n * self.num_envs, reset_ended)

    def _new_lanes(self, count: int, reset_ended: bool) -> Lanes:
        if self.backend == EnvPoolLanes.backend:
            return EnvPoolLanes(str(self.env_id), count, reset_ended=reset_ended, max_episode_steps=self.limit)
        if self.is_plain and self.env_id in FAST:
            return FAST[self.env_id](count, reset_ended=reset_ended)
        singles: Any = foreign.copies(self)
        make_lanes = foreign.method(singles[0].unwrapped, "make_lanes") if singles and not self.has_wrappers else None
        if callable(make_lanes):  # the environment implements its lanes
            lanes: Lanes = make_lanes(count, reset_ended=reset_ended)
            return lanes
        make_sync: Callable[..., Lanes] = step_lanes if self.is_plain else SyncLanes
        return self._replacing(partial(make_sync, [self.factory] * count, reset_ended=reset_ended))

    def _replacing(self, build: Callable[[], Lanes]) -> Lanes:
        """Build lanes of this process, whose environments are replaced if requested."""
        return ReplacingLanes(build, self.replacements) if self.replacements else build()


class SyncVectEnv(Replicable, SyncVectorEnv):
    """In-process vector environment, NEXT_STEP autoreset."""


class HealingVectEnv(Replicable, VectorEnv):
    """Vector environment in a few worker processes that are replaced if they fail, NEXT_STEP autoreset.

    `info["healed"]` [L] bool is set after a step in which a worker was replaced: the episodes of those lanes are
    truncated, the step is not a transition, and the observations are those of new episodes (no reset step follows).

    Args:
        factory: creates one environment. num_envs: L. options: of `HealingLanes`.
        asynchronous: whether members train in lanes that do not wait for each other (`replicate_asynchronous`).
    """

    takes_seed_per_lane = True

    def __init__(self, factory: EnvFactory, num_envs: int, options: dict[str, Any], asynchronous: bool = False) -> None:
        self.lanes = HealingLanes([factory] * num_envs, **options)
        self.num_envs, self.asynchronous, self.name = num_envs, asynchronous, self.lanes.name
        self.options = {**options, "description": self.lanes.description}
        self.single_observation_space = self.lanes.single_observation_space
        self.single_action_space = self.lanes.single_action_space
        self.max_episode_steps = self.lanes.max_episode_steps
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}
        self._begun: Any = None  # next observations of ended lanes
        self._ended = np.zeros(num_envs, dtype=bool)

    def reset(self, *, seed: object = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._ended = np.zeros(self.num_envs, dtype=bool)
        return self.lanes.reset(self._lane_seeds(seed))

    def step(self, actions: Tree) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        again = self._ended
        batch = self.lanes.step(actions, ~again if again.any() else None)
        healed = np.zeros(self.num_envs, dtype=bool) if batch.healed is None else batch.healed
        waiting = again & ~healed  # a replaced environment is in another start than the one kept for this step
        obs = trees.choose(waiting, self._begun, batch.obs) if waiting.any() else batch.obs
        self._ended = (batch.terminated | batch.truncated) & ~healed
        if self._ended.any():
            self._begun, obs = batch.obs, trees.choose(self._ended, batch.final_obs, obs)
        marks = {} if batch.healed is None else {"healed": healed, HEALED: healed.copy()}
        return obs, batch.reward, batch.terminated, batch.truncated, {**batch.info, **marks}

    def close_extras(self, **kwargs: Any) -> None:
        """Stop the workers."""
        self.lanes.close()

    def _new_lanes(self, count: int, reset_ended: bool) -> Lanes:
        options = {**self.options, "max_restarts": self.options["max_restarts"] or self.replacements}
        return HealingLanes([self.factory] * count, reset_ended=reset_ended, takes_part=self.takes_part, **options)

    def replicate_asynchronous(self, n: int) -> ReadyLanes:
        """Create lanes as `replicate` does, which do not wait for each other."""
        with constructing(Construction(self.lane_seed)):
            return ReadyLanes([self.factory] * (n * self.num_envs), **self.options)


class AsyncVectEnv(Replicable, AsyncVectorEnv):
    """Vector environment with one worker process per environment, NEXT_STEP autoreset.

    Its replicas also have one each.
    """

    def _new_lanes(self, count: int, reset_ended: bool) -> Lanes:
        options = {"num_workers": count, "max_restarts": 0, "spec": self.spec, "reset_ended": reset_ended}
        return HealingLanes([self.factory] * count, **options)  # type: ignore[arg-type]


def make_vect_envs(
    env_name: str | None = None,
    num_envs: int = 1,
    *,
    make_env: Callable[..., Any] | None = None,
    should_async_vector: bool | None = None,
    extra_wrappers: Sequence[Wrapper] | Wrapper | None = None,
    seed: int | None = None,
    backend: str | None = None,
    preprocessing: str | Sequence[str] | None = None,
    healing: bool = False,
    num_workers: int | None = None,
    deadline_s: float = 60.0,
    max_restarts: int = 10,
    asynchronous: bool = False,
    **env_kwargs: Any,
) -> VectorEnv:
    """Create a Gymnasium vector environment with NEXT_STEP autoreset from a registered id or a factory.

    Args:
        env_name: registered id. A withdrawn version ("LunarLander-v2") is replaced by the newest one, with one warning.
        num_envs: number of environments.
        make_env: a callable that returns one environment, instead of `env_name`.
        should_async_vector: True for one worker process per environment. In-process stepping is faster unless one
            step costs more than the pipe (about 0.1 ms).
        extra_wrappers: applied in this order to every single environment.
        seed: makes the first reset without a seed repeatable; every environment gets a different seed.
        backend: "gymnasium" by default. "envpool" steps the replicas (used by the training loops) in C++, for ids that
            have been compared with Gymnasium, without wrappers and keywords other than `max_episode_steps`; it needs
            `pip install "agilerl[fast]"`. "auto" is "envpool" where it is installed and faster.
        preprocessing: names in `envs.vector.PREPROCESSING`, such as "atari", applied before `extra_wrappers`.
        healing: step the environments in a few worker processes, and replace a worker that dies, raises, hangs or
            returns anything but finite numbers of the space; lost steps are excluded from replay. For unreliable
            environments; it costs about 0.1 ms per step. See `agilerl.envs.healing.HealingLanes`.
        num_workers, deadline_s: step them in so many processes (None: one per core, at most 4), where a step counts as
            hung after so many seconds. Without `healing` a failure is an error.
        max_restarts: of `healing`: maximum number of replacements.
        asynchronous: in processes, a slow environment does not hold up the others in training, see
            `agilerl.envs.ready.ReadyLanes`. Results then depend on timing. `step` and evaluations wait for all.
        **env_kwargs: passed to `gymnasium.make` or to `make_env`.

    Returns:
        A vector environment with the additional attributes `.env_id`, `.factory` and `.replicate(n)` (fast lanes).

    Raises:
        ConfigError: an unknown preprocessing.
        EnvError: neither id nor factory, an unknown id, a missing dependency, or less than one environment.
    """
    if env_name is None and make_env is None:
        raise EnvError("Either env_name or make_env must be provided. fix: make_vect_envs('CartPole-v1', num_envs=8).")
    if env_name is not None and not isinstance(env_name, str):
        fix = "make_vect_envs(make_env=FUNCTION, num_envs=8)" if callable(env_name) else "env_name='CartPole-v1'"
        name = foreign.name_of_function(env_name, type(env_name).__name__)
        raise EnvError(f"env_name must be a registered id; got {name}. fix: {fix}.")
    if make_env is not None and not callable(make_env):
        raise EnvError(
            f"make_env must be a function that makes an environment; got {type(make_env).__name__}. "
            "fix: make_env=lambda: gymnasium.make('CartPole-v1')."
        )
    if make_env is not None and not env_kwargs and not foreign.can_be_called(make_env):
        raise EnvError(
            "make_env is called without arguments, and this function needs some. "
            "fix: make_env=lambda: FUNCTION(...), or the arguments as keywords of make_vect_envs."
        )
    check_num_envs(num_envs)
    wrappers = [extra_wrappers] if callable(extra_wrappers) else list(extra_wrappers or ())
    named = [preprocessing] if isinstance(preprocessing, str) else list(preprocessing or ())
    for name in named:
        if name not in PREPROCESSING:
            raise ConfigError(unknown_choice("preprocessing", str(name), PREPROCESSING))
    for wrap, keywords in reversed([PREPROCESSING[name] for name in named]):
        wrappers.insert(0, wrap)
        env_kwargs = {**keywords, **env_kwargs}
    is_plain = make_env is None and not wrappers and not env_kwargs
    check_options(num_workers, deadline_s, max_restarts)
    healing = healing or asynchronous or max_restarts != 10
    has_workers = healing or num_workers is not None or deadline_s != 60.0
    if has_workers and (backend == EnvPoolLanes.backend or should_async_vector):
        raise EnvError("healing=True brings its own worker processes. fix: leave backend and should_async_vector out.")
    env_id = resolve_id(env_name) if env_name is not None and make_env is None else None
    can_pool = env_id is not None and not wrappers and not should_async_vector and not has_workers
    backend = _checked_backend(backend, env_id if can_pool else None, env_kwargs)
    factory, spec = _factory(env_id, make_env, wrappers, env_kwargs), None if env_id is None else gymnasium.spec(env_id)
    vector: SyncVectEnv | AsyncVectEnv | HealingVectEnv
    try:
        if has_workers:
            options = {
                "num_workers": num_workers, "deadline_s": deadline_s, "max_restarts": max_restarts if healing else 0,
                "spec": spec, "build": step_lanes if is_plain else SyncLanes,
            }  # fmt: skip
            vector = HealingVectEnv(factory, int(num_envs), options, asynchronous)
        else:
            kind = AsyncVectEnv if should_async_vector else SyncVectEnv
            vector = kind([factory] * int(num_envs), autoreset_mode=AutoresetMode.NEXT_STEP)
            check_distinct(foreign.copies(vector))
    except gymnasium.error.DependencyNotInstalled as exc:
        extra = next((extra for extra in ("box2d", "mujoco", "atari") if extra in str(exc).lower()), "envs")
        fix = f'fix: pip install "agilerl[{extra}]"'
        raise EnvError(f"{env_id or 'the environment'}: {exc} {fix}") from exc
    except ImportError as exc:
        if env_id is None:
            raise
        raise EnvError(f"{env_id} needs a missing package: {exc}. fix: install it.") from exc
    except gymnasium.error.Error as exc:
        raise EnvError(str(exc)) from exc
    vector.factory, vector.env_id, vector.is_plain, vector.backend = factory, env_id, is_plain, backend
    vector.takes_part = has_workers and not healing and deadline_s == 60.0
    vector.has_wrappers, vector.limit = bool(wrappers), env_kwargs.get(LIMIT)
    vector.spec = spec or (vector.spec if should_async_vector else None)  # limits cannot be read from worker processes
    vector._first_seed = vector.lane_seed = seed
    return vector


def check_num_envs(num_envs: object) -> None:
    """Raise EnvError unless it is a positive integer."""
    check("num_envs", num_envs, Count, 1, EnvError, unit="environments stepped at once")


def _checked_backend(asked: str | None, env_id: str | None, env_kwargs: dict[str, Any]) -> str:
    """Return "gymnasium" or "envpool"; `env_id` is None for environments that EnvPool cannot step."""
    if asked in (None, "gymnasium"):
        return "gymnasium"
    if asked == "auto":
        return EnvPoolLanes.backend if env_id is not None and is_faster(env_id, env_kwargs) else "gymnasium"
    if asked != EnvPoolLanes.backend:
        raise EnvError(f"backend must be 'gymnasium', 'envpool' or 'auto'; got {asked!r}. fix: leave it out.")
    if env_id is None:
        raise EnvError("backend 'envpool' is for a registered id without wrappers and workers. fix: leave it out.")
    if reason := reason_against(env_id, env_kwargs):
        raise EnvError(f"backend 'envpool': {reason}")
    return asked


def resolve_id(env_name: str) -> str:
    """Return the registered id for `env_name`: itself, or the newest version if it has been withdrawn."""
    return registered_id(env_name, "{} has been withdrawn from Gymnasium; using {} instead.")


def _factory(
    env_id: str | None, make_env: Callable[..., Any] | None, wrappers: list[Wrapper], env_kwargs: dict[str, Any]
) -> EnvFactory:
    def make() -> Any:
        if env_id is not None and env_id not in gymnasium.registry:
            registered_id(env_id, "{} {}")  # for a process that does not inherit the registry
        made_by_id = partial(gymnasium.make, str(env_id), disable_env_checker=True)
        try:
            env = (make_env or made_by_id)(**env_kwargs)
        except (Exception, SystemExit) as error:
            if isinstance(error, TypeError) and env_kwargs:
                what = " ".join(str(error).split())
                raise EnvError(
                    f"{env_id or 'the environment'} cannot be made with the keywords {env_kwargs} ({what}). "
                    "fix: keywords that it takes, by --env-kwargs, environment.kwargs of a manifest or make_vect_envs."
                ) from error
            if env_id is None:  # code of the user's, whose traceback helps
                raise
            raise failure_of_make(error, env_id) from error
        keep_log_out()
        check_lookup(env)
        if foreign.possible_agents(env) is not None and not isinstance(env, gymnasium.Env):
            raise EnvError(
                f"{type(env).__name__} has several agents, and this is for one. fix: make_multi_agent_vect_envs, or "
                "agilerl.train(env, algo='MADDPG')."
            )
        for wrapper in wrappers:
            env = wrapper(env)
        spaces_in(env)
        return readable(env if isinstance(env, gymnasium.Env) else LooseEnv(env))

    return make


def keep_log_out() -> None:
    """Redirect MuJoCo's warnings, if it is used: by default it writes MUJOCO_LOG.TXT into the working directory.

    A user's handler is kept. Called in every process that creates environments.
    """
    mujoco: Any = sys.modules.get("mujoco")
    if mujoco is None or not hasattr(mujoco, "set_mju_user_warning"):
        return
    user_handler = foreign.method(mujoco, "get_mju_user_warning")
    if user_handler is None or user_handler() is None:
        mujoco.set_mju_user_warning(_hear)


def _hear(message: object) -> None:
    text = message.decode(errors="replace") if isinstance(message, bytes) else str(message)
    warn_once(f"mujoco: {text.partition('. ')[0]}", f"MuJoCo: {text}")
