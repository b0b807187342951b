"""Vector environments by name or by factory, which remember how they were made."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, find_highest_version, get_env_id, parse_env_id
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from agilerl.envs.adapters import VectorLanes
from agilerl.envs.classic import FAST
from agilerl.envs.lanes import EnvFactory, SyncLanes
from agilerl.envs.masked import register_shipped
from agilerl.envs.pool import EnvPoolLanes
from agilerl.envs.preprocessing import preprocessing as find_preprocessing
from agilerl.envs.protocol import Lanes
from agilerl.errors import EnvError, warn_once
from agilerl.rng import Purpose
from agilerl.rng import seeds as derive_seeds

Wrapper = Callable[[Any], Any]


class Replicable:
    """What `make_vect_envs` adds to a Gymnasium vector environment: its factory, and a seed for the first reset."""

    factory: EnvFactory
    env_id: str | None
    num_envs: int
    is_plain: bool  # the registered environment as it is: no keyword, no wrapper
    backend: str | None  # of the replicas: None for the fastest that equals Gymnasium's, or "envpool"
    _first_seed: int | None

    def _remember(
        self, factory: EnvFactory, env_id: str | None, is_plain: bool, seed: int | None, backend: str | None
    ) -> None:
        self.factory, self.env_id, self.is_plain, self.backend = factory, env_id, is_plain, backend
        self._first_seed = seed
        self.spec: EnvSpec | None = gymnasium.spec(env_id) if env_id is not None else None

    def _seeds(self, seed: int | list[int | None] | None) -> int | list[int | None] | None:
        """The seed of this reset: as given, else once those derived from the seed of `make_vect_envs`."""
        first, self._first_seed = self._first_seed, None
        if seed is not None or first is None:
            return seed
        numbers: list[int | None] = derive_seeds(first, Purpose.ENVIRONMENT, self.num_envs).tolist()
        return numbers

    def replicate(self, n: int, *, reset_ended: bool = True) -> Lanes:
        """n * num_envs new lanes of the same environment, in this process: one block of lanes per member.

        Args:
            n: members.
            reset_ended: False for evaluation: an ended lane is left as it is until the next `reset`.
        """
        if n < 1:
            raise EnvError(f"replicate takes a positive number of copies; got {n}. fix: use 1 for one copy.")
        lanes = n * self.num_envs
        if self.backend == "envpool" and self.env_id is not None:
            return EnvPoolLanes(self.env_id, lanes)
        if self.is_plain and self.env_id in FAST:
            return FAST[self.env_id](lanes, reset_ended=reset_ended)
        return SyncLanes([self.factory] * lanes, reset_ended=reset_ended)


class SyncVectEnv(Replicable, SyncVectorEnv):
    """In-process vector environment, NEXT_STEP autoreset."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As Gymnasium's; without a seed the first reset uses the one given to `make_vect_envs`."""
        return super().reset(seed=self._seeds(seed), options=options)


