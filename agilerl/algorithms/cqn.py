"""Conservative Q-learning for discrete actions, offline (Kumar et al. 2020, arXiv:2006.04779)."""

from __future__ import annotations

from typing import Annotated, Any

import gymnasium as gym
import torch

from agilerl.algorithms.base.declared import DATASET, hp
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.algorithms.dqn import DQN
from agilerl.core import foreign
from agilerl.core.ranges import Count, Fraction, NonNegative, Positive, PositiveFraction
from agilerl.engine.protocol import TransitionBatch, UpdateEngine, UpdateResult
from agilerl.engine.recipes import TDRecipe
from agilerl.losses.conservative import conservative_penalty
from agilerl.losses.td import q_learning_target, squared_td_error
from agilerl.modules.base import EvolvableModule


class CQN(DQN):
    """Offline deep Q-learning that lowers the values of out-of-distribution actions: CQL(H).

    Args:
        hp_config: mutable hyperparameters: any numeric argument.
        alpha: weight of the conservative term relative to half of the squared TD error. 0 is deep Q-learning.
        learn_step: ignored offline; every step is one gradient update.

    See `DQN` for the other arguments.
    """

    experience = DATASET
    learns_from_obs_mask = True  # the conservative term sums over the legal actions

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: dict[str, Any] | None = None,
        batch_size: Annotated[Count, hp(128, "data are shuffled, and larger batches cost little")] = 64,
        lr: Annotated[Positive, hp(1e-3, "for small networks and few updates")] = 1e-4,
        learn_step: Annotated[Count, hp(1, "each step is an update")] = 5,
        gamma: Annotated[Fraction, hp()] = 0.99,
        tau: Annotated[PositiveFraction, hp(0.01, "targets follow within a hundred updates")] = 1e-3,
        double: Annotated[bool, hp(True, "values are overestimated less, at no cost")] = False,
        normalize_images: bool = True,
        mut: str | None = None,
        actor_network: EvolvableModule | None = None,
        device: str | torch.device = "cpu",
        accelerator: foreign.Accelerator | None = None,
        wrap: bool = True,
        *,
        cudagraphs: bool = False,
        alpha: Annotated[NonNegative, hp()] = 1.0,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            observation_space, action_space, index, hp_config, net_config, batch_size, lr, learn_step, gamma, tau, mut,
            double, normalize_images, actor_network, device, accelerator, seed=seed,
        )  # fmt: skip
        self.alpha = alpha

    # --- learning ---------------------------------------------------------------------------------------------------

    def update_hyperparameters(self) -> dict[str, float]:
        return {**super().update_hyperparameters(), "alpha": self.alpha}

    def recipe(self) -> TDRecipe:
        return TDRecipe("actor", "optimizer", is_double=self.double, conservative="alpha")

    def update(self, engine: UpdateEngine, batch: TransitionBatch) -> UpdateResult:
        """Perform one Adam step on α R + ½ Σ_b w_b δ_b² (eq. 4 of the paper, R as in `conservative_penalty`), and one
        soft target update. The reported loss is α R + ½ of the mean squared TD error."""
        hp = engine.hp
        with torch.no_grad():
            if self.double:
                selector, next_q = engine.frozen_and_target("actor")(batch.next_obs)
            else:
                selector, next_q = None, engine.target("actor")(batch.next_obs)
            if batch.next_mask is not None:
                selector = (next_q if selector is None else selector).masked_fill(~batch.next_mask, float("-inf"))
            target = q_learning_target(batch.reward, batch.discounts(hp["gamma"]), next_q, selector)
        values, ran = engine.forward("actor", batch.obs)
        squared, of_errors, error = squared_td_error(values, batch.action, target, batch.weight)
        excess, of_excess = conservative_penalty(values, batch.action, batch.weight, batch.obs_mask)
        alpha = hp["alpha"]
        engine.descend("optimizer", ran, alpha.unsqueeze(-1) * of_excess + 0.5 * of_errors)
        engine.track("actor", hp["tau"])
        return UpdateResult(alpha.squeeze(-1) * excess + 0.5 * squared, priorities=error.abs())
