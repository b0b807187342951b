"""Environments to subclass, of one agent and of several: a subclass says what is observed, what is paid, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np


class Episodes(gym.Env[Any, Any]):
    """Episodes of `length` steps that show zeros and pay 1 a step.

    Attributes:
        length: steps of an episode; None is no end. is_cut: the end is a truncation. age: steps of this episode.
    """

    observation_space: Any = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space: Any = gym.spaces.Discrete(2)
    length: int | None = 1
    is_cut = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return self.observe(), self.info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.age += 1
        reward, is_over = self.reward(action), self.age == self.length
        return self.observe(), reward, is_over and not self.is_cut, is_over and self.is_cut, self.info()

    def observe(self) -> Any:
        return np.zeros(self.observation_space.shape, np.float32)

    def info(self) -> dict[str, Any]:
        return {}

    def reward(self, action: Any) -> float:
        """Of the action taken in what was observed last."""
        return 1.0


class ParallelGame:
    """A parallel environment of `length` steps without the ends of single agents.

    Attributes:
        observed, acted: spaces by agent. length, is_cut, age: as those of `Episodes`.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "game_v0"}
    render_mode = None
    observed: Mapping[str, gym.Space[Any]] = {}
    acted: Mapping[str, gym.Space[Any]] = {}
    length: int | None = 1
    is_cut = False
    rng = np.random.default_rng(0)

    @property
    def possible_agents(self) -> Sequence[str]:
        return list(self.observed)

    def observation_space(self, agent: str) -> gym.Space[Any]:
        return self.observed[agent]

    def action_space(self, agent: str) -> gym.Space[Any]:
        return self.acted[agent]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents, self.age = list(self.possible_agents), 0
        return self.observe(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        self.age += 1
        rewards, is_over, agents = self.rewards(actions), self.age == self.length, self.agents
        ends, no = dict.fromkeys(agents, is_over), dict.fromkeys(agents, False)
        shown, infos = self.observe(), {agent: {} for agent in agents}
        self.agents = [] if is_over else agents
        return shown, rewards, *((no, ends) if self.is_cut else (ends, no)), infos

    def observe(self) -> dict[str, Any]:
        return {agent: np.zeros(space.shape, np.float32) for agent, space in self.observed.items()}

    def rewards(self, actions: dict[str, Any]) -> dict[str, float]:
        return dict.fromkeys(self.agents, 1.0)

    def close(self) -> None:
        """Nothing is held."""


class PlainCartPole(gym.Wrapper[Any, Any, Any, Any]):
    """An environment without fast lanes of its own."""

    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
