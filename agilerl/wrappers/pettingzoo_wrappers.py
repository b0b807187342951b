"""Published autoreset wrapper of a parallel environment: an episode that ends is followed by a reset in that step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["PettingZooAutoResetParallelWrapper"]


class PettingZooAutoResetParallelWrapper:
    """Reset a parallel environment of PettingZoo automatically once every agent has terminated or been truncated.

    The step that ends an episode returns its rewards and flags, and the observations and infos of the reset. The final
    observations are lost and cannot be bootstrapped from. `AsyncPettingZooVecEnv` and the training functions keep them.

    Args:
        env: with the interface of `pettingzoo.ParallelEnv`.

    Attributes:
        agents, possible_agents, metadata: of `env`. Other methods and properties are delegated to `env`.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.metadata: Mapping[str, Any] = env.metadata
        self.possible_agents: list[str] = list(env.possible_agents)

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # not set yet, e.g. while unpickling
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def num_agents(self) -> int:
        return len(self.agents)

    @property
    def max_num_agents(self) -> int:
        return len(self.possible_agents)

    @property
    def state(self) -> Any:
        """The global state; a property, as published."""
        return self.env.state()

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return observations and infos by agent."""
        obs, infos = self.env.reset(seed=seed, options=options)
        return obs, infos

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Return observations, rewards, terminations, truncations and infos by agent."""
        obs, rewards, terminated, truncated, infos = self.env.step(actions)
        if all(terminated[agent] or truncated[agent] for agent in terminated):
            obs, infos = self.env.reset()
        return obs, rewards, terminated, truncated, infos
