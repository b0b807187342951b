"""Populations of PPO, rollouts and plans of epochs for them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms import PPO
from agilerl.engine.rollouts import EpochPlan, Rollout, plan_epoch

OBS = gym.spaces.Box(-1, 1, (8,))
DISCRETE, CHOICES = gym.spaces.Discrete(4), gym.spaces.MultiDiscrete([3, 2, 4])
WIDE = gym.spaces.Box(np.float32(-2), np.float32(5), (2, 2))
SAMPLES, SIZES = 100, [32, 25, 40]
CASES: dict[str, tuple[Any, bool, dict[str, Any]]] = {
    "choice": (DISCRETE, False, {}),
    "masked choice": (DISCRETE, True, {"ent_coef": 0.1}),
    "unclipped": (DISCRETE, False, {"clip_value_loss": False, "max_grad_norm": None}),
    "clipped hard": (DISCRETE, False, {"max_grad_norm": 0.01, "clip_coef": 0.05}),
    "several choices": (CHOICES, False, {}),
    "several masked choices": (CHOICES, True, {"ent_coef": 0.1}),
    "normal": (gym.spaces.Box(-1, 1, (3,)), False, {"ent_coef": 0.1}),
    "normal in other units": (WIDE, False, {"action_std_init": 0.3}),
    "normal in units of the space": (WIDE, False, {"action_scaling": "none"}),
    "wide normal": (gym.spaces.Box(-2, 5, (1,)), False, {"action_std_min": 0.9, "ent_coef": 0.1}),
    "wide normals": (gym.spaces.Box(np.float32([-2, 0]), np.float32([5, 1])), False, {"action_std_min": 0.9}),
}


def members(
    space: gym.Space[Any], dtype: torch.dtype = torch.float64, *, equal: bool = False, **more: Any
) -> list[PPO]:
    """Three agents with learning rates of their own; of widths of their own, unless `equal`."""
    parts = {"activation": more.pop("activation", "ReLU"), "layer_norm": more.pop("norm", False)}
    agents = []
    for index in range(3):
        wider = 0 if equal else index
        config = {
            "latent_dim": 16 + wider,
            "encoder_config": {"hidden_size": [20 + 13 * wider], **parts},
            "head_config": {"hidden_size": [12 - 3 * wider], **parts},
        }
        agent = PPO(OBS, space, index=index, seed=index, lr=1e-3 * (index + 1), net_config=config, **more)
        for network in (agent.actor, agent.critic):
            network.to(dtype)
        agent.reinit_optimizers()
        agents.append(agent)
    return agents


def rollout(space: Any, dtype: torch.dtype, masked: bool = False) -> Rollout:
    """Random rollouts of three members; old log probabilities and values are near enough for every branch to occur."""
    draws = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(3, SAMPLES, *shape, generator=draws, dtype=torch.float64).to(dtype)

    sizes = [int(space.n)] if isinstance(space, gym.spaces.Discrete) else [int(n) for n in getattr(space, "nvec", ())]
    chosen = [torch.randint(0, n, (3, SAMPLES), generator=draws) for n in sizes]
    legal = None
    if masked:
        legal = torch.rand(3, SAMPLES, sum(sizes), generator=draws) < 0.5
        starts = np.cumsum([0, *sizes[:-1]]).tolist()
        for start, action in zip(starts, chosen, strict=True):
            legal.scatter_(-1, (start + action).unsqueeze(-1), True)
    action = normal(*space.shape) if not sizes else chosen[0] if len(sizes) == 1 else torch.stack(chosen, -1)
    old = -1.5 * len(sizes) + 0.4 * normal() if sizes else -1.5 * float(np.prod(space.shape)) + normal()
    numbers = torch.stack((old, 0.2 * normal(), normal(), normal()), -1)
    return Rollout(normal(8), action, numbers, legal, [np.arange(SAMPLES)] * 3)


def plans(epochs: int) -> list[EpochPlan]:
    """Minibatches of all members' own sizes; the second member is out of every third epoch."""
    rngs = [np.random.default_rng(i) for i in range(3)]
    return [plan_epoch(rngs, [np.arange(SAMPLES)] * 3, SIZES, [True, k % 3 != 2, True]) for k in range(epochs)]


def member_of(of: Rollout, index: int) -> Rollout:
    legal = None if of.legal is None else of.legal[[index]]
    return Rollout(of.obs[[index]], of.action[[index]], of.numbers[[index]], legal, [of.samples[index]])
