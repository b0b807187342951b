"""Truncated quantile critics: SAC with quantiles of the return (Kuznetsov et al. 2020, arXiv:2005.04269)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from agilerl.algorithms.base.actor_critic import CRITIC_OPTIMIZERS, CRITICS
from agilerl.algorithms.base.declared import OF_WEIGHTS, hp
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.algorithms.base.single_agent import UpdateLoss
from agilerl.algorithms.sac import SAC
from agilerl.core import foreign
from agilerl.core.ranges import Count, CountOrZero, Fraction, Number, Positive, PositiveFraction, StepsPerUpdate
from agilerl.engine.protocol import TransitionBatch, UpdateEngine
from agilerl.errors import AlgorithmError
from agilerl.losses.quantiles import quantile_huber, truncated_atoms
from agilerl.modules.base import EvolvableModule
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.distributions import squashed_normal_sample
from agilerl.networks.quantiles import QuantileCritic


class TQC(SAC):
    """Soft actor-critic whose two critics learn quantiles of the return; the largest ones are left out of targets.

    Departs from the paper: two critics instead of five, as in `SAC`.

    Args:
        action_space: Box with finite bounds.
        num_quantiles: K, quantiles per critic; fixed with the networks.
        dropped: quantiles per critic that targets leave out, the largest of all critics together. More lower the
            values more.

    See `SAC` for the other arguments.
    """

    action_spaces = ("Box",)
    criterion = UpdateLoss(lambda _: nn.HuberLoss())  # of the critics, before the weights of the levels

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
        num_quantiles: Annotated[Count, hp(fixed="the critics have one output for each")] = 25,
        dropped: Annotated[CountOrZero, hp()] = 2,
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
        self.num_quantiles, self.dropped = num_quantiles, dropped
        super().__init__(
            observation_space, action_space, index, hp_config, net_config, batch_size, lr_actor, lr_critic, lr_alpha,
            learn_step, gamma, tau, normalize_images, mut, init_temperature, target_entropy, learn_temperature,
            actor_network, critic_networks, share_encoders, device, accelerator, wrap, seed=seed,
        )  # fmt: skip
        if isinstance(self.critic_1, QuantileCritic):  # given networks determine this
            self.num_quantiles = self.critic_1.num_quantiles
        self.update_options()

    def critic_type(self) -> tuple[type[EvolvableNetwork], dict[str, Any]]:
        return QuantileCritic, {"num_quantiles": self.num_quantiles}

    # --- learning --------------------------------------------------------------------------------------------------

    def update_options(self) -> tuple[Any, ...]:
        if self.dropped >= self.num_quantiles:
            raise AlgorithmError(
                f"TQC: dropped must lie below num_quantiles={self.num_quantiles}; got {self.dropped}. "
                "fix: dropped=2, or more quantiles."
            )
        return *super().update_options(), self.dropped

    def recipe(self) -> None:  # type: ignore[override]
        return None

    def _update_critics(self, engine: UpdateEngine, batch: TransitionBatch, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Perform one step of both critics on the mean quantile Huber loss against the truncated target.

        y_i = r + γ(1 − terminated) · (z_(i)(s', a') − α log π(a'|s')), over the smallest atoms z_(i) of both target
        critics together (section 3 of the paper). "Errors" are the losses of the rows.
        """
        weight = batch.weight.unsqueeze(-1)
        with torch.no_grad():
            raw = engine.frozen("actor")(batch.next_obs)
            action, log_prob = squashed_normal_sample(raw, batch.noise["next_action"])
            atoms = truncated_atoms(engine.targets(CRITICS)(batch.next_obs, action), self.dropped)
            discount = batch.discounts(engine.hp["gamma"]).unsqueeze(-1)
            target = torch.addcmul(batch.reward.unsqueeze(-1), discount, atoms - (alpha * log_prob).unsqueeze(-1))
        values = engine.networks(CRITICS)(batch.obs, batch.action.to(batch.reward.dtype))  # [2, ..., B, K]
        losses, slope = (x / values.shape[-1] for x in quantile_huber(values, target))
        engine.minimise(
            CRITIC_OPTIMIZERS, (values * (weight * slope)).sum((-2, -1))
        )  # linear: the closed-form gradient
        return (batch.weight * losses).sum(-1), losses

    def _policy_loss(self, engine: UpdateEngine, batch: TransitionBatch, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Return (Σ_b w_b (α log π(a_b|s_b) − mean of all quantiles of both critics), the estimate of the entropy).

        Nothing is truncated here (section 3 of the paper).
        """
        action, log_prob = squashed_normal_sample(engine.network("actor")(batch.obs), batch.noise["action"])
        values = torch.stack([engine.through(name)(batch.obs, action).mean(-1) for name in CRITICS]).mean(0)
        return (batch.weight * (alpha * log_prob - values)).sum(-1), -log_prob.detach()
