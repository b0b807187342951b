"""From a rollout to optimiser steps: epochs, minibatches and the stop by divergence.

Written once for a group of members and for one agent alone: who runs an update is behind `GroupLearner`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from agilerl.engine.protocol import GroupLearner, RolloutMember
    from agilerl.engine.rollouts import Rollout


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


def _entropy_noise(
    members: Sequence[RolloutMember], rollout: Rollout, rngs: Sequence[np.random.Generator], active: Sequence[bool]
) -> Tensor | None:
    """New numbers [N, T·E, A] for one epoch, of each active member from its own stream; None where none are needed."""
    drawn = {i: m.draw_entropy_noise(rngs[i], rollout.size) for i, m in enumerate(members) if active[i]}
    found = {i: numbers for i, numbers in drawn.items() if numbers is not None}
    if not found:
        return None
    noise = np.zeros((len(members), *next(iter(found.values())).shape))
    for i, numbers in found.items():
        noise[i] = numbers
    return torch.from_numpy(noise).to(rollout.numbers.device, rollout.numbers.dtype)


@dataclass
class LearnReport:
    """What one member's learning from one rollout came to.

    Attributes:
        updates: optimiser steps. loss, actor_loss, kl: sums over them; kl is of the last epoch, per minibatch.
        epochs: passes over the rollout that were begun.
    """

    updates: int = 0
    epochs: int = 0
    loss: float = 0.0
    kl: float = 0.0

    @property
    def mean_loss(self) -> float:
        """Mean over the minibatches: it does not depend on how many there were."""
        return self.loss / max(1, self.updates)


def learn_rollout(
    learner: GroupLearner,
    group: int,
    members: Sequence[RolloutMember],
    rollout: Rollout,
    rngs: Sequence[np.random.Generator],
) -> list[LearnReport]:
    """All epochs of all members of a group; each member's own batch size, epochs and `target_kl`.

    A member stops after the epoch whose mean divergence exceeds its `target_kl` (Schulman et al.'s released code does
    the same, openai/spinningup, ppo.py); the others go on.
    """
    reports = [LearnReport() for _ in members]
    active = [True] * len(members)
    sizes = [int(m.batch_size) for m in members]
    total: Tensor | None = None
    for epoch in range(max(int(m.update_epochs) for m in members)):
        active = [go and epoch < int(m.update_epochs) for go, m in zip(active, members, strict=True)]
        if not any(active):
            break
        plan = plan_epoch(rngs, rollout.samples, sizes, active)
        divergence: Tensor | None = None
        for batch in rollout.batches(plan, _entropy_noise(members, rollout, rngs, active)):
            result = learner.learn(group, batch)
            total = result.loss if total is None else total + result.loss
            if result.kl is not None:
                divergence = result.kl if divergence is None else divergence + result.kl
        counts = plan.live.sum(0)
        watched = divergence is not None and any(m.target_kl is not None for m in members)
        found = divergence.tolist() if watched and divergence is not None else [0.0] * len(members)
        for i, (report, member) in enumerate(zip(reports, members, strict=True)):
            if not active[i]:
                continue
            report.updates += int(counts[i])
            report.epochs += 1
            report.kl = found[i] / max(1, int(counts[i]))
            if member.target_kl is not None and report.kl > member.target_kl:
                active[i] = False
    if total is not None:
        for report, value in zip(reports, total.tolist(), strict=True):
            report.loss = value
    return reports
