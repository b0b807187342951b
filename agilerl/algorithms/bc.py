"""Behaviour cloning: supervised learning of the data's policy (Pomerleau 1989, ALVINN)."""

from __future__ import annotations

from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.base.actions import NormalizedBoxActions, masked_argmax, raw_bounds
from agilerl.algorithms.base.building import build, register_network
from agilerl.algorithms.base.declared import DATASET, hp
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.algorithms.base.single_agent import RLAlgorithm
from agilerl.core import foreign
from agilerl.core.ranges import Count, NonNegative, Positive
from agilerl.core.transfer import to_device
from agilerl.core.tree import Tree
from agilerl.engine.protocol import Draws, Mask, TransitionBatch, UpdateEngine, UpdateResult
from agilerl.errors import AlgorithmError
from agilerl.losses.offline import cloning_error, cloning_likelihood
from agilerl.modules.base import EvolvableModule
from agilerl.networks.actors import DeterministicActor, check_bounded
from agilerl.networks.distributions import categorical_log_prob, categorical_sample, masked_logits


class BC(RLAlgorithm):
    """Behaviour cloning: imitates the data's actions regardless of reward.

    The loss is the mean squared error of raw actions for Box spaces, where the policy ends with tanh, and
    cross-entropy for Discrete spaces.

    Args:
        action_space: Box with finite bounds, or Discrete from 0.
        hp_config: mutable hyperparameters: any numeric argument.
        learn_step: ignored offline; every step is one gradient update.
        expl_noise: standard deviation of the Gaussian noise of `get_action` in training, for Box actions.

    See `DQN` for the other arguments.
    """

    policy_class = DeterministicActor
    action_spaces = ("Box", "Discrete")
    action_form = NormalizedBoxActions()
    experience = DATASET
    imitates = True

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: dict[str, Any] | None = None,
        batch_size: Annotated[Count, hp()] = 256,
        lr: Annotated[Positive, hp()] = 1e-3,
        learn_step: Annotated[Count, hp()] = 1,
        expl_noise: Annotated[NonNegative, hp()] = 0.1,
        normalize_images: bool = True,
        mut: str | None = None,
        actor_network: EvolvableModule | None = None,
        device: str | torch.device = "cpu",
        accelerator: foreign.Accelerator | None = None,
        wrap: bool = True,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, index, hp_config, device, accelerator, seed=seed)
        if isinstance(action_space, gym.spaces.Box):
            check_bounded(action_space, "BC")
        elif isinstance(action_space, gym.spaces.Discrete) and action_space.start != 0:
            raise AlgorithmError(
                f"BC numbers actions from 0; got {action_space}. fix: wrap the environment in "
                "gymnasium.wrappers.TransformAction, with Discrete(n) as its action space."
            )
        self.batch_size, self.lr, self.learn_step, self.expl_noise = batch_size, lr, learn_step, expl_noise
        self.mut, self.normalize_images, self.net_config = mut, normalize_images, net_config
        self.actor = build(self, DeterministicActor, actor_network, "actor_network", 0)
        register_network(self, "actor", None, "optimizer", "lr", policy=True)

    @property
    def discrete(self) -> bool:
        """Whether the action space is Discrete."""
        return isinstance(self.action_space, gym.spaces.Discrete)

    @property
    def learns_from_obs_mask(self) -> bool:  # type: ignore[override]
        """True: probabilities are normalised over legal actions."""
        return self.discrete

    def update_hyperparameters(self) -> dict[str, float]:
        return {"lr": self.lr}

    def update(self, engine: UpdateEngine, batch: TransitionBatch) -> UpdateResult:
        """Perform one Adam step towards the data's actions; rewards and next observations are ignored."""
        raw = engine.network("actor")(batch.obs)
        if self.discrete:
            log_prob = categorical_log_prob(masked_logits(raw, batch.obs_mask), batch.action)
            loss = cloning_likelihood(log_prob, batch.weight)
        else:
            loss = cloning_error(raw, batch.action.to(raw.dtype), batch.weight)
        engine.minimise("optimizer", loss)
        return UpdateResult(loss.detach())

    # --- acting ----------------------------------------------------------------------------------------------------

    @property
    def raw_bounds(self) -> tuple[float, float]:
        """Return the lowest and highest raw action."""
        return raw_bounds(self.policy_module())

    def greedy(self, outputs: Tensor, mask: Mask = None) -> np.ndarray:
        """Return the policy's raw actions [..., A], or the most probable legal action [...]."""
        return masked_argmax(outputs, mask) if self.discrete else outputs.cpu().numpy()

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Draws:
        """Draw Gaussian noise [*shape, A] in units of raw actions; uniform numbers [*shape] for discrete actions."""
        if self.discrete:
            return (rng.random(shape),)
        return (self.expl_noise * rng.standard_normal((*shape, self.action_size)),)

    def explore(self, outputs: Tensor, draws: Draws, epsilon: float, mask: Mask = None) -> np.ndarray:
        """Return raw actions with noise [..., A], or a sample of the legal actions [...]; `epsilon` is ignored."""
        if not self.discrete:
            action: np.ndarray = outputs.cpu().numpy()
            noisy: np.ndarray = np.clip(action + draws[0], *self.raw_bounds).astype(action.dtype)
            return noisy
        legal = None if mask is None else torch.as_tensor(np.array(mask), device=outputs.device)
        numbers = to_device(torch.from_numpy(draws[0]), outputs.device, outputs.dtype)
        return categorical_sample(masked_logits(outputs, legal), numbers).cpu().numpy()

    def get_action(
        self, obs: Tree, training: bool | None = None, action_mask: np.ndarray | None = None, *, epsilon: float = 0.0
    ) -> np.ndarray:
        """See `ActorCritic.get_action`."""
        return self._act_raw(obs, training, action_mask, epsilon)

    def _greedy(self, obs: Tree, mask: Mask = None) -> np.ndarray:
        return self.get_action(obs, False, mask)

    def _sampled(self, rng: np.random.Generator, obs: Tree, mask: Mask = None) -> Any:
        return self._drawn(rng, obs, mask) if self.discrete else self._greedy(obs, mask)
