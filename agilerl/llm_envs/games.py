"""Games in words: what one has to offer, one that is made in this process, and who plays it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from agilerl.errors import ConfigError, EnvError
from agilerl.rng import Purpose, stream


class TextGame(Protocol):
    """A game that shows text and is answered with text."""

    def reset(self, seed: int | None = None) -> Any:
        """Begin anew: the text that is shown, or (text, info). Equal seeds begin equal games; None draws one."""

    def step(self, text: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """(what is shown next, reward, terminated, truncated, info) after the player said `text`."""


Player = Callable[[Sequence[str], np.random.Generator], str]
"""From what was shown and said so far, in turn, the first and the last one shown, to what is said next."""


class GuessNumber:
    """Find a number from 0 to `highest`; each guess is told on which side of it the number lies.

    It shows "0-15?" at first. After a guess: ">" where the number is greater, "<" where it is less, "=" where it is
    found, and "?" for what is no number in that range, which counts as a guess. The reward is 1 for the number and
    −`cost` for every other guess; it ends with the number or with the last try.

    Args:
        highest: the greatest number.
        tries: guesses.
        cost: of a guess that is not the number.
    """

    alphabet = "0123456789-?<>="

    def __init__(self, highest: int = 15, tries: int = 5, cost: float = 0.1) -> None:
        if highest < 1 or tries < 1 or not 0 <= cost < 1:
            raise ConfigError(
                f"highest and tries must be at least 1, cost in [0, 1); got highest={highest}, tries={tries}, "
                f"cost={cost}. fix: highest=15, tries=5, cost=0.1."
            )
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
        said = text.strip()
        guess = int(said) if re.fullmatch(r"[0-9]{1,9}", said) else -1
        self._guesses += 1
        if guess == self._number:
            self._guesses = self.tries
            return "=", 1.0, True, False, {"number": self._number}
        shown = "?" if not 0 <= guess <= self.highest else ">" if guess < self._number else "<"
        over = self._guesses == self.tries
        return shown, -self.cost, over, False, {"number": self._number} if over else {}


def bounds(conversation: Sequence[str]) -> tuple[int, int]:
    """The least and the greatest number that a conversation of `GuessNumber` leaves."""
    low, high = 0, int(conversation[0].removeprefix("0-").removesuffix("?"))
    for said, shown in zip(conversation[1::2], conversation[2::2], strict=True):
        if shown == ">":
            low = max(low, int(said) + 1)
        elif shown == "<":
            high = min(high, int(said) - 1)
    return low, high


def bisecting(conversation: Sequence[str], random: np.random.Generator) -> str:
    """Plays `GuessNumber` best: the middle of what is left, so that no answer leaves more than half of it."""
    low, high = bounds(conversation)
    return str((low + high) // 2)


def listening(conversation: Sequence[str], random: np.random.Generator) -> str:
    """Guesses any number that is left."""
    low, high = bounds(conversation)
    return str(int(random.integers(low, high + 1)))


def guessing(conversation: Sequence[str], random: np.random.Generator) -> str:
    """Guesses any number, whatever it was told."""
    return str(int(random.integers(bounds(conversation[:1])[1] + 1)))


PLAYERS: dict[str, Player] = {"bisecting": bisecting, "listening": listening, "guessing": guessing}
"""Players of `GuessNumber`, the best one first."""
