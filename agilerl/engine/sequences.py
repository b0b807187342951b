"""How a rollout is cut into sequences for truncated back-propagation through time."""

from __future__ import annotations

import numpy as np

KINDS = ("chunked", "maximum", "fifty_percent_overlap")


def cut_points(length: int, longest: int, kind: str) -> list[tuple[int, int]]:
    """(start, length) of the sequences of one episode of `length` steps; together they cover every step.

    * "chunked": one after the other, `longest` steps each; the last one is what is left.
    * "maximum": as "chunked". `longest` alone bounds it: with none the episode is one sequence.
    * "fifty_percent_overlap": a start every `longest // 2` steps (at least one), up to the sequence that reaches the
      end; steps in two sequences count twice.
    """
    stride = max(1, longest // 2) if kind == "fifty_percent_overlap" else longest
    points = []
    for start in range(0, length, stride):
        points.append((start, min(longest, length - start)))
        if start + longest >= length:
            break
    return points


def sequences_of(cut: np.ndarray, valid: np.ndarray, longest: int, kind: str) -> np.ndarray:
    """All sequences of a rollout of some lanes: no sequence crosses the end of an episode.

    Args:
        cut: [T, E] bool, the episode ended with this step. valid: [T, E] bool, False where a row is no transition.
        longest: most steps of a sequence.

    Returns:
        [S, 3] int64: lane, first step, length; lane by lane, in the order of time.
    """
    found = []
    steps = len(cut)
    for lane in range(cut.shape[1]):
        # An episode goes from the row after an end, or after a row that is no transition, to the next of either.
        ends = np.flatnonzero(cut[:, lane] | ~valid[:, lane]) + 1
        start = 0
        for end in (*ends.tolist(), steps):
            stop = end if end == steps or valid[end - 1, lane] else end - 1
            if end == steps and steps and not valid[steps - 1, lane]:
                stop = steps - 1
            found += [(lane, start + first, count) for first, count in cut_points(stop - start, longest, kind)]
            start = end
    return np.array(found, np.int64).reshape(-1, 3)
