"""Actions: their form, which one is taken, and the noise by which deterministic policies explore.

An algorithm declares one form, which says how stored actions become those of the environment and what an update is
given of them; `RLAlgorithm.environment_action`, `legal_choices`, `prepare_action` and `random_action` ask it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.base.transitions import check_discrete_actions, column
from agilerl.engine.protocol import Mask
from agilerl.envs.masks import ActionMasks
from agilerl.envs.observed_masks import by_row, parted
from agilerl.errors import ShapeError, warn_once
from agilerl.networks.actors import DeterministicActor, get_output_bounds, rescale_action
from agilerl.networks.distributions import JointActions
from agilerl.rollouts.off_policy import uniform_actions

if TYPE_CHECKING:
    from agilerl.algorithms.base.single_agent import RLAlgorithm

ROUNDING = 1e-6  # of float32, as a share of the bounds' distance


class PlainActions:
    """Stored as the environment takes them."""

    raw = False
    """Whether an agent that trains gives stored actions, so that `environment` is still to come."""

    def environment(self, agent: RLAlgorithm, action: np.ndarray) -> np.ndarray:
        """Stored actions [..., A] as the environment takes them."""
        return action

    def stored(self, agent: RLAlgorithm, action: np.ndarray) -> tuple[np.ndarray, int]:
        """Actions [N, ...] of the environment as they are stored, and how many lay outside of the space's bounds."""
        return action, 0

    def legal(self, agent: RLAlgorithm, mask: np.ndarray) -> np.ndarray:
        """The environment's masks [..., Σn] as masks [..., A] of what the policy chooses among."""
        return mask

    def prepare(self, agent: RLAlgorithm, action: Tensor, count: int) -> Tensor:
        """Stored actions as the update wants them: int64 [B] for discrete spaces."""
        owner = f"{agent.algo}.learn"
        if isinstance(agent.action_space, gym.spaces.Discrete):
            check_discrete_actions(action, int(agent.action_space.n), owner)
        return column("actions", action, count, action.device, owner).long()


class DiscreteActions(PlainActions):
    """For Discrete and MultiDiscrete spaces with one output per combination, whose number is stored."""

    def environment(self, agent: RLAlgorithm, action: np.ndarray) -> np.ndarray:
        """Numbers [...] as actions [..., *shape] of the space."""
        return JointActions.of(agent.action_space, agent.algo).decode(action)

    def legal(self, agent: RLAlgorithm, mask: np.ndarray) -> np.ndarray:
        """Masks [..., Σn] of the components as masks of the combinations."""
        return choices_of(agent).legal(mask)

    def prepare(self, agent: RLAlgorithm, action: Tensor, count: int) -> Tensor:
        """Actions of the space [B, *shape] as numbers [B] int64."""
        choices, owner = choices_of(agent), f"{agent.algo}.learn"
        wanted = (count, *choices.shape)
        if choices.shape and action.numel() != int(np.prod(wanted)):
            raise ShapeError(
                f"{owner} got actions of shape {tuple(action.shape)}; expected {wanted}. "
                "fix: store what get_action returned."
            )
        if not choices.shape:
            number = super().prepare(agent, action - choices.start[0], count)
        else:
            parts = action.reshape(wanted).cpu().numpy()
            low, high = np.array(choices.start), np.array(choices.start) + np.array(choices.sizes)
            flat = parts.reshape(count, -1)
            if ((flat < low) | (flat >= high) | (flat != np.floor(flat))).any():
                raise ShapeError(
                    f"{owner} got actions outside of {agent.action_space}. fix: store what get_action returned."
                )
            number = torch.from_numpy(choices.encode(parts)).to(action.device)
        check_discrete_actions(number, choices.count, owner)
        return number


