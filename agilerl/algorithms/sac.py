"""Soft actor-critic with a learned temperature (Haarnoja et al. 2018, arXiv:1812.05905), also for discrete actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import gymnasium as gym
import torch
from torch import Tensor

from agilerl.algorithms.base.actor_critic import CRITIC_OPTIMIZERS, CRITICS, StochasticActorCritic
from agilerl.algorithms.base.building import build, register_network, share_encoder, twin_critics
from agilerl.algorithms.base.declared import OF_WEIGHTS, hp
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.core import foreign
from agilerl.core.ranges import Count, Fraction, Number, Positive, PositiveFraction, StepsPerUpdate
from agilerl.engine.protocol import TransitionBatch, UpdateEngine, UpdateResult
from agilerl.engine.recipes import SoftActorCriticRecipe
from agilerl.errors import AlgorithmError
from agilerl.losses.actor_critic import (
    bootstrap,
    discrete_soft_value,
    soft_value,
    temperature_loss,
    weighted_squared_error,
)
from agilerl.losses.td import take
from agilerl.modules.base import EvolvableModule
from agilerl.networks.actors import StochasticActor, check_bounded
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.distributions import masked_logits, squashed_normal_sample
from agilerl.networks.q_networks import ContinuousQNetwork, QNetwork
from agilerl.networks.value_networks import Temperature

POLICY_KEYS = ("output_activation", "squash_output", "log_std_init")  # `net_config` keys that critics ignore


class SAC(StochasticActorCritic):
    """Soft actor-critic: a squashed normal policy for Box actions, a categorical one for Discrete actions.

    The discrete form (Christodoulou 2019, arXiv:1910.07207) takes expectations over the actions instead of samples.

    Args:
        action_space: Box with finite bounds, or Discrete from 0.
        hp_config: mutable hyperparameters: any numeric argument but `init_temperature`, and `target_entropy`.
        lr_actor, lr_critic, lr_alpha: learning rates of Adam, for policy, critics and temperature.
        init_temperature: initial α. learn_temperature: False keeps α constant.
        target_entropy: target entropy in nats of raw actions in [-1, 1], to which the temperature is tuned; None: -A
            for Box actions (appendix D of the paper), 0.98 · log A for Discrete ones (section 5 of the discrete paper).
            With action masks that leave n of A actions it is scaled by log n / log A.
        critic_networks: two critics to use instead of building them.

    See `DDPG` and `DQN` for the other arguments.
    """

    policy_class = StochasticActor
    action_spaces: tuple[str, ...] = ("Box", "Discrete")

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: dict[str, Any] | None = None,
        batch_size: Annotated[Count, hp(128, "costs half, and learns the environments of the presets")] = 256,
        lr_actor: Annotated[Positive, hp(1e-3, "for small networks and few steps")] = 3e-4,
        lr_critic: Annotated[Positive, hp(1e-3, "for small networks and few steps")] = 3e-4,
        lr_alpha: Annotated[Positive, hp(1e-3, "as the other two")] = 3e-4,
        learn_step: Annotated[StepsPerUpdate, hp()] = 1,
        gamma: Annotated[Fraction, hp()] = 0.99,
        tau: Annotated[PositiveFraction, hp()] = 5e-3,
        normalize_images: bool = True,
        mut: str | None = None,
        init_temperature: Annotated[Positive, hp(fixed=OF_WEIGHTS)] = 1.0,
        target_entropy: Annotated[Number | None, hp()] = None,
        learn_temperature: Annotated[bool, hp()] = True,
        actor_network: EvolvableModule | None = None,
        critic_networks: Sequence[EvolvableModule] | None = None,
        share_encoders: Annotated[bool, hp()] = False,
        device: str | torch.device = "cpu",
        accelerator: foreign.Accelerator | None = None,
        wrap: bool = True,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, index, hp_config, device, accelerator, seed=seed)
        if isinstance(action_space, gym.spaces.Box):
            check_bounded(action_space, self.algo)
        elif isinstance(action_space, gym.spaces.Discrete) and action_space.start != 0:
            raise AlgorithmError(
                f"SAC numbers actions from 0; got {action_space}. fix: wrap the environment in "
                "gymnasium.wrappers.TransformAction, with Discrete(n) as its action space."
            )
        self.batch_size, self.learn_step = batch_size, learn_step
        self.lr_actor, self.lr_critic, self.lr_alpha, self.gamma, self.tau = lr_actor, lr_critic, lr_alpha, gamma, tau
        self.mut, self.normalize_images, self.net_config = mut, normalize_images, net_config
        self.share_encoders, self.learn_temperature = share_encoders, learn_temperature
        self.init_temperature = init_temperature
        if target_entropy is None and isinstance(action_space, gym.spaces.Discrete):
            target_entropy = 0.98 * math.log(action_space.n)
        elif target_entropy is None:
            target_entropy = -self.action_size
        self.target_entropy = float(target_entropy)
        self.actor = build(self, StochasticActor, actor_network, "actor_network", 0, squash_output=not self.discrete)
        critic, options = self.critic_type()
        self.critic_1, self.critic_2 = twin_critics(self, critic, critic_networks, POLICY_KEYS, **options)
        self.temperature = Temperature(init_temperature, device=device, random_seed=self.seed)
        share_encoder(self, *CRITICS)
        register_network(self, "actor", None, "actor_optimizer", "lr_actor", policy=True)
        register_network(self, "critic_1", "critic_target_1", "critic_1_optimizer", "lr_critic")
        register_network(self, "critic_2", "critic_target_2", "critic_2_optimizer", "lr_critic")
        register_network(self, "temperature", None, "alpha_optimizer", "lr_alpha")

    def critic_type(self) -> tuple[type[EvolvableNetwork], dict[str, Any]]:
        """Return the class of the critics and their arguments besides those of `net_config`."""
        return QNetwork if self.discrete else ContinuousQNetwork, {}

    @property
    def alpha(self) -> float:
        """The current temperature."""
        return self.temperature.alpha

    @property
    def learns_from_obs_mask(self) -> bool:  # type: ignore[override]
        """True for discrete actions: their policy and temperature losses average over all legal actions."""
        return self.discrete

    # --- learning --------------------------------------------------------------------------------------------------

    def update_hyperparameters(self) -> dict[str, float]:
        return self._numbers("lr_actor", "lr_critic", "lr_alpha", "gamma", "tau", "target_entropy")

    def update_options(self) -> tuple[Any, ...]:
        return (self.learn_temperature,)

    def recipe(self) -> SoftActorCriticRecipe:
        return SoftActorCriticRecipe(
            "actor", CRITICS, "temperature", "actor_optimizer", CRITIC_OPTIMIZERS, "alpha_optimizer", self.discrete,
            self.learn_temperature,
        )  # fmt: skip

    def update(self, engine: UpdateEngine, batch: TransitionBatch) -> UpdateResult:
        """Algorithm 1 of the paper: both critics, the policy, the temperature, both targets."""
        hp = engine.hp
        nothing = batch.reward.new_zeros(*batch.reward.shape[:-1], 1, 0)
        log_alpha = engine.network("temperature")(nothing).squeeze(-1)  # [..., 1]
        alpha = log_alpha.detach().exp()
        losses, errors = self._update_critics(engine, batch, alpha)
        actor_loss, entropy = self._policy_loss(engine, batch, alpha)
        engine.minimise("actor_optimizer", actor_loss)
        if self.learn_temperature:
            wanted = self._target_entropy(hp["target_entropy"], batch)
            engine.minimise("alpha_optimizer", temperature_loss(log_alpha, entropy, wanted, batch.weight))
        engine.track(CRITICS, hp["tau"])
        return UpdateResult(losses.sum(0), actor_loss.detach(), errors.abs().amax(0))

    def _update_critics(self, engine: UpdateEngine, batch: TransitionBatch, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Perform one step of both critics; return their losses [2, ...] and errors [2, ..., B] before it."""
        with torch.no_grad():
            next_value = self._next_value(engine, batch, alpha)
            target = bootstrap(batch.reward, batch.discounts(engine.hp["gamma"]), next_value)
        losses, errors = weighted_squared_error(self._values(engine, batch), target, batch.weight)
        engine.minimise(CRITIC_OPTIMIZERS, losses)
        return losses.detach(), errors.detach()

    def _target_entropy(self, target: Tensor, batch: TransitionBatch) -> Tensor:
        """Return the target entropy of each row, scaled to the maximum entropy over its n legal actions.

        H̄ · log n / log A. With H̄ itself, usually 0.98 log A, no policy over fewer actions could reach the target, and
        the temperature would grow without bound.
        """
        if not self.discrete or batch.obs_mask is None:
            return target
        count = batch.obs_mask.sum(-1).clamp_min(1).to(batch.reward)
        return target * count.log() / math.log(max(2, batch.obs_mask.shape[-1]))

    def _next_value(self, engine: UpdateEngine, batch: TransitionBatch, alpha: Tensor) -> Tensor:
        """Return the soft value [..., B] of the next observation under the current policy."""
        raw = engine.frozen("actor")(batch.next_obs)
        if self.discrete:
            first, second = engine.targets(CRITICS)(batch.next_obs)
            return discrete_soft_value(first, second, masked_logits(raw, batch.next_mask).log_softmax(-1), alpha)
        action, log_prob = squashed_normal_sample(raw, batch.noise["next_action"])
        first, second = engine.targets(CRITICS)(batch.next_obs, action).squeeze(-1)
        return soft_value(first, second, log_prob, alpha)

    def _values(self, engine: UpdateEngine, batch: TransitionBatch) -> Tensor:
        """Return Q of the taken action, for both critics [2, ..., B]."""
        if self.discrete:
            values = engine.networks(CRITICS)(batch.obs)
            return take(values, batch.action.expand(values.shape[:-1]))
        return engine.networks(CRITICS)(batch.obs, batch.action.to(batch.reward.dtype)).squeeze(-1)
