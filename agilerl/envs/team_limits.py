"""Time limit for multi-agent episodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agilerl.errors import EnvError

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
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise EnvError(
                f"max_episode_steps must be a positive integer (environment steps); got {steps!r}. fix: 100."
            )
        self.unlimited, self.max_episode_steps = env, steps
        self._age, self._is_over = 0, False

    def __getattr__(self, name: str) -> Any:
        if name == "unlimited":  # while this object is being copied
            raise AttributeError(name)
        return getattr(self.unlimited, name)

    def __setattr__(self, name: str, value: Any) -> None:
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
