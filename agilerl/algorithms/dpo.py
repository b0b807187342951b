"""Direct preference optimisation (Rafailov et al. 2023, arXiv:2305.18290)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.base.declared import PREFERENCES, hp
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.algorithms.base.schedules import Schedule
from agilerl.core import foreign
from agilerl.core.ranges import Count, Fraction, NonNegative, Positive
from agilerl.engine.protocol import UpdateResult
from agilerl.language.algorithms.base import LLMAlgorithm
from agilerl.language.algorithms.batches import TextBatch
from agilerl.language.algorithms.scoring import mean_margin, pair_texts, pairs_of
from agilerl.language.engines import AdapterEngine, SequentialAdapters
from agilerl.language.scoring import Texts
from agilerl.language.settings import AdapterSettings, ModelName
from agilerl.losses import completions as losses


class DPO(LLMAlgorithm):
    """Direct preference optimisation: learns from preferred and rejected completions, relative to the initial policy.

    Args:
        batch_size: pairs per optimiser step. lr: learning rate of AdamW. weight_decay: weight decay of AdamW.
        lr_schedule: "constant", or "linear" to 0 over the budget.
        beta: β of the paper; smaller values allow a larger divergence from the reference.
        nll_alpha: weight of the additional loss −log π(chosen) per token (Pang et al. 2024, arXiv:2404.19733,
            equation 1). The published default is 1; 0 is the paper's loss.
        label_smoothing: assumed fraction of flipped preferences.
        max_grad_norm: gradient-norm clip; 0 disables it.

    See `LLMAlgorithm` for the other arguments.
    """

    experience = PREFERENCES
    reference: Any

    def __init__(
        self,
        actor_network: Any = None,
        model_name: Annotated[str | Path | None, hp(values=ModelName)] = None,
        tokenizer: foreign.Tokenizer | None = None,
        lora_config: Annotated[Any, hp(values=AdapterSettings)] = None,
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        batch_size: Annotated[Count, hp()] = 16,
        lr: Annotated[Positive, hp()] = 5e-6,
        weight_decay: Annotated[NonNegative, hp()] = 0.0,
        lr_schedule: Annotated[Schedule, hp()] = "constant",
        beta: Annotated[Positive, hp()] = 0.1,
        nll_alpha: Annotated[NonNegative, hp()] = 1.0,
        label_smoothing: Annotated[Fraction, hp()] = 0.0,
        max_grad_norm: Annotated[NonNegative, hp()] = 0.1,
        micro_batch_size: Annotated[Count | None, hp()] = None,
        pad_token_id: int | None = None,
        pad_token: str | None = None,
        mut: str | None = None,
        device: str | torch.device = "cpu",
        accelerator: foreign.Accelerator | None = None,
        wrap: bool = True,
        *,
        seed: int | None = None,
        update_epochs: int = 1,
        max_model_len: int | None = None,
        use_vllm: bool = False,
        vllm_config: object = None,
        gradient_checkpointing: bool = False,
        use_liger_loss: bool = False,
        micro_batch_size_per_gpu: int | None = None,
    ) -> None:
        super().__init__(
            actor_network, model_name, tokenizer, lora_config, index, hp_config, pad_token_id, pad_token,
            micro_batch_size, "prefix-shared", device, accelerator, seed, lr_schedule,
        )  # fmt: skip
        self.take_published(
            max_model_len,
            use_vllm,
            vllm_config,
            gradient_checkpointing,
            use_liger_loss,
            micro_batch_size_per_gpu,
            update_epochs,
        )
        self.batch_size, self.lr, self.weight_decay, self.beta = batch_size, lr, weight_decay, beta
        self.nll_alpha, self.label_smoothing = nll_alpha, label_smoothing
        self.max_grad_norm, self.mut = max_grad_norm, mut
        self.register_adapter("actor", "reference", "optimizer", "lr", weight_decay, policy=True)

    def update_hyperparameters(self) -> dict[str, float]:
        return {"lr": self.scheduled(self.lr), **self._numbers("beta", "nll_alpha", "label_smoothing")}

    def update_options(self) -> tuple[Any, ...]:
        return (self.batch_size, self.max_grad_norm)

    def arrange(
        self, engine: Any, texts: Texts, rewards: None, rngs: Sequence[np.random.Generator]
    ) -> Iterator[TextBatch]:
        """Yield optimiser steps of `batch_size` pairs, in order: texts [N, 2B, ...], alternating chosen and rejected.

        The weight of a pair is stored at both of its rows.
        """
        rows, size = texts.tokens.shape[1], 2 * -(-self.batch_size // engine.ranks.size)
        for number, first in enumerate(range(0, rows, size)):
            part = texts.rows(slice(first, first + size))
            pairs = part.tokens.shape[1] // 2
            weight = torch.full(part.tokens.shape[:2], 1 / pairs, dtype=engine_dtype(engine), device=part.tokens.device)
            batch = TextBatch(part, weight)
            reference = self._in_parts(engine, batch)
            yield TextBatch(engine.given(part), engine.inner(weight), reference=engine.inner(reference), number=number)

    @property
    def row_size(self) -> int | None:
        """Rows of a pass, rounded to whole pairs."""
        return None if self.micro_batch_size is None else 2 * self.micro_batch_size

    def _in_parts(self, engine: Any, batch: TextBatch) -> Tensor:
        length = batch.texts.completion_mask.shape[-1]
        chunks = []
        for part in batch.parts(self.row_size):
            scores = engine.outer(engine.target("actor")(engine.given(part.texts)))
            chunks.append(torch.nn.functional.pad(scores, (0, length - scores.shape[-1])))
        return torch.cat(chunks, 1)

    def update(self, engine: AdapterEngine, batch: TextBatch) -> UpdateResult:
        """Perform one optimiser step on the mean over pairs of equation 7, plus `nll_alpha` · −log π(chosen)."""
        hp, total, margins = engine.hp, torch.zeros(()), torch.zeros(())
        network = engine.network("actor")
        for part in batch.parts(self.row_size):
            mask, weight = part.texts.completion_mask, part.weight[..., 0::2]
            assert part.reference is not None
            log_prob = network(part.texts).masked_fill(~mask, 0)
            margin, chosen = margins_of(log_prob, part.reference.masked_fill(~mask, 0))
            each = losses.preference_loss(margin, hp["beta"], hp["label_smoothing"])
            tokens = mask[..., 0::2, :].sum(-1).clamp_min(1)
            loss = (weight * (each - hp["nll_alpha"] * chosen / tokens)).sum(-1)
            engine.accumulate(loss)
            total, margins = total + loss.detach(), margins + (weight * margin).sum(-1).detach()
        engine.step("optimizer", self.max_norm(total), batch.live)
        return UpdateResult(total, total, kl=margins)

    # --- single-agent methods, as published -------------------------------------------------------------------------

    def get_action(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("DPO learns from given completions and generates none. fix: GRPO, or generate().")

    def learn(self, experiences: Mapping[str, Any] | Sequence[Any]) -> tuple[float, float]:
        """Perform all optimiser steps on the pairs of `PreferenceGym`; returns (mean loss, mean margin)."""
        engine = SequentialAdapters(self)
        texts = pair_texts([pairs_of(experiences)], self.base)
        results = [self.update(engine, b) for b in self.passes(engine, texts, None, [])]
        self.learn_counter += 1
        return float(np.mean([float(r.loss) for r in results])), float(np.mean([float(r.kl) for r in results]))  # type: ignore[arg-type]  # kl is the margin

    def test(self, env: Any, swap_channels: bool = False, max_steps: int | None = None, loop: int = 1) -> float:
        """Return the mean of β · margin over the environment's test split; appended to `fitness`."""
        value = mean_margin([SequentialAdapters(self)], [self], [env], "test")[0]
        self.fitness.append(value)
        return value


def margins_of(log_prob: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Return (margin, log π(chosen)) [..., B] of alternating rows [..., 2B, T], which are 0 outside of completions."""
    sums, reference_sums = log_prob.sum(-1), reference.sum(-1)
    chosen, rejected = sums[..., 0::2], sums[..., 1::2]
    return losses.preference_margin(chosen, rejected, reference_sums[..., 0::2], reference_sums[..., 1::2]), chosen


def engine_dtype(engine: Any) -> torch.dtype:
    """Return the dtype in which an engine computes updates."""
    dtype: torch.dtype = next(iter(engine.hp.values())).dtype
    return dtype
