"""The sequential test of a confirmation: when it ends, and what ending early changes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agilerl.rollouts.confirmation import SequentialTest, batch_ends, student_quantile


@pytest.mark.parametrize(
    ("degrees", "exact"), [(4, 2.13185), (10, 1.81246), (15, 1.75305), (30, 1.69726), (99, 1.66039)]
)
def test_quantiles_of_student_are_those_of_the_tables(degrees: int, exact: float) -> None:
    assert student_quantile(0.95, degrees) == pytest.approx(exact, abs=3e-4)
    assert student_quantile(0.05, degrees) == pytest.approx(-exact, abs=3e-4)


@pytest.mark.parametrize(
    ("threshold", "decision"),
    [(0.0, None), (0.39, None), (0.394, False), (5.0, False)],
)
def test_a_test_ends_when_passing_has_a_predictive_probability_below_a_twentieth(
    threshold: float, decision: bool | None
) -> None:
    """Of 16 returns of +-1: mean 0, s^2 = 16/15. After 64 the mean is t_15 distributed, with a scale of
    sqrt(16/15 (1/16 - 1/64)) = 0.22361; 1.75305 of these are 0.39200."""
    returns = np.array([1.0, -1.0] * 8)
    assert SequentialTest(threshold, 0.0, 64, 64).decide(returns) is decision


def test_the_margin_in_standard_errors_is_that_of_the_last_episode() -> None:
    returns = np.array([1.0, -1.0] * 8)  # two standard errors of 64: 2 sqrt(16/15 / 64) = 0.25820
    assert SequentialTest(0.13, 2.0, 64, 64).decide(returns) is None
    assert SequentialTest(0.14, 2.0, 64, 64).decide(returns) is False


def test_a_mean_passes_after_each_planned_number_of_episodes_alone() -> None:
    test = SequentialTest(0.0, 0.0, 4, 10)
    assert [test.decide(np.full(count, 1.0)) for count in (2, 4, 6, 8, 10)] == [None, True, None, True, True]
    assert test.decide(np.array([1.0, 2.0, -1.0, -3.0])) is False  # below the threshold nothing follows
    assert test.decide(np.array([1.0])) is None  # one episode has no standard deviation
    assert test.decide(np.array([-1.0])) is None


def test_constant_returns_below_the_threshold_and_values_that_are_not_finite_are_rejected_at_once() -> None:
    test = SequentialTest(475.0, 2.0, 100, 300)
    assert test.decide(np.full(16, 474.0)) is False
    assert test.decide(np.full(16, 475.0)) is None
    assert test.decide(np.array([500.0] * 15 + [math.nan])) is False
    assert test.decide(np.array([500.0] * 15 + [math.inf])) is False


COUNTS = st.integers(1, 120)


@given(episodes=COUNTS, more=st.integers(0, 200), batch=st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_batches_end_at_each_point_of_passing_and_are_small(episodes: int, more: int, batch: int) -> None:
    ends = batch_ends(episodes, episodes + more, batch)
    sizes = np.diff([0, *ends])
    assert sizes.min() >= 1
    assert sizes.max() <= batch
    assert ends[-1] == episodes + more
    assert set(range(episodes, episodes + more, episodes)) <= set(ends)
    # Not a batch more than that takes.
    points = [0, *range(episodes, episodes + more, episodes), episodes + more]
    assert len(ends) == sum(math.ceil((end - begin) / batch) for begin, end in itertools.pairwise(points))


@given(
    seed=st.integers(0, 10_000), center=st.floats(-2, 2), errors=st.sampled_from([0.0, 1.0, 2.0]),
    episodes=st.integers(2, 60), more=st.integers(0, 120), batch=st.integers(2, 30),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_what_a_test_rejects_lies_below_the_line_and_what_it_accepts_does_not(
    seed: int, center: float, errors: float, episodes: int, more: int, batch: int
) -> None:
    returns = np.random.default_rng(seed).normal(center, 2.0, episodes + more)
    test = SequentialTest(0.5, errors, episodes, episodes + more)
    for end in batch_ends(episodes, episodes + more, batch):
        played = returns[:end]
        decision = test.decide(played)
        line = 0.5 + errors * (played.std(ddof=1) if end > 1 else 0.0) / math.sqrt(end)
        if decision is not None:
            assert decision is bool(played.mean() >= line)
            return
    pytest.fail("undecided at the end")


def test_ending_early_adds_no_false_stop_and_halves_the_episodes_of_a_hopeless_candidate() -> None:
    """Returns like LunarLander-v3's: 255 for a landing, far less else. Beside a test of the same returns that ends
    for no futility."""
    generator, test = np.random.default_rng(0), SequentialTest(210.0, 2.0, 100, 300)
    ends, accepted, played = batch_ends(100, 300, 16), [0, 0], [0, 0]
    for _ in range(400):
        landed = generator.random(300) < 0.85
        returns = np.where(landed, generator.normal(255, 22, 300), generator.normal(-20, 80, 300))
        early = next((end, found) for end in ends if (found := test.decide(returns[:end])) is not None)
        late = next((end, found) for end in (100, 200, 300) if (found := test.decide(returns[:end])) is not None)
        assert late[1] or not early[1]
        accepted = [accepted[0] + early[1], accepted[1] + late[1]]
        played = [played[0] + early[0], played[1] + late[0]]
    assert accepted[1] - 4 <= accepted[0] <= accepted[1]
    assert accepted[1] > 20
    assert played[0] < 0.8 * played[1]
