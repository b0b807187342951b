"""Means and standard errors of fitness, in stages and of confirmations, from returns that are given."""

from __future__ import annotations

import contextlib
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agilerl.collect.evaluator import Evaluator
from agilerl.core.options import LoopOptions
from agilerl.rollouts.episodes import Episodes, EvaluationResult

AGENTS = [SimpleNamespace(index=4), SimpleNamespace(index=9)]
RETURNS = {4: [1.0, 3.0, 5.0, 7.0, 2.0, 9.0, 4.0, 1.0], 9: [3.0, 5.0, 2.0, 4.0, 2.0, 2.0, 2.0, 2.0]}


def evaluator(**options: Any) -> Evaluator:
    """One that plays in no environment: the returns of an episode are those of its number."""
    judge = Evaluator(None, LoopOptions(**options), 0)
    judge._replicable = True

    def divide(learner: Any, episodes: Episodes, here: Any) -> EvaluationResult:
        returns = np.array([[RETURNS[a.index][n] for n in episodes.numbers] for a in learner.agents])
        return EvaluationResult(returns, np.ones(returns.shape, int), returns.size, np.zeros(returns.shape, bool))

    judge.divider = SimpleNamespace(play=divide)  # type: ignore[assignment]
    return judge


def learner(*agents: Any) -> Any:
    return SimpleNamespace(agents=list(agents))


def error_of(values: list[float]) -> float:
    """The sample deviation over the root of the count."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((x - mean) ** 2 for x in values) / (len(values) - 1) / len(values))


def test_the_error_of_a_mean_falls_with_the_root_of_the_episodes() -> None:
    """1, 3, 5, 7: a mean of 4 and squares of 9, 1, 1, 9 over 3, of which the root over 2 is 1.29."""
    judge = evaluator(eval_episodes=4)
    assert judge.population(learner(*AGENTS), 0) == [4.0, 3.5]
    assert judge.errors == pytest.approx({4: math.sqrt(20 / 3) / 2, 9: math.sqrt(5 / 3) / 2})
    assert judge.error == pytest.approx(math.sqrt(20 / 3) / 2)
    assert judge.played == {4: 4, 9: 4}
    assert (judge.env_steps, judge.episodes) == (8, 8)
    assert evaluator(eval_episodes=1).population(learner(*AGENTS), 0) == [1.0, 3.0]


def test_errors_after_stages_are_those_of_all_episodes() -> None:
    judge = evaluator(eval_episodes=8, eval_screen=4)
    fitness = judge.staged(lambda agents: contextlib.nullcontext(learner(*agents)), AGENTS, 0)
    assert fitness == [4.0, 2.75]
    assert judge.errors == pytest.approx({index: error_of(values) for index, values in RETURNS.items()})
    assert judge.played == {4: 8, 9: 8}


def test_the_error_of_a_confirmation_is_that_of_the_episodes_played() -> None:
    judge = evaluator(confirm_episodes=8)
    assert judge.held_out(learner(AGENTS[0]), 0) == 4.0
    assert judge.error == pytest.approx(error_of(RETURNS[4]))
    judge = evaluator(confirm_episodes=8, confirm_screen=4, target=100.0, stop_errors=2.0)
    mean = judge.held_out(learner(AGENTS[1]), 0)
    assert judge.episodes < 8, "the target is out of reach after some"
    assert mean == np.mean(RETURNS[9][: judge.episodes])
    assert judge.error == pytest.approx(error_of(RETURNS[9][: judge.episodes]))
