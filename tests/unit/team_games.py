"""Small environments with several agents, without a package of others."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces


class Meeting:
    """Two callers and a mover of other spaces; callers may only repeat what they have not said, and `caller_1` comes
    later and leaves earlier. Rewards differ by agent: 1 for `caller_0`, 2 for `caller_1`, its action for the mover."""

    metadata: dict[str, Any] = {"name": "meeting_v0"}  # noqa: RUF012
    render_mode = None
    possible_agents = ["caller_0", "caller_1", "mover_0"]  # noqa: RUF012

    def __init__(self, length: int = 6, masks: bool = True) -> None:
        self.length, self.masks, self.agents = length, masks, []
        self.closed = False

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(-1, 1, (2,)) if agent.startswith("caller") else spaces.Box(-1, 1, (4,))

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3) if agent.startswith("caller") else spaces.Box(-2, 2, (1,))

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None or not hasattr(self, "rng"):
            self.rng = np.random.default_rng(seed)
        self.age, self.legal = 0, np.ones(3, bool)
        self.agents = ["caller_0", "caller_1", "mover_0"]
        return self._seen(["caller_0", "mover_0"])

    def _seen(self, who: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        shown = {a: self.rng.uniform(-1, 1, self.observation_space(a).shape).astype(np.float32) for a in who}
        infos = {a: {"action_mask": self.legal.copy()} if self.masks and a[0] == "c" else {} for a in who}
        return shown, infos

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        self.age += 1
        self.legal = np.ones(3, bool)
        if "caller_0" in actions:
            self.legal[int(actions["caller_0"])] = False
        over, early = self.age >= self.length, self.age == self.length - 2
        rewards = {"caller_0": 1.0, "caller_1": 2.0, "mover_0": float(np.ravel(actions["mover_0"])[0])}
        ends = dict.fromkeys(self.agents, over)
        if early:
            ends["caller_1"] = True
        rewards = {agent: rewards[agent] for agent in self.agents}
        cuts = dict.fromkeys(self.agents, False)
        seen, infos = self._seen(list(self.agents))
        self.agents = [agent for agent in self.agents if not ends[agent]]
        return seen, rewards, ends, cuts, infos

    def close(self) -> None:
        self.closed = True
