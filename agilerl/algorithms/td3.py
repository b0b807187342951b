"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv:1802.09477)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import torch

from agilerl.algorithms.base.actor_critic import CRITIC_OPTIMIZERS, CRITICS, DeterministicActorCritic
from agilerl.algorithms.base.building import build, register_network, share_encoder, twin_critics
from agilerl.algorithms.base.declared import hp
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.core.ranges import Count, Fraction, NonNegative, Number, Positive, PositiveFraction, StepsPerUpdate
from agilerl.engine.protocol import TransitionBatch, UpdateEngine, UpdateResult
from agilerl.engine.recipes import ActorCriticRecipe
from agilerl.losses.actor_critic import deterministic_policy_loss, smoothed_action, twin_target, weighted_squared_error
from agilerl.modules.base import EvolvableModule
from agilerl.networks.actors import DeterministicActor, check_bounded
from agilerl.networks.q_networks import ContinuousQNetwork


class TD3(DeterministicActorCritic):
    """DDPG with twin critics, delayed policy updates and smoothed target actions.

    Args:
        policy_freq: critic updates per update of the policy and of all targets (d of algorithm 1).
        O_U_noise: use Ornstein-Uhlenbeck noise, else independent Gaussian noise (as in the paper).
        critic_networks: two critics to use instead of building them.
        policy_noise, noise_clip: σ and c of target policy smoothing, in units of raw actions.

    See `DDPG` and `DQN` for the other arguments.
    """

    shares_in_populations = True

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        O_U_noise: Annotated[bool, hp(False, "the paper's noise is independent in every step")] = True,
        vect_noise_dim: Count = 1,
        expl_noise: Annotated[float | np.ndarray, hp(values=NonNegative)] = 0.1,
        mean_noise: Annotated[float | np.ndarray, hp(values=Number)] = 0.0,
        theta: Annotated[NonNegative, hp()] = 0.15,
        dt: Annotated[Positive, hp()] = 1e-2,
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: dict[str, Any] | None = None,
        batch_size: Annotated[Count, hp(128, "a critic of continuous actions is noisier")] = 64,
        lr_actor: Annotated[Positive, hp(1e-3, "for small networks and few steps")] = 1e-4,
        lr_critic: Annotated[Positive, hp()] = 1e-3,
        learn_step: Annotated[StepsPerUpdate, hp(1, "the paper's: one update a step")] = 5,
        gamma: Annotated[Fraction, hp()] = 0.99,
        tau: Annotated[PositiveFraction, hp()] = 5e-3,
        normalize_images: bool = True,
        mut: str | None = None,
        policy_freq: Annotated[Count, hp()] = 2,
        actor_network: EvolvableModule | None = None,
        critic_networks: Sequence[EvolvableModule] | None = None,
        share_encoders: Annotated[bool, hp()] = False,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        wrap: bool = True,
        *,
        policy_noise: Annotated[NonNegative, hp()] = 0.2,
        noise_clip: Annotated[NonNegative, hp()] = 0.5,
        seed: int | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, index, hp_config, device, accelerator, seed=seed)
        check_bounded(self.action_space, "TD3")
        self.batch_size, self.learn_step, self.policy_freq = batch_size, learn_step, policy_freq
        self.lr_actor, self.lr_critic, self.gamma, self.tau = lr_actor, lr_critic, gamma, tau
        self.mut, self.normalize_images, self.net_config = mut, normalize_images, net_config
        self.share_encoders = share_encoders
        self.O_U_noise, self.expl_noise, self.vect_noise_dim = O_U_noise, expl_noise, vect_noise_dim
        self.mean_noise, self.theta, self.dt = mean_noise, theta, dt
        self.policy_noise, self.noise_clip = policy_noise, noise_clip
        self.noise_state = np.zeros((vect_noise_dim, self.action_size))
        self.actor = build(self, DeterministicActor, actor_network, "actor_network", 0)
        first, second = twin_critics(self, ContinuousQNetwork, critic_networks, ("output_activation",))
        self.critic_1, self.critic_2 = first, second
        share_encoder(self, *CRITICS)
        register_network(self, "actor", "actor_target", "actor_optimizer", "lr_actor", policy=True)
        register_network(self, "critic_1", "critic_target_1", "critic_1_optimizer", "lr_critic")
        register_network(self, "critic_2", "critic_target_2", "critic_2_optimizer", "lr_critic")

    def update_hyperparameters(self) -> dict[str, float]:
        return self._numbers("lr_actor", "lr_critic", "gamma", "tau", "policy_noise", "noise_clip")

    def update_options(self) -> tuple[Any, ...]:
        return (self.policy_freq,)

    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Draw standard normal numbers for target policy smoothing, [*shape, A]."""
        return {"smoothing": rng.standard_normal((*shape, math.prod(self.action_space.shape)))}

    def recipe(self) -> ActorCriticRecipe:
        low, high = self.raw_bounds
        return ActorCriticRecipe(
            "actor", CRITICS, "actor_optimizer", CRITIC_OPTIMIZERS, self.policy_freq, tracks_with_policy=True,
            smooths=True, low=low, high=high,
        )  # fmt: skip

    def update(self, engine: UpdateEngine, batch: TransitionBatch) -> UpdateResult:
        """Algorithm 1 of the paper."""
        hp, weight = engine.hp, batch.weight
        with torch.no_grad():
            raw, noise, sigma = engine.target("actor")(batch.next_obs), batch.noise["smoothing"], hp["policy_noise"]
            next_action = smoothed_action(raw, noise, sigma, hp["noise_clip"], *self.raw_bounds)
            first, second = engine.targets(CRITICS)(batch.next_obs, next_action).squeeze(-1)
            target = twin_target(batch.reward, batch.discounts(hp["gamma"]), first, second)
        values = engine.networks(CRITICS)(batch.obs, batch.action.to(target.dtype)).squeeze(-1)
        losses, errors = weighted_squared_error(values, target, weight)
        engine.minimise(CRITIC_OPTIMIZERS, losses)
        actor_loss = None
        if batch.number % self.policy_freq == 0:
            policy_values = engine.through("critic_1")(batch.obs, engine.network("actor")(batch.obs)).squeeze(-1)
            actor_loss = deterministic_policy_loss(policy_values, weight)
            engine.minimise("actor_optimizer", actor_loss)
            actor_loss = actor_loss.detach()
            engine.track("actor", hp["tau"])
            engine.track(CRITICS, hp["tau"])
        return UpdateResult(losses.detach().sum(0), actor_loss, errors.detach().abs().amax(0))
