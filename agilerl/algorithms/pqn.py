"""Q-learning from the rollouts of many environments, without replay or target network (arXiv:2407.04811)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, optim

from agilerl.algorithms.base import policy_value
from agilerl.algorithms.base.actions import masked_argmax, seen_with_mask, uniform_actions
from agilerl.algorithms.base.building import build
from agilerl.algorithms.base.declared import hp
from agilerl.algorithms.base.optimizer import OptimizerWrapper
from agilerl.algorithms.base.registry import HyperparameterConfig, NetworkGroup
from agilerl.algorithms.base.schedules import scheduled
from agilerl.algorithms.ppo import PPO
from agilerl.core.ranges import Count, Fraction, Positive, PositiveFraction
from agilerl.core.tree import Tree
from agilerl.engine.protocol import Draws, Mask, RolloutBatch, UpdateEngine, UpdateResult
from agilerl.errors import AlgorithmError
from agilerl.losses.td import squared_td_error
from agilerl.modules.base import EvolvableModule
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.q_networks import QNetwork


class PQN(PPO):
    """Parallelised Q-network (Gallici et al. 2024, arXiv:2407.04811, algorithm 1).

    Rollouts of ε-greedy actions, λ-returns of the greedy values, and a few passes of minibatches over each rollout:

    Rₜ = rₜ + γ (λ Rₜ₊₁ + (1 − λ) maxₐ Q(sₜ₊₁, a));   L = mean (Q(sₜ, aₜ) − Rₜ)²

    They are the sums of v(s) = maxₐ Q(s, a) and its generalised advantages, so `losses.returns.gae` computes them. An
    episode's end cuts them, and a time limit's bootstraps. LayerNorm in the networks takes the place of the target
    network (section 3 of the paper); the presets have it.

    Args:
        action_space: Discrete. Action masks are not supported.
        hp_config: mutable hyperparameters: any numeric argument.
        batch_size: rows per minibatch. learn_step: environment steps per rollout, of all lanes.
        gae_lambda: λ of the returns. update_epochs: passes over a rollout.
        eps_end: probability of a random action after `eps_fraction` of the budget, to which it falls linearly from 1.
        lr_schedule: "constant", or "linear" to 0 over the budget.

    See `PPO` for the other arguments.
    """

    policy_class = QNetwork
    action_spaces = ("Discrete",)
    later_hyperparameters = frozenset()

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: dict[str, Any] | None = None,
        batch_size: Annotated[Count, hp()] = 128,
        lr: Annotated[Positive, hp()] = 5e-4,
        learn_step: Annotated[Count, hp()] = 1024,
        gamma: Annotated[Fraction, hp()] = 0.99,
        gae_lambda: Annotated[Fraction, hp()] = 0.65,
        mut: str | None = None,
        max_grad_norm: Annotated[Positive | None, hp()] = 10.0,
        update_epochs: Annotated[Count, hp()] = 4,
        eps_end: Annotated[Fraction, hp()] = 0.05,
        eps_fraction: Annotated[PositiveFraction, hp()] = 0.2,
        normalize_images: bool = True,
        actor_network: EvolvableModule | None = None,
        num_envs: Count = 1,
        lr_schedule: Annotated[Literal["constant", "linear"], hp()] = "constant",
        normalize_observations: Annotated[bool, hp()] = False,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        wrap: bool = True,
        *,
        seed: int | None = None,
    ) -> None:
        self.eps_end, self.eps_fraction = eps_end, eps_fraction
        super().__init__(
            observation_space, action_space, index, hp_config, net_config, batch_size, lr, learn_step, gamma,
            gae_lambda, mut, max_grad_norm=max_grad_norm, update_epochs=update_epochs, num_envs=num_envs,
            normalize_images=normalize_images, actor_network=actor_network, device=device, accelerator=accelerator,
            lr_schedule=lr_schedule, normalize_observations=normalize_observations, seed=seed,
        )  # fmt: skip

    def _build(self, actor_network: Any, critic_network: Any, units: Mapping[str, Any]) -> None:
        self.actor = build(self, QNetwork, actor_network, "actor_network", 0)

    def _register(self) -> None:
        eps = {"eps": policy_value.ADAM_EPS}
        self.optimizer = OptimizerWrapper(optim.Adam, [self.actor], self.lr, eps, lr_name="lr")
        self.register_network_group(NetworkGroup(self.actor, policy=True))

    @property
    def networks(self) -> tuple[str, ...]:
        return ("actor",)

    @classmethod
    def policy_from_spec(cls, spec: Mapping[str, Any], device: str | torch.device) -> EvolvableNetwork:
        return QNetwork.from_spec(spec, device=device)

    # --- learning -----------------------------------------------------------------------------------------------------

    def update_hyperparameters(self) -> dict[str, float]:
        norm = float("inf") if self.max_grad_norm is None else self.max_grad_norm
        return {"lr": scheduled(self.lr, self.lr_schedule, self.progress), "max_grad_norm": norm}

    def update_options(self) -> tuple[Any, ...]:
        return self.normalize_observations, self.eps_end, self.eps_fraction

    def hyperparameters(self) -> dict[str, float]:
        names = ("lr", "batch_size", "learn_step", "update_epochs", "gamma", "gae_lambda", *self.hp_config.names())
        return self._numbers(*dict.fromkeys(names))

    def recipe(self) -> None:
        return None

    def state_values(self, engine: UpdateEngine, obs: Any) -> Tensor:
        """Return maxₐ Q(s, a) [..., B] of prepared observations, detached."""
        with torch.no_grad():
            values: Tensor = engine.frozen("actor")(obs).amax(-1)
        return values

    def update(self, engine: UpdateEngine, batch: RolloutBatch) -> UpdateResult:
        """Perform one Adam step on the squared error of the taken actions' values."""
        output = engine.network("actor")(batch.obs)
        loss, grad, _ = squared_td_error(output.detach(), batch.action.long(), batch.returns, batch.weight)
        engine.descend_all("optimizer", [output], [grad], engine.hp["max_grad_norm"], batch.live)
        return UpdateResult(loss)

    # --- acting -------------------------------------------------------------------------------------------------------

    @property
    def epsilon(self) -> float:
        """Probability of a random action in rollouts: falls linearly from 1 over `eps_fraction` of the budget."""
        return max(self.eps_end, 1 - (1 - self.eps_end) * self.progress / self.eps_fraction)

    def greedy(self, outputs: Tensor, mask: Mask = None) -> np.ndarray:
        """Return the actions [...] of highest value."""
        return masked_argmax(outputs, mask)

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Draws:
        """Draw uniform numbers in [0, 1): the first decides whether to explore, the second selects the action."""
        return rng.random(shape), rng.random(shape)

    def sample(self, outputs: Tensor, draws: Draws, mask: Mask = None) -> tuple[np.ndarray, np.ndarray]:
        """Return ε-greedy actions [...] to store, and zeros [...] in place of log probabilities.

        Raises:
            AlgorithmError: an action mask; targets would maximise over illegal actions.
        """
        if mask is not None:
            raise AlgorithmError("PQN takes no action masks. fix: DQN or PPO.")
        action = self.explore(outputs, draws, self.epsilon)
        return action, np.zeros(action.shape, np.float32)

    def explore(self, outputs: Tensor, draws: Draws, epsilon: float = 0.0, mask: Mask = None) -> np.ndarray:
        """Select actions [...] ε-greedily; see `DQN.explore`."""
        explores, which = draws
        return np.where(explores < epsilon, uniform_actions(which, outputs.shape[-1], mask), self.greedy(outputs, mask))

    def get_action(
        self, obs: Any, action_mask: Any = None, hidden_state: Any = None, *, training: bool | None = None
    ) -> tuple[Any, ...]:
        """Return (action, zeros, zeros, value) for observations; ε-greedy if `training`, else greedy; see `PPO`."""
        obs, action_mask = seen_with_mask(self, obs, action_mask)
        outputs, value, _ = self._run(obs)
        if self.training if training is None else training:
            action, nothing = self.sample(outputs, self._draws(tuple(outputs.shape[:-1])), action_mask)
        else:
            chosen = self.greedy(outputs, action_mask)
            action, nothing = self.environment_action(chosen), np.zeros(chosen.shape, np.float32)
        return action, nothing, nothing, value.cpu().numpy()

    def _run(self, obs: Tree, hidden_state: Mapping[str, Tensor] | None = None) -> tuple[Tensor, Tensor, Any]:
        with torch.no_grad():
            outputs = self.policy_output(obs)
        return outputs, outputs.amax(-1), {}
