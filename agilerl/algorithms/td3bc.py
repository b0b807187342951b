"""TD3 with behaviour cloning, offline (Fujimoto and Gu 2021, arXiv:2106.06860)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import gymnasium as gym
import numpy as np
import torch

from agilerl.algorithms.base.actor_critic import CRITIC_OPTIMIZERS, CRITICS, DeterministicActorCritic
from agilerl.algorithms.base.building import build, register_network, share_encoder, twin_critics
from agilerl.algorithms.base.declared import DATASET, hp
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.components.running import RunningMeanStd
from agilerl.core import foreign
from agilerl.core.ranges import Count, Fraction, NonNegative, Positive, PositiveFraction
from agilerl.engine.protocol import Draws, TransitionBatch, UpdateEngine, UpdateResult
from agilerl.errors import AlgorithmError
from agilerl.losses.actor_critic import smoothed_action, twin_target, weighted_squared_error
from agilerl.losses.offline import cloning_policy_loss
from agilerl.modules.base import EvolvableModule
from agilerl.modules.paths import resolve
from agilerl.networks.actors import DeterministicActor, check_bounded
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.q_networks import ContinuousQNetwork

if TYPE_CHECKING:
    from agilerl.components.uniform import ReplayBuffer

AT_ONCE = 65_536  # rows of a data set per chunk
EPSILON = 1e-6  # added to the variance: the paper's, which is added to the deviation, squared


class TD3BC(DeterministicActorCritic):
    """TD3 with a policy regularised towards the data's actions.

    Args:
        learn_step: ignored offline; every step is one gradient update.
        expl_noise: standard deviation of the Gaussian noise of `get_action` in training.
        alpha: weight of the value term relative to cloning: 0 is behaviour cloning.
        normalize_observations: normalise observations by mean and standard deviation of the data set (eq. 4 of the
            paper), which are saved with the networks. Training functions compute them from the data; a custom loop
            calls `see_data(memory)` first.

    See `TD3`, `DDPG` and `DQN` for the other arguments.
    """

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
        alpha: Annotated[NonNegative, hp()] = 2.5,
        policy_freq: Annotated[Count, hp()] = 2,
        policy_noise: Annotated[NonNegative, hp()] = 0.2,
        noise_clip: Annotated[NonNegative, hp()] = 0.5,
        expl_noise: Annotated[NonNegative, hp()] = 0.1,
        normalize_observations: Annotated[bool, hp()] = False,
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
        check_bounded(self.action_space, "TD3BC")
        self.batch_size, self.learn_step, self.policy_freq = batch_size, learn_step, policy_freq
        self.lr_actor, self.lr_critic, self.gamma, self.tau = lr_actor, lr_critic, gamma, tau
        self.alpha, self.policy_noise, self.noise_clip, self.expl_noise = alpha, policy_noise, noise_clip, expl_noise
        self.mut, self.normalize_images, self.net_config = mut, normalize_images, net_config
        self.share_encoders = share_encoders
        self.actor = build(self, DeterministicActor, actor_network, "actor_network", 0)
        first, second = twin_critics(self, ContinuousQNetwork, critic_networks, ("output_activation",))
        self.critic_1, self.critic_2 = first, second
        saved = isinstance(self.actor, EvolvableNetwork) and self.actor.normalize_observations
        self.normalize_observations = bool(normalize_observations) or saved
        for name in ("actor", *CRITICS) if self.normalize_observations else ():
            network = self._reading(name)
            network.normalize_observations = True
            for buffer in ("obs_mean", "obs_scale") if saved else ():  # all networks preprocess like a given policy
                network.get_buffer(buffer).copy_(self.actor.get_buffer(buffer))
        share_encoder(self, *CRITICS)
        register_network(self, "actor", "actor_target", "actor_optimizer", "lr_actor", policy=True)
        register_network(self, "critic_1", "critic_target_1", "critic_1_optimizer", "lr_critic")
        register_network(self, "critic_2", "critic_target_2", "critic_2_optimizer", "lr_critic")

    def update_hyperparameters(self) -> dict[str, float]:
        return self._numbers("lr_actor", "lr_critic", "gamma", "tau", "alpha", "policy_noise", "noise_clip")

    def update_options(self) -> tuple[Any, ...]:
        return (self.policy_freq,)

    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Draw standard normal numbers for target policy smoothing, [*shape, A]."""
        return {"smoothing": rng.standard_normal((*shape, self.action_size))}

    def update(self, engine: UpdateEngine, batch: TransitionBatch) -> UpdateResult:
        """Algorithm 1 of TD3 (arXiv:1802.09477) with the policy loss of eq. 5 of the paper."""
        hp, weight = engine.hp, batch.weight
        taken = batch.action.to(batch.reward.dtype)
        with torch.no_grad():
            raw, noise, sigma = engine.target("actor")(batch.next_obs), batch.noise["smoothing"], hp["policy_noise"]
            next_action = smoothed_action(raw, noise, sigma, hp["noise_clip"], *self.raw_bounds)
            first, second = engine.targets(CRITICS)(batch.next_obs, next_action).squeeze(-1)
            target = twin_target(batch.reward, batch.discounts(hp["gamma"]), first, second)
        values = engine.networks(CRITICS)(batch.obs, taken).squeeze(-1)
        losses, errors = weighted_squared_error(values, target, weight)
        engine.minimise(CRITIC_OPTIMIZERS, losses)
        actor_loss = None
        if batch.number % self.policy_freq == 0:
            action = engine.network("actor")(batch.obs)
            policy_values = engine.through("critic_1")(batch.obs, action).squeeze(-1)
            actor_loss = cloning_policy_loss(policy_values, action, taken, hp["alpha"], weight, engine.ranks.mean)
            engine.minimise("actor_optimizer", actor_loss)
            actor_loss = actor_loss.detach()
            engine.track("actor", hp["tau"])
            engine.track(CRITICS, hp["tau"])
        return UpdateResult(losses.detach().sum(0), actor_loss, errors.detach().abs().amax(0))

    def _reading(self, name: str) -> EvolvableNetwork:
        """Return a network that reads observations. AlgorithmError for user-defined modules."""
        network = resolve(self, name)
        if not isinstance(network, EvolvableNetwork):
            raise AlgorithmError(
                f"TD3BC(normalize_observations=True): {name} is a {type(network).__name__}, which reads observations "
                "as they are. fix: leave it out, or a DeterministicActor and ContinuousQNetworks."
            )
        return network

    def see_data(self, memory: ReplayBuffer) -> None:
        """Compute mean and standard deviation of the observations in `memory`, if `normalize_observations`."""
        if not self.normalize_observations:
            return
        statistics = RunningMeanStd()
        for start in range(0, len(memory), AT_ONCE):
            rows = memory.sample_from_indices(np.arange(start, min(start + AT_ONCE, len(memory))))
            with torch.no_grad():
                seen = self.policy_network().encoder_input(rows["obs"])
            statistics.update(seen.flatten(0, -2).double().cpu().numpy())
        for name in self.registry.all_registered():
            self._reading(name).set_observation_statistics(statistics.mean, statistics.var, EPSILON)

    # --- acting: noise on raw actions, see `actions` --------------------------------------------------------------

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Draws:
        """Draw Gaussian noise [*shape, A] in units of raw actions."""
        return (self.expl_noise * rng.standard_normal((*shape, self.action_size)),)
