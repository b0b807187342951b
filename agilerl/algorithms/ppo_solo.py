"""One agent as the group of members that learning from a rollout expects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.core.update import ModuleEngine, UpdateResult
from agilerl.components.rollout_buffer import RolloutBuffer
from agilerl.envs.protocol import StepBatch
from agilerl.tree import map_leaves

if TYPE_CHECKING:
    from agilerl.algorithms.ppo import PPO


class SoloLearner:
    """Carries out the updates of one agent: in its own row where it stacks, with its modules where it does not."""

    def __init__(self, agent: PPO) -> None:
        self.agent = agent
        self._rows = agent.solo_rows()
        self._engine = None if self._rows is None else self._rows.refresh(agent)

    def prepare(self, group: int, obs: Any) -> Any:
        """Observations [1, B, ...] as rows take them; modules preprocess by themselves."""
        return obs if self._engine is None else self.agent.policy_network().preprocess(obs)

    def values(self, group: int, obs: Any) -> Tensor:
        """State values [1, B]."""
        if self._engine is not None:
            return self.agent.state_values(self._engine, obs)
        return self.agent.state_values(ModuleEngine(self.agent), map_leaves(lambda x: x[0], obs)).unsqueeze(0)

    def learn(self, group: int, batch: Any) -> UpdateResult:
        """One update; batch [1, B, ...], results [1]."""
        self.agent.learn_counter += 1
        if self._engine is not None:
            return self.agent.update(self._engine, batch)
        result = self.agent.update(ModuleEngine(self.agent), batch.of_member(0))
        return result.map(lambda x: x.detach().unsqueeze(0))

    def finish(self, buffer: RolloutBuffer) -> None:
        """Bring the torch optimisers' counters up to date, and keep observations for mutations to look at."""
        if self._rows is not None:
            self._rows.stepped()
        remember(self.agent, buffer, slice(None))


class Recorder:
    """Acts with one agent and stores what happens, vector step by vector step."""

    def __init__(self, agent: PPO, buffer: RolloutBuffer) -> None:
        self.agent, self.buffer = agent, buffer
        self._now: dict[str, Any] = {}

    @property
    def full(self) -> bool:
        """Whether the rollout is complete."""
        return self.buffer.full

    def restart(self) -> None:
        """All lanes begin an episode: nothing to forget in a feed-forward policy."""

    def act(self, obs: Any, mask: np.ndarray | None = None) -> np.ndarray:
        """Exploring actions for the environment, from observations [E, ...]."""
        action, log_prob, _, value = self.agent.get_action(obs, action_mask=mask)
        self._now = {"obs": obs, "action": action, "log_prob": log_prob, "value": value, "legal": mask}
        return self.agent.environment_action(action)

    def store(self, reward: np.ndarray, batch: StepBatch) -> None:
        """What the last `act` led to."""
        if self._now["legal"] is not None and not self.buffer.num_legal and not self.buffer.position:
            self.buffer.num_legal = int(self._now["legal"].shape[-1])
        self.buffer.add(
            reward=reward,
            terminated=batch.terminated,
            truncated=batch.truncated,
            final_obs=batch.final_obs,
            valid=batch.mask,
            **self._now,
        )

    def finish(self, obs: Any) -> None:
        """The rollout is complete; `obs` follows its last step."""
        self.buffer.last_obs = obs


def remember(agent: Any, buffer: RolloutBuffer, lanes: slice, most: int = 256) -> None:
    """Keep up to `most` observations of an agent's lanes, spread over the rollout."""

    def chosen(x: Any) -> Tensor:
        rows = torch.from_numpy(x[:, lanes]).flatten(0, 1)
        return rows[:: max(1, len(rows) // most)][:most].clone()

    agent.remember_observations(map_leaves(chosen, buffer.stored("obs")))
