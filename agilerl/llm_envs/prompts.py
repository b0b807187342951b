"""What environments of language models hand out, and what they answer: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Prompt:
    """A question, as the model reads it.

    Attributes:
        index: row of its split.
        question, answer: of that row.
        tokens: of the rendered template, without padding.
        entry: the row itself, as the reward may want it.
    """

    index: int
    question: str
    answer: Any
    tokens: tuple[int, ...]
    entry: Mapping[str, Any]


@dataclass(frozen=True)
class Scores:
    """Rewards of G completions for each of B prompts.

    Attributes:
        rewards: [B, G] float64; 0 where `failed`.
        failed: [B, G] bool: the reward function raised, took too long, or gave no finite number.
        faults: one line each, at most a few, for the records.
    """

    rewards: np.ndarray
    failed: np.ndarray
    faults: tuple[str, ...]


@dataclass(frozen=True)
class Pair:
    """A prompt with a completion that is preferred to another one.

    Attributes:
        index: row of its split.
        prompt: tokens without padding.
        chosen, rejected: tokens of the completions, each with one end of sequence as its last.
    """

    index: int
    prompt: tuple[int, ...]
    chosen: tuple[int, ...]
    rejected: tuple[int, ...]


@dataclass(frozen=True)
class Example:
    """A prompt with the completion that is to be learned.

    Attributes:
        index: row of its split.
        prompt: tokens without padding.
        completion: tokens, with one end of sequence as the last.
    """

    index: int
    prompt: tuple[int, ...]
    completion: tuple[int, ...]
