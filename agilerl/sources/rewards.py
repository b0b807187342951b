"""Reward scaling by a running deviation, so that one learning rate suits environments of any reward scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from agilerl.algorithms.base.adapted import adapted
from agilerl.components.running import RunningMeanStd
from agilerl.envs.step import StepBatch
from agilerl.errors import ConfigError
from agilerl.ranks import ONE, Ranks


class RewardScale:
    """Reward scale 1 / std of the discounted return, over all members and lanes (one scale per population).

    Every lane accumulates G ← γ·G + r, restarted with each episode and each generation. Rewards are divided by the
    standard deviation of all sums seen so far. They are not shifted, so their sign is preserved. Engstrom et al. 2020
    (arXiv:2005.12729), appendix A.2, algorithm 1.

    In a team every agent has a separate sum. It continues while the agent waits, and counts in the steps in which the
    agent acts. All agents share one scale, so that their rewards stay in proportion.

    Attributes:
        statistics: of the sums; the factor is about 1 before any data.
    """

    def __init__(self) -> None:
        self.statistics = RunningMeanStd(epsilon=1e-8)
        self._discount = self._sums = np.zeros(0)
        self._ranks = ONE

    @classmethod
    def of(
        cls, state: Mapping[str, Any] | None, agents: Sequence[Any], num_envs: int, ranks: Ranks = ONE
    ) -> RewardScale | None:
        """Return a copy of the scale that a generation of these members starts from; None if scaling is off."""
        if state is None:
            return None
        scale = cls()
        scale.statistics.load_state({**state, "epsilon": scale.statistics.epsilon})
        scale._ranks = ranks
        scale.begin(agents, num_envs)
        return scale

    def begin(self, agents: Sequence[Any], num_envs: int) -> None:
        """Start a generation of these members with `num_envs` lanes each."""
        self._discount = np.repeat([float(adapted(agent).gamma) for agent in agents], num_envs)
        self._sums = np.zeros(len(self._discount))

    def see(self, reward: np.ndarray, batch: StepBatch) -> None:
        """Update with the rewards [L], or [L, M] for teams, of one vector step; resting lanes are ignored."""
        counts, ended, discount = batch.mask, batch.terminated | batch.truncated, self._discount
        if reward.ndim == 2 and batch.team is not None:
            team = batch.team
            if self._sums.ndim == 1:  # first step of a generation
                self._sums = np.zeros(reward.shape)
            counts, ended = team.acted & counts[:, None], ended[:, None] | team.terminated | team.truncated
            discount = discount[:, None]
        stepped = batch.mask if reward.ndim == 1 else batch.mask[:, None]
        self._sums = np.where(stepped, discount * self._sums + reward, self._sums)
        self.statistics.update_over(self._ranks, self._sums[counts])
        self._sums[ended] = 0.0

    @property
    def factor(self) -> float:
        """Factor that rewards are multiplied by."""
        return float(1 / np.sqrt(self.statistics.var + self.statistics.epsilon))

    def state(self) -> dict[str, float]:
        """State as plain numbers."""
        seen = self.statistics
        return {"mean": float(seen.mean), "var": float(seen.var), "count": seen.count}


def refuse_scaling(agent: Any) -> NoReturn:
    """Raise ConfigError: reward scaling is not supported for an agent with a custom `learn`."""
    raise ConfigError(
        f"training.normalize_rewards is for the algorithms of this package; {type(agent).__name__} brings its own "
        f"learn. fix: normalize_rewards=false, and gymnasium.wrappers.TransformReward around the environment."
    )
