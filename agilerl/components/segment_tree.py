"""Sums and minima over a changing array in O(log n), for many positions in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from agilerl.core.ranges import Count, check
from agilerl.errors import ConfigError


class SegmentTree:
    """Array of numbers with reductions of contiguous ranges in O(log n).

    A complete binary tree in one float64 array: the root is node 1, the children of k are 2k and 2k + 1. Every inner
    node is computed from its two children, never by adding a difference, so rounding errors do not accumulate, and
    trees with equal leaves are bit-identical, whatever the order of the writes.

    Args:
        capacity: leaves; any positive integer, not only a power of two as published.
        operation: associative, of two numbers; a ufunc or a plain function such as `max`.
        init_value: initial value of every leaf; the neutral element of `operation`.
    """

    def __init__(self, capacity: int, operation: Callable[[float, float], float], init_value: float) -> None:
        self._join = operation if isinstance(operation, np.ufunc) else np.frompyfunc(operation, 2, 1)
        self._neutral = float(init_value)
        check("capacity", capacity, Count, 100_000, unit="leaves")
        self.capacity = int(capacity)
        self._first = 1 << (self.capacity - 1).bit_length()  # node of leaf 0
        self._depth = self._first.bit_length() - 1
        self._nodes = np.full(2 * self._first, self._neutral)

    def __len__(self) -> int:
        return self.capacity

    def __getitem__(self, indices: Any) -> Any:
        """Return a copy of the leaves at `indices`, any shape."""
        return self._nodes[self._first : self._first + self.capacity][indices].copy()

    def set(self, indices: np.ndarray, values: np.ndarray | float) -> None:
        """Set leaf[indices[i]] = values[i] for i = 0, 1, ...; for equal indices the last one wins.

        Args:
            indices: [n] int64 in 0..capacity - 1. values: [n] or one number.
        """
        node = np.asarray(indices, dtype=np.int64) + self._first
        self._nodes[node] = values
        for _ in range(self._depth):
            node = node >> 1  # duplicates compute the same sum twice, which is cheaper than finding them
            self._nodes[node] = self._join(self._nodes[2 * node], self._nodes[2 * node + 1])

    def set_range(self, start: int, stop: int, values: np.ndarray | float) -> None:
        """Set leaf[start:stop] = values by slices, which is cheaper for neighbours."""
        if start >= stop:
            return
        low, high = start + self._first, stop + self._first
        self._nodes[low:high] = values
        for _ in range(self._depth):
            low, high = low >> 1, ((high - 1) >> 1) + 1
            children = self._nodes[2 * low : 2 * high]
            self._join(children[::2], children[1::2], out=self._nodes[low:high])

    @property
    def memory_bytes(self) -> int:
        """Bytes of all nodes."""
        return self._nodes.nbytes

    def __setitem__(self, index: object, value: Any) -> None:
        """Set leaf[index] = value; an integer, or an array of them."""
        where = np.atleast_1d(np.asarray(index, dtype=np.int64))
        if ((where < 0) | (where >= self.capacity)).any():
            raise ConfigError(f"index must be in 0..{self.capacity - 1}; got {index!r}. fix: a leaf of the tree.")
        self.set(where, value)

    def operate(self, start: int = 0, end: int = 0) -> float:
        """Reduce leaf[start], ..., leaf[end - 1]; an `end` of 0 or below counts from the capacity.

        Raises:
            ConfigError: an empty range, or one outside of the tree.
        """
        stop = end if end > 0 else end + self.capacity
        if not 0 <= start < stop <= self.capacity:
            raise ConfigError(
                f"a range must be within 0..{self.capacity} and not empty; got start={start}, end={end}. "
                "fix: end > start."
            )
        left, right = start + self._first, stop + self._first
        before, after = self._neutral, self._neutral  # reduced from both sides: any operation
        while left < right:
            if left & 1:
                before, left = self._join(before, self._nodes[left]), left + 1
            if right & 1:
                right -= 1
                after = self._join(self._nodes[right], after)
            left, right = left >> 1, right >> 1
        return float(self._join(before, after))


class SumSegmentTree(SegmentTree):
    """`capacity` numbers >= 0, initially zero, sums of ranges, and inverse lookup of cumulative sums."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity, np.add, 0.0)

    @property
    def total(self) -> float:
        """Sum of the leaves."""
        return float(self._nodes[1])

    def sum(self, start: int = 0, end: int = 0) -> float:
        """leaf[start] + ... + leaf[end - 1]; see `operate`."""
        return self.operate(start, end)

    def retrieve(self, upperbound: float) -> int:
        """The smallest i with leaf[0] + ... + leaf[i] > upperbound, of 0 <= upperbound < sum()."""
        if not 0 <= upperbound < self.total:
            raise ConfigError(f"upperbound must be at least 0 and below {self.total:g}, the sum; got {upperbound!r}.")
        return int(self.find(np.array([upperbound]))[0])

    def find(self, prefix: np.ndarray) -> np.ndarray:
        """Return the leaf into which each point falls when the leaves are laid end to end.

        This is the smallest i with leaf[0] + ... + leaf[i] > prefix (`np.searchsorted(cumsum, prefix, "right")`). A
        leaf of zero is never returned, even if rounding moves a point past the end of its subtree.

        Args:
            prefix: [...] float64, 0 <= prefix < total, which is above 0.

        Returns:
            [...] int64 leaf indices.
        """
        leaf = self._descend(prefix, is_guarded=False)
        is_empty = self._nodes.take(leaf + self._first) == 0
        if is_empty.any():  # rounding led into a subtree of zeros
            leaf[is_empty] = self._descend(np.asarray(prefix)[is_empty], is_guarded=True)
        return leaf

    def _descend(self, prefix: np.ndarray, is_guarded: bool) -> np.ndarray:
        """Descend from the root to a leaf; if guarded, which costs half as much again, never into an empty subtree."""
        rest = np.array(prefix, dtype=np.float64)
        node = np.ones(rest.shape, dtype=np.int64)
        for _ in range(self._depth):
            node *= 2
            left = self._nodes.take(node)
            is_right = rest >= left
            if is_guarded:
                is_right &= self._nodes.take(node + 1) > 0
            left *= is_right
            rest -= left
            node += is_right
        return np.asarray(node - self._first)


class MinSegmentTree(SegmentTree):
    """`capacity` numbers, initially infinite, and the minima of ranges."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity, np.minimum, np.inf)

    @property
    def minimum(self) -> float:
        """The smallest leaf; infinity if none was set."""
        return float(self._nodes[1])

    def min(self, start: int = 0, end: int = 0) -> float:
        """The smallest of leaf[start], ..., leaf[end - 1]; see `operate`."""
        return self.operate(start, end)
