"""Action formats of a team: policy outputs, stored actions, critic inputs and environment actions.

Replay stores one row of numbers per team: indices of choices, from 0, or raw components in [-1, 1]. Critics read
features: one-hot choices, or the raw components.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from agilerl.algorithms.teams.names import group_of
from agilerl.core.spaces import nested
from agilerl.core.tree import leaves
from agilerl.envs.team import Team
from agilerl.errors import AlgorithmError
from agilerl.modules.base import EvolvableModule
from agilerl.networks.actors import check_bounded, rescale_action
from agilerl.networks.distributions import masked_logits


class _Layout:
    """Cached properties, which are computed once and excluded from copies and pickles."""

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: vars(self)[field.name] for field in fields(self)}  # type: ignore[arg-type]  # a dataclass


@dataclass(frozen=True)
class AgentAction(_Layout):
    """The action layout of one agent.

    Attributes:
        sizes: choices of each component of a Discrete or MultiDiscrete space; () for Box and MultiBinary.
        starts: lowest value of each. size: components of a Box, or bits. low, high: their bounds [size].
        bits: whether the space is MultiBinary. parts: layouts of the parts of a Dict or Tuple; the other fields are
            then empty.
    """

    sizes: tuple[int, ...]
    starts: tuple[int, ...]
    size: int
    low: np.ndarray | None
    high: np.ndarray | None
    bits: bool = False
    parts: tuple[AgentAction, ...] = ()

    @classmethod
    def of(cls, space: Space[Any], owner: str, sampled: bool = False) -> AgentAction:
        """Create from a space.

        Args:
            sampled: whether policies are distributions, which support MultiBinary and unbounded Boxes.

        Raises:
            AlgorithmError: unsupported space; unless `sampled`, also a Box with an infinite bound, or MultiBinary.
        """
        if isinstance(space, spaces.Discrete):
            return cls((int(space.n),), (int(space.start),), 0, None, None)
        if isinstance(space, spaces.MultiDiscrete):
            return cls(tuple(space.nvec.ravel().tolist()), tuple(space.start.ravel().tolist()), 0, None, None)
        if isinstance(space, spaces.Box):
            if not sampled:
                check_bounded(space, owner)
            return cls((), (), int(np.prod(space.shape)), space.low.ravel(), space.high.ravel())
        if isinstance(space, spaces.MultiBinary) and sampled:
            size = int(np.prod(space.shape))
            return cls((), (), size, np.zeros(size, np.float32), np.ones(size, np.float32), bits=True)
        if isinstance(space, spaces.Dict | spaces.Tuple) and sampled:
            parts = tuple(cls.of(part, owner, sampled) for part in leaves(nested(space)))
            return cls((), (), 0, None, None, parts=parts)
        bits = f"MultiDiscrete([2] * {int(np.prod(space.shape))}), or " if isinstance(space, spaces.MultiBinary) else ""
        if isinstance(space, spaces.Dict | spaces.Tuple):
            fix = "IPPO or MAPPO (PPO for one agent), which have one distribution per part"
        elif not sampled:
            fix = f"{bits}IPPO or MAPPO, which take MultiBinary too"
        else:
            fix = "a wrapper around the environment"
        raise AlgorithmError(f"{owner} takes Discrete, MultiDiscrete and Box actions; got {space}. fix: {fix}.")

    @cached_property
    def is_choice(self) -> bool:
        return bool(self.sizes)

    @cached_property
    def width(self) -> int:
        """Number of policy outputs and action features: logits, or raw components."""
        return sum(self.sizes) or self.size

    @cached_property
    def columns(self) -> int:
        """Size of a stored action."""
        return sum(part.columns for part in self.parts) or len(self.sizes) or self.size

    @cached_property
    def mask_width(self) -> int:
        """Size of its part of a team's action mask, see `envs.masks`."""
        return sum(part.mask_width for part in self.parts) or sum(self.sizes) or (2 * self.size if self.bits else 0)

    # Updates call these for every agent, so they call nothing else of this package.

    def features(self, stored: Tensor) -> Tensor:
        """Convert stored actions [..., columns] to critic features [..., width]."""
        if not self.is_choice:
            return stored
        parts = []
        for k, size in enumerate(self.sizes):
            zeros = stored.new_zeros(*stored.shape[:-1], size)  # torch's one_hot first searches for the maximum
            parts.append(zeros.scatter_(-1, stored[..., k : k + 1].long(), 1))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def chosen(self, logits: Tensor, mask: Tensor | None) -> Tensor:
        """Return one-hot features [..., width] of the most probable legal choices."""
        scores = logits if mask is None else masked_logits(logits, mask)
        parts = []
        for part in (scores,) if len(self.sizes) == 1 else torch.split(scores, list(self.sizes), -1):
            parts.append(logits.new_zeros(part.shape).scatter_(-1, part.argmax(-1, keepdim=True), 1))
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def straight_through(self, logits: Tensor, gumbel: Tensor, temperature: float, mask: Tensor | None) -> Tensor:
        """Sample a one-hot choice [..., width] with the gradient of its relaxation.

        y = softmax((logits + g) / τ) over the legal choices of each component. The value is the one-hot of the maximum,
        the gradient that of y (Jang et al. 2017, arXiv:1611.01144, eq. 2 and section 2.2).
        """
        scores = logits + gumbel
        scores = scores if mask is None else masked_logits(scores, mask)
        scores = scores if temperature == 1 else scores / temperature
        parts = []
        for part in (scores,) if len(self.sizes) == 1 else torch.split(scores, list(self.sizes), -1):
            relaxed = part.softmax(-1)
            hard = relaxed.new_zeros(relaxed.shape).scatter_(-1, relaxed.argmax(-1, keepdim=True), 1)
            parts.append(hard - relaxed.detach() + relaxed)
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def relaxed(self, scores: Tensor, temperature: float, mask: Tensor | None) -> Tensor:
        """Return softmax(scores / τ) over the legal choices of each component, [..., width]."""
        scores = masked_logits(scores, mask) / temperature
        return torch.cat([part.softmax(-1) for part in torch.split(scores, list(self.sizes), -1)], -1)


