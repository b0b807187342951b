"""How rollouts are cut into sequences: no step is lost, and none lands in another episode."""

from __future__ import annotations

import numpy as np
import pytest

from agilerl.engine.rollouts import KINDS, cut_points, sequences_of


def test_ten_steps_in_sequences_of_four() -> None:
    assert cut_points(10, 4, "chunked") == [(0, 4), (4, 4), (8, 2)]
    assert cut_points(10, 4, "fifty_percent_overlap") == [(0, 4), (2, 4), (4, 4), (6, 4)]
    assert cut_points(9, 4, "fifty_percent_overlap") == [(0, 4), (2, 4), (4, 4), (6, 3)]
    assert cut_points(10, 10, "maximum") == [(0, 10)]
    assert cut_points(3, 1, "fifty_percent_overlap") == [(0, 1), (1, 1), (2, 1)], "a stride of 0 would never end"
    assert cut_points(0, 4, "chunked") == []


def test_sequences_end_with_their_episodes_and_leave_out_rows_that_are_no_transitions() -> None:
    # Lane 0 ends after step 1; its step 2 is a reset row. Lane 1 never ends.
    cut = np.array([[0, 0], [1, 0], [0, 0], [0, 0], [0, 0]], bool)
    valid = np.array([[1, 1], [1, 1], [0, 1], [1, 1], [1, 1]], bool)
    assert sequences_of(cut, valid, 3, "chunked").tolist() == [[0, 0, 2], [0, 3, 2], [1, 0, 3], [1, 3, 2]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("longest", [1, 2, 3, 5, 17])
def test_every_step_is_in_a_sequence_and_no_sequence_crosses_an_end(kind: str, longest: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        cut = rng.random((17, 3)) < 0.2
        valid = rng.random((17, 3)) > 0.1
        cut &= valid
        seen = np.zeros((17, 3), int)
        for lane, start, length in sequences_of(cut, valid, longest, kind):
            steps = slice(start, start + length)
            assert 1 <= length <= longest
            assert valid[steps, lane].all()
            assert not cut[start : start + length - 1, lane].any()
            seen[steps, lane] += 1
        assert ((seen > 0) == valid).all()
        if kind != "fifty_percent_overlap":
            assert seen.max() == 1
