"""Conservative Q-learning for continuous actions, offline (Kumar et al. 2020, arXiv:2006.04779)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.base.actor_critic import CRITIC_OPTIMIZERS, CRITICS, StochasticActorCritic
from agilerl.algorithms.base.building import build, register_network, share_encoder, twin_critics
from agilerl.algorithms.base.declared import DATASET, OF_WEIGHTS, STRUCTURE, hp
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.algorithms.sac import POLICY_KEYS
from agilerl.core import foreign
from agilerl.core.ranges import Count, Fraction, NonNegative, Number, Positive, PositiveFraction
from agilerl.engine.protocol import TransitionBatch, UpdateEngine, UpdateResult
from agilerl.errors import AlgorithmError
from agilerl.losses.actor_critic import bootstrap, soft_value, temperature_loss, weighted_squared_error
from agilerl.losses.conservative import multiplier_loss, sampled_conservative_penalty
from agilerl.modules.base import EvolvableModule
from agilerl.networks.actors import StochasticActor, check_bounded
from agilerl.networks.distributions import squashed_normal_sample
from agilerl.networks.q_networks import ContinuousQNetwork
from agilerl.networks.value_networks import Temperature

SAMPLED = ("current", "following")  # actions of the policy in `obs` and in `next_obs`
MAX_CONSERVATIVE_WEIGHT = 1e6  # clip of a learned weight, as in the authors' released code


class CQL(StochasticActorCritic):
    """Soft actor-critic whose critics underestimate the values of out-of-distribution actions: CQL(H).

    For Discrete and MultiDiscrete actions see `CQN`.

    Args:
        action_space: Box with finite bounds.
        alpha: weight of the conservative term relative to half of the squared TD error; 0 is soft actor-critic. Initial
            value if `threshold` is set.
        threshold: τ: `alpha` is learned so that the term reaches this value (appendix F of the paper); None keeps it
            constant.
        num_samples: sampled actions of each of three kinds (uniform, policy at the observation, policy at the next
            observation) that estimate the term per observation.
        backup_entropy: True: targets include the entropy of the next action, as in soft actor-critic.
        learn_step: ignored offline; every step is one gradient update.

    See `SAC` for the other arguments.
    """

    action_spaces = ("Box",)
    experience = DATASET
    structure = STRUCTURE | {"threshold"}

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: dict[str, Any] | None = None,
        batch_size: Annotated[Count, hp(128, "an update evaluates thirty sampled actions per row")] = 256,
        lr_actor: Annotated[Positive, hp(1e-3, "for small networks and few updates")] = 1e-4,
        lr_critic: Annotated[Positive, hp(1e-3, "for small networks and few updates")] = 3e-4,
        lr_alpha: Annotated[Positive, hp(1e-3, "for small networks and few updates")] = 3e-4,
        learn_step: Annotated[Count, hp()] = 1,
        gamma: Annotated[Fraction, hp()] = 0.99,
        tau: Annotated[PositiveFraction, hp(0.01, "targets follow within a hundred updates")] = 5e-3,
        alpha: Annotated[NonNegative, hp()] = 2.5,
        threshold: Annotated[Number | None, hp()] = None,
        num_samples: Annotated[Count, hp()] = 10,
        backup_entropy: Annotated[bool, hp()] = False,
        init_temperature: Annotated[Positive, hp(fixed=OF_WEIGHTS)] = 1.0,
        target_entropy: Annotated[Number | None, hp()] = None,
        learn_temperature: Annotated[bool, hp()] = True,
        normalize_images: bool = True,
        mut: str | None = None,
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
        check_bounded(self.action_space, "CQL")
        if threshold is not None and not alpha > 0:
            raise AlgorithmError(f"CQL: a learned alpha starts above 0; got alpha={alpha}. fix: alpha=1.0.")
        if threshold is not None and "alpha" in (hp_config or ()):
            raise AlgorithmError(
                "CQL: alpha is learned where there is a threshold, so that a mutated one would have no effect. "
                "fix: threshold in hp_config in place of alpha, or no threshold."
            )
        self.batch_size, self.learn_step = batch_size, learn_step
        self.lr_actor, self.lr_critic, self.lr_alpha, self.gamma, self.tau = lr_actor, lr_critic, lr_alpha, gamma, tau
        self.alpha, self.threshold, self.num_samples = alpha, threshold, num_samples
        self.backup_entropy, self.learn_temperature = backup_entropy, learn_temperature
        self.init_temperature = init_temperature
        self.target_entropy = float(-self.action_size if target_entropy is None else target_entropy)
        self.mut, self.normalize_images, self.net_config = mut, normalize_images, net_config
        self.share_encoders = share_encoders
        self.actor = build(self, StochasticActor, actor_network, "actor_network", 0, squash_output=True)
        self.critic_1, self.critic_2 = twin_critics(self, ContinuousQNetwork, critic_networks, POLICY_KEYS)
        self.temperature = Temperature(init_temperature, device=device, random_seed=self.seed)
        share_encoder(self, *CRITICS)
        register_network(self, "actor", None, "actor_optimizer", "lr_actor", policy=True)
        register_network(self, "critic_1", "critic_target_1", "critic_1_optimizer", "lr_critic")
        register_network(self, "critic_2", "critic_target_2", "critic_2_optimizer", "lr_critic")
        register_network(self, "temperature", None, "temperature_optimizer", "lr_alpha")
        if threshold is not None:
            self.multiplier = Temperature(alpha, device=device, random_seed=self.seed)
            register_network(self, "multiplier", None, "multiplier_optimizer", "lr_alpha")

    # --- learning --------------------------------------------------------------------------------------------------

    def update_hyperparameters(self) -> dict[str, float]:
        names = ("lr_actor", "lr_critic", "lr_alpha", "gamma", "tau", "target_entropy", "alpha")
        numbers = self._numbers(*names)
        return numbers if self.threshold is None else {**numbers, "threshold": self.threshold}

    def update_options(self) -> tuple[Any, ...]:
        return self.learn_temperature, self.backup_entropy, self.num_samples, self.threshold is None

    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Draw the random numbers of sampled actions: standard normal [*shape, A] as in SAC, and [*shape, n, A] for
        each kind of the conservative term; for the uniform kind the raw actions themselves."""
        many = (*shape, self.num_samples, self.action_size)
        noise = super().draw_noise(rng, shape)
        noise |= {name: rng.standard_normal(many) for name in SAMPLED}
        return noise | {"uniform": rng.uniform(-1, 1, many)}

    def update(self, engine: UpdateEngine, batch: TransitionBatch) -> UpdateResult:
        """Minimise α R + ½ Σ_b w_b δ_b² for each critic (eq. 4 of the paper), then policy, temperature and targets as
        in SAC.

        R is `sampled_conservative_penalty` over uniform actions and the policy's actions at both observations. The
        reported loss is the sum over both critics.
        """
        hp, weight = engine.hp, batch.weight
        nothing = batch.reward.new_zeros(*batch.reward.shape[:-1], 1, 0)
        log_temperature = engine.network("temperature")(nothing).squeeze(-1)  # [..., 1]
        temperature = log_temperature.detach().exp()
        sampled, log_density, target = self._constants(engine, batch, temperature)
        values = self._values(engine, batch, sampled)  # [2, ..., B, M + 1]
        of_data = values[..., -1]
        squared, errors = weighted_squared_error(of_data, target, weight)
        gap = sampled_conservative_penalty(values[..., :-1], log_density, of_data, weight)
        if self.threshold is None:
            alpha = hp["alpha"].squeeze(-1)
        else:
            log_alpha = engine.network("multiplier")(nothing).squeeze(-1)
            alpha = log_alpha.detach().exp().clamp_max(MAX_CONSERVATIVE_WEIGHT).squeeze(-1)
            mean_gap = gap.detach().mean(0)
        losses = alpha * gap + 0.5 * squared
        engine.minimise(CRITIC_OPTIMIZERS, losses)
        if self.threshold is not None:
            engine.minimise("multiplier_optimizer", multiplier_loss(log_alpha, mean_gap, hp["threshold"]))
        actor_loss, entropy = self._policy_loss(engine, batch, temperature)
        engine.minimise("actor_optimizer", actor_loss)
        if self.learn_temperature:
            loss = temperature_loss(log_temperature, entropy, hp["target_entropy"], weight)
            engine.minimise("temperature_optimizer", loss)
        engine.track(CRITICS, hp["tau"])
        return UpdateResult(losses.detach().sum(0), actor_loss.detach(), errors.detach().abs().amax(0))

    @torch.no_grad()
    def _constants(
        self, engine: UpdateEngine, batch: TransitionBatch, temperature: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return (sampled actions [..., B, M, A], log densities [..., B, M], targets [..., B]) before any step."""
        noise = batch.noise
        raw, next_raw = (engine.frozen("actor")(obs) for obs in (batch.obs, batch.next_obs))
        drawn = [
            squashed_normal_sample(x.unsqueeze(-2), noise[n]) for x, n in zip((raw, next_raw), SAMPLED, strict=True)
        ]
        uniform = noise["uniform"]
        even = torch.full_like(uniform[..., 0], -uniform.shape[-1] * math.log(2))  # density on [-1, 1] per component
        sampled = torch.cat([uniform, *(action for action, _ in drawn)], -2)
        log_density = torch.cat([even, *(log_prob for _, log_prob in drawn)], -1)
        action, log_prob = squashed_normal_sample(next_raw, noise["next_action"])
        first, second = engine.targets(CRITICS)(batch.next_obs, action).squeeze(-1)
        entropic = temperature if self.backup_entropy else torch.zeros_like(temperature)
        next_value = soft_value(first, second, log_prob, entropic)
        return sampled, log_density, bootstrap(batch.reward, batch.discounts(engine.hp["gamma"]), next_value)

    def _values(self, engine: UpdateEngine, batch: TransitionBatch, sampled: Tensor) -> Tensor:
        """Return Q of the sampled actions and, last, of the data's, for both critics [2, ..., B, M + 1]."""
        taken = batch.action.to(sampled.dtype).unsqueeze(-2)
        every = torch.cat((sampled, taken), -2).transpose(-3, -2)  # batches side by side: observations are encoded once
        values = engine.networks(CRITICS)(batch.obs, every.flatten(-3, -2))
        return values.reshape(len(CRITICS), *every.shape[:-1]).transpose(-2, -1)
