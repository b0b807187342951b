"""The clipped policy gradient of one minibatch, for a single agent or a group of agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from agilerl.core.backward import with_precomputed_gradient
from agilerl.engine.protocol import RolloutBatch
from agilerl.errors import ConfigError, ShapeError
from agilerl.losses.actor_critic import approximate_kl, categorical_gradient, clipped_surrogate
from agilerl.modules.paths import resolve
from agilerl.networks.distributions import ActionDistribution, Least, masked_logits, squashed_normal_sample


class PolicyUnit:
    """Agent attribute that is read from the agent's policies (`_sampling_actors()`): a unit of their Box actions.

    It is saved with the policies. Assigning another value raises ConfigError.

    Args:
        name: attribute name. usual: default for user-defined policy modules.
    """

    def __init__(self, name: str, usual: Any) -> None:
        self.name, self.usual = name, usual

    def __get__(self, agent: Any, owner: type) -> Any:
        if agent is None:
            return self
        declared = {resolve(actor, self.name) for actor in agent._sampling_actors()}
        return max(declared, default=agent.__dict__.get(self.name, self.usual))

    def __set__(self, agent: Any, value: Any) -> None:
        now = self.__get__(agent, type(agent))
        if value != now:
            raise ConfigError(
                f"{agent.algo}: {self.name}={value!r} would change the units of a policy that has {now!r}. "
                "fix: leave it out, or new agents."
            )


def policy_gradient(
    kind: ActionDistribution, raw: Tensor, action: Tensor, batch: RolloutBatch, hp: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return (surrogate loss, mean entropy, divergence, each [...]; gradient of surrogate − c_e H at `raw`).

    Args:
        raw: [..., B, raw_size] constants. action: [..., B, A], or int64 [..., B] for one choice.
        hp: `clip_coef` and `ent_coef`.
    """
    weight = batch.weight
    of_entropy = -hp["ent_coef"] * weight
    if kind.kind == "categorical":
        logits = masked_logits(raw, batch.legal)
        log_probabilities = logits.log_softmax(-1)
        log_prob = log_probabilities.gather(-1, action.unsqueeze(-1)).squeeze(-1)
        entropy = -(log_probabilities.exp() * log_probabilities).sum(-1)
        loss, slope = clipped_surrogate(log_prob, batch.log_prob, batch.advantage, hp["clip_coef"], weight)
        gradient = categorical_gradient(logits, action, slope, of_entropy)
        if batch.legal is not None:
            gradient = gradient.masked_fill(~batch.legal, 0)
    else:
        leaf = raw.requires_grad_()
        with torch.enable_grad():
            log_prob = kind.log_prob(leaf, action, batch.legal)
            is_squashed = kind.kind == "squashed"
            entropy = sampled_entropy(leaf, batch, kind.least) if is_squashed else kind.entropy(leaf, batch.legal)
        with torch.no_grad():
            loss, slope = clipped_surrogate(log_prob, batch.log_prob, batch.advantage, hp["clip_coef"], weight)
        (gradient,) = torch.autograd.grad(with_precomputed_gradient((log_prob, entropy), (slope, of_entropy)), leaf)
        log_prob, entropy = log_prob.detach(), entropy.detach()
    divergence = approximate_kl(log_prob, batch.log_prob, weight)
    return loss, (weight * entropy).sum(-1), divergence, gradient


def sampled_entropy(raw: Tensor, batch: RolloutBatch, least: Least) -> Tensor:
    """Return −log π(a) [..., B] of actions a = tanh(μ + σ ε) of the current policy, differentiable through a.

    A squashed normal has no closed-form entropy. −log π of the stored actions is not a substitute: its gradient has
    expectation 0 whatever the entropy is (the score function has mean 0).
    """
    if batch.noise is None:
        raise ShapeError("a minibatch for a squashed policy needs noise. fix: RolloutBatch(..., noise=[..., B, A]).")
    return -squashed_normal_sample(raw, batch.noise, least)[1]
