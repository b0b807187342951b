"""Stochastic policies of a team, agent by agent: distributions, sampling and storage format.

A team's stored action is one row of numbers, as in `teams.actions`: indices of choices, from 0, and sampled components
of Boxes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.teams.actions import AgentAction, TeamActions
from agilerl.engine.protocol import Mask
from agilerl.networks.actors import box_action
from agilerl.networks.distributions import ActionDistribution


@dataclass(frozen=True)
class TeamPolicies:
    """The action distributions of all agents, concatenated in their order.

    Attributes:
        actions: layout of actions and masks. kinds: the distribution of each agent.
    """

    actions: TeamActions
    kinds: tuple[ActionDistribution, ...]

    @cached_property
    def outputs(self) -> dict[str, slice]:
        """Slices of the outputs of all policies [..., F]."""
        return _slices(self.actions.agents, [kind.raw_size for kind in self.kinds])

    @cached_property
    def numbers(self) -> dict[str, slice]:
        """Slices of the random numbers of one joint sample [..., R]."""
        return _slices(self.actions.agents, [int(np.prod(kind.numbers_shape)) for kind in self.kinds])

    @cached_property
    def entropy_noise(self) -> dict[str, slice]:
        """Slices of the random numbers for the entropies of squashed policies; empty for others."""
        widths = [kind.sizes[0] if kind.kind == "squashed" else 0 for kind in self.kinds]
        return _slices(self.actions.agents, widths)

    def kind(self, agent: str) -> ActionDistribution:
        return self.kinds[self.actions.agents.index(agent)]

    def action(self, agent: str, stored: Tensor) -> Tensor:
        """Return the agent's part of stored actions [..., A] for its distribution; int64 [...] for one choice."""
        return self.kind(agent).of_columns(stored[..., self.actions.columns[agent]])

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Draw random numbers [*shape, R]: standard normal for Box, uniform for choices."""
        drawn = (x for kind in self.kinds for x in kind.draw(rng.standard_normal, rng.random, shape))
        return np.concatenate([x.reshape(*shape, -1) for x in drawn], -1)

    def sample(self, outputs: Tensor, numbers: np.ndarray, mask: Mask) -> tuple[np.ndarray, np.ndarray]:
        """Sample (actions to store [..., A], their log probabilities [..., M]) from outputs [..., F]."""
        random_numbers = torch.from_numpy(numbers).to(outputs)
        stored, log_probs = [], []
        for agent, kind in zip(self.actions.agents, self.kinds, strict=True):
            raw, legal = outputs[..., self.outputs[agent]], self.legal(agent, mask, outputs)
            drawn = random_numbers[..., self.numbers[agent]]
            action = kind.sample(raw, drawn if kind.numbers_shape else drawn[..., 0], legal)
            log_probs.append(kind.log_prob(raw, action, legal))
            stored.append(self._row(kind, action, outputs))
        return torch.cat(stored, -1).cpu().numpy(), torch.stack(log_probs, -1).cpu().numpy()

    def mode(self, outputs: Tensor, mask: Mask) -> np.ndarray:
        """Return the most probable actions to store [..., A]."""
        stored = []
        for agent, kind in zip(self.actions.agents, self.kinds, strict=True):
            action = kind.mode(outputs[..., self.outputs[agent]], self.legal(agent, mask, outputs))
            stored.append(self._row(kind, action, outputs))
        actions: np.ndarray = torch.cat(stored, -1).cpu().numpy()
        return actions

    def evaluate_actions(self, outputs: Tensor, stored: np.ndarray, mask: Mask) -> tuple[np.ndarray, np.ndarray]:
        """Return (log probabilities of stored actions, entropies), [..., M] each; −log π if squashed."""
        actions, log_probs, entropies = torch.from_numpy(stored).to(outputs), [], []
        for agent, kind in zip(self.actions.agents, self.kinds, strict=True):
            raw, legal = outputs[..., self.outputs[agent]], self.legal(agent, mask, outputs)
            log_probs.append(kind.log_prob(raw, self.action(agent, actions), legal))
            entropies.append(-log_probs[-1] if kind.kind == "squashed" else kind.entropy(raw, legal))
        return torch.stack(log_probs, -1).cpu().numpy(), torch.stack(entropies, -1).cpu().numpy()

    def legal(self, agent: str, mask: Mask, like: Tensor) -> Tensor | None:
        """Return the agent's part of a team's mask [..., W] as a tensor."""
        agent_mask = self.actions.mask_of(agent, mask)
        return None if agent_mask is None else torch.as_tensor(np.array(agent_mask), device=like.device).bool()

    @staticmethod
    def _row(kind: ActionDistribution, action: Tensor, like: Tensor) -> Tensor:
        return (action.unsqueeze(-1) if kind.kind == "categorical" else action).to(like.dtype)

    def environment(self, stored: np.ndarray) -> np.ndarray:
        """Convert stored actions [..., A] for `Team.split`: choices from their lowest value, bounded components."""
        out = np.array(stored, np.float32)
        for agent, one, kind in zip(self.actions.agents, self.actions.each, self.kinds, strict=True):
            columns = self.actions.columns[agent]
            out[..., columns] = in_bounds(one, kind, stored[..., columns])
        return out


def in_bounds(one: AgentAction, kind: ActionDistribution, stored: np.ndarray) -> np.ndarray:
    """Convert one agent's stored actions [..., k] to the environment's format."""
    if one.parts:
        ends = np.cumsum([part.columns for part in one.parts])[:-1]
        each = zip(one.parts, kind.parts, np.split(stored, ends, -1), strict=True)
        return np.concatenate([in_bounds(*part) for part in each], -1)
    if one.is_choice:
        return stored + np.asarray(one.starts, np.float32)
    assert one.low is not None
    assert one.high is not None
    return box_action(stored, one.low, one.high, kind)


def _slices(names: tuple[str, ...], widths: list[int]) -> dict[str, slice]:
    ends = np.cumsum(widths).tolist()
    return {name: slice(end - width, end) for name, width, end in zip(names, widths, ends, strict=True)}
