"""For one process, the order in which two ranks go through their halves of a rollout."""

from __future__ import annotations

import numpy as np

from agilerl.engine.rollouts import dealt

RANKS = 2


class Merged:
    """Permutes samples such that minibatch k is the union of both ranks' k-th minibatches.

    Args:
        seed: rank r draws from a generator of (seed, r).
        batch_size: of one process; it divides the number of samples.
        rank_of: [S] the rank of every sample, counted or not. Each rank numbers its own in the same order.
    """

    def __init__(self, seed: int, batch_size: int, rank_of: np.ndarray) -> None:
        self.rngs = [np.random.default_rng((seed, rank)) for rank in range(RANKS)]
        self.batch_size, self.rank_of = batch_size, rank_of
        self.numbers = [np.flatnonzero(rank_of == rank) for rank in range(RANKS)]

    def permutation(self, samples: np.ndarray) -> np.ndarray:
        orders = []
        for rank, (rng, numbers) in enumerate(zip(self.rngs, self.numbers, strict=True)):
            local = np.searchsorted(numbers, samples[self.rank_of[samples] == rank])
            orders.append(numbers[rng.permutation(local)])
        sizes = dealt(np.array([len(order) for order in orders]), len(samples) // self.batch_size)
        assert (sizes.sum(0) == self.batch_size).all()
        parts = [np.split(order, np.cumsum(own)[:-1]) for order, own in zip(orders, sizes, strict=True)]
        return np.concatenate([part for minibatch in zip(*parts, strict=True) for part in minibatch])
