"""Environments that draw another mask of legal actions in every step, give it in any form, and count mistakes."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

KINDS: dict[str, spaces.Space[Any]] = {
    "discrete": spaces.Discrete(4, start=2),
    "multi_discrete": spaces.MultiDiscrete([2, 3], start=[1, 5]),
    "multi_discrete_2d": spaces.MultiDiscrete([[2, 3], [3, 2]], start=[[0, 1], [2, 3]]),
    "multi_binary": spaces.MultiBinary(3),
    "multi_binary_2d": spaces.MultiBinary([2, 2]),
}
FORMS = ("array", "list", "components", "flags", "sometimes", "none", "observation", "observation_parts", "method")
LIMIT = 7  # steps of an episode


def sizes_of(space: Any) -> list[int]:
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    if isinstance(space, spaces.MultiDiscrete):
        return [int(n) for n in space.nvec.ravel()]
    return [2] * int(np.prod(space.shape))


def takes_form(kind: str, form: str) -> bool:
    """Whether masks of the kind of action have that form."""
    if form == "flags":  # 1 = the bit may be 1
        return kind.startswith("multi_binary")
    return form != "observation_parts" or kind == "multi_discrete"


class Masks:
    """Masks of one agent: drawn anew each step, given in one form, counted against.

    Attributes:
        steps, illegal: actions seen, and components of them that were not legal.
        chosen_well: components that chose the highest legal value.
    """

    def __init__(self, kind: str, form: str, rng: np.random.Generator) -> None:
        self.space, self.form, self.rng = KINDS[kind], form, rng
        self.sizes = sizes_of(self.space)
        self.steps = self.illegal = self.chosen_well = 0
        self.parts: list[np.ndarray] = []

    @property
    def observation_space(self) -> spaces.Space[Any]:
        seen = spaces.Box(0, 1, (sum(self.sizes),), np.float32)
        if self.form == "observation":
            mask: spaces.Space[Any] = spaces.MultiBinary(sum(self.sizes))
        elif self.form == "observation_parts":
            mask = spaces.Tuple([spaces.MultiBinary(n) for n in self.sizes])
        else:
            return seen
        return spaces.Dict(observation=seen, action_mask=mask)

    def draw(self) -> tuple[Any, dict[str, Any]]:
        """What is shown next, and the info."""
        zero_is_legal = self.form == "flags"
        self.parts = []
        for size in self.sizes:
            part = self.rng.random(size) < 0.5
            part[0 if zero_is_legal else self.rng.integers(size)] = True
            self.parts.append(part)
        if self.form in ("sometimes", "none") and self.rng.random() < 0.5:
            self.parts = [np.ones_like(part) for part in self.parts]
            info = {"action_mask": None} if self.form == "none" else {}
            return self.flat().astype(np.float32), info
        seen = self.flat().astype(np.float32)
        if self.form in ("observation", "observation_parts"):
            mask = self.flat() if self.form == "observation" else tuple(part.astype(np.int8) for part in self.parts)
            return {"observation": seen, "action_mask": mask}, {}
        return seen, {} if self.form == "method" else {"action_mask": self.given()}

    def flat(self) -> np.ndarray:
        return np.concatenate(self.parts).astype(np.int8)

    def given(self) -> Any:
        if self.form == "list":
            return self.flat().tolist()
        if self.form == "flags":
            return np.array([part[1] for part in self.parts], np.int8).reshape(self.space.shape)
        if self.form != "components":
            return self.flat()
        each = [part.astype(np.int8) for part in self.parts]
        if len(self.space.shape) < 2:
            return tuple(each)
        rows = iter(each)
        return tuple(tuple(next(rows) for _ in range(self.space.shape[1])) for _ in range(self.space.shape[0]))

    def take(self, action: Any) -> float:
        """The share of components that chose their highest legal value."""
        values = np.asarray(action).ravel() - np.asarray(getattr(self.space, "start", 0)).ravel()
        assert len(values) == len(self.sizes)
        legal = [bool(part[int(value)]) for part, value in zip(self.parts, values, strict=True)]
        best = [int(value) == np.flatnonzero(part)[-1] for part, value in zip(self.parts, values, strict=True)]
        self.steps += 1
        self.illegal += len(legal) - sum(legal)
        self.chosen_well += sum(best)
        return sum(best) / len(best)


class Counted(gym.Env[Any, Any]):
    """An environment of one agent; every instance of a `counter` counts into it."""

    def __init__(self, kind: str, form: str, counter: list[Masks]) -> None:
        self.masks = Masks(kind, form, np.random.default_rng(len(counter)))
        counter.append(self.masks)
        self.observation_space, self.action_space = self.masks.observation_space, self.masks.space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.masks.rng = np.random.default_rng(seed)
        self.t = 0
        return self.masks.draw()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = self.masks.take(action)
        self.t += 1
        seen, info = self.masks.draw()
        return seen, reward, False, self.t >= LIMIT, info


class CountedByMethod(Counted):
    """Which says what is legal by sb3-contrib's method."""

    def action_masks(self) -> np.ndarray:
        """The mask, flat."""
        return self.masks.flat()


class CountedTeam(ParallelEnv):  # type: ignore[misc]
    """Two agents of different forms of one kind."""

    metadata: ClassVar = {"name": "counted"}

    def __init__(self, kind: str, form: str, counter: list[Masks]) -> None:
        self.possible_agents, self.agents = ["a", "b"], []
        rng = np.random.default_rng(len(counter))
        self.masks = {agent: Masks(kind, form, rng) for agent in self.possible_agents}
        counter.extend(self.masks.values())

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.masks[agent].observation_space

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.masks[agent].space

    def _drawn(self) -> tuple[dict[str, Any], dict[str, Any]]:
        drawn = {agent: masks.draw() for agent, masks in self.masks.items()}
        return {a: seen for a, (seen, _) in drawn.items()}, {a: info for a, (_, info) in drawn.items()}

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self.t = list(self.possible_agents), 0
        return self._drawn()

    def step(self, actions: Any) -> tuple[Any, ...]:
        rewards = {agent: self.masks[agent].take(action) for agent, action in actions.items()}
        self.t += 1
        seen, infos = self._drawn()
        over = dict.fromkeys(self.agents, self.t >= LIMIT)
        if self.t >= LIMIT:
            self.agents = []
        return seen, rewards, dict.fromkeys(over, False), over, infos


def make(kind: str, form: str, counter: list[Masks]) -> Counted:
    return (CountedByMethod if form == "method" else Counted)(kind, form, counter)
