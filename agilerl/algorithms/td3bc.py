"""TD3 with behaviour cloning, offline (Fujimoto and Gu 2021, arXiv:2106.06860)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.base.actor_critic import (
    CRITICS,
    ActorCritic,
    CriticRows,
    DeterministicActorCritic,
    register_actor_critic,
)
from agilerl.algorithms.base.building import build, twin_critics
from agilerl.algorithms.base.declared import DATASET, hp
from agilerl.algorithms.base.observation_statistics import ObservationStatistics
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.components.running import RunningMeanStd
from agilerl.core import foreign
from agilerl.core.ranges import Count, Fraction, NonNegative, Positive, PositiveFraction
from agilerl.engine.protocol import Draws, TransitionBatch, UpdateEngine
from agilerl.errors import AlgorithmError
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


class TD3BC(DeterministicActorCritic, ActorCritic):
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
    action_spaces = ("Box",)

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
        register_actor_critic(self, *CRITICS)

    def update_hyperparameters(self) -> dict[str, float]:
        return self._numbers("lr_actor", "lr_critic", "gamma", "tau", "alpha", "policy_noise", "noise_clip")

    def policy_loss(self, engine: UpdateEngine, batch: TransitionBatch, taken: Tensor, rows: CriticRows) -> Tensor:
        """Return the loss of eq. 5 of the paper, [1, ...]."""
        action = engine.network("actor")(batch.obs)
        values = engine.through("critic_1")(batch.obs, action).squeeze(-1)
        alpha, mean = engine.hp["alpha"], engine.ranks.mean
        return cloning_policy_loss(values, action, taken, alpha, batch.weight, mean).unsqueeze(0)

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
            statistics.update(ObservationStatistics.rows(self.policy_network(), rows["obs"]))
        for name in self.registry.all_registered():
            self._reading(name).set_observation_statistics(statistics.mean, statistics.var, EPSILON)

    # --- acting: noise on raw actions, see `actions` --------------------------------------------------------------

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Draws:
        """Draw Gaussian noise [*shape, A] in units of raw actions."""
        return (self.expl_noise * rng.standard_normal((*shape, self.action_size)),)
