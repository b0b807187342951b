"""Tasks with environments or offline data: single agents, teams and data sets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
from gymnasium import Env

from agilerl.algorithms import find_algorithm, is_team
from agilerl.config import Manifest
from agilerl.config.presets import check_kind
from agilerl.core import foreign
from agilerl.core.host import available_bytes
from agilerl.core.signatures import constructor_arguments
from agilerl.envs.argument import UNNAMED, inner_name, is_vector
from agilerl.envs.generators import isolated
from agilerl.envs.lanes import spaces_in
from agilerl.envs.limits import TimeLimitOfTeam
from agilerl.envs.pool import EnvPoolLanes, is_faster, reason_against
from agilerl.envs.team import is_parallel
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import AgileRLError, ConfigError, NotAvailableYetError
from agilerl.training.manifest.resolve import (
    hyperparameter_config,
    net_config,
    with_encoder,
    within_replay,
    without_noise,
)
from agilerl.training.manifest.sizes import check_sizes
from agilerl.training.manifest.task import Task


@dataclass(frozen=True)
class Spaces:
    """Spaces of one environment, with the environment's attribute names; `name`: its id, else its class.

    For multi-agent environments both are mappings by agent; `state_space` is that of the global state, if available.
    """

    observation_space: Any
    action_space: Any
    name: str
    state_space: Any = None

    @property
    def joint(self) -> tuple[gym.Space[Any], gym.Space[Any]]:
        """Combine the agents' spaces into one observation and one action space."""
        both = (self.observation_space, self.action_space)
        return tuple(gym.spaces.Dict(space) if isinstance(space, dict) else space for space in both)  # type: ignore[return-value]


class EnvironmentTask(Task):
    """Members act in environments and are evaluated in them."""

    def resolve(self, env: foreign.EnvLike) -> Manifest:
        """Fill in the encoder for the observations, and the name of an environment created by a lambda.

        Creates and closes one environment and one agent; an environment passed by the user is only queried for its
        spaces.
        """
        if self.manifest.environment.asynchronous:
            self.collector.refuse_asynchronous(self.manifest.algorithm.name)
        manifest = with_backend(self.manifest, env)
        check_kind(manifest.algorithm.name, manifest.environment.name, foreign.has_methods(env, "split", "batch"))
        spaces = self.spaces(env)
        resolved = without_noise(with_encoder(manifest, spaces.observation_space), spaces.action_space)
        with contextlib.suppress(NotAvailableYetError):  # the agent reports observations without an encoder
            check_sizes(resolved, *spaces.joint, available_bytes())
        resolved = within_replay(resolved)
        if manifest.environment.name == UNNAMED or (is_vector(env) and manifest.environment.name == type(env).__name__):
            named = resolved.environment.model_copy(update={"name": spaces.name})
            resolved = resolved.model_copy(update={"environment": named})
        alone = resolved.training.model_copy(update={"pop_size": 1})
        type(self)(resolved.model_copy(update={"training": alone})).population(spaces, 0, "cpu")
        return resolved

    def spaces(self, env: foreign.EnvLike = None) -> Spaces:
        """Return the spaces of the manifest's environment, or of the one passed by the user."""
        manifest, created_env = self.manifest, None
        if env is None or (callable(env) and not hasattr(env, "action_space")) or isinstance(env, type):
            options = manifest.environment.of_workers | (
                {"with_state": True} if manifest.environment.with_state else {}
            )
            arguments: dict[str, Any] = {"make_env": env} if env is not None else dict(manifest.environment.kwargs)
            name = manifest.environment.name if env is None else None
            with isolated(manifest.training.seed):
                created_env = env = self.collector.make_envs(name, **arguments, **options)
        try:
            if not is_team(manifest.algorithm.name) and foreign.possible_agents(env) is None:
                spaces_in(env, "single_" if hasattr(env, "single_observation_space") else "")
            space, actions = self.collector.spaces(env)
        finally:
            if created_env is not None:
                created_env.close()
        return Spaces(space, actions, inner_name(env), foreign.state_space(env))

    def environments(self, env: foreign.EnvLike, device: str) -> tuple[Any, Any]:
        if self.manifest.environment.asynchronous:  # also of a resumed run with other settings
            self.collector.refuse_asynchronous(self.manifest.algorithm.name)
        return make_environments(self.manifest, env, self.collector.make_envs)

    def population(self, env: Any, seed: int, device: str) -> list[Any]:
        others = [self.manifest.of_algorithm(name) for name in self.manifest.evolution.algorithms]
        kinds = [self._population(manifest, env, seed, device) for manifest in (self.manifest, *others)]
        return [kinds[number % len(kinds)][number] for number in range(len(kinds[0]))]

    def _population(self, manifest: Manifest, env: Any, seed: int, device: str) -> list[Any]:
        """Make the founders, all of the manifest's algorithm."""
        cls = find_algorithm(manifest.algorithm.name)
        if isinstance(env, Spaces):
            space, actions, state = env.observation_space, env.action_space, env.state_space
        else:
            (space, actions), state = self.collector.spaces(env), foreign.state_space(env)
        if state is None and manifest.environment.with_state:
            raise ConfigError(
                f"environment.with_state: {manifest.environment.name} was handed over and shows no state. "
                "fix: make_multi_agent_vect_envs(..., with_state=True), or the function that makes it."
            )
        reads_state = state is not None and "state_space" in constructor_arguments(cls)
        try:
            founders: list[Any] = cls.population(
                manifest.training.pop_size,
                space,
                actions,
                seed=seed,
                hp_config=hyperparameter_config(manifest),
                net_config=net_config(manifest, space),
                device=device,
                **({"state_space": state} if reads_state else {}),
                **manifest.algorithm.hyperparameters,
            )
            return founders
        except AgileRLError as error:
            raise type(error)(f"{manifest.environment.name}: {error}") from None


