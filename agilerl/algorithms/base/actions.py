"""Action formats, action selection, and exploration noise of deterministic policies.

An algorithm declares one format, which converts stored actions for the environment and for updates;
`RLAlgorithm.environment_action`, `legal_choices`, `prepare_action` and `random_action` delegate to it.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from agilerl.algorithms.base.transitions import check_discrete_actions, column
from agilerl.core.transfer import to_device
from agilerl.core.tree import Tree
from agilerl.engine.protocol import Mask
from agilerl.envs.masks import ActionMasks
from agilerl.envs.observed_masks import by_row, parted
from agilerl.errors import ShapeError, warn_once
from agilerl.networks.actors import DeterministicActor, get_output_bounds, rescale_action
from agilerl.networks.distributions import JointActions
from agilerl.networks.ensemble import Ensemble

ROUNDING = 1e-6  # float32 tolerance, as a fraction of the bounds' distance


class Actor(Protocol):
    """An agent, as far as its format of actions reads it; see `RLAlgorithm`."""

    algo: str
    action_space: Any

    @property
    def action_size(self) -> int: ...

    def policy_module(self) -> nn.Module: ...


class PlainActions:
    """Actions stored in the environment's format."""

    raw = False
    """Whether `get_action` returns stored actions in training, which `environment` must still convert."""

    def environment(self, agent: Actor, action: np.ndarray) -> np.ndarray:
        """Convert stored actions [..., A] to the environment's format."""
        return action

    def stored(self, agent: Actor, action: np.ndarray) -> tuple[np.ndarray, int]:
        """Return the stored form of environment actions [N, ...], and how many lay outside of the bounds."""
        return action, 0

    def legal(self, agent: Actor, mask: np.ndarray) -> np.ndarray:
        """Convert the environment's masks [..., Σn] to masks [..., A] over the policy's choices."""
        return mask

    def prepare(self, agent: Actor, action: Tensor, count: int) -> Tensor:
        """Convert stored actions for the update: int64 [B] for discrete spaces."""
        owner = f"{agent.algo}.learn"
        if isinstance(agent.action_space, gym.spaces.Discrete):
            check_discrete_actions(action, int(agent.action_space.n), owner)
        return column("actions", action, count, action.device, owner).long()


class DiscreteActions(PlainActions):
    """For Discrete and MultiDiscrete spaces with one output per joint action, whose index is stored."""

    def environment(self, agent: Actor, action: np.ndarray) -> np.ndarray:
        """Convert joint-action indices [...] to actions [..., *shape] of the space."""
        return JointActions.of(agent.action_space, agent.algo).decode(action)

    def legal(self, agent: Actor, mask: np.ndarray) -> np.ndarray:
        """Convert component masks [..., Σn] to joint-action masks."""
        return choices_of(agent).legal(mask)

    def prepare(self, agent: Actor, action: Tensor, count: int) -> Tensor:
        """Convert actions of the space [B, *shape] to joint-action indices [B] int64."""
        choices, owner = choices_of(agent), f"{agent.algo}.learn"
        wanted = (count, *choices.shape)
        if choices.shape and action.numel() != int(np.prod(wanted)):
            what = f"{owner} got actions of shape {tuple(action.shape)}; expected {wanted}"
            raise ShapeError(f"{what}. fix: store what get_action returned.")
        if not choices.shape:
            number = super().prepare(agent, action - choices.start[0], count)
        else:
            parts = action.reshape(wanted).cpu().numpy()
            low, high = np.array(choices.start), np.array(choices.start) + np.array(choices.sizes)
            flat = parts.reshape(count, -1)
            if ((flat < low) | (flat >= high) | (flat != np.floor(flat))).any():
                raise ShapeError(f"{owner} got actions outside {agent.action_space}. fix: what get_action returned.")
            number = torch.from_numpy(choices.encode(parts)).to(action.device)
        check_discrete_actions(number, choices.count, owner)
        return number


