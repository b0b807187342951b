"""Replays of stops, of benchmarks/confirmations.py, against episodes by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def confirmations(benchmark_module: Any) -> Any:
    return benchmark_module("confirmations")


def test_both_ways_confirm_by_the_same_line(confirmations: Any) -> None:
    good, bad = np.tile([230.0, 250.0], 150), np.tile([100.0, 200.0], 150)
    assert confirmations.confirm_in_parts(good) == confirmations.confirm_sequentially(good) == (True, 100)
    assert confirmations.confirm_in_parts(bad) == (False, 32)
    assert confirmations.confirm_sequentially(bad) == (False, 14)  # 100 in seven batches
    # Mean 215, deviation 50.2 to 50.4, errors of 100, 200, 300: 5.0, 3.6, 2.9; lines 220.1, 217.1, 215.8.
    undecided = np.tile([165.0, 265.0], 150)
    assert confirmations.confirm_in_parts(undecided) == (False, 300)
    assert confirmations.confirm_sequentially(undecided)[0] is False


def test_a_replay_stops_at_the_first_confirmed_candidate(confirmations: Any) -> None:
    def member(mean: float) -> Any:
        return confirmations.Member(lambda generator, count: np.resize([mean - 1, mean + 1], count), mean)

    weak, lucky, strong = ([member(mean)] * 4 for mean in (150.0, 205.0, 240.0))
    rows = confirmations.replay([weak, lucky, strong, strong], (0,))
    assert len(rows) == len(confirmations.SCHEMES)
    assert rows[0] == (100 + 100, 2, 2, 240.0)  # 205 is above 200 and below 210: it ends after 100
    assert rows[1] == (14 + 100, 2, 2, 240.0)
    episodes, tries, generations, mean = confirmations.replay([weak], (0,))[0]
    assert (episodes, tries, generations) == (0, 0, 1)
    assert math.isnan(mean)


def test_drawn_landings_have_the_mean_that_is_asked_for(confirmations: Any) -> None:
    returns = confirmations.landings(200.0)(np.random.default_rng(0), 200_000)
    assert abs(returns.mean() - 200) < 5 * returns.std() / math.sqrt(len(returns))
    assert np.median(returns) > 240  # a heavy lower tail
