"""Rows of tokens: prompts padded on the left, pairs padded on the right, completions cut out of both."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch


def padded(rows: Sequence[Sequence[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [B, L] int64 and which of them are there [B, L] int64, padded on the right to the longest row."""
    most = max(map(len, rows))
    tokens = torch.tensor([[*row, *[pad] * (most - len(row))] for row in rows])
    return tokens, torch.tensor([[1] * len(row) + [0] * (most - len(row)) for row in rows])


def prompt_tensors(prompts: Sequence[Sequence[int]], pad: int) -> list[dict[str, Any]]:
    """Of each prompt input_ids [1, P] int64 and attention_mask [1, P] int64, padded on the left to the longest."""
    most = max(map(len, prompts))
    found = []
    for prompt in prompts:
        missing = most - len(prompt)
        found.append(
            {
                "input_ids": torch.tensor([[pad] * missing + list(prompt)]),
                "attention_mask": torch.tensor([[0] * missing + [1] * len(prompt)]),
            }
        )
    return found


def after_prompt(row: Sequence[int], prompt: Sequence[int], pads: Collection[int]) -> list[int] | None:
    """What follows the prompt in a row that begins with it, after any number of padding tokens; None if it does not.

    pads: tokens that may be padding: an agent need not pad with the token of the environment's tokenizer.

    Of several places the first one counts.
    """
    wanted, length = list(prompt), len(prompt)
    for start in range(len(row) - length + 1):
        if list(row[start : start + length]) == wanted:
            return list(row[start + length :])
        if row[start] not in pads:
            return None
    return None
