"""A parallel environment that plays a script: every step's answer is written down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium import Space, spaces

WIDE = spaces.Box(-100, 100, (2,), np.float32)


@dataclass
class Frame:
    """One answer of the environment.

    Attributes:
        seen: agent -> first number of its observation; the second one counts the steps. Or the observation itself.
        rewards, ends, cuts, infos: by agent; what is left out is 0, False, {}.
        agents: `env.agents` from then on; those seen without an end where it is not given.
    """

    seen: Mapping[str, Any]
    rewards: Mapping[str, Any] = field(default_factory=dict)
    ends: Sequence[str] = ()
    cuts: Sequence[str] = ()
    infos: Mapping[str, Any] = field(default_factory=dict)
    agents: Sequence[str] | None = None


class Scripted:
    """Plays `frames`, the first one at reset; keeps the `actions` that it was given."""

    metadata: Mapping[str, Any] = {"name": "scripted_v0"}
    render_mode = None

    def __init__(
        self,
        frames: Sequence[Frame],
        agents: Sequence[str] = ("a", "b"),
        observed: Mapping[str, Space[Any]] | None = None,
        acted: Mapping[str, Space[Any]] | None = None,
    ) -> None:
        self.possible_agents, self.frames = list(agents), list(frames)
        self.observed, self.acted = observed or {}, acted or {}
        self.agents: list[str] = []
        self.actions: list[dict[str, Any]] = []
        self.time = self.resets = 0
        self.seeds: list[int | None] = []
        self.is_open = True

    def observation_space(self, agent: str) -> Space[Any]:
        return self.observed.get(agent, WIDE)

    def action_space(self, agent: str) -> Space[Any]:
        return self.acted.get(agent, spaces.Discrete(3))

    def _show(self, frame: Frame) -> dict[str, Any]:
        ended = (*frame.ends, *frame.cuts)
        self.agents = list(frame.agents if frame.agents is not None else [a for a in frame.seen if a not in ended])
        return {
            agent: np.array([value, self.time], np.float32) if isinstance(value, int | float) else value
            for agent, value in frame.seen.items()
        }

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.time, self.resets = 0, self.resets + 1
        self.seeds.append(seed)
        return self._show(self.frames[0]), dict(self.frames[0].infos)

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        self.actions.append(actions)
        self.time += 1
        frame = self.frames[self.time]
        played = set(actions) | set(frame.seen)
        return (
            self._show(frame), {a: frame.rewards.get(a, 0.0) for a in played}, {a: a in frame.ends for a in played},
            {a: a in frame.cuts for a in played}, {a: frame.infos.get(a, {}) for a in played},
        )  # fmt: skip

    def state(self) -> np.ndarray:
        return np.array([self.time, self.resets, 7], np.float32)

    def close(self) -> None:
        self.is_open = False
