"""Implicit Q-learning, offline (Kostrikov et al. 2021, arXiv:2110.06169)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import torch

from agilerl.algorithms.base.actor_critic import CRITIC_OPTIMIZERS, CRITICS, StochasticActorCritic
from agilerl.algorithms.base.building import build, register_network, share_encoder, twin_critics
from agilerl.algorithms.base.declared import DATASET, hp
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.algorithms.sac import POLICY_KEYS
from agilerl.core import foreign
from agilerl.core.ranges import Count, Fraction, NonNegative, Positive, PositiveFraction
from agilerl.engine.protocol import TransitionBatch, UpdateEngine, UpdateResult
from agilerl.losses.actor_critic import bootstrap, weighted_squared_error
from agilerl.losses.offline import advantage_weight, cloning_likelihood, expectile_loss
from agilerl.modules.base import EvolvableModule
from agilerl.networks.actors import StochasticActor, check_bounded
from agilerl.networks.distributions import bounded_mean_log_prob
from agilerl.networks.q_networks import ContinuousQNetwork
from agilerl.networks.value_networks import ValueNetwork


class IQL(StochasticActorCritic):
    """Implicit Q-learning, which never evaluates out-of-distribution actions.

    Args:
        action_space: Box with finite bounds.
        hp_config: mutable hyperparameters: any numeric argument.
        lr_actor, lr_critic: learning rates of Adam, for the policy, and for both critics and the state value.
        learn_step: ignored offline; every step is one gradient update.
        expectile: τ: 0.5 is the mean value of the data's actions; it approaches their maximum as τ goes to 1.
        inverse_temperature: β: 0 is behaviour cloning; larger values follow the advantages.
        max_weight: maximum weight of an action in the policy loss.
        value_network, critic_networks: a state value, and two critics, to use instead of building them.

    See `DDPG` and `DQN` for the other arguments.
    """

    action_spaces = ("Box",)
    experience = DATASET

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: dict[str, Any] | None = None,
        batch_size: Annotated[Count, hp(128, "an update costs half")] = 256,
        lr_actor: Annotated[Positive, hp(1e-3, "for small networks and few updates")] = 3e-4,
        lr_critic: Annotated[Positive, hp(1e-3, "for small networks and few updates")] = 3e-4,
        learn_step: Annotated[Count, hp()] = 1,
        gamma: Annotated[Fraction, hp()] = 0.99,
        tau: Annotated[PositiveFraction, hp(0.01, "targets follow within a hundred updates")] = 5e-3,
        expectile: Annotated[PositiveFraction, hp()] = 0.7,
        inverse_temperature: Annotated[NonNegative, hp()] = 3.0,
        max_weight: Annotated[Positive, hp()] = 100.0,
        normalize_images: bool = True,
        mut: str | None = None,
        actor_network: EvolvableModule | None = None,
        value_network: EvolvableModule | None = None,
        critic_networks: Sequence[EvolvableModule] | None = None,
        share_encoders: Annotated[bool, hp()] = False,
        device: str | torch.device = "cpu",
        accelerator: foreign.Accelerator | None = None,
        wrap: bool = True,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, index, hp_config, device, accelerator, seed=seed)
        check_bounded(self.action_space, "IQL")
        self.batch_size, self.learn_step = batch_size, learn_step
        self.lr_actor, self.lr_critic, self.gamma, self.tau = lr_actor, lr_critic, gamma, tau
        self.expectile, self.inverse_temperature, self.max_weight = expectile, inverse_temperature, max_weight
        self.mut, self.normalize_images, self.net_config = mut, normalize_images, net_config
        self.share_encoders = share_encoders
        self.actor = build(self, StochasticActor, actor_network, "actor_network", 0, squash_output=True)
        self.critic_1, self.critic_2 = twin_critics(self, ContinuousQNetwork, critic_networks, POLICY_KEYS)
        self.value = build(self, ValueNetwork, value_network, "value_network", 3, POLICY_KEYS)
        share_encoder(self, *CRITICS, "value")
        register_network(self, "actor", None, "actor_optimizer", "lr_actor", policy=True)
        register_network(self, "critic_1", "critic_target_1", "critic_1_optimizer", "lr_critic")
        register_network(self, "critic_2", "critic_target_2", "critic_2_optimizer", "lr_critic")
        register_network(self, "value", None, "value_optimizer", "lr_critic")

    discrete = False  # read by code inherited from SAC

    def update_hyperparameters(self) -> dict[str, float]:
        return self._numbers("lr_actor", "lr_critic", "gamma", "tau", "expectile", "inverse_temperature", "max_weight")

    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Return nothing: updates sample no actions."""
        return {}

    def update(self, engine: UpdateEngine, batch: TransitionBatch) -> UpdateResult:
        """Algorithm 1 of the paper; targets and advantages are computed before the first of the three steps.

        The reported loss is the sum over both critics and the state value.
        """
        hp, weight = engine.hp, batch.weight
        taken = batch.action.to(batch.reward.dtype)
        with torch.no_grad():
            next_value = engine.frozen("value")(batch.next_obs).squeeze(-1)
            target = bootstrap(batch.reward, batch.discounts(hp["gamma"]), next_value)
            target_values = engine.targets(CRITICS)(batch.obs, taken).squeeze(-1).amin(0)
        advantage = target_values - engine.network("value")(batch.obs).squeeze(-1)
        counts = advantage_weight(advantage.detach(), hp["inverse_temperature"], hp["max_weight"])
        value_loss = expectile_loss(advantage, hp["expectile"], weight)
        engine.minimise("value_optimizer", value_loss)
        values = engine.networks(CRITICS)(batch.obs, taken).squeeze(-1)
        losses, errors = weighted_squared_error(values, target, weight)
        engine.minimise(CRITIC_OPTIMIZERS, losses)
        log_prob = bounded_mean_log_prob(engine.network("actor")(batch.obs), taken)
        actor_loss = cloning_likelihood(log_prob, weight * counts)
        engine.minimise("actor_optimizer", actor_loss)
        engine.track(CRITICS, hp["tau"])
        loss = losses.detach().sum(0) + value_loss.detach()
        return UpdateResult(loss, actor_loss.detach(), errors.detach().abs().amax(0))