class SelfPlayTask(EnvironmentTask):
    """A two-player game, played against past members of the population."""

    no_random_play = "fitness is the return against the population's past"


class FittedTask(EnvironmentTask):
    """A data set without an environment, also used for evaluation."""

    no_random_play = "there is no environment to play in"


def make_environments(
    manifest: Manifest, env: foreign.EnvLike, make_envs: Callable[..., Any] = make_vect_envs
) -> tuple[Any, Any]:
    """Return (training environment, evaluation environment); they differ if training episodes are truncated earlier.

    make_envs: of the collector that trains in them.
    """
    name, lanes = manifest.environment.name, manifest.environment.num_envs
    kwargs, limit = dict(manifest.environment.kwargs), manifest.training.train_max_episode_steps
    if isinstance(env, gym.Env | gym.vector.VectorEnv) or (env is not None and not callable(env)):
        return env, env

    options = manifest.environment.of_workers
    options |= {"asynchronous": True} if manifest.environment.asynchronous else {}
    options |= {"with_state": True} if manifest.environment.with_state else {}
    options |= {"backend": manifest.environment.backend} if manifest.environment.backend != "gymnasium" else {}

    def make(limited: bool) -> Any:
        if env is not None:
            make_env = (lambda: _limited(env(), limit or 0)) if limited else env
            return make_envs(None, num_envs=lanes, make_env=make_env, **options)
        extra: dict[str, Any] = {"max_episode_steps": limit} if limited else {}
        return make_envs(name, num_envs=lanes, **kwargs, **extra, **options)

    with isolated(manifest.training.seed):
        evaluated = make(limited=False)
        trained = make(limited=True) if limit else evaluated
    for vector in (trained, evaluated):
        vector.lane_seed, vector.replacements = manifest.training.seed, manifest.environment.max_restarts
    return trained, evaluated


def with_backend(manifest: Manifest, env: foreign.EnvLike = None) -> Manifest:
    """Replace `environment.backend: auto` by what this machine has, so that a run records it and resumes with it.

    env: passed by the user; None if it is created from its id.

    Raises:
        ConfigError: EnvPool is asked for and cannot step the environment here.
    """
    asked, name, kwargs = manifest.environment.backend, manifest.environment.name, manifest.environment.kwargs
    if asked == "gymnasium":
        return manifest
    is_by_id = env is None and not manifest.environment.healing
    if asked == EnvPoolLanes.backend:
        _check_pool(manifest, is_by_id)
        return manifest
    chosen = EnvPoolLanes.backend if is_by_id and is_faster(name, kwargs) else "gymnasium"
    environment = manifest.environment.model_copy(update={"backend": chosen})
    return manifest.model_copy(update={"environment": environment})


def _check_pool(manifest: Manifest, is_by_id: bool) -> None:
    reason = "" if is_by_id else "EnvPool makes its environments by their id, without healing. fix: backend=gymnasium."
    if reason := reason or reason_against(manifest.environment.name, manifest.environment.kwargs):
        raise ConfigError(f"environment.backend=envpool: {reason}")


def _limited(env: Env[Any, Any], limit: int) -> Any:
    """Truncate training episodes of `env` at `limit` steps, replacing any existing limit."""
    if is_parallel(env):
        return TimeLimitOfTeam(env, limit)
    inner = env
    while isinstance(inner, gym.Wrapper):
        if isinstance(inner, gym.wrappers.TimeLimit):
            return gym.wrappers.TimeLimit(inner.env, limit)
        inner = inner.env
    return gym.wrappers.TimeLimit(env, limit)
