"""How one agent with rollouts acts and stores what happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.core.calls import takes
from agilerl.components.rollout_buffer import RolloutBuffer
from agilerl.envs.protocol import StepBatch
from agilerl.tree import map_leaves

if TYPE_CHECKING:
    from agilerl.algorithms.ppo_agent import PPOAgent


class Recorder:
    """Acts with one agent and stores what happens, vector step by vector step."""

    def __init__(self, agent: PPOAgent, buffer: RolloutBuffer) -> None:
        self.agent, self.buffer = agent, buffer
        self._takes_mask = takes(agent, "get_action", "action_mask")
        self._now: dict[str, Any] = {}

    @property
    def full(self) -> bool:
        """Whether the rollout is complete."""
        return self.buffer.full

    def restart(self) -> None:
        """All lanes begin an episode."""
        self.agent._hidden = None

    def act(self, obs: Any, mask: np.ndarray | None = None) -> np.ndarray:
        """Exploring actions for the environment, from observations [E, ...]."""
        agent = self.agent
        hidden = agent._hidden
        if agent.recurrent and hidden is None:
            hidden = agent.get_initial_hidden_state(self.buffer.num_envs)
        mask = mask if self._takes_mask else None
        # A subclass with a get_action of its own need not know of what there is not.
        arguments: dict[str, Any] = {} if mask is None else {"action_mask": mask}
        arguments |= {"hidden_state": hidden} if agent.recurrent else {}
        action, log_prob, _, value, *state = agent.get_action(obs, **arguments)
        self._now = {"obs": obs, "action": action, "log_prob": log_prob, "value": value, "legal": mask}
        if state:
            assert hidden is not None
            self._now["hidden"] = {key: part.cpu().numpy() for key, part in hidden.items()}
            agent._hidden = state[0]
        return agent.environment_action(action)

    def store(self, reward: np.ndarray, batch: StepBatch) -> None:
        """What the last `act` led to."""
        if self._now["legal"] is not None and not self.buffer.num_legal and not self.buffer.position:
            self.buffer.num_legal = int(self._now["legal"].shape[-1])
        self.buffer.add(
            reward=reward,
            terminated=batch.terminated,
            truncated=batch.truncated,
            final_obs=batch.final_obs,
            final_value=self._value(batch.final_obs) if batch.truncated.any() else None,
            valid=batch.mask,
            **self._now,
        )
        if self.agent._hidden is not None:
            begins = torch.from_numpy(batch.terminated | batch.truncated | ~batch.mask)
            for part in self.agent._hidden.values():
                part[:, begins.to(part.device)] = 0

    def _value(self, obs: Any) -> np.ndarray | None:
        """V [E] of what came after the last step; None where the observation alone tells it."""
        if not self.agent.recurrent:
            return None
        value: np.ndarray = self.agent._run(obs, self.agent._hidden)[1].cpu().numpy()
        return value

    def finish(self, obs: Any) -> None:
        """The rollout is complete; `obs` follows its last step."""
        self.buffer.last_obs, self.buffer.last_value = obs, self._value(obs)

    def chosen(self) -> tuple[list[Any], list[Any], list[Any]]:
        """(actions, log probabilities, values) of every step, [E, ...] each; copies."""
        action, log_prob, value = (list(self.buffer.stored(k).copy()) for k in ("action", "log_prob", "value"))
        return action, log_prob, value


def remember(agent: Any, buffer: RolloutBuffer, lanes: slice, most: int = 256) -> None:
    """Keep up to `most` observations of an agent's lanes, spread over the rollout."""

    def chosen(x: Any) -> Tensor:
        rows = torch.from_numpy(x[:, lanes]).flatten(0, 1)
        return rows[:: max(1, len(rows) // most)][:most].clone()

    agent.remember_observations(map_leaves(chosen, buffer.stored("obs")))
