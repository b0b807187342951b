"""Token rows: left padding of prompts, right padding of pairs, extraction of completions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch


def padded(rows: Sequence[Sequence[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and attention mask, both [B, L] int64, right-padded to the longest row."""
    max_length = max(map(len, rows))
    tokens = torch.tensor([[*row, *[pad] * (max_length - len(row))] for row in rows])
    return tokens, torch.tensor([[1] * len(row) + [0] * (max_length - len(row)) for row in rows])


def prompt_tensors(prompts: Sequence[Sequence[int]], pad: int) -> list[dict[str, Any]]:
    """input_ids and attention_mask of each prompt, both [1, P] int64, left-padded to the longest prompt."""
    max_length = max(map(len, prompts))
    tensors = []
    for prompt in prompts:
        missing = max_length - len(prompt)
        tensors.append(
            {
                "input_ids": torch.tensor([[pad] * missing + list(prompt)]),
                "attention_mask": torch.tensor([[0] * missing + [1] * len(prompt)]),
            }
        )
    return tensors


def after_prompt(row: Sequence[int], prompt: Sequence[int], pads: Collection[int]) -> list[int] | None:
    """Tokens after the prompt in a row that begins with padding tokens and the prompt; None if it does not.

    pads: possible padding tokens: an agent may pad with another token than the environment's tokenizer.

    The first match counts.
    """
    wanted, length = list(prompt), len(prompt)
    for start in range(len(row) - length + 1):
        if list(row[start : start + length]) == wanted:
            return list(row[start + length :])
        if row[start] not in pads:
            return None
    return None
