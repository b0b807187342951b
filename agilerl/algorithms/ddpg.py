"""Deep deterministic policy gradient (Lillicrap et al. 2016, arXiv:1509.02971)."""

from __future__ import annotations

from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import torch

from agilerl.algorithms.base.actor_critic import ActorCritic, DeterministicActorCritic, register_actor_critic
from agilerl.algorithms.base.building import build
from agilerl.algorithms.base.declared import hp
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.core.ranges import Count, Fraction, NonNegative, Number, Positive, PositiveFraction, StepsPerUpdate
from agilerl.modules.base import EvolvableModule
from agilerl.networks.actors import DeterministicActor, check_bounded
from agilerl.networks.q_networks import ContinuousQNetwork


class DDPG(DeterministicActorCritic, ActorCritic):
    """Deep deterministic policy gradient.

    The published default `policy_freq` of 2 departs from the paper, which uses 1.

    Args:
        action_space: Box with finite bounds.
        hp_config: mutable hyperparameters: any numeric argument.
        net_config: `{"encoder_config": {..}, "head_config": {..}, "latent_dim": ..}` of policy and critic; an output
            activation of the head applies only to the policy.
        lr_actor, lr_critic: learning rates of Adam.
        policy_freq: critic updates per policy update.
        O_U_noise: use Ornstein-Uhlenbeck noise, else independent Gaussian noise.
        expl_noise: σ of the noise, in units of raw actions (their range has width 2); a scalar or one per component.
        vect_noise_dim: initial number of noise lanes; it follows the number of environments.
        mean_noise, theta, dt: mean; mean reversion rate and duration of one vector step (Ornstein-Uhlenbeck only).
        actor_network, critic_network: networks to use instead of building them.
        share_encoders: critics read detached features of the policy's encoder, which is trained by the policy loss.
            Its LayerNorm is kept. Encoders of given critics are dropped.

    See `DQN` for the other arguments.
    """

    shares_in_populations = True
    action_spaces = ("Box",)
    critic_names, optimizer_names = ("critic",), ("critic_optimizer",)
    smooths = tracks_with_policy = False

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        O_U_noise: Annotated[bool, hp()] = True,
        expl_noise: Annotated[float | np.ndarray, hp(values=NonNegative)] = 0.1,
        vect_noise_dim: Count = 1,
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
        tau: Annotated[
            PositiveFraction, hp(0.005, "budgets of manifests are short: targets follow within a hundred updates")
        ] = 1e-3,
        normalize_images: bool = True,
        mut: str | None = None,
        policy_freq: Annotated[Count, hp(1, "the paper's")] = 2,
        actor_network: EvolvableModule | None = None,
        critic_network: EvolvableModule | None = None,
        share_encoders: Annotated[bool, hp()] = False,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        wrap: bool = True,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, index, hp_config, device, accelerator, seed=seed)
        check_bounded(self.action_space, "DDPG")
        self._take(locals())
        self.actor = build(self, DeterministicActor, actor_network, "actor_network", 0)
        self.critic = build(self, ContinuousQNetwork, critic_network, "critic_network", 1, ("output_activation",))
        register_actor_critic(self, *self.critic_names)
