"""Shrunken estimates of mean returns."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from agilerl.hpo.screening import shrink


def test_means_are_shrunk_by_a_fifth() -> None:
    """V = 20^2 = 400, the squares around the mean of 180 sum to 2,000: B = (4 - 3) 400 / 2,000 = 0.2."""
    estimates, errors = shrink([210, 190, 170, 150], [20] * 4, [16] * 4)
    np.testing.assert_allclose(estimates, [204, 188, 172, 156])
    np.testing.assert_allclose(errors, [17.88854382] * 4)  # sqrt(0.8 * 400)


def test_the_variance_of_a_return_is_pooled_and_few_episodes_are_shrunk_more() -> None:
    """Variances of a return: 16 * 10^2 = 1,600 of 15 degrees of freedom, 4 * 20^2 = 1,600 of 3: s^2 = 1,600."""
    estimates, errors = shrink([210, 190, 170, 150], [10, 20, 10, 10], [16, 4, 16, 16])
    np.testing.assert_allclose(estimates, [210 - 0.05 * 30, 190 - 0.2 * 10, 170 + 0.05 * 10, 150 + 0.05 * 30])
    np.testing.assert_allclose(errors, np.sqrt([95, 320, 95, 95]))
    lucky, _ = shrink([260, 190, 170, 150], [0, 20, 10, 10], [4, 4, 16, 16])  # no spread in four episodes
    assert lucky[0] < 260 - 1


def test_equal_means_no_errors_and_small_populations() -> None:
    np.testing.assert_array_equal(shrink([5, 5, 5, 5], [1] * 4, [8] * 4)[0], [5, 5, 5, 5])
    np.testing.assert_array_equal(shrink([4, 3, 2, 1], [0] * 4, [8] * 4), [[4, 3, 2, 1], [0] * 4])
    for members in (1, 2, 3):
        estimates, errors = shrink([3, 2, 1][:members], [1] * members, [8] * members)
        np.testing.assert_array_equal(estimates, [3, 2, 1][:members])
        np.testing.assert_allclose(errors, [1] * members)


MEANS = st.lists(st.floats(-100, 100), min_size=4, max_size=8)


@given(means=MEANS, error=st.floats(0, 50), scale=st.floats(0.1, 10), shift=st.floats(-50, 50))
@settings(max_examples=100, deadline=None)
def test_estimates_lie_between_the_mean_and_the_common_mean_in_any_units(
    means: list[float], error: float, scale: float, shift: float
) -> None:
    count = len(means)
    estimates, errors = shrink(means, [error] * count, [8] * count)
    center = np.mean(means)
    assert np.all(np.abs(estimates - center) <= np.abs(np.array(means) - center) + 1e-9)
    assert np.all(errors <= error + 1e-9)
    order = np.argsort(means, kind="stable")  # equal errors: the order stays
    assert np.all(np.diff(estimates[order]) >= -1e-9)
    again, _ = shrink(scale * np.array(means) + shift, [scale * error] * count, [8] * count)
    np.testing.assert_allclose(again, scale * estimates + shift, atol=1e-6)


def test_the_highest_of_four_means_is_less_biased_and_closer_when_shrunk() -> None:
    generator = np.random.default_rng(0)
    true = generator.normal(150, 30, (2_000, 4))
    means = true + generator.normal(0, 20, true.shape)
    estimates = np.array([shrink(row, [20] * 4, [16] * 4)[0] for row in means])
    rows, leaders = np.arange(len(true)), means.argmax(1)
    plain, shrunk = (values[rows, leaders] - true[rows, leaders] for values in (means, estimates))
    assert abs(shrunk.mean()) < 0.6 * plain.mean()
    assert np.mean(shrunk**2) < np.mean(plain**2)
