"""A team of agents of any spaces that writes down what it has shown, been given and answered, step by step.

Agents come and go: one is not observed in some steps (it waits), one ends before the others in some episodes, and an
episode ends for good or is cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import Space, spaces

OBSERVED: dict[str, Space[Any]] = {
    "box": spaces.Box(-1, 1, (3,), np.float32),
    "discrete": spaces.Discrete(3, start=2),
    "multi_discrete": spaces.MultiDiscrete([2, 3], start=[0, 1]),
    "bits": spaces.MultiBinary(3),
    "dict": spaces.Dict({
        "at": spaces.Box(-1, 1, (2,), np.float32), "card": spaces.Discrete(2, start=1),
        "eye": spaces.Box(0, 255, (1, 3, 3), np.uint8),
    }),
    "tuple": spaces.Tuple([spaces.Box(-1, 1, (2,), np.float32), spaces.MultiBinary(2)]),
    "image": spaces.Box(0, 255, (4, 4, 2), np.uint8),
}  # fmt: skip
BOUNDS = np.array([-2.0, 0.5], np.float32), np.array([1.0, 4.5], np.float32)
ACTED: dict[str, Space[Any]] = {
    "discrete": spaces.Discrete(3, start=1),
    "multi_discrete": spaces.MultiDiscrete([2, 3], start=[0, 1]),
    "bits": spaces.MultiBinary(2),
    "box": spaces.Box(*BOUNDS, dtype=np.float32),
    "open_box": spaces.Box(-np.inf, np.inf, (2,), np.float32),
}


@dataclass
class Step:
    """One step of one environment, agent by agent; who is left out of a mapping was not there.

    Attributes:
        seen, masks: before it. actions: given. rewards, ends, cuts: answered.
        next_seen, next_masks: after it, before the next episode begins. is_first, is_last: of its episode.
    """

    seen: dict[str, Any]
    masks: dict[str, np.ndarray]
    actions: dict[str, Any]
    rewards: dict[str, float]
    ends: dict[str, bool]
    cuts: dict[str, bool]
    next_seen: dict[str, Any]
    next_masks: dict[str, np.ndarray]
    is_first: bool
    is_last: bool


@dataclass
class Log:
    """All environments of a run, in the order in which they were made.

    Attributes:
        lanes: the steps of each. shown: by number of a step, what agents saw before it, the last one that is to come
            included.
    """

    lanes: list[list[Step]] = field(default_factory=list)
    shown: list[dict[int, dict[str, Any]]] = field(default_factory=list)


class MixedTeam:
    """Three agents `red_0`, `red_1`, `blue_0` (two of a group) or two.

    Args:
        observed, acted: by the first part of a name. log: to write into. grouped: whether `red_1` plays.
        has_masks: whether infos say which choices are legal.
    """

    metadata: Mapping[str, Any] = {"name": "mixed_v0"}
    render_mode = None

    def __init__(
        self, observed: Mapping[str, Space[Any]], acted: Mapping[str, Space[Any]], log: Log, grouped: bool,
        has_masks: bool,
    ) -> None:  # fmt: skip
        self.possible_agents = ["red_0", "blue_0", "red_1"] if grouped else ["red_0", "blue_0"]
        self.observed, self.acted, self.has_masks = observed, acted, has_masks
        self.steps: list[Step] = []
        self.rng = np.random.default_rng(len(log.lanes))
        self.shown: dict[int, dict[str, Any]] = {}
        log.lanes.append(self.steps)
        log.shown.append(self.shown)
        self.episode = -1

    def observation_space(self, agent: str) -> Space[Any]:
        return self.observed[agent.split("_")[0]]

    def action_space(self, agent: str) -> Space[Any]:
        return self.acted[agent.split("_")[0]]

    def _show(self) -> tuple[dict[str, Any], dict[str, Any]]:
        away = self.possible_agents[(self.episode + self.time) % 5 % len(self.possible_agents)]
        is_away = self.time % 3 == 2 and len(self.agents) > 1
        seen = {a: self._draw(self.observation_space(a)) for a in self.agents if not (is_away and a == away)}
        self.masks = {a: self._mask(self.action_space(a)) for a in seen} if self.has_masks else {}
        self.masks = {a: mask for a, mask in self.masks.items() if mask is not None}
        return seen, {a: {"action_mask": self.masks[a]} if a in self.masks else {} for a in seen}

    def _draw(self, space: Space[Any]) -> Any:
        if isinstance(space, spaces.Dict):
            return {key: self._draw(part) for key, part in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(map(self._draw, space.spaces))
        if isinstance(space, spaces.Discrete):
            return np.int64(space.start + self.rng.integers(space.n))
        if isinstance(space, spaces.MultiDiscrete):
            return (space.start + self.rng.integers(space.nvec)).astype(space.dtype)
        if isinstance(space, spaces.Box) and space.dtype != np.uint8:
            return self.rng.uniform(-1, 1, space.shape).astype(np.float32)
        return self.rng.integers(0, 256 if isinstance(space, spaces.Box) else 2, space.shape).astype(space.dtype)

    def _mask(self, space: Space[Any]) -> np.ndarray | None:
        sizes = [space.n] if isinstance(space, spaces.Discrete) else getattr(space, "nvec", ())
        if not len(sizes):
            return None
        parts = [self.rng.random(n) < 0.6 for n in sizes]
        for part in parts:
            part[self.rng.integers(len(part))] = True
        return np.concatenate(parts).astype(np.int8)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.time, self.episode, self.agents = 0, self.episode + 1, list(self.possible_agents)
        self.ended: set[str] = set()
        seen, infos = self._show()
        self.before = seen, dict(self.masks)
        self.shown.setdefault(len(self.steps), seen)
        return seen, infos

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        self.time += 1
        playing = list(self.agents)
        early = self.possible_agents[self.episode % len(self.possible_agents)]
        leaves = self.time == 3 and self.episode % 2 == 0
        over = self.time == 4 + self.episode % 4
        is_cut = self.episode % 3 == 1
        ends = {a: (over and not is_cut) or (leaves and a == early and self.episode % 4 == 0) for a in playing}
        cuts = {a: (over and is_cut) or (leaves and a == early and self.episode % 4 == 2) for a in playing}
        rewards = {a: float(self.rng.integers(-16, 17)) / 16 for a in playing}
        seen, infos = self._show()
        self.agents = [a for a in playing if not (ends[a] or cuts[a])]
        seen_before, masks_before = self.before
        now = dict(self.masks)
        step = Step(
            seen_before, masks_before, {a: np.array(x) for a, x in actions.items()}, rewards, ends, cuts, seen, now,
            self.time == 1, not self.agents,
        )  # fmt: skip
        self.steps.append(step)
        self.before = (
            {a: x for a, x in seen.items() if a in self.agents}, {a: x for a, x in now.items() if a in self.agents}
        )  # fmt: skip
        if self.agents:
            self.shown[len(self.steps)] = self.before[0]
        return seen, rewards, ends, cuts, infos

    def close(self) -> None:
        pass
