"""Text games: the protocol, a built-in game, and scripted players."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from agilerl.core.ranges import BelowOne, Count, check
from agilerl.core.rng import Purpose, stream
from agilerl.errors import EnvError


class TextGame(Protocol):
    """A game with text observations and text actions."""

    def reset(self, seed: int | None = None) -> Any:
        """Begin a game: the first text, or (text, info). Equal seeds give equal games; None is random."""

    def step(self, text: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """(next text, reward, terminated, truncated, info) after the player's `text`."""


Player = Callable[[Sequence[str], np.random.Generator], str]
"""Maps the conversation so far (texts of game and player in turn, the game's first and last) to the next answer."""


class GuessNumber:
    """Guess a number from 0 to `highest`; after each guess the game tells whether the number is greater or less.

    It shows "0-15?" at first. After a guess: ">" if the number is greater, "<" if it is less, "=" if it is right, and
    "?" for anything that is not a number in the range, which counts as a guess. The reward is 1 for the number and
    −`cost` for every other guess; an episode ends with the number or the last try.

    Args:
        highest: the greatest number.
        tries: guesses.
        cost: of a guess that is not the number.
    """

    alphabet = "0123456789-?<>="

    def __init__(self, highest: int = 15, tries: int = 5, cost: float = 0.1) -> None:
        check("highest", highest, Count, 15)
        check("tries", tries, Count, 5)
        check("cost", cost, BelowOne, 0.1)
        self.highest, self.tries, self.cost = highest, tries, cost
        self._random: np.random.Generator | None = None
        self._number = 0
        self._guesses = tries

    def reset(self, seed: int | None = None) -> str:
        if seed is not None or self._random is None:
            self._random = np.random.default_rng() if seed is None else stream(seed, Purpose.ENVIRONMENT)
        self._number = int(self._random.integers(self.highest + 1))
        self._guesses = 0
        return f"0-{self.highest}?"

    def step(self, text: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._guesses >= self.tries:
            raise EnvError("the game of numbers is over. fix: call reset().")
        answer = text.strip()
        guess = int(answer) if re.fullmatch(r"[0-9]{1,9}", answer) else -1
        self._guesses += 1
        if guess == self._number:
            self._guesses = self.tries
            return "=", 1.0, True, False, {"number": self._number}
        shown = "?" if not 0 <= guess <= self.highest else ">" if guess < self._number else "<"
        over = self._guesses == self.tries
        return shown, -self.cost, over, False, {"number": self._number} if over else {}


def bounds(conversation: Sequence[str]) -> tuple[int, int]:
    """The smallest and largest number still possible in a conversation of `GuessNumber`."""
    low, high = 0, int(conversation[0].removeprefix("0-").removesuffix("?"))
    for guess, shown in zip(conversation[1::2], conversation[2::2], strict=True):
        if shown == ">":
            low = max(low, int(guess) + 1)
        elif shown == "<":
            high = min(high, int(guess) - 1)
    return low, high


def bisecting(conversation: Sequence[str], random: np.random.Generator) -> str:
    """Optimal player of `GuessNumber`: bisection."""
    low, high = bounds(conversation)
    return str((low + high) // 2)


def listening(conversation: Sequence[str], random: np.random.Generator) -> str:
    """Guess a random number that is still possible."""
    low, high = bounds(conversation)
    return str(int(random.integers(low, high + 1)))


def guessing(conversation: Sequence[str], random: np.random.Generator) -> str:
    """Guess a random number and ignore the answers."""
    return str(int(random.integers(bounds(conversation[:1])[1] + 1)))


PLAYERS: dict[str, Player] = {"bisecting": bisecting, "listening": listening, "guessing": guessing}
"""Players of `GuessNumber`, the best one first."""
