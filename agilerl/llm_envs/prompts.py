"""Data classes of language environments: prompts, scores, pairs, examples and turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Prompt:
    """A question, as shown to the model.

    Attributes:
        index: row of its split.
        question, answer: of that row.
        tokens: of the rendered template, without padding.
        entry: the row itself, for the reward function.
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
        failed: [B, G] bool: the reward function raised, timed out, or returned no finite number.
        faults: one line each, at most a few, for the records.
    """

    rewards: np.ndarray
    failed: np.ndarray
    faults: tuple[str, ...]


@dataclass(frozen=True)
class Pair:
    """A prompt with a preferred and a rejected completion.

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
    """A prompt with its target completion.

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
    """An episode of several turns as one sequence of L tokens: texts of game and model in turn.

    Attributes:
        tokens: [L] int64, without padding. The model's tokens are as sampled, including ends of sequence.
        completion_mask: [L] bool: the model's tokens, which are trained on.
        turns: [L] int64: turn of a token, from 0; −1 where `completion_mask` is False.
        rewards: [L] float64: the reward of a turn at its last token, 0 elsewhere.
        terminated: the game ended.
        truncated: the episode was cut by the game, the number of turns, the context length, or a fault.
        failed: the game raised, timed out or returned a malformed step; its last turn has a reward of 0.
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
        """[turns] int64: index of the last token of each turn."""
        following = np.append(self.turns[1:], -1)
        return np.flatnonzero(self.completion_mask & (following != self.turns))

    @property
    def turn_rewards(self) -> np.ndarray:
        """Reward of each turn [turns] float64."""
        rewards: np.ndarray = self.rewards[self.ends]
        return rewards

    def examples(self) -> list[Example]:
        """Each turn as an example, with the preceding tokens as its prompt. `index` is the turn."""
        examples = []
        for turn, end in enumerate(self.ends):
            start = int(np.argmax(self.turns == turn))
            before, completion = self.tokens[:start].tolist(), self.tokens[start : end + 1].tolist()
            examples.append(Example(turn, tuple(before), tuple(completion)))
        return examples
