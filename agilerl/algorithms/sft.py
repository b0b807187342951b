"""Supervised fine-tuning: maximum likelihood of given completions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch

from agilerl.algorithms.base.declared import EXAMPLES, hp
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.algorithms.base.schedules import Schedule
from agilerl.core import foreign
from agilerl.core.ranges import Count, NonNegative, Positive
from agilerl.engine.protocol import UpdateResult
from agilerl.language.algorithms.base import LLMAlgorithm
from agilerl.language.algorithms.batches import TextBatch
from agilerl.language.algorithms.generation import of_all_ranks
from agilerl.language.algorithms.scoring import example_texts, examples_of, mean_likelihood
from agilerl.language.engines import AdapterEngine, SequentialAdapters
from agilerl.language.scoring import Texts
from agilerl.language.settings import AdapterSettings, ModelName
from agilerl.losses.completions import completion_weights


class SFT(LLMAlgorithm):
    """Supervised fine-tuning on the completions of examples; prompts are excluded from the loss.

    Args:
        batch_size: examples per optimiser step. lr: learning rate of AdamW. weight_decay: weight decay of AdamW.
        lr_schedule: "constant", or "linear" to 0 over the budget.
        max_grad_norm: gradient-norm clip; 0 disables it.

    See `LLMAlgorithm` for the other arguments.
    """

    experience = EXAMPLES

    def __init__(
        self,
        actor_network: Any = None,
        model_name: Annotated[str | Path | None, hp(values=ModelName)] = None,
        tokenizer: foreign.Tokenizer | None = None,
        lora_config: Annotated[Any, hp(values=AdapterSettings)] = None,
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        batch_size: Annotated[Count, hp()] = 16,
        lr: Annotated[Positive, hp()] = 5e-5,
        weight_decay: Annotated[NonNegative, hp()] = 0.0,
        lr_schedule: Annotated[Schedule, hp()] = "constant",
        max_grad_norm: Annotated[NonNegative, hp()] = 1.0,
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
        self.batch_size, self.lr, self.weight_decay = batch_size, lr, weight_decay
        self.max_grad_norm, self.mut = max_grad_norm, mut
        self.register_adapter("actor", None, "optimizer", "lr", weight_decay, policy=True)

    def update_hyperparameters(self) -> dict[str, float]:
        return {"lr": self.scheduled(self.lr)}

    def update_options(self) -> tuple[Any, ...]:
        return (self.batch_size, self.max_grad_norm)

    def arrange(
        self, engine: Any, texts: Texts, rewards: None, rngs: Sequence[np.random.Generator]
    ) -> Iterator[TextBatch]:
        """Yield optimiser steps of `batch_size` examples, in order; all tokens are weighted equally."""
        size = -(-self.batch_size // engine.ranks.size)
        for number, first in enumerate(range(0, texts.tokens.shape[1], size)):
            part = texts.rows(slice(first, first + size))
            like = next(iter(engine.hp.values()))
            weight = completion_weights(part.completion_mask, like.new_ones(part.tokens.shape[:2]), "token", 1)
            weight = of_all_ranks(weight, part.completion_mask, engine.ranks, "token")
            yield TextBatch(engine.given(part), engine.inner(weight), number=number)

    def update(self, engine: AdapterEngine, batch: TextBatch) -> UpdateResult:
        """Perform one optimiser step on −Σ w log π(token)."""
        total, network = torch.zeros(()), engine.network("actor")
        for part in batch.parts(self.micro_batch_size):
            loss = -(part.weight * network(part.texts)).sum((-2, -1))
            engine.accumulate(loss)
            total = total + loss.detach()
        engine.step("optimizer", self.max_norm(total), batch.live)
        return UpdateResult(total, total)

    def learn(self, experiences: Mapping[str, Any] | Sequence[Any]) -> float:
        """Perform all optimiser steps on the examples of `SFTGym`; returns the mean loss."""
        engine = SequentialAdapters(self)
        texts = example_texts([examples_of(experiences)], self.base)
        losses = [float(self.update(engine, b).loss) for b in self.passes(engine, texts, None, [])]
        self.learn_counter += 1
        return float(np.mean(losses))

    def test(self, env: Any, swap_channels: bool = False, max_steps: int | None = None, loop: int = 1) -> float:
        """Return the mean log-probability per completion token of the test split; appended to `fitness`."""
        value = mean_likelihood([SequentialAdapters(self)], [self], [env], "test")[0]
        self.fitness.append(value)
        return value
