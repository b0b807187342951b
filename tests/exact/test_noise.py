"""Exploration noise by hand: one path, its continuation, its moments."""

from __future__ import annotations

import math

import numpy as np
import pytest

from agilerl.algorithms.base.actions import gaussian, ornstein_uhlenbeck


def test_a_path_by_hand() -> None:
    # θ = 0.5, μ = 1, σ = 2, dt = 0.25: x ← x + 0.125 (1 − x) + 2 · 0.5 · ε
    numbers = np.array([1.0, -1.0, 0.0]).reshape(3, 1, 1)
    path = ornstein_uhlenbeck(np.zeros((1, 1)), numbers, 1.0, 0.5, 2.0, 0.25)
    first = 0 + 0.125 * 1 + 1
    second = first + 0.125 * (1 - first) - 1
    third = second + 0.125 * (1 - second)
    np.testing.assert_allclose(path.ravel(), [first, second, third], rtol=0, atol=1e-15)


def test_two_pieces_of_a_path_are_the_path_and_lanes_are_apart() -> None:
    rng = np.random.default_rng(0)
    numbers = rng.standard_normal((20, 3, 2))
    start = rng.standard_normal((3, 2))
    whole = ornstein_uhlenbeck(start, numbers, 0.1, 0.15, 0.2, 0.01)
    head = ornstein_uhlenbeck(start, numbers[:7], 0.1, 0.15, 0.2, 0.01)
    tail = ornstein_uhlenbeck(head[-1], numbers[7:], 0.1, 0.15, 0.2, 0.01)
    np.testing.assert_array_equal(np.concatenate([head, tail]), whole)
    lane = ornstein_uhlenbeck(start[1:2], numbers[:, 1:2], 0.1, 0.15, 0.2, 0.01)
    np.testing.assert_array_equal(lane[:, 0], whole[:, 1])


def test_the_stationary_deviation_is_the_one_of_the_discrete_process() -> None:
    theta, sigma, dt = 0.5, 0.3, 0.1
    numbers = np.random.default_rng(1).standard_normal((4000, 500, 1))
    path = ornstein_uhlenbeck(np.zeros((500, 1)), numbers, 0.7, theta, sigma, dt)[1000:]
    keep = 1 - theta * dt
    expected = sigma * math.sqrt(dt) / math.sqrt(1 - keep**2)
    # 500 independent lanes of 3000 steps with a memory of 40: about 500 · 3000 / 40 / 2 draws, a relative deviation of
    # 1 / sqrt(2 · 18750) = 0.5 % in the standard deviation and 0.7 % of it in the mean; four of them.
    assert path.std() == pytest.approx(expected, rel=0.02)
    assert path.mean() == pytest.approx(0.7, abs=0.03 * expected)


def test_gaussian_noise_has_a_mean_and_a_deviation_per_component() -> None:
    got = gaussian(np.array([[1.0, -2.0]]), np.array([0.5, 0.0]), np.array([0.1, 0.2]))
    np.testing.assert_allclose(got, [[0.6, -0.4]])
