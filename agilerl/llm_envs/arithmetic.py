"""Additions: generated questions in disjoint splits, examples, and pairs of answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from agilerl.core.rng import Purpose, stream
from agilerl.errors import ConfigError

ALPHABET = "0123456789+="
"""The characters of all questions and answers."""

Row = dict[str, str]
_DRAWS = 2**20  # number of random draws if there are too many questions to enumerate


def addition(
    digits: int = 2,
    terms: int = 2,
    seed: int = 0,
    *,
    train_size: int | None = None,
    test_size: int | None = None,
    report_size: int | None = None,
) -> tuple[list[Row], list[Row], list[Row]]:
    """Training, test and report split of sums: {"question": "12+7=", "answer": "19"}.

    Terms are uniform from 0 to 10^digits − 1. No question is in two splits, not even with its terms in another order:
    with 12+7 in the training split, 7+12 is not in the test split.

    Args:
        digits: maximum number of digits of a term.
        terms: of a sum.
        seed: of the questions; the number of training questions does not affect test and report.
        train_size, test_size, report_size: questions of each; None: 2048, 256 and 256; with fewer questions in total, a
            tenth of them each for test and report, and the rest for training.

    Raises:
        ConfigError: fewer questions than requested, or a number out of range.
    """
    if digits < 1 or terms < 2 or digits * terms > 18:
        raise ConfigError(
            f"digits must be at least 1, terms at least 2, and digits·terms at most 18; got digits={digits}, "
            f"terms={terms}. fix: digits=2, terms=2."
        )
    questions = 10 ** (digits * terms)
    few = questions < 4 * (2048 + 2 * 256)
    held_out = questions // 10 if few else 256
    wanted = {
        "report": held_out if report_size is None else report_size,
        "test": held_out if test_size is None else test_size,
        "train": (questions if few else 2048) if train_size is None else train_size,
    }
    if min(wanted.values()) < 1:
        raise ConfigError(f"every split needs at least one question; got {wanted}. fix: 1.")
    random = stream(seed, Purpose.ENVIRONMENT)
    order = random.permutation(questions) if questions <= _DRAWS else random.integers(0, questions, _DRAWS)
    splits: dict[str, list[Row]] = {name: [] for name in wanted}
    owner: dict[tuple[int, ...], str] = {}
    seen: set[int] = set()
    for number in map(int, order):
        numbers = [number // 10 ** (digits * place) % 10**digits for place in range(terms)]
        key = tuple(sorted(numbers))
        open_splits = (name for name in wanted if len(splits[name]) < wanted[name])
        name = owner.get(key) or next(open_splits, "")
        if number in seen or not name or len(splits[name]) >= wanted[name]:
            continue
        seen.add(number)
        owner[key] = name
        splits[name].append({"question": "+".join(map(str, numbers)) + "=", "answer": str(sum(numbers))})
        if all(len(splits[each]) == count for each, count in wanted.items()):
            break
    for name, count in wanted.items():
        if len(splits[name]) < count and not (name == "train" and train_size is None and splits["train"]):
            raise ConfigError(
                f"sums of {terms} terms of {digits} digits give {len(splits[name])} questions for {name}_size={count}, "
                "with no sum in two splits. fix: smaller splits, more digits or more terms."
            )
    return splits["train"], splits["test"], splits["report"]


def reward_fn(completion: str, answer: str, question: str) -> float:
    """1 for the right answer, ignoring surrounding white space; else 0."""
    return float(completion.strip() == answer)


def examples(rows: Iterable[Row]) -> list[Row]:
    """Convert rows to {"prompt", "completion"}, for supervised fine-tuning."""
    return [{"prompt": row["question"], "completion": row["answer"]} for row in rows]


def pairs(rows: Sequence[Row], seed: int = 0) -> list[Row]:
    """Convert rows to {"prompt", "chosen", "rejected"}; rejected answers have the same length and one wrong digit."""
    random = stream(seed, Purpose.ENVIRONMENT, 1)
    preferences = []
    for row in rows:
        wrong = _wrong(row["answer"], random)
        preferences.append({"prompt": row["question"], "chosen": row["answer"], "rejected": wrong})
    return preferences


def _wrong(answer: str, random: np.random.Generator) -> str:
    place = int(random.integers(len(answer)))
    first = place == 0 and len(answer) > 1  # no leading zero
    others = [digit for digit in "0123456789"[first:] if digit != answer[place]]
    return answer[:place] + others[int(random.integers(len(others)))] + answer[place + 1 :]
