"""Episode lengths: the environment's own limit, and the limit of evaluation episodes without one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from agilerl.core import foreign
from agilerl.core.ranges import Count, check
from agilerl.envs.lanes import name_of
from agilerl.envs.readable import is_minigrid
from agilerl.errors import EnvError, warn_once

# Limit of evaluation episodes without another one; that of Gymnasium's MuJoCo and Box2D environments.
DEFAULT_EPISODE_LIMIT = 1_000


def time_limit(env: foreign.Env | None) -> int | None:
    """Return the step limit by Gymnasium, or by MiniGrid itself, of `env` (single, vector or lanes); None if
    unknown."""
    if (single := foreign.single(env)) is not env:
        return time_limit(single)
    limit = foreign.registered_limit(env)
    inner = env
    while isinstance(inner, gymnasium.Wrapper | gymnasium.vector.VectorWrapper):
        if isinstance(inner, gymnasium.wrappers.TimeLimit):
            return int(inner._max_episode_steps)
        inner = inner.env
    if inner is not env:
        limit = limit or time_limit(inner)
    elif is_minigrid(inner):  # not in its specification; BabyAI's changes with every mission
        limit = limit or inner.max_steps
    return int(limit) if isinstance(limit, int | np.integer) and limit > 0 else None


def ends_by_itself(env: foreign.Env) -> bool:
    """Whether the environment (single, vector or lanes) is known to end every episode, with a limit that may change
    between episodes: MiniGrid, where BabyAI's depends on the mission."""
    return is_minigrid(foreign.single(env)) or str(foreign.registered_maker(env)).startswith("minigrid.")


@dataclass(frozen=True)
class EpisodeLimit:
    """Step limit of an evaluation episode.

    Attributes:
        steps: truncate after this many steps, with the return so far. None: the environment ends it.
        is_assumed: whether neither the user nor the environment has set it.
        name: environment name, for the warning.
    """

    steps: int | None
    is_assumed: bool
    name: str

    @classmethod
    def of(cls, env: foreign.Env, asked: int | None = None, training: int = 0, name: str | None = None) -> EpisodeLimit:
        """Return `asked`, else the environment's limit, else the larger of `DEFAULT_EPISODE_LIMIT` and `training`.

        Args:
            asked: `training.eval_steps`. training: steps per environment in a generation of training, which bounds
                training episodes if they are truncated there. It is constant over generations, so that fitness values
                are comparable.
        """
        has_limit = asked is not None or time_limit(env) is not None or ends_by_itself(env)
        env_name = name or str(foreign.own_id(env) or name_of(foreign.single(env)))
        return cls(asked if has_limit else max(DEFAULT_EPISODE_LIMIT, training), not has_limit, env_name)

    def say(self, lengths: np.ndarray, cut: np.ndarray) -> None:
        """Warn once about episodes truncated by an assumed limit; both [..., episodes]."""
        if self.is_assumed and bool(cut.any()):
            warn_once(
                f"no time limit: {self.name}",
                f"{self.name} has no time limit: {int(cut.sum())} of {lengths.size} evaluation episodes were cut after "
                f"{self.steps} steps and count as truncated, with their return so far. "
                "fix: training.eval_steps=N (`agilerl evaluate --max-steps N`, agent.test(env, max_steps=N)), or "
                "gymnasium.wrappers.TimeLimit around the environment.",
                stacklevel=4,
            )


OWN = ("unlimited", "max_episode_steps", "_age", "_is_over")


class TimeLimitOfTeam:
    """Truncate all remaining agents of a parallel environment after a number of steps, so that their values are
    bootstrapped. Everything else is delegated to the environment, including its own limit.

    Args:
        env: with PettingZoo's parallel interface. steps: maximum length of an episode.

    Attributes:
        unlimited: the wrapped environment.
    """

    def __init__(self, env: Any, steps: int) -> None:
        check("max_episode_steps", steps, Count, 100, EnvError, unit="environment steps")
        self.unlimited, self.max_episode_steps = env, steps
        self._age, self._is_over = 0, False

    def __getattr__(self, name: str) -> Any:
        if name == "unlimited":  # while this object is being copied
            raise AttributeError(name)
        return getattr(self.unlimited, name)

    def __setattr__(self, name: str, value: object) -> None:
        """Set attributes on the environment, except for this wrapper's own."""
        if name in OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self.unlimited, name, value)

    @property
    def agents(self) -> list[str]:
        """Remaining agents: none after the limit."""
        return [] if self._is_over else list(self.unlimited.agents)

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        self._age, self._is_over = 0, False
        return self.unlimited.reset(*args, **kwargs)

    def step(self, actions: Any) -> tuple[Any, ...]:
        obs, rewards, ends, cuts, infos = self.unlimited.step(actions)
        self._age += 1
        if self._age >= self.max_episode_steps:
            self._is_over = True
            cuts = {**cuts, **{agent: True for agent in self.unlimited.agents if not ends.get(agent)}}
        return obs, rewards, ends, cuts, infos


def limited(make: Callable[..., Any], steps: int, **kwargs: Any) -> TimeLimitOfTeam:
    """Create an environment with `make(**kwargs)` and limit its episodes."""
    return TimeLimitOfTeam(make(**kwargs), steps)