class NormalizedBoxActions(PlainActions):
    """Of a Box stored in the range of the policy's output, [-1, 1] by default; choices of a Discrete space as they are.

    `environment_action` maps them to the bounds of the space, also in a training loop of your own, which stores
    `action = agent.get_action(obs)` and calls `env.step(agent.environment_action(action))`. Outside of training
    `get_action` has done so already.
    """

    raw = True

    def environment(self, agent: RLAlgorithm, action: np.ndarray) -> np.ndarray:
        """Raw actions [..., A] at the bounds and in the shape of the space."""
        space = agent.action_space
        if not isinstance(space, gym.spaces.Box):
            return action
        low, high = space.low.ravel(), space.high.ravel()
        scaled = np.clip(rescale_action(action, low, high, _range_of(agent)), low, high)
        shaped: np.ndarray = scaled.reshape((*action.shape[:-1], *space.shape))
        return shaped

    def stored(self, agent: RLAlgorithm, action: np.ndarray) -> tuple[np.ndarray, int]:
        """Actions [N, *shape] within the bounds of a Box as raw ones [N, A] float32, the inverse of `environment`.

        What lies outside of the bounds is clipped, and its rows are counted: those by more than rounding.

        Raises:
            ShapeError: actions of another shape, or that are not finite.
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
        given = np.asarray(action, np.float64).reshape(-1, size)
        if not np.isfinite(given).all():
            raise ShapeError(
                f"{int((~np.isfinite(given)).any(-1).sum())} of {len(given)} actions are not finite. fix: finite ones."
            )
        low, high = (bound.astype(np.float64).ravel() for bound in (space.low, space.high))
        width, (lowest, highest) = high - low, raw_bounds(agent)
        rounding = ROUNDING * np.maximum(width, 1.0)
        outside = int(((given < low - rounding) | (given > high + rounding)).any(-1).sum())
        share = np.where(width > 0, (np.clip(given, low, high) - low) / np.where(width > 0, width, 1.0), 0.5)
        return (lowest + share * (highest - lowest)).astype(np.float32), outside

    def prepare(self, agent: RLAlgorithm, action: Tensor, count: int) -> Tensor:
        """Stored raw actions [B, A] in the policy's dtype; int64 [B] for discrete spaces."""
        if isinstance(agent.action_space, gym.spaces.Discrete):
            return super().prepare(agent, action, count)
        size = agent.action_size
        if action.numel() != count * size:
            raise ShapeError(
                f"{agent.algo}.learn got actions of shape {tuple(action.shape)} for {count} transitions of "
                f"{size} components. fix: store what get_action returned."
            )
        return action.reshape(count, size).to(next(agent.policy_module().parameters()).dtype)


def _range_of(agent: RLAlgorithm) -> str:
    """The activation in whose range raw actions are: the policy's own, tanh for a distribution or a foreign module."""
    policy = agent.policy_module()
    return policy.output_activation if isinstance(policy, DeterministicActor) else "Tanh"


def raw_bounds(agent: RLAlgorithm) -> tuple[float, float]:
    """Lowest and highest raw action."""
    return get_output_bounds(_range_of(agent))


def choices_of(agent: RLAlgorithm) -> JointActions:
    """How the actions of the agent's space are numbered. AlgorithmError for a space with too many combinations."""
    return JointActions.of(agent.action_space, agent.algo)


def random_actions(
    agent: RLAlgorithm, rng: np.random.Generator, shape: tuple[int, ...], mask: Mask = None
) -> np.ndarray:
    """Uniformly random actions to store, [*shape] int64 or [*shape, A] in [-1, 1].

    `mask` [*shape, W], 1 = legal, is for choices and bits.
    """
    space = agent.action_space
    if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
        choices = choices_of(agent)
        legal = None if mask is None else choices.legal(mask)
        return uniform_actions(rng.random(shape), choices.count, legal)
    drawn = rng.uniform(-1, 1, size=(*shape, agent.action_size)).astype(np.float32)
    if isinstance(space, gym.spaces.MultiBinary):
        return legal_bits(drawn > 0, mask).astype(np.float32)
    return drawn


def legal_bits(bits: np.ndarray, mask: Mask = None) -> np.ndarray:
    """Bits [*shape, n], those of which `mask` [*shape, 2n] allows one value with that value."""
    if mask is None:
        return bits
    may_be_0, may_be_1 = np.moveaxis(mask.reshape(*bits.shape, 2), -1, 0)
    return np.asarray((bits & may_be_1) | ~may_be_0)


# --- which action is taken ------------------------------------------------------------------------------------------


