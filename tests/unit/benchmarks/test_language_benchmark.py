"""Who goes on in benchmarks/language.py, against shares of right answers by hand."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")


@pytest.fixture
def language(benchmark_module: Any) -> Any:
    return benchmark_module("language")


class Member:
    def __init__(self, index: int, lr: float, share: float) -> None:
        self.index, self.lr, self.fitness = index, lr, [share]

    def clone(self, index: int | None = None, wrap: bool = True) -> Member:
        return Member(self.index if index is None else index, self.lr, self.fitness[-1])


def test_the_highest_rate_that_is_not_behind_for_certain_goes_on(language: Any) -> None:
    """Of 256 questions, shares of 0.45 and 0.38 have standard errors of 0.031 and 0.030, their difference of 0.043:
    0.07 is 1.6 of these. 0.30 is 3.5 behind, and 0 is more."""
    rates = (1e-4, 4.6e-4, 2.2e-3, 1e-2)
    for shares, chosen in (((0.36, 0.45, 0.38, 0.0), 2), ((0.36, 0.45, 0.30, 0.0), 1), ((0.1, 0.2, 0.3, 0.9), 3)):
        members = [Member(i, lr, share) for i, (lr, share) in enumerate(zip(rates, shares, strict=True))]
        _, after = language.Patient(2, True, 2, seed=0).select(members)
        assert after[0].index == chosen
        assert [member.lr for member in after] == [rates[chosen]] * 2


def test_members_of_one_family_are_told_apart_by_fitness(language: Any) -> None:
    pair = [Member(2, 2.2e-3, 0.5), Member(4, 1.3e-3, 0.51)]
    _, after = language.Patient(2, True, 1, seed=0).select(pair)
    assert [member.index for member in after] == [4]
