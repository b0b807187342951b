"""Implicit language Q-learning, offline (Snell et al. 2022, arXiv:2206.11871)."""

from __future__ import annotations

from typing import Annotated, Any

import gymnasium as gym
import torch
from torch import Tensor

from agilerl.algorithms.base.building import register_network
from agilerl.algorithms.base.declared import hp
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.core import foreign
from agilerl.core.ranges import Count, Fraction, NonNegative, Positive, PositiveFraction
from agilerl.engine.modules import soft_update
from agilerl.engine.protocol import TransitionBatch, UpdateEngine, UpdateResult
from agilerl.language.algorithms.tokens import PAD, TokenAlgorithm, build_network
from agilerl.losses.actor_critic import bootstrap
from agilerl.losses.language import perturbed_logits, state_after, state_before, token_values, token_weights
from agilerl.losses.offline import cloning_likelihood, expectile_loss
from agilerl.modules.base import EvolvableModule


class ILQL(TokenAlgorithm):
    """Implicit Q-learning with tokens as actions, and a cloned policy that is reweighted by the values.

    One decoder outputs the logits of the cloned policy, two values per token and one per state. The state values are
    learned from the token values of its soft-updated target.

    Args:
        observation_space, action_space: text spaces, see `agilerl.networks.language.vocabularies`.
        hp_config: mutable hyperparameters: any numeric argument.
        net_config: arguments of `EvolvableGPT`, such as n_layer, n_embd, n_head, dim_feedfwd.
        batch_size: texts per update. lr: learning rate of Adam.
        learn_step: ignored offline; every step is one gradient update.
        gamma: discount per token of the policy. tau: weight of the online network in target updates.
        expectile: τ of the paper: 0.5 is the mean value of the data's tokens; it approaches their maximum as τ goes to
            1.
        alpha: weight of the conservative term, which lowers the values of out-of-distribution tokens.
        inverse_temperature: β: 0 is behaviour cloning; larger values follow the values.
        actor_network: a `TokenNetwork` with values to use instead of building one.

    See `DQN` for the other arguments.
    """

    actor_target: EvolvableModule

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: dict[str, Any] | None = None,
        batch_size: Annotated[Count, hp()] = 64,
        lr: Annotated[Positive, hp()] = 1e-3,
        learn_step: Annotated[Count, hp()] = 1,
        gamma: Annotated[Fraction, hp()] = 0.99,
        tau: Annotated[PositiveFraction, hp()] = 0.1,
        expectile: Annotated[PositiveFraction, hp()] = 0.7,
        alpha: Annotated[NonNegative, hp()] = 0.1,
        inverse_temperature: Annotated[NonNegative, hp()] = 4.0,
        mut: str | None = None,
        actor_network: EvolvableModule | None = None,
        device: str | torch.device = "cpu",
        accelerator: foreign.Accelerator | None = None,
        wrap: bool = True,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, index, hp_config, device, accelerator, seed=seed)
        self.batch_size, self.lr, self.learn_step, self.gamma, self.tau = batch_size, lr, learn_step, gamma, tau
        self.expectile, self.alpha, self.inverse_temperature = expectile, alpha, inverse_temperature
        self.mut, self.net_config = mut, net_config
        self.actor = build_network(self, actor_network, with_values=True)
        register_network(self, "actor", "actor_target", "optimizer", "lr", policy=True)

    def update_hyperparameters(self) -> dict[str, float]:
        return self._numbers("lr", "gamma", "tau", "expectile", "alpha", "inverse_temperature")

    def update(self, engine: UpdateEngine, batch: TransitionBatch) -> UpdateResult:
        """Perform one Adam step on all of the paper's losses (section 4), and one soft target update.

        Value: |τ − 1(u < 0)| u², u = min_i Q_i⁻(h, a) − V(h). Q: Σ_i (r + γ (1 − terminated) V(h') − Q_i(h, a))², where
        h' is the state of the policy's next token. Conservative: α Σ_i (log Σ_a' exp Q_i(h, a') − Q_i(h, a)).
        Policy: −log π_β(a|h). Each is the mean over the policy's own tokens.
        """
        hp, text, mask = engine.hp, batch.obs, batch.action.bool()
        weight = token_weights(mask, batch.weight, engine.ranks.mean)
        logits, values, states = self.parts(engine.network("actor")(text))
        with torch.no_grad():
            _, target_values, _ = self.parts(engine.target("actor")(text))
            best = token_values(target_values.amin(0), text)
            length = (text != PAD).sum(-1)
            later = state_after(states, mask, length)
            target = bootstrap(batch.reward, batch.discounts(hp["gamma"]), later)
        flat = weight.flatten(-2)
        value_loss = expectile_loss((best - state_before(states)).flatten(-2), hp["expectile"], flat)
        errors = torch.stack([token_values(each, text) - target for each in values])
        q_loss = (weight * errors.square()).sum((-2, -1)).sum(0)
        # Q(a) − log Σ exp Q is the log-likelihood of the token under Q as logits.
        likely = torch.stack([token_values(each.log_softmax(-1), text) for each in values])
        conservative = cloning_likelihood(likely.flatten(-2), flat).sum(0)
        critic_loss = value_loss + q_loss + hp["alpha"] * conservative
        cloning = cloning_likelihood(token_values(logits.log_softmax(-1), text).flatten(-2), flat)
        engine.minimise("optimizer", critic_loss + cloning)
        engine.track("actor", hp["tau"])
        return UpdateResult(critic_loss.detach(), cloning.detach())

    def parts(self, outputs: Tensor) -> Any:
        """Return (logits, values of tokens, values of states) from the network's outputs, see `TokenNetwork.parts`."""
        network: Any = self.actor
        return network.parts(outputs)

    def soft_update(self) -> None:
        """Perform one soft target update with `tau`."""
        soft_update(self.actor, self.actor_target, self.tau)

    # --- data and acting ----------------------------------------------------------------------------------------------

    def token_scores(self, outputs: Tensor) -> Tensor:
        """Return next-token logits [..., V] from outputs [..., 3 V + 1], with the lower of both values."""
        logits, values, state = self.parts(outputs)
        return perturbed_logits(logits, values.amin(0), state, torch.as_tensor(self.inverse_temperature))
