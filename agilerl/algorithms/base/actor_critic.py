"""Off-policy actor-critics: deterministic policies with exploration noise, and stochastic policies.

Both store raw Box actions, see `actions.NormalizedBoxActions`.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from agilerl.algorithms.base.actions import (
    NormalizedBoxActions,
    masked_argmax,
    noise_paths,
    raw_bounds,
)
from agilerl.algorithms.base.single_agent import RLAlgorithm, UpdateLoss
from agilerl.core.transfer import to_device
from agilerl.engine.modules import soft_update
from agilerl.engine.protocol import Draws, Mask, TransitionBatch, UpdateEngine, UpdateResult
from agilerl.losses.actor_critic import discrete_soft_value, soft_policy_loss
from agilerl.networks.actors import DeterministicActor, StochasticActor
from agilerl.networks.distributions import categorical_sample, masked_logits, split_normal, squashed_normal_sample

CRITICS = ("critic_1", "critic_2")
CRITIC_OPTIMIZERS = ("critic_1_optimizer", "critic_2_optimizer")


class ActorCritic(RLAlgorithm):
    """An off-policy actor-critic with soft target updates."""

    action_form = NormalizedBoxActions()
    criterion = UpdateLoss()  # of the critics
    tau: float

    def soft_update(self, net: nn.Module, target: nn.Module) -> None:
        """Perform one soft update of `target` towards `net` with `tau`."""
        soft_update(net, target, self.tau)

    def report(self, result: UpdateResult) -> Any:
        """Return (actor loss, or None if the policy was not updated; critic loss), both before the update."""
        return None if result.actor_loss is None else float(result.actor_loss), float(result.loss)

    def get_action(
        self, obs: Any, training: bool | None = None, action_mask: np.ndarray | None = None, *, epsilon: float = 0.0
    ) -> np.ndarray:
        """Return exploring actions to store if `training`, else greedy actions for the environment.

        Args:
            obs: one observation or a batch [E, ...], numpy or torch.
            training: whether to explore; None: according to the agent's mode.
            action_mask: [E, A] or [A], 1 = legal, for Discrete actions.
            epsilon: ignored; exploration is by noise or sampling.

        Returns:
            Raw actions [E, A] in training (see `environment_action`), else [E, *shape] within the bounds of the space;
            int64 [E] for Discrete actions.
        """
        return self._act_raw(obs, training, action_mask, epsilon)

    def _greedy(self, obs: Any, mask: Mask = None) -> np.ndarray:
        return self.get_action(obs, False, mask)


class DeterministicActorCritic(ActorCritic):
    """An actor-critic with a deterministic policy and exploration noise on raw actions."""

    policy_class = DeterministicActor
    action_spaces = ("Box",)
    O_U_noise = False
    expl_noise: float | np.ndarray
    mean_noise: float | np.ndarray = 0.0
    theta: float
    dt: float
    noise_state: np.ndarray

    @property
    def raw_bounds(self) -> tuple[float, float]:
        """Lowest and highest raw action."""
        return raw_bounds(self.policy_module())

    def greedy(self, outputs: Tensor, mask: Mask = None) -> np.ndarray:
        """Return the policy's raw actions [..., A]."""
        return outputs.cpu().numpy()

    def explore(self, outputs: Tensor, draws: Draws, epsilon: float, mask: Mask = None) -> np.ndarray:
        """Return raw actions plus noise draws[0] [..., A], clipped to the raw bounds; `epsilon` is ignored."""
        action: np.ndarray = outputs.cpu().numpy()
        noisy: np.ndarray = np.clip(action + draws[0], *self.raw_bounds).astype(action.dtype)
        return noisy

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Draws:
        """Draw noise [*shape, A] in units of raw actions; `shape` is (vector steps, E) or (E,)."""
        steps = int(np.prod(shape[:-1], dtype=int))
        return (noise_paths(self, rng, steps, shape[-1]).reshape(*shape, self.action_size),)

    def action_noise(self, action: Any = None) -> np.ndarray:
        """Return noise [E, A] float32 of one vector step for actions [E, A]; E defaults to that of the last call."""
        shape = np.shape(self.noise_state if action is None else action)
        lanes = int(np.prod(shape[:-1], dtype=int))
        noise: np.ndarray = noise_paths(self, self._exploration, 1, lanes)[0].reshape(shape).astype(np.float32)
        return noise

    def reset_action_noise(self, indices: Any) -> None:
        """Reset the Ornstein-Uhlenbeck state in the lanes `indices` to 0."""
        state = np.array(self.noise_state)
        state[np.asarray(indices, dtype=int)] = 0
        self.noise_state = state


class StochasticActorCritic(ActorCritic):
    """An actor-critic with a stochastic policy: squashed normal for Box actions, categorical for Discrete actions."""

    policy_class: Any = StochasticActor

    @property
    def discrete(self) -> bool:
        """Whether the action space is Discrete."""
        return isinstance(self.action_space, gym.spaces.Discrete)

    # --- learning -----------------------------------------------------------------------------------------------------

    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Draw standard normal numbers for sampled actions, [*shape, A] each; none for discrete actions."""
        if self.discrete:
            return {}
        size = *shape, self.action_size
        return {name: rng.standard_normal(size) for name in ("action", "next_action")}

    def _policy_loss(self, engine: UpdateEngine, batch: TransitionBatch, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Return (policy loss [...], detached entropy or its one-sample estimate [..., B])."""
        raw = engine.network("actor")(batch.obs)
        if self.discrete:
            log_prob = masked_logits(raw, batch.obs_mask).log_softmax(-1)
            first, second = (engine.frozen(name)(batch.obs) for name in CRITICS)
            loss = -(batch.weight * discrete_soft_value(first, second, log_prob, alpha)).sum(-1)
            return loss, -(log_prob.exp() * log_prob).sum(-1).detach()
        action, log_prob = squashed_normal_sample(raw, batch.noise["action"])
        first, second = (engine.through(name)(batch.obs, action).squeeze(-1) for name in CRITICS)
        return soft_policy_loss(first, second, log_prob, alpha, batch.weight), -log_prob.detach()

    # --- acting -------------------------------------------------------------------------------------------------------

    def greedy(self, outputs: Tensor, mask: Mask = None) -> np.ndarray:
        """Return tanh of the mean [..., A], or the most probable legal action [...]."""
        if self.discrete:
            return masked_argmax(outputs, mask)
        return split_normal(outputs)[0].tanh().cpu().numpy()

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Draws:
        """Draw standard normal numbers [*shape, A], or uniform ones [*shape] for discrete actions."""
        return (rng.random(shape) if self.discrete else rng.standard_normal((*shape, self.action_size)),)

    def explore(self, outputs: Tensor, draws: Draws, epsilon: float, mask: Mask = None) -> np.ndarray:
        """Sample the policy: raw actions [..., A], or a legal action [...]; `epsilon` is ignored."""
        numbers = to_device(torch.from_numpy(draws[0]), outputs.device, outputs.dtype)
        if self.discrete:
            legal = None if mask is None else torch.as_tensor(np.array(mask), device=outputs.device)
            chosen = categorical_sample(masked_logits(outputs, legal), numbers)
        else:
            chosen = squashed_normal_sample(outputs, numbers)[0]
        return chosen.cpu().numpy()

    def _sampled(self, rng: np.random.Generator, obs: Any, mask: Mask = None) -> Any:
        return self._drawn(rng, obs, mask)
