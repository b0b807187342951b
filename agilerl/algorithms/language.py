"""Algorithms that train language models. Their base, until they are built."""

from __future__ import annotations

from typing import Any

import torch

from agilerl.algorithms.agent import EvolvableAlgorithm
from agilerl.algorithms.registry import HyperparameterConfig
from agilerl.errors import NotAvailableYetError


class LLMAlgorithm(EvolvableAlgorithm):
    """An algorithm whose policy is a language model.

    Args:
        actor_network: the model, or None with `model_name`.
        pad_token_id, pad_token: of the tokenizer.
        lora_config: which adapters are trained.

    The other arguments are `EvolvableAlgorithm`'s.

    Raises:
        NotAvailableYetError: always, in this version.
    """

    def __init__(
        self,
        actor_network: Any = None,
        index: int = 0,
        pad_token_id: int | None = None,
        pad_token: str | None = None,
        lora_config: Any = None,
        hp_config: HyperparameterConfig | None = None,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        name: str | None = None,
        model_name: str | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        raise NotAvailableYetError(
            f"{name or type(self).__name__} trains a language model. Such algorithms (GRPO, CISPO, DPO and those of "
            "one's own) come with a later version. fix: one of the single-agent algorithms, or RLAlgorithm as the base."
        )
