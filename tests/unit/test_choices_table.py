"""What ways of evaluating would have chosen, of benchmarks/choices.py, against a generation by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


@pytest.fixture
def choices(benchmark_module: Any) -> Any:
    return benchmark_module("choices")


RETURNS = np.array([[9.0] * 8, [1.0] * 8, [5.0, 5.0, *[20.0] * 6]])


def test_a_way_chooses_among_those_whom_it_evaluates(choices: Any) -> None:
    training = [1.0, 3.0, 2.0]
    assert choices.Way("all")(RETURNS, training) == (2, 24)
    assert choices.Way("staged", screen=2)(RETURNS, training) == (0, 2 + 2 + 8)  # 2 is behind by 4, for certain
    assert choices.Way("staged", screen=4)(RETURNS, training) == (2, 4 + 8 + 8)  # 0 is behind by 3.5, error 4.3
    assert choices.Way("two", members=2)(RETURNS, training) == (2, 16)
    assert choices.Way("one", members=1)(RETURNS, training) == (1, 8)
    assert choices.Way("none", members=0)(RETURNS, training) == (1, 0)
    assert choices.Way("none", members=0)(RETURNS, [1.0, 3.0, None]) == (2, 0)  # nobody knows what it may be


def test_right_is_who_is_best_in_the_other_episodes(choices: Any) -> None:
    """In the first block member 1 is lucky; in the others, which judge it, member 0 is better by 2 throughout."""
    truth = np.array([[10.0] * 64, [12.0] * 8 + [8.0] * 56])
    found = choices.judged({"truth": truth.tolist(), "training": [1.0, 0.0]}, choices.Way("all"))
    assert found[0] == (False, 2.0, 16)
    assert [right for right, _, _ in found[1:]] == [True] * 7
    (row, *_) = choices.rows(
        "LunarLander-v3:DQN", [{"generations": [{"truth": truth.tolist(), "training": [1.0, 0.0]}]}]
    )
    assert (row["right"], row["lost"], row["episodes"]) == (7 / 8, 0.25, 16)
