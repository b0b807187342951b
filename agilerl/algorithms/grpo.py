"""Group relative policy optimisation (Shao et al. 2024, arXiv:2402.03300) and its variants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.base.declared import COMPLETIONS, hp
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.algorithms.base.schedules import Schedule
from agilerl.core import foreign
from agilerl.core.ranges import Count, CountOrZero, GroupSize, NonNegative, Positive
from agilerl.engine.protocol import UpdateResult
from agilerl.errors import AlgorithmError, unknown_choice
from agilerl.language.algorithms.base import Backend
from agilerl.language.algorithms.batches import TextBatch
from agilerl.language.algorithms.generation import CompletionAlgorithm, check_groups
from agilerl.language.engines import AdapterEngine
from agilerl.language.scoring import Texts
from agilerl.language.settings import AdapterSettings, ModelName
from agilerl.losses import completions as losses

VARIANTS: dict[str, dict[str, Any]] = {
    "grpo": {"objective": "clip", "normalisation": "sequence", "adv_norm": "mean_std"},
    "dr_grpo": {"objective": "clip", "normalisation": "constant", "adv_norm": "mean_only"},
    "dapo": {"objective": "clip", "normalisation": "token", "adv_norm": "mean_std", "clip_coef_high": 0.28,
             "beta": 0.0, "dynamic_sampling": 3},
    "gspo": {"objective": "sequence", "normalisation": "sequence", "adv_norm": "mean_std", "clip_coef": 3e-4,
             "clip_coef_high": 4e-4, "beta": 0.0},
    "cispo": {"objective": "cispo", "normalisation": "token", "adv_norm": "mean_std", "clip_coef_high": 5.0,
              "beta": 0.0},
}  # fmt: skip
"""Defaults of the papers by variant; explicit arguments override them."""


class GRPO(CompletionAlgorithm):
    """Group relative policy optimisation: rewards of a prompt's completions, relative to their mean.

    Args:
        variant: "grpo"; "dr_grpo" (arXiv:2503.20783); "dapo" (arXiv:2503.14476); "gspo" (arXiv:2507.18071); "cispo"
            (arXiv:2506.13585). It sets defaults, which the arguments below override.
        batch_size: completions per optimiser step. lr: learning rate of AdamW. weight_decay: weight decay of AdamW.
        lr_schedule: "constant", or "linear" to 0 over the budget.
        beta: weight of the KL divergence from the initial policy.
        clip_coef: ε; ratios are clipped below at 1 − ε. clip_coef_high: the same above 1; None: ε too.
        max_grad_norm: gradient-norm clip; 0 disables it. update_epochs: passes over the completions.
        group_size: completions per prompt, at least two. temperature: sampling temperature, also used in the loss.
        max_output_tokens, min_output_tokens: length of a completion. top_k, top_p: see `language.generate.Sampling`.
        objective: "clip", "sequence" (one ratio per completion) or "cispo".
        normalisation: "token", "sequence" or "constant", see `losses.completions.completion_weights`.
        adv_norm: "mean_std", or "mean_only" without the standard deviation.
        dynamic_sampling: maximum number of times that prompts (starts of games) with equal rewards are
            replaced by others; 0 disables it.
        mask_truncated: exclude truncated completions from the loss.

    See `LLMAlgorithm` for the other arguments.
    """

    experience = COMPLETIONS
    compares_groups = True  # in games, whole returns are compared between equal starts

    def __init__(
        self,
        actor_network: Any = None,
        model_name: Annotated[str | Path | None, hp(values=ModelName)] = None,
        tokenizer: foreign.Tokenizer | None = None,
        lora_config: Annotated[Any, hp(values=AdapterSettings)] = None,
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        variant: Annotated[Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo"], hp()] = "grpo",
        batch_size: Annotated[Count, hp()] = 16,
        lr: Annotated[Positive, hp()] = 5e-5,
        weight_decay: Annotated[NonNegative, hp()] = 0.0,
        lr_schedule: Annotated[Schedule, hp()] = "constant",
        beta: Annotated[NonNegative | None, hp()] = None,
        clip_coef: Annotated[Positive | None, hp()] = None,
        clip_coef_high: Annotated[Positive | None, hp()] = None,
        max_grad_norm: Annotated[NonNegative, hp()] = 0.1,
        update_epochs: Annotated[Count, hp()] = 1,
        group_size: Annotated[GroupSize, hp()] = 8,
        temperature: Annotated[Positive, hp()] = 1.0,
        max_output_tokens: Annotated[Count, hp()] = 64,
        min_output_tokens: Annotated[CountOrZero, hp()] = 0,
        top_k: Annotated[CountOrZero, hp()] = 0,
        top_p: Annotated[Positive, hp()] = 1.0,
        objective: Annotated[Literal["clip", "sequence", "cispo"] | None, hp()] = None,
        normalisation: Annotated[Literal["token", "sequence", "constant"] | None, hp()] = None,
        adv_norm: Annotated[Literal["mean_std", "mean_only"] | None, hp()] = None,
        dynamic_sampling: Annotated[CountOrZero | None, hp()] = None,
        mask_truncated: Annotated[bool, hp()] = False,
        micro_batch_size: Annotated[Count | None, hp()] = None,
        rollout_backend: Annotated[Backend, hp()] = "prefix-shared",
        pad_token_id: int | None = None,
        pad_token: str | None = None,
        mut: str | None = None,
        device: str | torch.device = "cpu",
        accelerator: foreign.Accelerator | None = None,
        wrap: bool = True,
        *,
        seed: int | None = None,
        max_model_len: int | None = None,
        use_vllm: bool = False,
        vllm_config: object = None,
        gradient_checkpointing: bool = False,
        use_liger_loss: bool = False,
        micro_batch_size_per_gpu: int | None = None,
    ) -> None:
        super().__init__(
            actor_network, model_name, tokenizer, lora_config, index, hp_config, pad_token_id, pad_token,
            micro_batch_size, rollout_backend, device, accelerator, seed, lr_schedule,
        )  # fmt: skip
        self.take_published(
            max_model_len, use_vllm, vllm_config, gradient_checkpointing, use_liger_loss, micro_batch_size_per_gpu
        )
        if variant not in VARIANTS:
            raise AlgorithmError(f"{self.algo}: {unknown_choice('variant', str(variant), VARIANTS)}")
        usual = {"beta": 0.001, "clip_coef": 0.2, "clip_coef_high": None, "dynamic_sampling": 0, **VARIANTS[variant]}
        arguments = {
            "beta": beta, "clip_coef": clip_coef, "clip_coef_high": clip_coef_high, "objective": objective,
            "normalisation": normalisation, "adv_norm": adv_norm, "dynamic_sampling": dynamic_sampling,
        }  # fmt: skip
        for name, value in arguments.items():
            setattr(self, name, usual.get(name) if value is None else value)
        self.variant, self.batch_size, self.lr, self.weight_decay = variant, batch_size, lr, weight_decay
        self.max_grad_norm, self.update_epochs, self.group_size = max_grad_norm, update_epochs, group_size
        self.temperature, self.max_output_tokens, self.top_k, self.top_p = temperature, max_output_tokens, top_k, top_p
        self.min_output_tokens, self.mask_truncated, self.mut = min_output_tokens, mask_truncated, mut
        for name, setting, allowed in (
            ("objective", self.objective, ("clip", "sequence", "cispo")),
            ("normalisation", self.normalisation, losses.NORMALISATIONS),
            ("adv_norm", self.adv_norm, ("mean_std", "mean_only")),
        ):
            if setting not in allowed:
                raise AlgorithmError(f"{self.algo}: {unknown_choice(name, str(setting), allowed)}")
        self.sampling()  # validates the lengths
        self.register_adapter("actor", "reference", "optimizer", "lr", weight_decay, policy=True)

    beta: float
    clip_coef: float
    clip_coef_high: float | None
    objective: str
    normalisation: str
    adv_norm: str
    dynamic_sampling: int

    def update_hyperparameters(self) -> dict[str, float]:
        high = self.clip_coef if self.clip_coef_high is None else self.clip_coef_high
        rates = {"lr": self.scheduled(self.lr), "beta": self.beta, "clip_coef": self.clip_coef, "clip_coef_high": high}
        return {**rates, "temperature": self.temperature}

    def update_options(self) -> tuple[Any, ...]:
        return (
            self.objective, self.normalisation, self.adv_norm, self.batch_size, self.group_size, self.update_epochs,
            self.max_output_tokens, self.mask_truncated, self.max_grad_norm, self.beta > 0, self.dynamic_sampling,
        )  # fmt: skip

    # --- advantages and optimiser steps -----------------------------------------------------------------------------

    def advantages(self, rewards: Tensor) -> Tensor:
        """Return the advantages of rewards [..., B, G]."""
        return losses.group_advantages(rewards, self.adv_norm == "mean_std")

    def arrange(
        self, engine: Any, texts: Texts, rewards: Tensor, rngs: Sequence[np.random.Generator]
    ) -> Iterator[TextBatch]:
        """Yield optimiser steps of `batch_size` completions, shuffled separately per member, `update_epochs` times.

        Completions without an advantage give no gradient: they only count in the weights of the others and are skipped.
        """
        members, rows = texts.tokens.shape[:2]
        check_groups(self.algo, rewards)
        advantage = self.advantages(rewards).view(members, rows, 1).expand(texts.completion_mask.shape)
        counts = self.counted(texts, self.mask_truncated)
        is_one_step = self.update_epochs == 1 and self.rows_of_step(engine, rows) == rows
        old, reference = self.frozen_log_probs(engine, texts, not is_one_step)
        yield from self.minibatches(
            engine, TextBatch(texts, counts, advantage, old, reference), rngs, self.normalisation, self.beta > 0
        )

    def frozen_log_probs(self, engine: Any, texts: Texts, is_old: bool) -> tuple[Tensor | None, Tensor | None]:
        """Return log-probabilities under (the generating policy if `is_old`, the reference if β > 0)."""
        old = self.scored(engine, engine.network("actor"), texts) if is_old else None
        reference = self.scored(engine, engine.target("actor"), texts) if self.beta > 0 else None
        return old, reference

    # --- the update -------------------------------------------------------------------------------------------------

    def update(self, engine: AdapterEngine, batch: TextBatch) -> UpdateResult:
        """Perform one optimiser step on Σ w (L + β KL): L of `objective`, KL by arXiv:2402.03300, equation 4."""
        hp, total, divergence = engine.hp, torch.zeros(()), torch.zeros(())
        network = engine.network("actor")
        beta, low, high = (_wide(hp[name]) for name in ("beta", "clip_coef", "clip_coef_high"))
        for part in batch.parts(self.micro_batch_size):
            log_prob, mask = network(part.texts, hp["temperature"]), part.texts.completion_mask
            assert part.advantage is not None
            old = log_prob.detach() if part.old is None else part.old
            ratios = losses.log_ratio(log_prob, old, mask)
            loss = (part.weight * self._objective(log_prob, ratios, part.advantage, mask, low, high)).sum((-2, -1))
            if part.reference is not None:
                kl = (part.weight * losses.kl_estimate(log_prob, part.reference, mask)).sum((-2, -1))
                loss = loss + beta.reshape(kl.shape) * kl
                divergence = divergence + kl.detach()
            engine.accumulate(loss)
            total = total + loss.detach()
        engine.step("optimizer", self.max_norm(total), batch.live)
        return UpdateResult(total, total, kl=divergence)

    def _objective(
        self, log_prob: Tensor, ratios: Tensor, advantage: Tensor, mask: Tensor, low: Tensor, high: Tensor
    ) -> Tensor:
        if self.objective == "cispo":
            return losses.clipped_importance(log_prob.masked_fill(~mask, 0), ratios, advantage, high)
        ratio = ratios.exp() if self.objective == "clip" else losses.sequence_ratio(ratios, mask)
        return losses.clipped_surrogate(ratio, advantage, low, high)

    # --- helpers ----------------------------------------------------------------------------------------------------


def _wide(value: Tensor) -> Tensor:
    """Broadcast a hyperparameter [N, 1], or a scalar, to tensors [..., R, T]."""
    return value.unsqueeze(-1) if value.dim() else value
