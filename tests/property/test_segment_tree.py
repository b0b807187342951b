"""The trees against a plain array: sums, minima, and which leaf a point falls into."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agilerl.components.segment_tree import MinSegmentTree, SumSegmentTree
from agilerl.errors import ConfigError

# Small multiples of 1/8: every sum of them is exact, so the tree and the cumulative sum must agree to the bit.
EIGHTHS = st.integers(0, 80).map(lambda k: k / 8)
WRITES = st.lists(
    st.tuples(st.booleans(), st.lists(st.tuples(st.integers(0, 10**6), EIGHTHS), min_size=1, max_size=12)), max_size=12
)


@given(capacity=st.integers(1, 70), writes=WRITES)
def test_any_writes_leave_what_a_loop_over_an_array_leaves(
    capacity: int, writes: list[tuple[bool, list[tuple[int, float]]]]
) -> None:
    sums, minima = SumSegmentTree(capacity), MinSegmentTree(capacity)
    array, lowest = np.zeros(capacity), np.full(capacity, np.inf)
    for as_range, pairs in writes:
        values = np.array([value for _, value in pairs])
        if as_range:
            start = pairs[0][0] % capacity
            values = values[: capacity - start]
            indices = np.arange(start, start + len(values))
            sums.set_range(start, start + len(values), values)
            minima.set_range(start, start + len(values), values)
        else:
            indices = np.array([index % capacity for index, _ in pairs])  # with duplicates: the last one wins
            sums.set(indices, values)
            minima.set(indices, values)
        for index, value in zip(indices, values, strict=True):
            array[index] = lowest[index] = value
        np.testing.assert_array_equal(sums[:], array)
        assert (sums.total, minima.minimum) == (array.sum(), lowest.min())
    if sums.total:
        ends = np.cumsum(array)
        points = np.unique(np.concatenate([np.arange(0, sums.total, 0.125), ends[ends < sums.total]]))
        np.testing.assert_array_equal(sums.find(points), np.searchsorted(ends, points, side="right"))
        np.testing.assert_array_equal(sums.find(points[None, :, None]), sums.find(points)[None, :, None])


@given(data=st.data(), capacity=st.integers(2, 40))
def test_a_leaf_of_zero_is_never_found_whatever_the_rounding(data: st.DataObject, capacity: int) -> None:
    sizes = st.floats(0, 1e300, allow_subnormal=False)
    values = np.array(data.draw(st.lists(sizes, min_size=capacity, max_size=capacity)))
    tree = SumSegmentTree(capacity)
    tree.set(np.arange(capacity), values)
    if tree.total == 0:
        return
    points = np.concatenate([[0.0, np.nextafter(tree.total, 0)], np.nextafter(np.cumsum(values), 0), np.cumsum(values)])
    found = tree.find(points[(points >= 0) & (points < tree.total)])
    assert ((found >= 0) & (found < capacity)).all()
    assert (values[found] > 0).all()


def test_the_sum_does_not_drift_and_does_not_depend_on_the_order_of_the_writes() -> None:
    rng = np.random.default_rng(0)
    tree = SumSegmentTree(100)
    for _ in range(300):
        tree.set(rng.integers(0, 100, 32), rng.random(32) * 10.0 ** rng.integers(-8, 8, 32))
    final = rng.random(100)
    tree.set(rng.permutation(100), 1e9)
    order = rng.permutation(100)
    tree.set(order, final[order])
    other = SumSegmentTree(100)
    other.set_range(0, 100, final)
    assert tree.total == other.total


def test_by_hand() -> None:
    tree = SumSegmentTree(3)
    tree.set(np.array([0, 2, 0]), np.array([9.0, 1.5, 0.5]))  # leaves 0.5, 0, 1.5
    assert tree.total == 2.0
    assert tree.find(np.array([0.0, 0.49, 0.5, 1.99])).tolist() == [0, 0, 2, 2]
    assert (tree[2], len(tree)) == (1.5, 3)
    with pytest.raises(ConfigError, match="capacity must be an integer of at least 1"):
        SumSegmentTree(0)


def test_a_point_that_rounding_moves_past_the_last_weight_falls_on_it() -> None:
    # The sums of this tree are rounded up on the way to the root, so the largest point below the total is past all.
    values = [4.565221342184489e-05, 5.369051907059222e-07, 0.0, 9.451399712011762e-08, 6.7981315366143e-05, 0.0,
              1.712604715510133e-12, 0.0, 0.0]  # fmt: skip
    tree = SumSegmentTree(9)
    tree.set(np.arange(9), np.array(values))
    points = np.array([[0.0, np.nextafter(tree.total, 0)]])
    assert tree._descend(points, is_guarded=False).tolist() == [[0, 7]]
    assert tree.find(points).tolist() == [[0, 6]]
