"""How Rainbow acts: greedily under the noise of its layers, or ε-greedily without noisy layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.choices import ChoiceAlgorithm
from agilerl.algorithms.dqn import DQN
from agilerl.losses.distributional import expected_index
from agilerl.modules.base import EvolvableModule
from agilerl.modules.noisy import layer_noise, set_noise


class RainbowActing(ChoiceAlgorithm):
    """The acting half of `RainbowDQN`."""

    noisy: bool
    distributional: bool
    actor: EvolvableModule

    def _values(self, outputs: Tensor) -> Tensor:
        """What ranks the actions [..., A], from raw outputs."""
        return expected_index(outputs) if self.distributional else outputs

    def greedy(self, outputs: Tensor, mask: np.ndarray | None = None) -> np.ndarray:  # type: ignore[override]
        """The legal action of highest expected return; mask [..., A] 1 = legal; returns [...] int64."""
        return DQN.greedy(self._values(outputs), mask)

    def draw_acting_noise(self, rng: np.random.Generator, count: int) -> np.ndarray | None:
        """New noise for every vector step, [count, S]."""
        return layer_noise(self.actor, rng, count) if self.noisy else None

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
        """Uniform numbers for ε-greedy actions; none for noisy layers, which explore by themselves."""
        return (np.zeros(shape),) if self.noisy else (rng.random(shape), rng.random(shape))

    def explore(
        self, outputs: Tensor, draws: tuple[np.ndarray, ...], epsilon: float, mask: np.ndarray | None = None
    ) -> np.ndarray:
        """The greedy action under the noise that the outputs were made with; ε-greedy without noisy layers."""
        if self.noisy:
            return self.greedy(outputs, mask)
        return DQN.explore(self._values(outputs), (draws[0], draws[1]), epsilon, mask)

    def get_action(
        self,
        obs: Any,
        action_mask: np.ndarray | None = None,
        training: bool | None = None,
        *,
        epsilon: float = 0.0,
    ) -> np.ndarray:
        """Actions [E] int64, [1] for one observation.

        Args:
            obs: one observation or a batch [E, ...], numpy or torch.
            action_mask: [A] or [E, A], 1 = legal.
            training: with new noise or without; None: as the agent's mode is.
            epsilon: probability of a random action, without noisy layers.
        """
        noisy = self.actor.training if training is None else training
        if self.noisy and noisy:
            set_noise(self.actor, torch.from_numpy(layer_noise(self.actor, self._exploration, 1)[0]))
        with torch.no_grad():
            outputs = self.policy_output(obs, noisy)
        outputs = outputs.unsqueeze(0) if outputs.dim() == 1 + self.distributional else outputs
        values = self._values(outputs)
        mask = self._legal(action_mask, len(values))
        if self.noisy or epsilon <= 0:
            return self.environment_action(DQN.greedy(values, mask))
        draws = (self._exploration.random(values.shape[:-1]), self._exploration.random(values.shape[:-1]))
        return self.environment_action(DQN.explore(values, draws, epsilon, mask))

    def _greedy(self, obs: Any, mask: np.ndarray | None = None) -> np.ndarray:
        return self.get_action(obs, mask, training=False)
