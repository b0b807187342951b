"""One minibatch of PPO: the clipped surrogate, the value loss and the entropy, over rows or modules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.ppo_policy import StochasticPolicyAgent, hidden_of
from agilerl.engine.protocol import UpdateEngine, UpdateResult
from agilerl.engine.rollout_batch import RolloutBatch
from agilerl.errors import ShapeError
from agilerl.losses.policy import approximate_kl, categorical_gradient, clipped_surrogate, clipped_value_loss
from agilerl.networks.distributions import masked_logits, squashed_normal_sample


class PPOUpdate(StochasticPolicyAgent):
    """What `PPO` minimises, and the hyperparameters that it reads for that."""

    lr: float
    clip_coef: float
    ent_coef: float
    vf_coef: float
    max_grad_norm: float | None
    lr_schedule: str
    clip_schedule: str
    clip_value_loss: bool
    learn_step: int
    num_envs: int
    progress: float

    def _scheduled(self, value: float, schedule: str) -> float:
        return value * max(0.0, 1 - self.progress) if schedule == "linear" else value

    def update_hyperparameters(self) -> dict[str, float]:
        return {
            "lr": self._scheduled(self.lr, self.lr_schedule),
            "clip_coef": self._scheduled(self.clip_coef, self.clip_schedule),
            "ent_coef": self.ent_coef,
            "vf_coef": self.vf_coef,
            "max_grad_norm": math.inf if self.max_grad_norm is None else self.max_grad_norm,
        }

    def hyperparameters(self) -> dict[str, float]:
        """What the records show: the live attributes, before any schedule."""
        names = ("lr", "clip_coef", "ent_coef", "vf_coef", "batch_size", "learn_step", "update_epochs", "gamma")
        return {name: getattr(self, name) for name in dict.fromkeys([*names, *self.hp_config.names()])}

    def update_options(self) -> tuple[Any, ...]:
        return (
            self.share_encoders,
            self.distribution.kind,
            self.clip_value_loss,
            self.bptt_sequence_type,
            self.max_seq_len,
        )

    def update_interval(self) -> int:
        """Vector steps of a rollout."""
        return -(-self.learn_step // self.num_envs)

    def draw_entropy_noise(self, rng: np.random.Generator, rows: int) -> np.ndarray | None:
        """Standard normal numbers [rows, A] for a squashed policy, whose entropy is estimated by new actions."""
        kind = self.distribution
        return rng.standard_normal((rows, *kind.numbers_shape)) if kind.kind == "squashed" else None

    def state_values(self, engine: UpdateEngine, obs: Any) -> Tensor:
        """V(s) [..., B] of prepared observations, as constants."""
        with torch.no_grad():
            values: Tensor = engine.frozen(self.networks[-1])(obs)[..., -1]
        return values

    def update(self, engine: UpdateEngine, batch: RolloutBatch) -> UpdateResult:  # type: ignore[override]
        """One minibatch: L = L_clip + c_v L_v − c_e H (arXiv:1707.06347, eq. 9, as a loss)."""
        hp, weight = engine.hp, batch.weight
        outputs = [_output(engine.network(name)(batch.obs, *hidden_of(name, batch.hidden))) for name in self.networks]
        with torch.no_grad():
            clip = hp["clip_coef"] if self.clip_value_loss else None
            value = outputs[-1][..., -1]
            value_loss, of_value = clipped_value_loss(value, batch.value, batch.returns, clip, weight)
            of_value = (hp["vf_coef"] * of_value).unsqueeze(-1)
        actor_loss, entropy, kl, of_raw = self._policy_gradient(self._raw(outputs[0].detach()), batch, hp)
        grads = [torch.cat((of_raw, of_value), -1)] if self.share_encoders else [of_raw, of_value]
        engine.descend_all("optimizer", outputs, grads, hp["max_grad_norm"], batch.live)
        flat = {name: hp[name].squeeze(-1) if hp[name].dim() else hp[name] for name in ("vf_coef", "ent_coef")}
        loss = actor_loss + flat["vf_coef"] * value_loss - flat["ent_coef"] * entropy
        return UpdateResult(loss, actor_loss, kl=kl)

    def _policy_gradient(
        self, raw: Tensor, batch: RolloutBatch, hp: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(surrogate loss, mean entropy, divergence, each [...]; gradient of surrogate − c_e H at `raw`)."""
        kind, weight = self.distribution, batch.weight
        of_entropy = -hp["ent_coef"] * weight
        if kind.kind == "categorical":
            logits = masked_logits(raw, batch.legal)
            log_probabilities = logits.log_softmax(-1)
            log_prob = log_probabilities.gather(-1, batch.action.unsqueeze(-1)).squeeze(-1)
            entropy = -(log_probabilities.exp() * log_probabilities).sum(-1)
            loss, slope = clipped_surrogate(log_prob, batch.log_prob, batch.advantage, hp["clip_coef"], weight)
            gradient = categorical_gradient(logits, batch.action, slope, of_entropy)
            if batch.legal is not None:
                gradient = gradient.masked_fill(~batch.legal, 0)
        else:
            leaf = raw.requires_grad_()
            with torch.enable_grad():
                log_prob = kind.log_prob(leaf, batch.action, batch.legal)
                entropy = _sampled_entropy(leaf, batch) if kind.kind == "squashed" else kind.entropy(leaf, batch.legal)
            with torch.no_grad():
                loss, slope = clipped_surrogate(log_prob, batch.log_prob, batch.advantage, hp["clip_coef"], weight)
            (gradient,) = torch.autograd.grad((log_prob, entropy), leaf, (slope, of_entropy))
            log_prob, entropy = log_prob.detach(), entropy.detach()
        divergence = approximate_kl(log_prob, batch.log_prob, weight)
        return loss, (weight * entropy).sum(-1), divergence, gradient


def _sampled_entropy(raw: Tensor, batch: RolloutBatch) -> Tensor:
    """−log π(a) [..., B] of actions that the present policy draws, a = tanh(μ + σ ε): differentiable through a as well.

    A squashed normal has no entropy in closed form. −log π of the stored actions would not do: the expectation of its
    gradient is 0 whatever the entropy is (the score function has mean 0).
    """
    if batch.noise is None:
        raise ShapeError("a minibatch for a squashed policy needs noise. fix: RolloutBatch(..., noise=[..., B, A]).")
    return -squashed_normal_sample(raw, batch.noise)[1]


def _output(found: Any) -> Tensor:
    """The output of a network that may return its hidden state too."""
    output: Tensor = found[0] if isinstance(found, tuple) else found
    return output
