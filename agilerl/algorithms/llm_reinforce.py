"""REINFORCE for language models: returns of completions against a baseline without a critic."""

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
from agilerl.core.ranges import Count, CountOrZero, Fraction, NonNegative, Positive
from agilerl.engine.protocol import UpdateResult
from agilerl.errors import AlgorithmError
from agilerl.language.algorithms.base import Backend
from agilerl.language.algorithms.batches import TextBatch
from agilerl.language.algorithms.generation import CompletionAlgorithm, check_groups, token_rewards
from agilerl.language.engines import AdapterEngine
from agilerl.language.scoring import Texts
from agilerl.language.settings import AdapterSettings, ModelName
from agilerl.losses import completions as losses


class LLMREINFORCE(CompletionAlgorithm):
    """REINFORCE on completions: every token is weighted by its return minus a baseline (Williams 1992; Ahmadian et al.
    2024).

    Each iteration is one pass over its completions, in optimiser steps of `batch_size`. Only the first step is
    on-policy. With more completions than `batch_size`, later steps are off-policy without an importance ratio or a
    clip, so their gradient is biased. A `batch_size` of at least the completions of an iteration (prompts times
    `group_size`) gives one unbiased step. GRPO and LLMPPO use a ratio.

    Args:
        baseline: "batch": returns are standardised over all generated tokens; "rloo": mean reward of the prompt's other
            completions (arXiv:2402.14740, equation 8).
        batch_size: completions per optimiser step, over all processes. lr: learning rate of AdamW. weight_decay: weight
            decay of AdamW.
        lr_schedule: "constant", or "linear" to 0 over the budget.
        beta: weight of the KL divergence from the initial policy.
        gamma: discount of a token's reward at earlier tokens, for "batch".
        max_grad_norm: gradient-norm clip; 0 disables it.
        group_size: completions per prompt. temperature: sampling temperature, also used in the loss.
        max_output_tokens, min_output_tokens: length of a completion. top_k, top_p: see `language.generate.Sampling`.

    See `LLMAlgorithm` for the other arguments.
    """

    experience = COMPLETIONS
    update_epochs = 1  # without an importance ratio a second pass would only be further off-policy

    def __init__(
        self,
        actor_network: Any = None,
        model_name: Annotated[str | Path | None, hp(values=ModelName)] = None,
        tokenizer: foreign.Tokenizer | None = None,
        lora_config: Annotated[Any, hp(values=AdapterSettings)] = None,
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        baseline: Annotated[Literal["batch", "rloo"], hp()] = "batch",
        batch_size: Annotated[Count, hp()] = 64,
        lr: Annotated[Positive, hp()] = 5e-5,
        weight_decay: Annotated[NonNegative, hp()] = 0.0,
        lr_schedule: Annotated[Schedule, hp()] = "constant",
        beta: Annotated[NonNegative, hp()] = 0.01,
        gamma: Annotated[Fraction, hp()] = 1.0,
        max_grad_norm: Annotated[NonNegative, hp()] = 0.1,
        group_size: Annotated[Count, hp()] = 4,
        temperature: Annotated[Positive, hp()] = 1.0,
        max_output_tokens: Annotated[Count, hp()] = 64,
        min_output_tokens: Annotated[CountOrZero, hp()] = 0,
        top_k: Annotated[CountOrZero, hp()] = 0,
        top_p: Annotated[Positive, hp()] = 1.0,
        micro_batch_size: Annotated[Count | None, hp()] = None,
        rollout_backend: Annotated[Backend, hp()] = "prefix-shared",
        pad_token_id: int | None = None,
        pad_token: str | None = None,
        mut: str | None = None,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
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
        if baseline not in ("batch", "rloo"):
            raise AlgorithmError(f"{self.algo}: baseline must be 'batch' or 'rloo'; got {baseline!r}. fix: 'batch'.")
        if baseline == "rloo" and group_size < 2:
            raise AlgorithmError(
                f"{self.algo}: baseline='rloo' needs group_size of at least 2; got {group_size}. fix: group_size=4."
            )
        self.baseline, self.batch_size, self.lr, self.weight_decay = baseline, batch_size, lr, weight_decay
        self.beta, self.gamma, self.max_grad_norm, self.group_size = beta, gamma, max_grad_norm, group_size
        self.temperature, self.max_output_tokens, self.min_output_tokens = (
            temperature, max_output_tokens, min_output_tokens
        )  # fmt: skip
        self.top_k, self.top_p, self.mut = top_k, top_p, mut
        self.sampling()  # validates the lengths
        self.register_adapter("actor", "reference", "optimizer", "lr", weight_decay, policy=True)

    @property
    def compares_groups(self) -> bool:
        """Whether rewards are compared per completion rather than per token."""
        return self.baseline == "rloo"

    def update_hyperparameters(self) -> dict[str, float]:
        return {"lr": self.scheduled(self.lr), **self._numbers("beta", "gamma", "temperature")}

    def update_options(self) -> tuple[Any, ...]:
        return (
            self.baseline, self.batch_size, self.group_size, self.max_output_tokens, self.max_grad_norm, self.beta > 0
        )  # fmt: skip

    def arrange(
        self, engine: Any, texts: Texts, rewards: Tensor, rngs: Sequence[np.random.Generator]
    ) -> Iterator[TextBatch]:
        """Yield one pass over the texts; rewards [N, B, G] per completion, or [N, R, T] per token."""
        mask, counts = texts.completion_mask, self.counted(texts)
        if self.baseline == "rloo":
            if rewards.shape == mask.shape:
                raise AlgorithmError("baseline='rloo' compares completions of one prompt. fix: baseline='batch'.")
            check_groups(self.algo, rewards)
            advantage = losses.leave_one_out(rewards).view(*mask.shape[:2], 1).expand(mask.shape)
        else:
            gamma = engine.outer(engine.hp["gamma"]).view(-1, 1).to(rewards.dtype)
            is_whole = rewards.shape != mask.shape or mask.shape[-1] == 1  # one reward per completion
            if is_whole and mask.shape[1] * engine.ranks.size == 1:
                raise AlgorithmError(
                    f"{self.algo}: baseline='batch' compares the completions of an iteration, and this one has a "
                    "single one, from which nothing is learned. fix: more prompts in a batch, or group_size=4."
                )
            returns = losses.discounted_returns(token_rewards(rewards, mask), mask, gamma)
            advantage = losses.whitened(returns, mask.to(rewards.dtype), mean_of=engine.ranks.mean)
        reference = self.scored(engine, engine.target("actor"), texts) if self.beta > 0 else None
        whole = TextBatch(texts, counts, advantage, None, reference)
        yield from self.minibatches(engine, whole, rngs, "token", self.beta > 0)

    def update(self, engine: AdapterEngine, batch: TextBatch) -> UpdateResult:
        """Perform one optimiser step on Σ w (−A log π + β KL)."""
        hp, total, divergence = engine.hp, torch.zeros(()), torch.zeros(())
        network = engine.network("actor")
        for part in batch.parts(self.micro_batch_size):
            log_prob, mask = network(part.texts, hp["temperature"]), part.texts.completion_mask
            assert part.advantage is not None
            loss = -(part.weight * part.advantage * log_prob.masked_fill(~mask, 0)).sum((-2, -1))
            if part.reference is not None:
                kl = (part.weight * losses.kl_estimate(log_prob, part.reference, mask)).sum((-2, -1))
                loss = loss + hp["beta"].reshape(kl.shape) * kl
                divergence = divergence + kl.detach()
            engine.accumulate(loss)
            total = total + loss.detach()
        engine.step("optimizer", self.max_norm(total), batch.live)
        return UpdateResult(total, total, kl=divergence)