def masked_argmax(outputs: Tensor, mask: Mask = None) -> np.ndarray:
    """The legal action of highest value; outputs [..., A], mask [..., A] 1 = legal; returns [...] int64."""
    if mask is not None:
        outputs = outputs.masked_fill(~torch.as_tensor(mask, device=outputs.device).bool(), float("-inf"))
    return outputs.max(-1).indices.cpu().numpy()  # faster than argmax on a transposed view


def legal_joint_actions(agent: RLAlgorithm, mask: Any, lanes: int) -> np.ndarray | None:
    """A caller's mask, one or [E, ...], as one of the combinations [E, A]; None stays None."""
    legal = legal_actions(agent, mask, lanes)
    return None if legal is None else choices_of(agent).legal(legal)


def seen_with_mask(agent: Any, obs: Any, mask: Any, *, warns: bool = True) -> tuple[Any, Any]:
    """Observations as the agent reads them, and the mask of legal actions: the one given, else the one beside them.

    Args:
        warns: once, where an agent that has trained with masks acts without one.
    """
    obs, beside = parted(obs, agent.observation_space)
    mask = by_row(beside) if mask is None else mask
    if warns:
        expect_mask(agent, mask)
    return obs, mask


def expect_mask(agent: Any, mask: Any) -> None:
    """Warn once where an agent that has trained with masks of legal actions acts without one."""
    if mask is None and agent.action_masks:
        warn_once(
            "acts without a mask",
            f"this {agent.algo} agent was trained with masks of legal actions, and without one it takes actions that "
            'mean nothing to it. fix: agent.get_action(obs, action_mask=info["action_mask"]).',
            stacklevel=5,
        )


def legal_actions(agent: Any, mask: Any, lanes: int) -> np.ndarray | None:
    """A caller's `action_mask` as [E, W] bool, the canonical form of `envs.masks`; None stays None.

    Args:
        mask: one for all E = `lanes` observations, or one for each; in any form that `envs.masks` reads.

    Raises:
        ShapeError: some row allows nothing, or the mask does not fit.
    """
    if mask is None:
        return None
    reader = ActionMasks(agent.action_space, f"{agent.algo}.get_action", ShapeError)
    return reader.of_caller(mask, lanes)


# --- noise ------------------------------------------------------------------------------------------------------------
#
# It is drawn ahead because no path of it depends on the actions. The noise of a lane is a path of its own that goes on
# from call to call, over ends of episodes too unless `reset_action_noise` is called. Departs from arXiv:1509.02971,
# algorithm 1, which begins a new path with each episode: noise is drawn ahead for many vector steps, when it is not
# known yet where episodes end.


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


# --- acting by raw actions ------------------------------------------------------------------------------------------


def get_action(
    agent: Any, obs: Any, training: bool | None, action_mask: np.ndarray | None, epsilon: float = 0.0
) -> np.ndarray:
    """Actions of an agent that acts by raw actions: exploring ones to store, or greedy ones for the environment."""
    obs, action_mask = seen_with_mask(agent, obs, action_mask)
    with torch.no_grad():
        outputs = agent.policy_output(obs)
    outputs = outputs.unsqueeze(0) if outputs.dim() == 1 else outputs
    mask = legal_actions(agent, action_mask, len(outputs))
    if not (agent.training if training is None else training):
        greedy: np.ndarray = agent.environment_action(agent.greedy(outputs, mask))
        return greedy
    draws = agent.draw_exploration(agent._exploration, outputs.shape[:-1])
    action: np.ndarray = agent.explore(outputs, draws, epsilon, mask)
    return action


def noise_paths(agent: Any, rng: np.random.Generator, steps: int, lanes: int) -> np.ndarray:
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


def action_noise(agent: Any, action: Any = None) -> np.ndarray:
    """The noise of one vector step for actions [E, A]: [E, A] float32. Without actions E is that of the last call."""
    if action is None:
        action = np.asarray(agent.noise_state)
    lanes = int(np.asarray(np.shape(action)[:-1], int).prod())
    noise: np.ndarray = noise_paths(agent, agent._exploration, 1, lanes)[0].reshape(np.shape(action)).astype(np.float32)
    return noise


def reset_action_noise(agent: Any, indices: Any) -> None:
    """Begin a new path in the lanes `indices`: their Ornstein-Uhlenbeck state becomes 0."""
    state = np.array(agent.noise_state)
    state[np.asarray(indices, dtype=int)] = 0
    agent.noise_state = state
