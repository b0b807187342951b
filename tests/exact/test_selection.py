"""Selection against hand-worked tables."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from agilerl.hpo import TournamentSelection
from agilerl.hpo.tournament import rank, tournament

NAN = float("nan")
INF = float("inf")


@pytest.mark.parametrize(
    ("fitness", "expected"),
    [
        ([3, 1, 2], [2, 0, 1]),
        ([1, NAN, 3], [1, 0, 2]),
        ([NAN, -INF, INF], [0, 1, 2]),
        ([5, 5, 5], [2, 1, 0]),
        ([NAN, NAN], [1, 0]),
        ([-1], [0]),
    ],
)
def test_ranks(fitness: list[float], expected: list[int]) -> None:
    assert rank(fitness).tolist() == expected


class Scripted:
    """Draws that were written down before."""

    def __init__(self, *draws: list[int]) -> None:
        self.draws = list(draws)

    def integers(self, low: int, high: int, size: int) -> np.ndarray:
        drawn = self.draws.pop(0)
        assert len(drawn) == size
        assert max(drawn) < high
        return np.array(drawn)


def test_tournament_by_hand() -> None:
    fitness = [10.0, 40.0, 20.0, 30.0]
    assert tournament(fitness, 2, 4, Scripted([0, 2], [3, 2], [0, 0]), True) == [1, 2, 3, 0]
    assert tournament(fitness, 3, 2, Scripted([0, 2, 3], [0, 1, 3]), False) == [3, 1]


def test_members_without_a_number_take_no_part() -> None:
    # Candidates are members 0 and 2 only: position 1 among them is member 2.
    assert tournament([1, NAN, 3], 2, 3, Scripted([0, 0], [0, 1]), True) == [2, 0, 2]
    rng = np.random.default_rng(0)
    drawn = Counter(i for _ in range(300) for i in tournament([NAN, 5, NAN, 4], 1, 4, rng, False))
    assert set(drawn) == {1, 3}
    assert set(tournament([NAN, NAN], 1, 50, rng, False)) == {0, 1}


def test_win_probabilities_are_those_of_draws_with_replacement() -> None:
    # P(the k-th worst of n wins a tournament of 2) = (2k - 1)/n²: 1/16, 3/16, 5/16, 7/16.
    drawn = Counter(tournament([1, 2, 3, 4], 2, 16_000, np.random.default_rng(1), False))
    for member in range(4):  # standard error of a share below 0.004
        assert abs(drawn[member] / 16_000 - (2 * member + 1) / 16) < 0.016


class Member:
    def __init__(self, index: int, *fitness: float) -> None:
        self.index, self.fitness, self.parent = index, list(fitness), self

    def clone(self, index: int | None = None, wrap: bool = True) -> Member:
        twin = Member(self.index if index is None else index, *self.fitness)
        twin.parent = self
        return twin


def test_select_returns_an_independent_elite_and_new_indices() -> None:
    population = [Member(7, 1.0), Member(3, 9.0), Member(5, NAN)]
    chosen = TournamentSelection(2, True, 3, 1, seed=0)
    elite, new = chosen.select(population)
    assert elite.index == 3 == new[0].index
    assert elite is not population[1]
    assert elite is not new[0]
    assert [m.index for m in new] == [3, 8, 9]
    assert all(m.parent is not population[2] for m in new)
    assert chosen.parents == [m.parent.index for m in new]


def test_nan_never_becomes_the_elite_even_in_the_mean() -> None:
    population = [Member(0, 1.0, 1.0), Member(1, NAN, 50.0), Member(2, 3.0, 0.0)]
    assert TournamentSelection(2, True, 3, 2, seed=0).select(population)[0].index == 2
    assert TournamentSelection(2, True, 3, 1, seed=0).select(population)[0].index == 1


def test_fitness_is_the_mean_of_the_last_evaluations() -> None:
    chosen = TournamentSelection(2, True, 2, 3)
    assert chosen.fitness_of(Member(0, 100.0, 1.0, 2.0, 6.0)) == 3.0
    assert chosen.fitness_of(Member(0, 4.0)) == 4.0
    with pytest.raises(ValueError, match=r"agent\.test"):
        chosen.fitness_of(Member(0))


def test_population_size_decides_and_the_change_is_said_once() -> None:
    population = [Member(0, 1.0), Member(1, 2.0)]
    with pytest.warns(UserWarning, match="from 2 to population_size=5"):
        _, new = TournamentSelection(2, False, 5, seed=0).select(population)
    assert [m.index for m in new] == [2, 3, 4, 5, 6]


def test_same_seed_same_parents_and_each_call_draws_anew() -> None:
    population = [Member(i, float(i)) for i in range(8)]

    def lineages(seed: int) -> list[list[int]]:
        chosen = TournamentSelection(2, False, 8, seed=seed)
        runs = []
        for _ in range(3):
            chosen.select(population)
            runs.append(chosen.parents)
        return runs

    assert lineages(4) == lineages(4)
    assert lineages(4) != lineages(5)
    assert lineages(4)[0] != lineages(4)[1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((0, True, 4), "tournament_size must be an integer of at least 1; got 0. fix: tournament_size=1."),
        ((2, "yes", 4), "elitism must be True or False; got 'yes'. fix: elitism=True."),
        ((2, True, -1), "population_size must be an integer of at least 1; got -1. fix: population_size=1."),
        ((2, True, 4, 0), "eval_loop must be an integer of at least 1; got 0. fix: eval_loop=1."),
    ],
)
def test_bad_settings_are_both_value_and_assertion_errors(arguments: tuple, says: str) -> None:
    for kind in (ValueError, AssertionError):
        with pytest.raises(kind, match=f"^TournamentSelection: {says}$"):
            TournamentSelection(*arguments)
