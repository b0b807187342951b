"""Reward scaling by a running deviation, so that one learning rate suits environments of any reward scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agilerl.algorithms.base.adapted import adapted
from agilerl.algorithms.base.wrapped import unwrapped
from agilerl.collect.collector import Shard
from agilerl.envs.step import StepBatch
from agilerl.ranks import ONE, Ranks

NEW: Mapping[str, Any] = {"mean": 0.0, "var": 1.0, "count": 0}  # before any reward
EPSILON = 1e-8  # added to the variance


class RewardScale:
    """Reward scales 1 / std of the discounted return, one per member, over its lanes.

    Every lane accumulates G ← γ·G + r with the discount of its member, restarted with each episode and each generation.
    Rewards are divided by the standard deviation of all sums of the member, and not shifted, so their sign is kept.
    Engstrom et al. 2020 (arXiv:2005.12729), appendix A.2, algorithm 1. The size of the sums depends on the discount;
    children continue their parent's. Sums of an earlier discount count as those of one horizon, 1 / (1 - γ) steps.

    In a team every agent has a separate sum. It continues while the agent waits, and counts in the steps in which the
    agent acts. All agents share one scale, so that their rewards stay in proportion.

    Args:
        agents: N members, whose statistics are copied; `keep` writes them back. num_envs: lanes per member.
        start: initial statistics of members that have none.

    Attributes:
        mean, var, count: [N] of the sums.
    """

    def __init__(
        self, agents: Sequence[Any], num_envs: int, start: Mapping[str, Any] = NEW, ranks: Ranks = ONE
    ) -> None:
        self._agents, self._ranks = [unwrapped(agent) for agent in agents], ranks
        states = [agent._reward_statistics or start for agent in self._agents]
        self.mean, self.var, self.count = (np.array([float(s[k]) for s in states]) for k in ("mean", "var", "count"))
        self._gamma = np.array([float(adapted(agent).gamma) for agent in agents])
        is_changed = [s.get("gamma", gamma) != gamma for s, gamma in zip(states, self._gamma, strict=True)]
        horizon = num_envs * ranks.size / np.maximum(1 - self._gamma, EPSILON)
        self.count = np.where(is_changed, np.minimum(self.count, horizon), self.count)
        self._discount = np.repeat(self._gamma, num_envs)
        self._sums = np.zeros(len(self._discount))

    @classmethod
    def of(cls, shard: Shard, num_envs: int) -> RewardScale | None:
        """Return the scales at the start of a generation of these members; None if scaling is off."""
        return None if shard.shared.rewards is None else cls(shard.agents, num_envs, shard.shared.rewards, shard.ranks)

    def see(self, reward: np.ndarray, batch: StepBatch) -> None:
        """Update with the rewards [L], or [L, M] for teams, of one vector step; idle lanes are ignored."""
        counts, done, discount = batch.mask, batch.terminated | batch.truncated, self._discount
        if reward.ndim == 2 and (team := batch.team) is not None:
            if self._sums.ndim == 1:  # first step of a generation
                self._sums = np.zeros(reward.shape)
            counts, done = team.acted & counts[:, None], done[:, None] | team.terminated | team.truncated
            discount = discount[:, None]
        stepped = batch.mask if reward.ndim == 1 else batch.mask[:, None]
        self._sums = np.where(stepped, discount * self._sums + reward, self._sums)
        moments = self._moments(counts)
        for mean, var, rows in moments[None] if self._ranks.size == 1 else self._ranks.gather_rows(moments):
            self._merge(mean, var, rows)
        self._sums[done] = 0.0

    def _moments(self, counts: np.ndarray) -> np.ndarray:
        """Return mean, variance and count [3, N] of the members' valid sums."""
        sums, counts = (x.reshape(len(self._agents), -1) for x in (self._sums, counts))
        if counts.all():
            return np.stack([sums.mean(1), sums.var(1), np.full(len(sums), float(sums.shape[1]))])
        moments = np.zeros((3, len(sums)))
        for member in np.flatnonzero(counts.any(1)):
            values = sums[member][counts[member]]
            moments[:, member] = values.mean(), values.var(), len(values)
        return moments

    def _merge(self, mean: np.ndarray, var: np.ndarray, rows: np.ndarray) -> None:
        """Merge `rows` [N] sums of these means and variances [N]; see `RunningMeanStd`."""
        some = rows > 0
        before, rows = self.count[some], rows[some]
        delta, total = mean[some] - self.mean[some], before + rows
        squares = self.var[some] * before + var[some] * rows + delta**2 * before * rows / total
        self.mean[some] += delta * rows / total
        self.var[some], self.count[some] = squares / total, total

    @property
    def factors(self) -> np.ndarray:
        """Factors [N] for the members' rewards; about 1 without data."""
        return 1 / np.sqrt(self.var + EPSILON)

    def keep(self) -> None:
        """Store the statistics in the members."""
        columns = self.mean, self.var, self.count.astype(int), self._gamma
        for agent, *row in zip(self._agents, *(column.tolist() for column in columns), strict=True):
            agent._reward_statistics = dict(zip(("mean", "var", "count", "gamma"), row, strict=True))
