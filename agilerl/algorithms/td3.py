"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv:1802.09477)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import torch

from agilerl.algorithms.base.actor_critic import ActorCritic, DeterministicActorCritic, register_actor_critic
from agilerl.algorithms.base.building import build, twin_critics
from agilerl.algorithms.base.declared import hp
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.core.ranges import Count, Fraction, NonNegative, Number, Positive, PositiveFraction, StepsPerUpdate
from agilerl.modules.base import EvolvableModule
from agilerl.networks.actors import DeterministicActor, check_bounded
from agilerl.networks.q_networks import ContinuousQNetwork


class TD3(DeterministicActorCritic, ActorCritic):
    """DDPG with twin critics, delayed policy updates and smoothed target actions.

    Args:
        policy_freq: critic updates per update of the policy and of all targets (d of algorithm 1).
        O_U_noise: use Ornstein-Uhlenbeck noise, else independent Gaussian noise (as in the paper).
        critic_networks: two critics to use instead of building them.
        policy_noise, noise_clip: σ and c of target policy smoothing, in units of raw actions.

    See `DDPG` and `DQN` for the other arguments.
    """

    shares_in_populations = True
    action_spaces = ("Box",)

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
        self._take(locals())
        self.actor = build(self, DeterministicActor, actor_network, "actor_network", 0)
        first, second = twin_critics(self, ContinuousQNetwork, critic_networks, ("output_activation",))
        self.critic_1, self.critic_2 = first, second
        register_actor_critic(self, *self.critic_names)