class NormalizedBoxActions(PlainActions):
    """Box actions stored in the policy's output range, [-1, 1] by default; Discrete actions are unchanged.

    `environment_action` maps them to the bounds of the space. In a custom training loop, store
    `action = agent.get_action(obs)` and call `env.step(agent.environment_action(action))`. Outside of training
    `get_action` already returns mapped actions.
    """

    raw = True

    def environment(self, agent: Actor, action: np.ndarray) -> np.ndarray:
        """Map raw actions [..., A] to the bounds and shape of the space."""
        space = agent.action_space
        if not isinstance(space, gym.spaces.Box):
            return action
        low, high = space.low.ravel(), space.high.ravel()
        scaled = np.clip(rescale_action(action, low, high, range_of(agent.policy_module())), low, high)
        shaped: np.ndarray = scaled.reshape((*action.shape[:-1], *space.shape))
        return shaped

    def stored(self, agent: Actor, action: np.ndarray) -> tuple[np.ndarray, int]:
        """Map Box actions [N, *shape] to raw actions [N, A] float32, the inverse of `environment`.

        Actions outside of the bounds are clipped. Rows that exceed them by more than rounding are counted.

        Raises:
            ShapeError: wrong shape, or not finite.
        """
        space = agent.action_space
        if not isinstance(space, gym.spaces.Box):
            return action, 0
        size, shape = agent.action_size, tuple(np.shape(action))
        if shape[1:] not in (space.shape, (size,)) and not (size == 1 and len(shape) == 1):
            raise ShapeError(
                f"actions of shape {list(shape[1:])}; {agent.algo} was built for {list(space.shape)}. "
                "fix: agents for the spaces that the data come from."
            )
        values = np.asarray(action, np.float64).reshape(-1, size)
        if not np.isfinite(values).all():
            count = int((~np.isfinite(values)).any(-1).sum())
            raise ShapeError(f"{count} of {len(values)} actions are not finite. fix: finite ones.")
        low, high = (bound.astype(np.float64).ravel() for bound in (space.low, space.high))
        width, (lowest, highest) = high - low, raw_bounds(agent.policy_module())
        rounding = ROUNDING * np.maximum(width, 1.0)
        outside = int(((values < low - rounding) | (values > high + rounding)).any(-1).sum())
        share = np.where(width > 0, (np.clip(values, low, high) - low) / np.where(width > 0, width, 1.0), 0.5)
        return (lowest + share * (highest - lowest)).astype(np.float32), outside

    def prepare(self, agent: Actor, action: Tensor, count: int) -> Tensor:
        """Convert stored raw actions [B, A] to the policy's dtype; int64 [B] for discrete spaces."""
        if isinstance(agent.action_space, gym.spaces.Discrete):
            return super().prepare(agent, action, count)
        size = agent.action_size
        if action.numel() != count * size:
            raise ShapeError(
                f"{agent.algo}.learn got actions of shape {tuple(action.shape)} for {count} transitions of "
                f"{size} components. fix: store what get_action returned."
            )
        return action.reshape(count, size).to(next(agent.policy_module().parameters()).dtype)


def range_of(policy: nn.Module) -> str:
    """Activation that defines the range of raw actions: the policy's, tanh for a distribution or a foreign module."""
    lead = policy.members[0] if isinstance(policy, Ensemble) else policy
    return lead.output_activation if isinstance(lead, DeterministicActor) else "Tanh"


def raw_bounds(policy: nn.Module) -> tuple[float, float]:
    """Return the lowest and highest raw action of a policy."""
    return get_output_bounds(range_of(policy))


def choices_of(agent: Actor) -> JointActions:
    """Return the numbering of joint actions. AlgorithmError for a space with too many combinations."""
    return JointActions.of(agent.action_space, agent.algo)


def legal_bits(bits: np.ndarray, mask: Mask = None) -> np.ndarray:
    """Return bits [*shape, n]; where `mask` [*shape, 2n] allows only one value, the bit takes that value."""
    if mask is None:
        return bits
    may_be_0, may_be_1 = np.moveaxis(mask.reshape(*bits.shape, 2), -1, 0)
    return np.asarray((bits & may_be_1) | ~may_be_0)


# --- action selection -----------------------------------------------------------------------------------------------


def masked_argmax(outputs: Tensor, mask: Mask = None) -> np.ndarray:
    """Return the legal action of highest value; outputs [..., A], mask [..., A] 1 = legal; returns [...] int64."""
    if mask is not None:
        legal = to_device(torch.as_tensor(mask), outputs.device).bool()
        outputs = outputs.masked_fill(~legal, float("-inf"))
    return outputs.max(-1).indices.cpu().numpy()  # faster than argmax on a transposed view


