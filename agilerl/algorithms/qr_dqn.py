"""Deep Q-learning with quantiles of the return (Dabney et al. 2018, arXiv:1710.10044)."""

from __future__ import annotations

from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from agilerl.algorithms.base.actions import uniform_actions
from agilerl.algorithms.base.declared import hp
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.algorithms.base.single_agent import UpdateLoss
from agilerl.algorithms.dqn import DQN
from agilerl.core import foreign
from agilerl.core.ranges import Count, Fraction, Positive, PositiveFraction, StepsPerUpdate
from agilerl.engine.protocol import Draws, Mask, TransitionBatch, UpdateEngine, UpdateResult
from agilerl.losses.quantiles import quantile_huber
from agilerl.losses.td import take_atoms
from agilerl.modules.base import EvolvableModule
from agilerl.networks.ensemble import Ensemble
from agilerl.networks.quantiles import QuantileQNetwork, by_quantile


class QRDQN(DQN):
    """Deep Q-network that learns quantiles of the return of every action, and acts by their mean.

    Args:
        num_quantiles: K, quantiles per action; fixed with the network.
        double: select the next action with the online network, and take the target network's quantiles of it.

    See `DQN` for the other arguments.
    """

    policy_class = QuantileQNetwork
    criterion = UpdateLoss(lambda _: nn.HuberLoss())  # before the weights of the levels

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: dict[str, Any] | None = None,
        batch_size: Annotated[Count, hp()] = 64,
        lr: Annotated[Positive, hp(1e-3, "for small networks and few steps")] = 1e-4,
        learn_step: Annotated[StepsPerUpdate, hp(4, "one update every four steps, as Mnih et al. 2015")] = 5,
        gamma: Annotated[Fraction, hp()] = 0.99,
        tau: Annotated[
            PositiveFraction, hp(0.01, "budgets of manifests are short: targets follow within a hundred updates")
        ] = 1e-3,
        mut: str | None = None,
        double: Annotated[bool, hp(True, "values are overestimated less, at no cost")] = False,
        normalize_images: bool = True,
        actor_network: EvolvableModule | None = None,
        device: str | torch.device = "cpu",
        accelerator: foreign.Accelerator | None = None,
        wrap: bool = True,
        *,
        num_quantiles: Annotated[
            Count, hp(16, "an update costs the square of it", fixed="the network has one output for each")
        ] = 200,
        seed: int | None = None,
    ) -> None:
        self.num_quantiles = num_quantiles
        super().__init__(
            observation_space, action_space, index, hp_config, net_config, batch_size, lr, learn_step, gamma, tau, mut,
            double, normalize_images, actor_network, device, accelerator, seed=seed,
        )  # fmt: skip
        network = self.actor.members[0] if isinstance(self.actor, Ensemble) else self.actor
        if isinstance(network, QuantileQNetwork):  # a given network determines this
            self.num_quantiles = network.num_quantiles

    def network_options(self) -> dict[str, Any]:
        return {"num_quantiles": self.num_quantiles}

    def action_values(self, outputs: Tensor) -> Tensor:
        """Return action values [..., A], the means of quantiles [..., A·K]."""
        return by_quantile(outputs, self.num_quantiles).mean(-1)

    def greedy(self, outputs: Tensor, mask: Mask = None) -> np.ndarray:
        """Return the legal action of highest value for quantiles [..., A·K]; see `DQN`."""
        return super().greedy(self.action_values(outputs), mask)

    def explore(self, outputs: Tensor, draws: Draws, epsilon: float, mask: Mask = None) -> np.ndarray:
        """Select actions ε-greedily for quantiles [..., A·K]; see `DQN`."""
        explores, which = draws
        random = uniform_actions(which, outputs.shape[-1] // self.num_quantiles, mask)
        return np.where(explores < epsilon, random, self.greedy(outputs, mask))

    def update_options(self) -> tuple[Any, ...]:
        return self.double, self.num_quantiles

    def recipe(self) -> None:  # type: ignore[override]
        return None

    def update(self, engine: UpdateEngine, batch: TransitionBatch) -> UpdateResult:
        """Perform one Adam step on the quantile Huber loss of the taken actions (algorithm 1 of the paper), and one
        soft target update. Priorities are the losses of the rows."""
        hp = engine.hp
        with torch.no_grad():
            if self.double:
                selector, following = engine.frozen_and_target("actor")(batch.next_obs)
            else:
                selector = following = engine.target("actor")(batch.next_obs)
            ranking = self.action_values(selector)
            if batch.next_mask is not None:  # illegal actions are never taken, so their returns are never learned
                ranking = ranking.masked_fill(~batch.next_mask, float("-inf"))
            chosen = take_atoms(by_quantile(following, self.num_quantiles), ranking.max(-1).indices)
            discount = batch.discounts(hp["gamma"]).unsqueeze(-1)
            target = torch.addcmul(batch.reward.unsqueeze(-1), discount, chosen)
        output, ran = engine.forward("actor", batch.obs)
        quantiles = by_quantile(output, self.num_quantiles)
        losses, slope = quantile_huber(take_atoms(quantiles, batch.action), target)
        index = batch.action[..., None, None].expand(*batch.action.shape, 1, self.num_quantiles)
        weighted = (batch.weight.unsqueeze(-1) * slope).unsqueeze(-2)
        grad = torch.zeros_like(quantiles).scatter_(-2, index, weighted)
        engine.descend("optimizer", ran, grad.flatten(-2))
        engine.track("actor", hp["tau"])
        return UpdateResult((batch.weight * losses).sum(-1), priorities=losses)
