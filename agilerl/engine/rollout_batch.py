"""What one update of an on-policy algorithm learns from, and how a rollout is divided into such batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from agilerl.tree import map_leaves


@dataclass(frozen=True)
class RolloutBatch:
    """Rows of rollouts; every tensor may carry a leading member axis.

    Attributes:
        obs: [..., B, ...], prepared as the engine's networks take it.
        action: [..., B] int64, or [..., B, A].
        log_prob, value: [..., B] under the policy that acted. advantage, returns: [..., B].
        weight: [..., B]: 1/B_i in the rows of a member that count, 0 elsewhere.
        legal: [..., B, A] bool, actions that were legal; None where all were.
        hidden: of recurrent policies, key -> [..., layers, S, units] at the start of S sequences; obs and every row
            above are then [..., S·L, ...], sequence by sequence, and `length` is L.
        live: per member whether it learns from this batch; None where all do. With plain modules one entry.
        length: L, steps of a sequence; 1 without recurrence.
        noise: [..., B, A] standard normal numbers of the actions whose density estimates the entropy of a squashed
            policy; None for others, whose entropy has a closed form.
    """

    obs: Any
    action: Tensor
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    returns: Tensor
    weight: Tensor
    legal: Tensor | None = None
    hidden: Mapping[str, Tensor] = field(default_factory=dict)
    live: tuple[bool, ...] | None = None
    length: int = 1
    noise: Tensor | None = None

    def map(self, change: Callable[[Tensor], Tensor]) -> RolloutBatch:
        """The batch with `change` applied to every tensor that is there."""
        changed: dict[str, Any] = {k: change(v) for k, v in vars(self).items() if isinstance(v, Tensor)}
        changed["obs"] = map_leaves(change, self.obs)
        changed["hidden"] = {key: change(part) for key, part in self.hidden.items()}
        return replace(self, **changed)

    def of_member(self, member: int) -> RolloutBatch:
        """The part of one member, without the member axis."""
        live = None if self.live is None else (self.live[member],)
        return replace(self.map(lambda x: x[member]), live=live)


@dataclass(frozen=True)
class EpochPlan:
    """One pass over rollouts of N members, in minibatches.

    Attributes:
        rows: [K, N, B] int64, numbers of samples within each member's rollout (0 where weight is 0).
        weight: [K, N, B] float64: 1/B_k in the rows of minibatch k, 0 beyond.
        live: [K, N] bool: whether a member has a k-th minibatch.
    """

    rows: np.ndarray
    weight: np.ndarray
    live: np.ndarray


def plan_epoch(
    rngs: Sequence[np.random.Generator], samples: Sequence[np.ndarray], sizes: Sequence[int], active: Sequence[bool]
) -> EpochPlan:
    """Every sample of every active member once, in random order and in minibatches of the member's own size.

    Args:
        rngs: one per member; an inactive member draws nothing.
        samples: per member the numbers of the samples that count. sizes: B_i.
    """
    counts = [-(-len(own) // size) if go else 0 for own, size, go in zip(samples, sizes, active, strict=True)]
    widest = max((min(len(own), size) for own, size in zip(samples, sizes, strict=True)), default=0)
    shape = (max(counts, default=0), len(sizes), widest)
    rows, weight = np.zeros(shape, np.int64), np.zeros(shape)
    for member, (rng, own, size, count) in enumerate(zip(rngs, samples, sizes, counts, strict=True)):
        if not count:
            continue
        order = rng.permutation(own)
        size = min(size, len(own))
        padded = np.zeros(count * size, np.int64)
        padded[: len(order)] = order
        rows[:count, member, :size] = padded.reshape(count, size)
        weight[:count, member, :size] = 1 / size
        rest = len(order) - (count - 1) * size
        weight[count - 1, member, :size] = np.where(np.arange(size) < rest, 1 / rest, 0.0)
    live = np.arange(shape[0])[:, None] < np.asarray(counts)
    return EpochPlan(rows, weight, live)
