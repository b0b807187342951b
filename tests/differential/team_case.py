"""Teams for updates with centralised critics, and random batches for them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch

from agilerl.algorithms import MATD3
from agilerl.engine.protocol import TransitionBatches
from agilerl.envs.protocol import AGENTS, JOINT, PRESENT
from tests.differential.native_case import network_config, random_fields, rates

BOX = gym.spaces.Box(np.float32([-2, 0]), np.float32([3, 1]))
TWO, FEW = gym.spaces.MultiDiscrete([2, 3]), gym.spaces.Discrete(3)
# agent -> (numbers that it sees, its actions)
TEAMS: dict[str, dict[str, tuple[int, gym.Space]]] = {
    "one group": {"a_0": (4, FEW), "a_1": (4, FEW), "a_2": (4, FEW)},
    "two groups": {"speaker_0": (3, FEW), "listener_0": (5, BOX)},
    "unequal groups": {"mover_0": (3, BOX), "a_0": (4, TWO), "b_0": (2, FEW), "mover_1": (3, BOX), "a_1": (4, TWO)},
}


def members(kind: Any, team: str, dtype: torch.dtype = torch.float64, *, equal: bool = False, **more: Any) -> list[Any]:
    """Three teams with rates of their own; of hidden widths of their own, unless `equal`."""
    observations = [gym.spaces.Box(-1, 1, (size,)) for size, _ in TEAMS[team].values()]
    actions = [space for _, space in TEAMS[team].values()]
    form = {name: more.pop(name) for name in ("activation", "norm") if name in more}
    made = []
    for index in range(3):
        config = network_config(index, equal=equal, **form)
        agent = kind(observations, actions, agent_ids=list(TEAMS[team]), index=index, seed=index, net_config=config,
                     **rates(index), **more)  # fmt: skip
        for name in agent.registry.all_registered():
            getattr(agent, name).to(dtype)
        made.append(agent)
    return made


def batches(
    kind: Any, team: str, updates: int, rows: int, dtype: torch.dtype, *, masked: bool = False, absent: bool = False
) -> TransitionBatches:
    """Random transitions of unequal weights; agents that are sometimes absent, if asked for; the last rows of the
    second member have weight 0."""
    shape, each = (updates, 3, rows), TEAMS[team]
    count = len(each)
    _, normal, uniform = random_fields(shape, dtype)
    weight = (0.5 + uniform()) / rows
    weight[:, 1, rows // 2 :] = 0
    stored, sizes, features = [], [], 0
    for _, space in each.values():
        if isinstance(space, gym.spaces.Box):
            stored.append(normal(2).tanh())
            features += 2
            continue
        choices = [int(space.n)] if isinstance(space, gym.spaces.Discrete) else [int(n) for n in space.nvec]
        stored.append(torch.stack([(uniform() * n).floor() for n in choices], -1))
        sizes += choices
        features += sum(choices)

    def observed() -> dict[str, Any]:
        seen = {name: normal(size) for name, (size, _) in each.items()}
        there = uniform(count) < (0.8 if absent else 2)
        there[..., 0] |= ~there.any(-1)
        joint = torch.cat([seen[name] for name in sorted(seen)], -1)
        return {AGENTS: seen, JOINT: joint, PRESENT: there}

    fields = {
        "obs": observed(), "next_obs": observed(), "action": torch.cat(stored, -1), "reward": normal(count),
        "done": torch.zeros(*shape, count, dtype=dtype),
        "discount": (0.9 + 0.1 * uniform(count)) * (uniform(count) < 0.9).to(dtype),
    }  # fmt: skip
    if masked:
        for name in ("obs_mask", "next_mask"):
            legal = [torch.cat([uniform(n - 1) < 0.6, torch.ones(*shape, 1, dtype=torch.bool)], -1) for n in sizes]
            fields[name] = torch.cat(legal, -1)
    noise = {"gumbel": -(-uniform(features).clamp_min(1e-6).log()).log()}
    if kind is MATD3:
        noise["smoothing"] = normal(features)
    return TransitionBatches(fields, weight, noise, updates, 1, True)