class AsyncVectEnv(Replicable, AsyncVectorEnv):
    """Vector environment with one worker process per environment, NEXT_STEP autoreset."""

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """As Gymnasium's; without a seed the first reset uses the one given to `make_vect_envs`."""
        return super().reset(seed=self._seeds(seed), options=options)

    def replicate(self, n: int, *, reset_ended: bool = True) -> Lanes:
        """n * num_envs new lanes in worker processes, as asked for when this was made; ended lanes always reset."""
        if n < 1:
            raise EnvError(f"replicate takes a positive number of copies; got {n}. fix: use 1 for one copy.")
        return VectorLanes(AsyncVectorEnv([self.factory] * (n * self.num_envs), autoreset_mode=AutoresetMode.SAME_STEP))


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
    **env_kwargs: Any,
) -> VectorEnv:
    """A Gymnasium vector environment with NEXT_STEP autoreset, from a registered id or from a factory.

    Args:
        env_name: registered id. A withdrawn version ("LunarLander-v2") becomes the newest one, with one warning.
        num_envs: environments stepped at once.
        make_env: a callable giving one environment, instead of `env_name`.
        should_async_vector: True for one worker process per environment. In-process stepping is faster unless one
            step costs more than the pipe (about 0.1 ms).
        extra_wrappers: applied in this order to every single environment.
        seed: makes the first reset without a seed repeatable; every environment gets a seed of its own.
        backend: "envpool" steps the replicas (what the training loops use) with EnvPool, for the ids on which it has
            been compared with Gymnasium. It needs `pip install "agilerl[fast]"` and a plain id.
        preprocessing: names in `envs.preprocessing.PREPROCESSING`, such as "atari", applied before `extra_wrappers`.
        **env_kwargs: passed to `gymnasium.make` or to `make_env`.

    Returns:
        A vector environment that has in addition `.env_id`, `.factory` and `.replicate(n)` (fast lanes).

    Raises:
        EnvError: neither id nor factory, an unknown id, a missing dependency, a number of environments below one.
    """
    if env_name is None and make_env is None:
        raise EnvError("Either env_name or make_env must be provided. fix: make_vect_envs('CartPole-v1', num_envs=8).")
    if isinstance(num_envs, bool) or not isinstance(num_envs, int | np.integer) or num_envs < 1:
        raise EnvError(
            "num_envs must be a positive integer (environments stepped at once); "
            f"got {num_envs!r}. fix: use 1 for a single environment."
        )
    wrappers = [extra_wrappers] if callable(extra_wrappers) else list(extra_wrappers or ())
    named = [preprocessing] if isinstance(preprocessing, str) else list(preprocessing or ())
    for step in reversed([find_preprocessing(name) for name in named]):
        wrappers.insert(0, step.wrap)
        env_kwargs = {**step.env_kwargs, **env_kwargs}
    is_plain = make_env is None and not wrappers and not env_kwargs
    if backend not in (None, "envpool") or (backend and (should_async_vector or not is_plain)):
        raise EnvError(
            'backend must be None or "envpool", the latter for a registered id without wrappers, keywords and worker '
            f"processes; got {backend!r}. fix: leave it out."
        )
    env_id = resolve_id(env_name) if env_name is not None and make_env is None else None
    factory = _factory(env_id, make_env, wrappers, env_kwargs)
    kind = AsyncVectEnv if should_async_vector else SyncVectEnv
    try:
        vector = kind([factory] * int(num_envs), autoreset_mode=AutoresetMode.NEXT_STEP)
    except gymnasium.error.DependencyNotInstalled as exc:
        raise EnvError(f"{env_id or 'the environment'}: {exc} {_dependency_fix(str(exc))}") from exc
    except gymnasium.error.Error as exc:
        raise EnvError(str(exc)) from exc
    vector._remember(factory, env_id, is_plain=is_plain, seed=seed, backend=backend)
    return vector


def resolve_id(env_name: str) -> str:
    """The registered id to use for `env_name`: itself, or the newest version where this one has been withdrawn.

    Raises:
        EnvError: with Gymnasium's own message, which names the nearest ids and versions.
    """
    if env_name.startswith("ALE/"):
        _register_atari()
    register_shipped(env_name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "out of date": said once below, in one line, where it matters
            gymnasium.spec(env_name)
    except gymnasium.error.DeprecatedEnv as exc:
        namespace, name, version = parse_env_id(env_name)
        newest = find_highest_version(namespace, name)
        if newest is None or version is None or version > newest:
            raise EnvError(str(exc)) from exc
        new_id = get_env_id(namespace, name, newest)
        warn_once(
            f"env:{env_name}", f"{env_name} has been withdrawn from Gymnasium; using {new_id} instead.", stacklevel=4
        )
        return new_id
    except gymnasium.error.Error as exc:
        raise EnvError(f"{exc} fix: `agilerl list envs` prints the known ids.") from exc
    return env_name


def _register_atari() -> None:
    try:
        ale_py = importlib.import_module("ale_py")
    except ImportError as exc:
        raise EnvError('Atari environments (ALE/...) need ale-py. fix: pip install "agilerl[atari]"') from exc
    gymnasium.register_envs(ale_py)


def _factory(
    env_id: str | None, make_env: Callable[..., Any] | None, wrappers: list[Wrapper], env_kwargs: dict[str, Any]
) -> EnvFactory:
    def make() -> Any:
        if make_env is not None:
            env = make_env(**env_kwargs)
        else:
            assert env_id is not None
            env = gymnasium.make(env_id, disable_env_checker=True, **env_kwargs)
        for wrapper in wrappers:
            env = wrapper(env)
        return env

    return make


def _dependency_fix(message: str) -> str:
    lower = message.lower()
    extra = next((extra for extra in ("box2d", "mujoco", "atari") if extra in lower), "envs")
    return f'fix: pip install "agilerl[{extra}]"'
