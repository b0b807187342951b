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


@dataclass(frozen=True)
class Turns:
    """An episode of several turns as one sequence of L tokens: what was shown and what the model said, in turn.

    Attributes:
        tokens: [L] int64, without padding. What the model said is as it was sampled, its ends of sequence included.
        completion_mask: [L] bool: the model's own tokens; these are learned from, the others are given.
        turns: [L] int64: to which turn a said token belongs, from 0; −1 where `completion_mask` is False.
        rewards: [L] float64: the reward of a turn at its last said token, 0 elsewhere.
        terminated: the game ended.
        truncated: it was cut off, by itself, by the number of turns, for want of context, or by a fault.
        failed: the game raised, took too long or gave what is no step; its last turn has a reward of 0.
    """

    tokens: np.ndarray
    completion_mask: np.ndarray
    turns: np.ndarray
    rewards: np.ndarray
    terminated: bool
    truncated: bool
    failed: bool = False

    @property
    def ends(self) -> np.ndarray:
        """[turns] int64: where each turn has its last said token."""
        following = np.append(self.turns[1:], -1)
        found: np.ndarray = np.flatnonzero(self.completion_mask & (following != self.turns))
        return found

    @property
    def turn_rewards(self) -> np.ndarray:
        """[turns] float64."""
        found: np.ndarray = self.rewards[self.ends]
        return found

    def examples(self) -> list[Example]:
        """Each turn as an example: all that came before it is the prompt. `index` is the turn."""
        found = []
        for turn, end in enumerate(self.ends):
            start = int(np.argmax(self.turns == turn))
            before, completion = self.tokens[:start].tolist(), self.tokens[start : end + 1].tolist()
            found.append(Example(turn, tuple(before), tuple(completion)))
        return found