def legal_joint_actions(agent: Actor, mask: np.ndarray | None, lanes: int) -> np.ndarray | None:
    """Convert a caller's mask, single or [E, ...], to joint-action masks [E, A]; None stays None."""
    legal = legal_actions(agent, mask, lanes)
    return None if legal is None else choices_of(agent).legal(legal)


def seen_with_mask(agent: Any, obs: Any, mask: Tree | None, *, warns: bool = True) -> tuple[Any, Any]:
    """Return the agent's observations and the action mask: the given one, else the one in the observations.

    Args:
        warns: warn once if an agent that was trained with masks acts without one.
    """
    obs, beside = parted(obs, agent.observation_space)
    mask = by_row(beside) if mask is None else mask
    if warns:
        expect_mask(agent, mask)
    return obs, mask


def expect_mask(agent: Any, mask: Any) -> None:
    """Warn once if an agent that was trained with action masks acts without one."""
    if mask is None and agent.action_masks:
        warn_once(
            "acts without a mask",
            f"this {agent.algo} agent was trained with masks of legal actions, and without one it may take illegal "
            'actions. fix: agent.get_action(obs, action_mask=info["action_mask"]).',
            stacklevel=5,
        )


def legal_actions(agent: Any, mask: Tree | None, lanes: int) -> np.ndarray | None:
    """Convert a caller's `action_mask` to [E, W] bool, the canonical form of `envs.masks`; None stays None.

    Args:
        mask: one for all E = `lanes` observations, or one for each; in any form that `envs.masks` reads.

    Raises:
        ShapeError: a row allows no action, or the mask has the wrong shape.
    """
    if mask is None:
        return None
    reader = ActionMasks(agent.action_space, f"{agent.algo}.get_action", ShapeError)
    return reader.of_caller(mask, lanes)


# --- noise ------------------------------------------------------------------------------------------------------------
#
# Noise does not depend on the actions, so it is drawn ahead for many vector steps. Each lane has its own path, which
# continues across calls and across episodes unless `reset_action_noise` is called. This departs from arXiv:1509.02971,
# algorithm 1, which starts a new path in each episode: episode ends are not known when the noise is drawn.


def ornstein_uhlenbeck(
    start: np.ndarray, numbers: np.ndarray, mean: float | np.ndarray, theta: float, std: float | np.ndarray, dt: float
) -> np.ndarray:
    """x_{t+1} = x_t + θ(μ − x_t)·dt + σ·√dt·ε_t: the process of Uhlenbeck and Ornstein (1930), by Euler's method.

    Used for exploration by Lillicrap et al. 2016, arXiv:1509.02971, section 3 and appendix 7.

    Args:
        start: [E, A] x_0. numbers: [T, E, A] standard normal.
        mean, std: μ and σ, numbers or [A]. theta: θ. dt: duration of one vector step.

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


def gaussian(numbers: np.ndarray, mean: float | np.ndarray, std: float | np.ndarray) -> np.ndarray:
    """μ + σ·ε, independent in every vector step: numbers [..., A] standard normal; mean, std numbers or [A]."""
    return np.asarray(np.asarray(mean) + np.asarray(std) * numbers)


def noise_paths(agent: Any, rng: np.random.Generator, steps: int, lanes: int) -> np.ndarray:
    """Draw noise [T, E, A] for the coming vector steps and advance `noise_state` to its end."""
    numbers = rng.standard_normal((steps, lanes, agent.action_size))
    if not agent.O_U_noise:
        return gaussian(numbers, agent.mean_noise, agent.expl_noise)
    state = agent.noise_state if len(agent.noise_state) == lanes else np.zeros((lanes, agent.action_size))
    path = ornstein_uhlenbeck(state, numbers, agent.mean_noise, agent.theta, agent.expl_noise, agent.dt)
    agent.noise_state = path[-1].copy()
    return path


def uniform_actions(which: np.ndarray, count: int, mask: np.ndarray | None = None) -> np.ndarray:
    """Sample legal actions [...] int64 uniformly.

    Args:
        which: [...] uniform numbers in [0, 1). count: number of actions.
        mask: [..., count], 1 = legal; at least one in every row.
    """
    if mask is None:
        return (which * count).astype(np.int64)
    legal = np.cumsum(mask.astype(bool), axis=-1)
    rank = (which * legal[..., -1]).astype(np.int64)
    return np.asarray((legal <= rank[..., None]).sum(-1))
