"""A time limit on episodes of several agents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agilerl.errors import EnvError

OWN = ("unlimited", "max_episode_steps", "_age", "_is_over")


class TimeLimitOfTeam:
    """A parallel environment whose episodes are cut: after so many steps all agents that go on are truncated, so that
    what follows is bootstrapped. Everything else is the environment's own, its own limit too.

    Args:
        env: with PettingZoo's parallel interface. steps: of an episode, at most.

    Attributes:
        unlimited: the environment itself.
    """

    def __init__(self, env: Any, steps: int) -> None:
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
            raise EnvError(
                f"max_episode_steps must be a positive integer (environment steps); got {steps!r}. fix: 100."
            )
        self.unlimited, self.max_episode_steps = env, steps
        self._age, self._is_over = 0, False

    def __getattr__(self, name: str) -> Any:
        if name == "unlimited":  # while a copy of this is made
            raise AttributeError(name)
        return getattr(self.unlimited, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """What is set is the environment's, but for what is this one's own."""
        if name in OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(self.unlimited, name, value)

    @property
    def agents(self) -> list[str]:
        """Who goes on: nobody after the limit."""
        return [] if self._is_over else list(self.unlimited.agents)

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        self._age, self._is_over = 0, False
        return self.unlimited.reset(*args, **kwargs)

    def step(self, actions: Any) -> tuple[Any, ...]:
        seen, rewards, ends, cuts, infos = self.unlimited.step(actions)
        self._age += 1
        if self._age >= self.max_episode_steps:
            self._is_over = True
            cuts = {**cuts, **{agent: True for agent in self.unlimited.agents if not ends.get(agent)}}
        return seen, rewards, ends, cuts, infos


def limited(make: Callable[..., Any], steps: int, **kwargs: Any) -> TimeLimitOfTeam:
    """An environment that `make` makes of `kwargs`, with a time limit."""
    return TimeLimitOfTeam(make(**kwargs), steps)