@dataclass(frozen=True)
class Alike:
    """Groups of equal size, whose critics have equal input shapes and run in one pass.

    Attributes:
        groups: group names. agents: agents of each group. numbers: agent indices of each group.
        count: agents per group.
    """

    groups: tuple[str, ...]
    agents: tuple[tuple[str, ...], ...]
    numbers: tuple[tuple[int, ...], ...]
    count: int


class _OnDevice(dict[torch.device, Tensor]):
    """A constant by device, moved there at first use."""

    def __init__(self, values: np.ndarray) -> None:
        super().__init__()
        self._values = torch.from_numpy(values)

    def __missing__(self, device: torch.device) -> Tensor:
        moved = self[device] = self._values.to(device)
        return moved


@dataclass(frozen=True)
class TeamActions(_Layout):
    """The action layouts of all agents, concatenated in their order.

    Attributes:
        agents: agent ids. each: their layouts.
    """

    agents: tuple[str, ...]
    each: tuple[AgentAction, ...]

    @classmethod
    def of(cls, action_spaces: Mapping[str, Space[Any]], owner: str, sampled: bool = False) -> TeamActions:
        each = (AgentAction.of(space, f"{owner}, {agent}", sampled) for agent, space in action_spaces.items())
        return cls(tuple(action_spaces), tuple(each))

    @cached_property
    def columns(self) -> dict[str, slice]:
        """Slices of a stored action [..., A]."""
        return _slices(self.agents, [one.columns for one in self.each])

    @cached_property
    def widths(self) -> dict[str, slice]:
        """Slices of policy outputs and features [..., F]."""
        return _slices(self.agents, [one.width for one in self.each])

    @cached_property
    def by_agent(self) -> dict[str, AgentAction]:
        """Action layout of each agent."""
        return dict(zip(self.agents, self.each, strict=True))

    @cached_property
    def alike(self) -> tuple[Alike, ...]:
        """Groups by size, in order."""
        groups: dict[str, list[int]] = {}
        for number, agent in enumerate(self.agents):
            groups.setdefault(group_of(agent), []).append(number)
        by_size: dict[int, dict[str, tuple[int, ...]]] = {}
        for group, members in groups.items():
            by_size.setdefault(len(members), {})[group] = tuple(members)
        return tuple(
            Alike(
                tuple(members),
                tuple(tuple(self.agents[k] for k in ks) for ks in members.values()),
                tuple(members.values()),
                count,
            )
            for count, members in by_size.items()
        )

    @cached_property
    def owners(self) -> np.ndarray:
        """Agent index of each feature, [F] int64."""
        return np.repeat(np.arange(len(self.each)), [one.width for one in self.each])

    @cached_property
    def owners_on(self) -> Mapping[torch.device, Tensor]:
        """`owners` as a tensor by device; moved there once."""
        return _OnDevice(self.owners)

    @cached_property
    def masks(self) -> dict[str, slice]:
        """Slices of a team's action mask [..., W]; empty for agents without masks."""
        return _slices(self.agents, [one.mask_width for one in self.each])

    @cached_property
    def boxes(self) -> dict[str, slice]:
        """Slices of the components of all Box actions [..., C]; empty for discrete agents."""
        return _slices(self.agents, [one.size for one in self.each])

    @cached_property
    def components(self) -> int:
        """Number of components of all Box actions."""
        return sum(one.size for one in self.each)

    @cached_property
    def width(self) -> int:
        """Number of outputs of all policies."""
        return sum(one.width for one in self.each)

    def of_agent(self, agent: str) -> AgentAction:
        return self.by_agent[agent]

    def mask_of(self, agent: str, mask: Any) -> Any:
        """Return the agent's part of a mask [..., W]; None without a mask, or for an agent without masks."""
        columns = self.masks[agent]
        return None if mask is None or columns.stop == columns.start else mask[..., columns]

    def features(self, stored: Tensor) -> Tensor:
        """Convert stored actions [..., A] to critic features [..., F]."""
        each = zip(self.columns.values(), self.each, strict=True)
        return torch.cat([one.features(stored[..., columns]) for columns, one in each], -1)

    def act(
        self, outputs: np.ndarray, noise: np.ndarray | None, gumbel: np.ndarray | None, mask: np.ndarray | None
    ) -> np.ndarray:
        """Return actions to store [..., A] float32 from policy outputs [..., F].

        Args:
            noise: [..., C] added to raw components; None: no noise.
            gumbel: [..., F] added to logits, which samples from their softmax; None: the most probable choice.
        """
        stored = np.zeros((*outputs.shape[:-1], sum(one.columns for one in self.each)), np.float32)
        for agent, one in zip(self.agents, self.each, strict=True):
            out = outputs[..., self.widths[agent]]
            if not one.is_choice:
                raw = out if noise is None else out + noise[..., self.boxes[agent]]
                stored[..., self.columns[agent]] = np.clip(raw, -1, 1)
                continue
            legal = None if mask is None else mask[..., self.masks[agent]]
            scores = out if gumbel is None else out + gumbel[..., self.widths[agent]]
            scores = scores if legal is None else np.where(legal, scores, -np.inf)
            parts = np.split(scores, np.cumsum(one.sizes)[:-1], axis=-1)
            stored[..., self.columns[agent]] = np.stack([part.argmax(-1) for part in parts], -1)
        return stored

    def environment(self, stored: np.ndarray) -> np.ndarray:
        """Convert stored actions [..., A] for `Team.split`: choices from their lowest value, bounded components."""
        out = np.array(stored, np.float32)
        for agent, one in zip(self.agents, self.each, strict=True):
            columns = self.columns[agent]
            if one.is_choice:
                out[..., columns] += np.asarray(one.starts, np.float32)
            else:
                out[..., columns] = rescale_action(stored[..., columns], one.low, one.high)
        return out

    def stored(self, action: np.ndarray) -> np.ndarray:
        """Invert `environment`; a component with one value is 0, the middle of the raw range."""
        out = np.array(action, np.float32)
        for agent, one in zip(self.agents, self.each, strict=True):
            columns = self.columns[agent]
            if one.is_choice:
                out[..., columns] -= np.asarray(one.starts, np.float32)
            elif one.low is not None and one.high is not None:
                width = one.high - one.low
                share = 2 * (action[..., columns] - one.low) / np.where(width > 0, width, 1)
                out[..., columns] = share - (width > 0)  # NaN, an undefined action, stays NaN
        return out


def _slices(names: Sequence[str], widths: Sequence[int]) -> dict[str, slice]:
    ends = np.cumsum(widths).tolist()
    return {name: slice(end - width, end) for name, width, end in zip(names, widths, ends, strict=True)}


class ActingTeam(Protocol):
    """A team, as far as its inputs, actions and networks by group read it; see `MultiAgentRLAlgorithm`."""

    algo: str
    device: torch.device | str
    agent_ids: list[str]
    n_agents: int
    grouped_agents: dict[str, list[str]]
    possible_observation_spaces: dict[str, Space[Any]]
    possible_action_spaces: dict[str, Space[Any]]
    actions: TeamActions

    @property
    def is_recurrent(self) -> bool: ...

    def get_group_id(self, agent_id: str) -> str: ...

    def registered(self, kind: str, group: str, network: EvolvableModule) -> Any: ...


def team_of_spaces(observation_spaces: Mapping[str, Space[Any]], action_spaces: Mapping[str, Space[Any]]) -> Team:
    """Create the team that these spaces describe."""
    return Team(tuple(observation_spaces), dict(observation_spaces), dict(action_spaces))
