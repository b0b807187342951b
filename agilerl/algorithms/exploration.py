"""Exploration of policies that act by raw actions: the noise of deterministic ones, which is drawn ahead.

Noise is drawn ahead because no path of it depends on the actions. The noise of a lane is a path of its own that goes
on from call to call, over ends of episodes too unless `reset_action_noise` is called. Departs from arXiv:1509.02971,
algorithm 1, which begins a new path with each episode: noise is drawn ahead for many vector steps, when it is not known
yet where episodes end.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.actions import legal_actions


def ornstein_uhlenbeck(
    start: np.ndarray, numbers: np.ndarray, mean: Any, theta: float, std: Any, dt: float
) -> np.ndarray:
    """x_{t+1} = x_t + θ(μ − x_t)·dt + σ·√dt·ε_t: the process of Uhlenbeck and Ornstein (1930), by Euler's method.

    Used for exploration by Lillicrap et al. 2016, arXiv:1509.02971, section 3 and appendix 7.

    Args:
        start: [E, A] x_0. numbers: [T, E, A] standard normal.
        mean, std: μ and σ, numbers or [A]. theta: θ. dt: time of one vector step.

    Returns:
        [T, E, A] x_1 .. x_T.
    """
    path = np.empty_like(numbers, dtype=np.float64)
    pushes = numbers * (np.asarray(std) * math.sqrt(dt))
    x = np.asarray(start, np.float64)
    for t in range(len(numbers)):
        x = x + theta * (np.asarray(mean) - x) * dt + pushes[t]
        path[t] = x
    return path


def gaussian(numbers: np.ndarray, mean: Any, std: Any) -> np.ndarray:
    """μ + σ·ε, independent in every vector step: numbers [..., A] standard normal; mean, std numbers or [A]."""
    noise: np.ndarray = np.asarray(mean) + np.asarray(std) * numbers
    return noise


# --- methods of agents that act by raw actions (`actions.RawActions`), which take them over by name ------------------


def get_action(
    self: Any, obs: Any, training: bool | None = None, action_mask: np.ndarray | None = None, *, epsilon: float = 0.0
) -> np.ndarray:
    """Exploring actions to store while `training`, otherwise greedy ones as the environment takes them.

    Args:
        obs: one observation or a batch [E, ...], numpy or torch.
        training: the agent's own mode where it is not given.
        action_mask: [E, A] or [A], 1 = legal, for Discrete actions.
        epsilon: not used; policies of this kind explore by noise or by sampling.

    Returns:
        While training raw actions [E, A] (see `environment_action`), else [E, *shape] within the bounds of the
        space; int64 [E] for Discrete actions.
    """
    with torch.no_grad():
        outputs = self.policy_output(obs)
    outputs = outputs.unsqueeze(0) if outputs.dim() == 1 else outputs
    mask = legal_actions(f"{self.algo}.get_action", action_mask, (len(outputs), outputs.shape[-1]))
    if not (self.training if training is None else training):
        greedy: np.ndarray = self.environment_action(self.greedy(outputs, mask))
        return greedy
    draws = self.draw_exploration(self._exploration, outputs.shape[:-1])
    action: np.ndarray = self.explore(outputs, draws, epsilon, mask)
    return action


def greedy_actions(self: Any, obs: Any, mask: np.ndarray | None = None) -> np.ndarray:
    """Greedy actions [E, ...] for the environment."""
    action: np.ndarray = self.get_action(obs, False, mask)
    return action


class Noisy(Protocol):
    """A deterministic policy that explores by noise on its raw actions: DDPG, TD3."""

    O_U_noise: bool
    expl_noise: float | np.ndarray
    mean_noise: float | np.ndarray
    theta: float
    dt: float
    noise_state: np.ndarray
    _exploration: np.random.Generator

    @property
    def action_size(self) -> int:
        """Components of an action."""

    @property
    def raw_bounds(self) -> tuple[float, float]:
        """Lowest and highest raw action."""


def noise_paths(agent: Noisy, rng: np.random.Generator, steps: int, lanes: int) -> np.ndarray:
    """Noise [T, E, A] for the coming vector steps; `noise_state` moves to its end."""
    numbers = rng.standard_normal((steps, lanes, agent.action_size))
    if not agent.O_U_noise:
        return gaussian(numbers, agent.mean_noise, agent.expl_noise)
    state = np.asarray(agent.noise_state)
    if len(state) != lanes:
        state = np.zeros((lanes, agent.action_size))
    path = ornstein_uhlenbeck(state, numbers, agent.mean_noise, agent.theta, agent.expl_noise, agent.dt)
    agent.noise_state = path[-1].copy()
    return path


def draw_exploration(self: Noisy, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """Noise [*shape, A] in units of raw actions; `shape` is (vector steps, E) or (E,)."""
    steps = int(np.prod(shape[:-1], dtype=int))
    return (noise_paths(self, rng, steps, shape[-1]).reshape(*shape, self.action_size),)


def action_noise(self: Noisy, action: Any) -> np.ndarray:
    """The noise of one vector step for actions [E, A]: [E, A] float32."""
    lanes = int(np.asarray(np.shape(action)[:-1], int).prod())
    noise: np.ndarray = noise_paths(self, self._exploration, 1, lanes)[0].reshape(np.shape(action)).astype(np.float32)
    return noise


def reset_action_noise(self: Noisy, indices: Any) -> None:
    """Begin a new path in the lanes `indices`: their Ornstein-Uhlenbeck state becomes 0."""
    state = np.array(self.noise_state)
    state[np.asarray(indices, dtype=int)] = 0
    self.noise_state = state


def greedy(self: Noisy, outputs: Tensor, mask: np.ndarray | None = None) -> np.ndarray:
    """The policy's own raw actions [..., A]."""
    action: np.ndarray = outputs.cpu().numpy()
    return action


def explore(
    self: Noisy, outputs: Tensor, draws: tuple[np.ndarray, ...], epsilon: float, mask: np.ndarray | None = None
) -> np.ndarray:
    """Raw actions plus noise, within the raw bounds; outputs and draws[0] [..., A]; `epsilon` has no meaning."""
    action: np.ndarray = outputs.cpu().numpy()
    low, high = self.raw_bounds
    noisy: np.ndarray = np.clip(action + draws[0], low, high).astype(action.dtype)
    return noisy
