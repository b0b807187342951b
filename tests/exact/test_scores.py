"""Episode scores and the exploration schedule against hand-worked numbers."""

from __future__ import annotations

import numpy as np
import pytest

from agilerl.envs.protocol import StepBatch
from agilerl.errors import ConfigError
from agilerl.rollouts.off_policy import EpisodeTracker, calculate_vectorized_scores

REWARDS = np.array([[1, 2, 4, 8, 16], [1, 1, 1, 1, 1], [3, 3, 3, 3, 3]])
ENDS = np.array([[0, 1, 0, 1, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1]])


@pytest.mark.parametrize(
    ("include_unterminated", "only_first_episode", "expected"),
    [
        (False, True, [3, 5, 15]),
        (True, True, [3, 5, 15]),
        (False, False, [3, 12, 5, 15]),
        (True, False, [3, 12, 16, 5, 15]),
    ],
)
def test_scores_of_recorded_steps(include_unterminated: bool, only_first_episode: bool, expected: list[int]) -> None:
    scores = calculate_vectorized_scores(REWARDS, ENDS, include_unterminated, only_first_episode)
    assert scores == expected
    assert all(type(score) is float for score in scores)


def test_scores_need_matching_tables() -> None:
    with pytest.raises(ConfigError, match=r"\(3, 5\), \(3, 4\)"):
        calculate_vectorized_scores(REWARDS, ENDS[:, :4])


def batch(reward: list[float], terminated: list[int], truncated: list[int], mask: list[int]) -> StepBatch:
    flags = (np.array(flag, dtype=bool) for flag in (terminated, truncated, mask))
    ended, cut, kept = flags
    return StepBatch(np.zeros(2), np.array(reward, dtype=float), ended, cut, np.zeros(2), kept, {})


def test_the_tracker_counts_both_kinds_of_end_and_skips_masked_rows() -> None:
    tracker = EpisodeTracker(2)
    tracker.update(batch([1, 10], [0, 0], [0, 0], [1, 1]))
    finished = tracker.update(batch([2, 20], [1, 0], [0, 1], [1, 1]))
    np.testing.assert_array_equal(finished.lanes, [0, 1])
    np.testing.assert_array_equal(finished.returns, [3, 30])
    np.testing.assert_array_equal(finished.lengths, [2, 2])
    tracker.update(batch([99, 7], [1, 1], [0, 0], [0, 1]))  # lane 0: the reset step of NEXT_STEP
    tracker.update(batch([4, 5], [1, 0], [1, 0], [1, 1]))
    assert tracker.scores == [[3.0, 4.0], [30.0, 7.0]]
    assert tracker.completed() == [3.0, 4.0, 30.0, 7.0]
    assert tracker.completed(1, 2) == [30.0, 7.0]
    np.testing.assert_array_equal(tracker.returns, [0, 5])
    np.testing.assert_array_equal(tracker.lengths, [0, 1])
    tracker.restart()
    assert tracker.completed() == []
    assert tracker.returns.sum() == tracker.lengths.sum() == 0
    np.testing.assert_array_equal(finished.returns, [3, 30])
