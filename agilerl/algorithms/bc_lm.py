"""Behaviour cloning of a language policy: maximum likelihood of the data's utterances."""

from __future__ import annotations

from typing import Annotated, Any

import gymnasium as gym
import torch
from torch import Tensor

from agilerl.algorithms.base.building import register_network
from agilerl.algorithms.base.declared import hp
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.core import foreign
from agilerl.core.ranges import Count, Positive
from agilerl.engine.protocol import TransitionBatch, UpdateEngine, UpdateResult
from agilerl.language.algorithms.tokens import TokenAlgorithm, build_network
from agilerl.losses.language import token_values, token_weights
from agilerl.losses.offline import cloning_likelihood
from agilerl.modules.base import EvolvableModule


class BC_LM(TokenAlgorithm):
    """Behaviour cloning of the utterances in the data, regardless of reward.

    Args:
        observation_space, action_space: text spaces, see `agilerl.networks.language.vocabularies`.
        hp_config: mutable hyperparameters: any numeric argument.
        net_config: arguments of `EvolvableGPT`, such as n_layer, n_embd, n_head, dim_feedfwd.
        batch_size: texts per update. lr: learning rate of Adam.
        learn_step: ignored offline; every step is one gradient update.
        actor_network: a `TokenNetwork` to use instead of building one.

    See `DQN` for the other arguments.
    """

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
        mut: str | None = None,
        actor_network: EvolvableModule | None = None,
        device: str | torch.device = "cpu",
        accelerator: foreign.Accelerator | None = None,
        wrap: bool = True,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(observation_space, action_space, index, hp_config, device, accelerator, seed=seed)
        self.batch_size, self.lr, self.learn_step = batch_size, lr, learn_step
        self.mut, self.net_config = mut, net_config
        self.actor = build_network(self, actor_network, with_values=False)
        register_network(self, "actor", None, "optimizer", "lr", policy=True)

    def update_hyperparameters(self) -> dict[str, float]:
        return {"lr": self.lr}

    def update(self, engine: UpdateEngine, batch: TransitionBatch) -> UpdateResult:
        """Perform one Adam step on the mean of −log π(a|h) over the policy's own tokens."""
        text, weight = batch.obs, token_weights(batch.action.bool(), batch.weight, engine.ranks.mean)
        log_prob = token_values(engine.network("actor")(text).log_softmax(-1), text)
        loss = cloning_likelihood(log_prob.flatten(-2), weight.flatten(-2))
        engine.minimise("optimizer", loss)
        return UpdateResult(loss.detach())

    # --- data and acting ----------------------------------------------------------------------------------------------

    def token_scores(self, outputs: Tensor) -> Tensor:
        """Return next-token logits [..., V] from outputs [..., V] of the network."""
        return outputs.clone()
