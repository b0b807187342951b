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
    assert choices.Way("staged", stage=2)(RETURNS, training) == (0, 2 + 2 + 2)  # 2 is behind by 4, for certain
    # After 3 episodes 0 is behind by 1, error 5; 1 by 9. After 6 by 6, error 3.2.
    assert choices.Way("staged", stage=3)(RETURNS, training) == (2, 3 + 6 + 6)
    assert choices.Way("four", stage=4)(RETURNS, training) == (2, 4 + 4 + 4)  # 0 is behind by 3.5, error 4.3: 0.8 of it
    assert choices.Way("less", episodes=2)(RETURNS, training) == (0, 6)
    assert choices.Way("two", members=2)(RETURNS, training) == (2, 16)
    assert choices.Way("one", members=1)(RETURNS, training) == (1, 8)
    assert choices.Way("none", members=0)(RETURNS, training) == (1, 0)
    assert choices.Way("none", members=0)(RETURNS, [1.0, 3.0, None]) == (2, 0)  # nobody knows what it may be


def test_right_is_who_is_best_in_the_other_episodes(choices: Any) -> None:
    """In the first block member 1 is lucky; in the others, which judge it, member 0 is better by 2 throughout."""
    truth = np.array([[10.0] * 64, [12.0] * 16 + [8.0] * 48])
    found = choices.judged({"truth": truth.tolist(), "training": [1.0, 0.0]}, choices.Way("all"))
    assert found[0] == (False, 2.0, 16)
    assert [right for right, _, _ in found[1:]] == [True] * 3
    (row, *_) = choices.rows(
        "LunarLander-v3:DQN", [{"generations": [{"truth": truth.tolist(), "training": [1.0, 0.0]}]}]
    )
    assert (row["right"], row["lost"], row["episodes"]) == (3 / 4, 0.5, 16)


def test_a_way_is_compared_with_all_by_all_episodes_in_the_same_generations(choices: Any) -> None:
    """By training returns alone member 0 is chosen, which is right in the first generation and wrong in the second."""
    one = {"truth": [[2.0] * 64, [1.0] * 64], "training": [1.0, 0.0]}
    two = {"truth": [[1.0] * 64, [2.0] * 64], "training": [1.0, 0.0]}
    first, *_, last = choices.rows("LunarLander-v3:DQN", [{"generations": [one, two]}])
    assert (first["right"], first["gain"], first["gain_error"]) == (1.0, 0.0, 0.0)
    assert (last["right"], last["gain"], last["gain_error"]) == (0.5, -0.5, 0.5)
