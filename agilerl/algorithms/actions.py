"""The form of actions: how stored ones become those of the environment, and what an update is given of them.

An algorithm declares one form; `RLAlgorithm.environment_action`, `legal_choices`, `prepare_action` and `random_action`
ask it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.observations import check_discrete_actions, column
from agilerl.errors import ShapeError
from agilerl.networks.actors import DeterministicActor, get_output_bounds, rescale_action
from agilerl.networks.joint_actions import JointActions
from agilerl.rollouts.off_policy import uniform_actions

if TYPE_CHECKING:
    from agilerl.algorithms.single_agent import RLAlgorithm


class PlainActions:
    """Stored as the environment takes them."""

    raw = False
    """Whether an agent that trains gives stored actions, so that `environment` is still to come."""

    def environment(self, agent: RLAlgorithm, action: np.ndarray) -> np.ndarray:
        """Stored actions [..., A] as the environment takes them."""
        return action

    def legal(self, agent: RLAlgorithm, mask: np.ndarray) -> np.ndarray:
        """The environment's masks [..., Σn] as masks [..., A] of what the policy chooses among."""
        return mask

    def prepare(self, agent: RLAlgorithm, action: Tensor, count: int) -> Tensor:
        """Stored actions as the update wants them: int64 [B] for discrete spaces."""
        owner = f"{agent.algo}.learn"
        if isinstance(agent.action_space, gym.spaces.Discrete):
            check_discrete_actions(action, int(agent.action_space.n), owner)
        return column("actions", action, count, action.device, owner).long()


class NumberedChoices(PlainActions):
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


class RawActions(PlainActions):
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
        shaped: np.ndarray = scaled.reshape(*action.shape[:-1], *space.shape)
        return shaped

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
    agent: RLAlgorithm, rng: np.random.Generator, shape: tuple[int, ...], mask: np.ndarray | None = None
) -> np.ndarray:
    """Uniformly random actions to store, [*shape] int64 or [*shape, A] in [-1, 1].

    `mask` [*shape, Σn], 1 = legal, is for Discrete and MultiDiscrete actions.
    """
    space = agent.action_space
    if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete):
        choices = choices_of(agent)
        legal = None if mask is None else choices.legal(mask)
        return uniform_actions(rng.random(shape), choices.count, legal)
    return rng.uniform(-1, 1, size=(*shape, *(space.shape or ()))).astype(np.float32)


# --- which action is taken ------------------------------------------------------------------------------------------


def highest(outputs: Tensor, mask: np.ndarray | None = None) -> np.ndarray:
    """The legal action of highest value; outputs [..., A], mask [..., A] 1 = legal; returns [...] int64."""
    if mask is not None:
        outputs = outputs.masked_fill(~torch.as_tensor(mask, device=outputs.device).bool(), float("-inf"))
    action: np.ndarray = outputs.max(-1).indices.cpu().numpy()  # faster than argmax on a transposed view
    return action


def legal_joint_actions(agent: RLAlgorithm, mask: Any, lanes: int) -> np.ndarray | None:
    """A caller's mask [Σn] or [E, Σn] as one of the combinations [E, A]; None stays None."""
    choices = choices_of(agent)
    legal = legal_actions(f"{agent.algo}.get_action", mask, (lanes, sum(choices.sizes)))
    return None if legal is None else choices.legal(legal)


def legal_actions(owner: str, mask: Any, shape: tuple[int, int]) -> np.ndarray | None:
    """`action_mask` [A] or [E, A] as an array [E, A], 1 = legal; None stays None.

    Vector environments give one mask per lane in an array of objects.

    Raises:
        ShapeError: some row allows nothing, or the mask does not fit.
    """
    if mask is None:
        return None
    if np.ndim(mask) == 0:
        raise ShapeError(f"{owner} got action_mask={mask!r}; expected [A] or [E, A]. fix: epsilon=... by its name.")
    rows = np.stack([np.asarray(row) for row in mask])
    try:
        legal = np.array(np.broadcast_to(rows, shape))
    except ValueError:
        raise ShapeError(
            f"{owner} got an action_mask of shape {rows.shape} for {shape[0]} observations and {shape[1]} actions. "
            f"fix: [{shape[1]}] or [{shape[0]}, {shape[1]}], 1 = legal."
        ) from None
    if not legal.any(axis=-1).all():
        raise ShapeError(f"{owner} got an action_mask that allows no action in some row. fix: 1 for what is legal.")
    return legal
