"""Rainbow: the combined improvements of deep Q-learning (Hessel et al. 2018, arXiv:1710.02298), each switchable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

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
from agilerl.algorithms.base.registry import HyperparameterConfig, follow
from agilerl.algorithms.base.single_agent import RLAlgorithm, UpdateLoss
from agilerl.algorithms.base.transitions import check_same_rows, experience_fields, side_by_side
from agilerl.core import foreign
from agilerl.core.ranges import Atoms, Count, Fraction, NonNegative, Number, Positive, PositiveFraction, StepsPerUpdate
from agilerl.core.tree import Tree
from agilerl.engine.modules import soft_update
from agilerl.engine.protocol import Draws, Mask, TransitionBatch, UpdateEngine, UpdateResult
from agilerl.errors import ShapeError
from agilerl.losses.actor_critic import weighted_squared_error
from agilerl.losses.td import categorical_divergence, expected_index, project, q_learning_target, take, take_atoms
from agilerl.modules.base import EvolvableModule
from agilerl.modules.layers import layer_noise, set_noise
from agilerl.networks.ensemble import Ensemble
from agilerl.networks.q_networks import RainbowQNetwork, check_support


class RainbowDQN(RLAlgorithm):
    """Double, duelling, distributional (C51), noisy Q-learning with n-step and prioritised replay.

    Args:
        hp_config: mutable hyperparameters, any numeric argument but `n_step`. A new `num_atoms` keeps the weights, a
            new `noise_std` rescales the learned noise, `v_min` and `v_max` move the support.
        beta: initial importance-sampling exponent, for `memory.sample(batch_size, agent.beta)`.
        prior_eps: added to every new priority.
        num_atoms, v_min, v_max: support of the return distributions.
        noise_std: initial scale of the noise in noisy layers.
        n_step: number of steps of the `n_experiences` passed to `learn`.
        combined_reward: learn from one-step and n-step transitions together if `learn` receives both.
        double, dueling, distributional, noisy: switches of the improvements. Without `noisy` exploration is ε-greedy;
            without `distributional` the loss is the squared TD error.

    See `DQN` for the other arguments.
    """

    policy_class = RainbowQNetwork
    action_spaces = ("Discrete", "MultiDiscrete")
    action_form = DiscreteActions()
    criterion = UpdateLoss(lambda a: nn.KLDivLoss(reduction="batchmean") if a.distributional else nn.MSELoss())

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
        learn_step: Annotated[StepsPerUpdate, hp(4, "one update every four steps, as Hessel et al. 2018")] = 5,
        gamma: Annotated[Fraction, hp()] = 0.99,
        tau: Annotated[
            PositiveFraction, hp(0.01, "budgets of manifests are short: targets follow within a hundred updates")
        ] = 1e-3,
        beta: Annotated[Fraction, hp()] = 0.4,
        prior_eps: Annotated[NonNegative, hp()] = 1e-6,
        num_atoms: Annotated[Atoms, hp()] = 51,
        v_min: Annotated[Number, hp(-100.0, "returns may be negative")] = 0.0,
        v_max: Annotated[Number, hp(100.0, "as wide as v_min below zero")] = 200.0,
        noise_std: Annotated[Positive, hp()] = 0.5,
        n_step: Annotated[Count, hp(fixed="the replay memory sums the rewards")] = 3,
        mut: str | None = None,
        normalize_images: bool = True,
        combined_reward: bool = False,
        actor_network: EvolvableModule | None = None,
        device: str | torch.device = "cpu",
        accelerator: foreign.Accelerator | None = None,
        wrap: bool = True,
        *,
        double: Annotated[bool, hp()] = True,
        dueling: Annotated[bool, hp()] = True,
        distributional: Annotated[bool, hp()] = True,
        noisy: Annotated[bool, hp()] = True,
        seed: int | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, index, hp_config, device, accelerator, seed=seed)
        choices_of(self)
        self.net_config = net_config
        options: dict[str, Any] = {"num_atoms": num_atoms, "v_min": v_min, "v_max": v_max, "noise_std": noise_std}
        options |= {"dueling": dueling, "distributional": distributional, "noisy": noisy}
        network = build(self, RainbowQNetwork, actor_network, "actor_network", 0, **options)
        if isinstance(network, RainbowQNetwork):  # a given network determines these options
            num_atoms, v_min, v_max = network.num_atoms, network.v_min, network.v_max
            distributional, dueling, noisy = network.distributional, network.dueling, network.noisy
            noise_std = network.noise_std
        self.batch_size, self.lr, self.learn_step, self.gamma, self.tau = batch_size, lr, learn_step, gamma, tau
        self.beta, self.prior_eps, self.n_step, self.combined_reward = beta, prior_eps, n_step, combined_reward
        self.num_atoms, self.v_min, self.v_max = check_support(num_atoms, v_min, v_max)
        self.noise_std = noise_std
        self.double, self.dueling, self.distributional, self.noisy = double, dueling, distributional, noisy
        self.mut, self.normalize_images = mut, normalize_images
        self.actor = network
        register_network(self, "actor", "actor_target", "optimizer", "lr", policy=True)
        follow(self, "_follow_in_networks", "num_atoms", "v_min", "v_max", "noise_std")

    # --- hyperparameters stored in the networks --------------------------------------------------------------------

    def _follow_in_networks(self, name: str, value: Any) -> None:
        """Apply a new value of one of these four hyperparameters to policy, target and optimiser."""
        for network in (self.actor, self.actor_target):
            if not isinstance(network, RainbowQNetwork):
                continue
            if name == "num_atoms":
                network.set_num_atoms(value)
            elif name == "noise_std":
                network.set_noise_std(value)
            else:
                setattr(network, name, float(value))
        if name == "num_atoms" and isinstance(self.actor, RainbowQNetwork):
            self.actor_target.requires_grad_(False)
            self.optimizer.rebuild({"actor": self.actor}, {"actor": self.actor.last_transfer})

    # --- learning --------------------------------------------------------------------------------------------------

    def update_hyperparameters(self) -> dict[str, float]:
        check_support(self.num_atoms, self.v_min, self.v_max)
        return self._numbers("lr", "gamma", "tau", "v_min", "v_max", "prior_eps")

    def update_options(self) -> tuple[Any, ...]:
        return self.double, self.dueling, self.distributional, self.noisy, self.combined_reward

    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Draw new noise of both networks for every update."""
        if not self.noisy:
            return {}
        return {name: layer_noise(self.actor, rng, shape[0]) for name in ("layers", "target_layers")}

    def update(self, engine: UpdateEngine, batch: TransitionBatch) -> UpdateResult:
        """Perform one step on D_KL(Φ T z ‖ z) (section 3 of the paper) or the squared TD error, and a soft update."""
        hp = engine.hp
        if self.noisy:
            engine.set_noise("actor", batch.noise["layers"], batch.noise["target_layers"])
        with torch.no_grad():
            if self.double:
                selector, valuer = engine.frozen_and_target("actor")(batch.next_obs)
            else:
                selector = valuer = engine.target("actor")(batch.next_obs)
            ranking = expected_index(selector) if self.distributional else selector
            if batch.next_mask is not None:  # illegal actions are never taken, so their values are never learned
                ranking = ranking.masked_fill(~batch.next_mask, float("-inf"))
            discount = batch.discounts(hp["gamma"])
            if self.distributional:
                chosen = take_atoms(valuer, ranking.max(-1).indices).softmax(-1)
                target = project(chosen, batch.reward, discount, hp["v_min"], hp["v_max"])
            else:
                target = q_learning_target(batch.reward, discount, valuer, ranking)
        values = engine.network("actor")(batch.obs)
        if self.distributional:
            each = categorical_divergence(take_atoms(values, batch.action), target)
            loss = (batch.weight * each).sum(-1)
        else:
            loss, each = weighted_squared_error(take(values, batch.action), target, batch.weight)
        engine.minimise("optimizer", loss)
        engine.track("actor", hp["tau"])
        return UpdateResult(loss.detach(), priorities=each.detach().abs() + hp["prior_eps"])

    def learn_from(
        self, experiences: Mapping[str, Any] | Sequence[Any],
        n_experiences: Mapping[str, Any] | Sequence[Any] | None = None, per: bool = False,
    ) -> tuple[float, Any, np.ndarray | None]:  # fmt: skip
        """Perform one update.

        Args:
            experiences: sampled one-step transitions, see `RLAlgorithm.learn`; with `per` also `weights` and `idxs` [B,
                1]. `discount` [B], if present, replaces γ·(1 − done).
            n_experiences: n-step transitions of the same rows; they replace the one-step ones, or are added to them
                with `combined_reward`.
            per: weight rows by `weights`, and return new priorities.

        Returns:
            (loss before the update, `idxs` of the batch or None, new priorities [B] or None without `per`).
        """
        fields = experience_fields(experiences)
        if per and "weights" not in fields:
            raise ShapeError("RainbowDQN.learn(per=True) got no weights. fix: sample a PrioritizedReplayBuffer.")
        if not per:
            fields.pop("weights", None)
        batch = self._batch(fields, 1)
        size = batch.reward.shape[0]
        if n_experiences is not None:
            later = self._batch(n_experiences, self.n_step)
            check_same_rows(self.algo, size, later.reward.shape[0])
            later = replace(later, weight=batch.weight)
            batch = side_by_side(batch, later) if self.combined_reward else later
        result = self.learn_batch(batch)
        priorities = result.priorities if per else None
        new_priorities = None if priorities is None else priorities.reshape(-1, size).sum(0).cpu().numpy()
        return float(result.loss), fields.get("idxs"), new_priorities

    def _batch(self, experiences: Mapping[str, Any] | Sequence[Any], steps: int) -> TransitionBatch:
        """Build a batch with the `discount` [B] of `steps` steps, unless a discount is stored with it."""
        batch = self.make_batch(experiences)
        if batch.discount is not None:
            return batch
        return replace(batch, discount=self.gamma**steps * (1 - batch.done))

    def soft_update(self) -> None:
        """Perform one soft target update with `tau`."""
        soft_update(self.actor, self.actor_target, self.tau)

    # --- acting ----------------------------------------------------------------------------------------------------

    @property
    def _has_atoms(self) -> bool:
        """Whether raw outputs are distributions [..., A, K]; an ensemble has their expected values."""
        policy = self.actor
        has_values = isinstance(policy, Ensemble) and isinstance(policy.members[0], RainbowQNetwork)
        return self.distributional and not has_values

    def _values(self, outputs: Tensor) -> Tensor:
        """Return action values [..., A] from raw outputs."""
        return expected_index(outputs) if self._has_atoms else outputs

    def greedy(self, outputs: Tensor, mask: Mask = None) -> np.ndarray:
        """Return the legal action of highest expected return; mask [..., A] 1 = legal; returns [...] int64."""
        return masked_argmax(self._values(outputs), mask)

    def draw_acting_noise(self, rng: np.random.Generator, count: int) -> np.ndarray | None:
        """Draw new noise for every vector step, [count, S]."""
        return layer_noise(self.actor, rng, count) if self.noisy else None

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Draws:
        """Draw uniform numbers for ε-greedy actions; none with noisy layers."""
        return (np.zeros(shape),) if self.noisy else (rng.random(shape), rng.random(shape))

    def explore(self, outputs: Tensor, draws: Draws, epsilon: float, mask: Mask = None) -> np.ndarray:
        """Return the greedy action under the noise of the outputs; ε-greedy without noisy layers."""
        if self.noisy:
            return self.greedy(outputs, mask)
        values = self._values(outputs)
        random = uniform_actions(draws[1], values.shape[-1], mask)
        return np.where(draws[0] < epsilon, random, masked_argmax(values, mask))

    def get_action(
        self, obs: Tree, action_mask: np.ndarray | None = None, training: bool | None = None, *, epsilon: float = 0.0
    ) -> np.ndarray:
        """Select actions [E] int64, [1] for one observation.

        Args:
            obs: one observation or a batch [E, ...], numpy or torch.
            action_mask: [A] or [E, A], 1 = legal.
            training: whether to apply noise; None: according to the agent's mode.
            epsilon: probability of a random action, without noisy layers.
        """
        obs, action_mask = seen_with_mask(self, obs, action_mask)
        noisy = self.actor.training if training is None else training
        if self.noisy and noisy:
            set_noise(self.actor, torch.from_numpy(layer_noise(self.actor, self._exploration, 1)[0]))
        with torch.no_grad():
            outputs = self.policy_output(obs, noisy)
        outputs = outputs.unsqueeze(0) if outputs.dim() == 1 + self._has_atoms else outputs
        values = self._values(outputs)
        mask = legal_joint_actions(self, action_mask, len(values))
        if self.noisy or epsilon <= 0:
            return self.environment_action(masked_argmax(values, mask))
        draws = (self._exploration.random(values.shape[:-1]), self._exploration.random(values.shape[:-1]))
        return self.environment_action(self.explore(outputs, draws, epsilon, mask))

    def _greedy(self, obs: Tree, mask: Mask = None) -> np.ndarray:
        return self.get_action(obs, mask, training=False)
