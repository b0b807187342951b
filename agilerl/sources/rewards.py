"""Rewards divided by a running scale, so that one learning rate serves environments of any unit."""

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
    """1 / deviation of the discounted return, over the steps of all members and lanes (one scale for a population).

    Every lane sums G ← γ·G + r, anew with each episode and each generation; rewards are divided by the deviation of all
    sums seen so far, and not shifted, so that their sign stays. Engstrom et al. 2020 (arXiv:2005.12729), appendix A.2,
    algorithm 1.

    Of a team every agent has a sum of its own, which goes on while the agent waits and counts in the steps in which it
    acts; all agents have one scale, so that what one gets stays in proportion to what another gets.

    Attributes:
        statistics: of the sums; the factor is about 1 before anything was seen.
    """

    def __init__(self) -> None:
        self.statistics = RunningMeanStd(epsilon=1e-8)
        self._discount = self._sums = np.zeros(0)
        self._ranks = ONE

    @classmethod
    def of(
        cls, state: Mapping[str, Any] | None, agents: Sequence[Any], num_envs: int, ranks: Ranks = ONE
    ) -> RewardScale | None:
        """The scale that a generation of these members begins with, as a copy; None where there is none."""
        if state is None:
            return None
        scale = cls()
        scale.statistics.load_state({**state, "epsilon": scale.statistics.epsilon})
        scale._ranks = ranks
        scale.begin(agents, num_envs)
        return scale

    def begin(self, agents: Sequence[Any], num_envs: int) -> None:
        """A generation of these members on `num_envs` lanes each begins."""
        self._discount = np.repeat([float(adapted(agent).gamma) for agent in agents], num_envs)
        self._sums = np.zeros(len(self._discount))

    def see(self, reward: np.ndarray, batch: StepBatch) -> None:
        """Take in the rewards [L], or [L, M] of teams, of one vector step; lanes at rest do not count."""
        counts, ended, discount = batch.mask, batch.terminated | batch.truncated, self._discount
        if reward.ndim == 2 and batch.team is not None:
            team = batch.team
            if self._sums.ndim == 1:  # the first step of a generation
                self._sums = np.zeros(reward.shape)
            counts, ended = team.acted & counts[:, None], ended[:, None] | team.terminated | team.truncated
            discount = discount[:, None]
        here = batch.mask if reward.ndim == 1 else batch.mask[:, None]
        self._sums = np.where(here, discount * self._sums + reward, self._sums)
        self.statistics.update_over(self._ranks, self._sums[counts])
        self._sums[ended] = 0.0

    @property
    def factor(self) -> float:
        """What rewards are multiplied with."""
        return float(1 / np.sqrt(self.statistics.var + self.statistics.epsilon))

    def state(self) -> dict[str, float]:
        """As plain numbers."""
        seen = self.statistics
        return {"mean": float(seen.mean), "var": float(seen.var), "count": seen.count}


def refuse_scaling(agent: Any) -> NoReturn:
    """ConfigError: rewards should be scaled for an agent whose `learn` gets them from elsewhere."""
    raise ConfigError(
        f"training.normalize_rewards is for the algorithms of this package; {type(agent).__name__} brings its own "
        f"learn. fix: normalize_rewards=false, and gymnasium.wrappers.TransformReward around the environment."
    )
