"""Deep Q-learning with soft targets, optionally double (Mnih et al. 2015; van Hasselt et al. 2016)."""

from __future__ import annotations

from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.base.actions import (
    DiscreteActions,
    choices_of,
    legal_joint_actions,
    masked_argmax,
    seen_with_mask,
    uniform_actions,
)
from agilerl.algorithms.base.building import build, register_network
from agilerl.algorithms.base.declared import hp
from agilerl.algorithms.base.optimizer import OptimizerWrapper
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.algorithms.base.single_agent import RLAlgorithm, UpdateLoss
from agilerl.core import foreign
from agilerl.core.ranges import Count, Fraction, Positive, PositiveFraction, StepsPerUpdate
from agilerl.core.tree import Tree
from agilerl.engine.modules import raw_output, soft_update
from agilerl.engine.protocol import Draws, Mask, TransitionBatch, UpdateEngine, UpdateResult
from agilerl.engine.recipes import TDRecipe
from agilerl.errors import ShapeError
from agilerl.losses.td import q_learning_target, squared_td_error
from agilerl.modules.base import EvolvableModule
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.q_networks import QNetwork


class DQN(RLAlgorithm):
    """Deep Q-network.

    Args:
        observation_space: Box (vectors and images), Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of them.
        action_space: Discrete or MultiDiscrete; a MultiDiscrete space has one value per combination of actions.
        index: unique id within the population.
        hp_config: mutable hyperparameters, among lr, batch_size, learn_step, gamma, tau.
        net_config: `{"encoder_config": {"hidden_size": [..]}, "head_config": {..}, "latent_dim": ..}`.
        batch_size: transitions per update.
        lr: learning rate of Adam.
        learn_step: environment steps per update; with E environments and `learn_step` <= E there are E // learn_step
            updates per vector step, otherwise one every learn_step // E vector steps.
        gamma: discount per step, in [0, 1].
        tau: weight of the online network in each soft target update, in (0, 1].
        mut: label of the last mutation.
        double: select the next action with the online network and evaluate it with the target network.
        normalize_images: divide images with values from 0 to 255 by 255.
        actor_network: a Q-network to use instead of building one.
        device: device of the networks and batches.
        accelerator: stored only, see `EvolvableAlgorithm`.
        cudagraphs, wrap: accepted for compatibility; ignored.
        seed: seed of weights, exploration and evaluation; None follows `torch.initial_seed()`.
    """

    policy_class: type[EvolvableNetwork] = QNetwork
    action_spaces = ("Discrete", "MultiDiscrete")
    action_form = DiscreteActions()
    criterion = UpdateLoss()
    cudagraphs = capturable = False  # published attributes

    actor_target: EvolvableModule
    optimizer: OptimizerWrapper

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
        double: Annotated[
            bool, hp(True, "values are overestimated less, at no cost (van Hasselt et al. 2016)")
        ] = False,
        normalize_images: bool = True,
        actor_network: EvolvableModule | None = None,
        device: str | torch.device = "cpu",
        accelerator: foreign.Accelerator | None = None,
        cudagraphs: bool = False,
        wrap: bool = True,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, index, hp_config, device, accelerator, seed=seed)
        choices_of(self)
        self.batch_size, self.lr, self.learn_step, self.gamma, self.tau = batch_size, lr, learn_step, gamma, tau
        self.mut, self.double, self.normalize_images, self.net_config = mut, double, normalize_images, net_config
        self.actor = build(self, self.policy_class, actor_network, "actor_network", 0, **self.network_options())
        register_network(self, "actor", "actor_target", "optimizer", "lr", policy=True)

    def network_options(self) -> dict[str, Any]:
        """Return arguments of the network besides those of `net_config`."""
        return {}

    def update_hyperparameters(self) -> dict[str, float]:
        return {"lr": self.lr, "gamma": self.gamma, "tau": self.tau}

    def update_options(self) -> tuple[Any, ...]:
        return (self.double,)

    def recipe(self) -> TDRecipe:
        return TDRecipe("actor", "optimizer", is_double=self.double)

    def update(self, engine: UpdateEngine, batch: TransitionBatch) -> UpdateResult:
        """Perform one Adam step on the squared TD error of the taken actions, and one soft target update."""
        hp = engine.hp
        with torch.no_grad():
            if self.double:
                selector, next_q = engine.frozen_and_target("actor")(batch.next_obs)
            else:
                selector, next_q = None, engine.target("actor")(batch.next_obs)
            if batch.next_mask is not None:  # illegal actions are never taken, so their values are never learned
                selector = (next_q if selector is None else selector).masked_fill(~batch.next_mask, float("-inf"))
            target = q_learning_target(batch.reward, batch.discounts(hp["gamma"]), next_q, selector)
        values, ran = engine.forward("actor", batch.obs)
        loss, grad, error = squared_td_error(values, batch.action, target, batch.weight)
        engine.descend("optimizer", ran, grad)
        engine.track("actor", hp["tau"])
        return UpdateResult(loss, priorities=error.abs())

    def soft_update(self) -> None:
        """Perform one soft target update with `tau`."""
        soft_update(self.actor, self.actor_target, self.tau)

    # --- acting ----------------------------------------------------------------------------------------------------

    def greedy(self, outputs: Tensor, mask: Mask = None) -> np.ndarray:
        """Return the legal action of highest value; outputs [..., A], mask [..., A] 1 = legal; returns [...] int64."""
        return masked_argmax(outputs, mask)

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Draws:
        """Draw uniform numbers in [0, 1): the first decides whether to explore, the second selects the action."""
        return rng.random(shape), rng.random(shape)

    def explore(self, outputs: Tensor, draws: Draws, epsilon: float, mask: Mask = None) -> np.ndarray:
        """Select actions ε-greedily: with probability ε a uniformly random legal action, else the greedy one.

        Args:
            outputs: [..., A] action values. draws: result of `draw_exploration`, each [...].
            epsilon: probability of a random action, independent per row.
            mask: [..., A], 1 = legal.
        """
        explores, which = draws
        random = uniform_actions(which, outputs.shape[-1], mask)
        return np.where(explores < epsilon, random, self.greedy(outputs, mask))

    def get_action(
        self, obs: Tree, epsilon: float = 0.0, action_mask: np.ndarray | None = None, **kwargs: Any
    ) -> np.ndarray:
        """Select ε-greedy actions.

        Args:
            obs: one observation or a batch [E, ...], numpy or torch.
            epsilon: probability of a random action, independent per row.
            action_mask: [A] or [E, A], 1 = legal; A counts the choices of all components of a MultiDiscrete space.

        Returns:
            [E] int64, [1] for one observation; [E, *shape] for a MultiDiscrete space.
        """
        if kwargs:
            raise TypeError(f"DQN.get_action got unexpected arguments {sorted(kwargs)}; it takes epsilon, action_mask")
        obs, action_mask = seen_with_mask(self, obs, action_mask)
        with torch.no_grad():
            values = raw_output(self.actor)(self.network_inputs(self.actor, obs))
        values = values.unsqueeze(0) if values.dim() == 1 else values  # user-defined module, one observation
        if values.dim() != 2:
            raise ShapeError(
                f"DQN.get_action got observations with {values.dim() - 1} leading axes, for {self.observation_space}. "
                "fix: one observation, or one leading axis: [E, ...]."
            )
        count = len(values)
        mask = legal_joint_actions(self, action_mask, count)
        if epsilon <= 0:
            return self.environment_action(self.greedy(values, mask))
        draws = self.draw_exploration(self._exploration, (count,))
        return self.environment_action(self.explore(values, draws, epsilon, mask))
