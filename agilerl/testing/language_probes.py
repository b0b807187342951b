"""Probes of language policies: tasks of one or two tokens whose best completions and scores are known.

They are for a tiny model that is trained in seconds (`agilerl.language.tiny`), with a few prompts that are training and
test set alike. Each isolates one failure mode, which "fails" names, from easy to hard:

    probe = language_probe("prompt")
    gym = ReasoningGym(**probe.gym(tokenizer))
    ... train ...
    probe.check(lambda question: completion)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agilerl.core import foreign
from agilerl.errors import ConfigError, unknown_choice

LETTERS = "abcd"


@dataclass(frozen=True)
class LanguageProbe:
    """One probe.

    Attributes:
        name: of the probe. fails: parts whose bugs it detects.
        questions: all prompts, one character each.
        reward: (completion, answer, question) -> number.
        best: question -> completion of the highest reward; empty if all are equal.
        tokens: length of a completion: `max_output_tokens` and `min_output_tokens` of the algorithm.
        best_score: mean reward of the best completions.
        uniform_score: mean reward of letters that are drawn uniformly.
    """

    name: str
    fails: str
    questions: str
    reward: Callable[[str, str, str], float]
    best: Mapping[str, str]
    tokens: int
    best_score: float
    uniform_score: float

    @property
    def alphabet(self) -> str:
        """All characters, for `agilerl.language.tiny.tiny_tokenizer`."""
        return LETTERS + "".join(char for char in self.questions if char not in LETTERS)

    def rows(self) -> list[dict[str, str]]:
        """Return the rows of a data set: {"question", "answer"}."""
        return [{"question": question, "answer": self.best.get(question, "")} for question in self.questions]

    def gym(self, tokenizer: foreign.Tokenizer, copies: int = 4) -> dict[str, Any]:
        """Return arguments of `agilerl.llm_envs.ReasoningGym`.

        copies: how often each prompt is in the training set, and in a batch.
        """
        rows = self.rows() * copies
        return {
            "train_dataset": rows,
            "test_dataset": self.rows(),
            "tokenizer": tokenizer,
            "reward_fn": self.reward,
            "data_batch_size_per_gpu": len(rows),
        }

    def score(self, complete: Callable[[str], str]) -> float:
        """Return the mean reward of `complete` (question -> completion) over all questions."""
        rewards = [self.reward(complete(row["question"]), row["answer"], row["question"]) for row in self.rows()]
        return sum(rewards) / len(rewards)

    def check(self, complete: Callable[[str], str]) -> None:
        """Check the completion of every question.

        Raises:
            AssertionError: one is not the best, with the parts that fail.
        """
        for question, best in self.best.items():
            completion = complete(question)
            assert completion == best, f"{self.name}: {question!r} -> {completion!r}, not {best!r}: {self.fails}"


def _constant(completion: str, answer: str, question: str) -> float:
    return 1.0


def _exact(completion: str, answer: str, question: str) -> float:
    return float(completion == answer)


def _by_place(completion: str, answer: str, question: str) -> float:
    """Half a point for each token that is right in its place."""
    return sum(0.5 for mine, theirs in zip(completion, answer, strict=False) if mine == theirs)


PROBES = {
    probe.name: probe
    for probe in (
        LanguageProbe(
            "constant", "advantages of equal rewards, the penalty or weight decay: nothing is to be learned",
            "1", _constant, {}, 1, 1.0, 1.0,
        ),
        LanguageProbe(
            "token", "the way from rewards to the probability of a token", "1", _exact, {"1": "c"}, 1, 1.0, 0.25,
        ),
        LanguageProbe(
            "prompt", "the way from prompts to completions, or groups that mix prompts",
            "123", _exact, {"1": "b", "2": "d", "3": "a"}, 1, 1.0, 0.25,
        ),
        LanguageProbe(
            "credit", "masks and positions of tokens: each token earns half of the reward",
            "1", _by_place, {"1": "da"}, 2, 1.0, 0.25,
        ),
    )
}  # fmt: skip
"""All probes by name, from easy to hard."""


def language_probe(name: str) -> LanguageProbe:
    """Return the probe of this name.

    Raises:
        ConfigError: an unknown name.
    """
    if name not in PROBES:
        raise ConfigError(unknown_choice("language probe", name, PROBES))
    return PROBES[name]
