"""Multi-agent on-policy collector: the experience behind `train_multi_agent_on_policy`."""

from __future__ import annotations

import numpy as np

from agilerl.collect.rollouts import OnPolicyCollector, OnPolicyGeneration
from agilerl.collect.teams.idle_agents import ends_of_agents, without_terminated
from agilerl.collect.teams.transitions import OfTeams
from agilerl.core import foreign
from agilerl.core.options import LoopOptions
from agilerl.envs.step import StepBatch


class TeamRolloutCollector(OfTeams, OnPolicyCollector):
    """`OnPolicyCollector` for teams: rollouts are stored and learned from per agent.

    Args:
        sum_scores: see `OfTeams`.
    """

    carries = False

    def __init__(
        self, env: foreign.Env, options: LoopOptions, eval_env: foreign.Env | None = None, *, sum_scores: bool = True
    ) -> None:
        super().__init__(env, options, eval_env=eval_env)
        self.sum_scores = sum_scores

    @property
    def generations(self) -> type[OnPolicyGeneration]:
        return TeamGeneration


class TeamGeneration(OnPolicyGeneration):
    """Rollouts and updates of one generation of some teams in their lanes."""

    def store(self, reward: np.ndarray, batch: StepBatch) -> None:
        self._reward = self._of_agents(batch)
        super().store(reward, without_terminated(self.agents[0].team, batch))

    def _learned(self, batch: StepBatch) -> np.ndarray:
        """Team rewards [L]. The scale is that of the agents' rewards: zero-sum team rewards have none."""
        reward = self._of_agents(batch)
        if self.rewards is not None:
            self.rewards.see(reward, batch)
        summed: np.ndarray = reward.sum(1)
        return summed

    def _of_agents(self, batch: StepBatch) -> np.ndarray:
        """Rewards [L, M], shaped but not yet scaled."""
        assert batch.team is not None
        reward = batch.team.reward
        return self.options.learned_reward(reward) if self.options.changes_rewards else reward

    def _by_agent(self, batch: StepBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return (reward, terminated, truncated, decided) [L, M] per agent.

        Actions forced by the environment do not count as decisions. For the flags see `ends_of_agents`.
        """
        team, sound = batch.team, self.watch.lanes
        assert team is not None
        decided = team.acted & batch.mask[:, None]
        defined = team.defined
        if defined is not None:
            agent_columns = self.agents[0].actions.columns.values()
            decided &= ~np.stack([~np.isnan(defined[:, columns]).all(1) for columns in agent_columns], -1)
        if sound is not None:  # lanes of a diverged member rest; its own row continues
            decided |= ~sound[:, None]
        return self._reward, *ends_of_agents(batch), decided
