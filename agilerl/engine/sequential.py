"""The reference path: every member acts and learns by itself, with plain torch modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.engine.hidden import Group, Memory, masks_of, row_of
from agilerl.engine.protocol import ModuleEngine, Trainable, UpdateResult
from agilerl.modules.noisy import set_noise


class SequentialLearner:
    """The reference path: the same calls, carried out member by member with plain torch modules."""

    name = "sequential"

    def __init__(self, agents: Sequence[Trainable]) -> None:
        self.agents = list(agents)
        self.groups = [Group([i], agent) for i, agent in enumerate(self.agents)]
        self._memory = Memory(self)

    def prepare(self, group: int, obs: Any) -> Any:
        """Modules preprocess by themselves."""
        return obs

    def learn(self, group: int, batch: Any, live: Sequence[bool] | None = None) -> UpdateResult:
        """One update of one member; `batch` [1, B, ...], results [1, ...]. It is `live`: it is the only one."""
        result = self.agents[group].learn_batch(batch.of_member(0), plain=True)
        return result.map(lambda x: x.detach().unsqueeze(0))

    def values(self, group: int, obs: Any) -> Tensor:
        """State values [1, B] of observations [1, B, ...]."""
        agent: Any = self.agents[group]
        values: Tensor = agent.state_values(ModuleEngine(agent), row_of(obs, 0)).unsqueeze(0)
        return values

    def recur(self, group: int, obs: Any, hidden: dict[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """As the fused learner's."""
        agent: Any = self.agents[group]
        own = {key: part[0] for key, part in hidden.items()}
        raw, value, state = agent.recur(ModuleEngine(agent), row_of(obs, 0), own)
        return raw.unsqueeze(0), value.unsqueeze(0), {key: part.unsqueeze(0) for key, part in state.items()}

    def refresh(self) -> None:
        """Hyperparameters are read with every update."""

    def outputs(self, obs: Any, noisy: bool = False) -> list[tuple[list[int], Tensor]]:
        """As the fused learner's."""
        return [([i], x.unsqueeze(0)) for i, x in enumerate(self._outputs(obs, noisy))]

    def outputs_of(self, group: int, obs: Any) -> Tensor:
        """As the fused learner's."""
        with torch.no_grad():
            return self.agents[group].policy_output(row_of(obs, 0), noisy=True).unsqueeze(0)

    def _outputs(self, obs: Any, noisy: bool = False) -> list[Tensor]:
        with torch.no_grad():
            return [agent.policy_output(row_of(obs, i), noisy) for i, agent in enumerate(self.agents)]

    def begin_episodes(self) -> None:
        """As the fused learner's."""
        self._memory = Memory(self)

    def act_greedy(self, obs: Any, mask: np.ndarray | None = None) -> np.ndarray:
        """Greedy actions of all members for the environment, [N, E, ...]."""
        is_recurrent = self.agents[0].is_recurrent
        outputs = [raw[0] for _, raw in self._memory.outputs(obs)] if is_recurrent else self._outputs(obs)
        pairs = zip(self.agents, outputs, strict=True)
        return np.stack([a.environment_action(a.greedy(x, masks_of(a, mask, i))) for i, (a, x) in enumerate(pairs)])

    def set_policy_noise(self, noise: np.ndarray) -> None:
        """Give the policies' noisy layers [N, S] numbers; a member with fewer than S has them first."""
        for agent, values in zip(self.agents, noise, strict=True):
            set_noise(agent.policy_module(), torch.from_numpy(values))

    def explore(
        self, obs: Any, draws: tuple[np.ndarray, ...], epsilon: float, mask: np.ndarray | None = None
    ) -> np.ndarray:
        """Exploring actions to store, [N, E, ...]; draws [N, E, ...] each."""
        pairs = zip(self.agents, self._outputs(obs, noisy=True), strict=True)
        return np.stack(
            [a.explore(x, tuple(d[i] for d in draws), epsilon, masks_of(a, mask, i)) for i, (a, x) in enumerate(pairs)]
        )

    def release(self) -> None:
        """Nothing was adopted."""
