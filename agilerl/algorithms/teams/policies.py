"""Stochastic policies of a team, agent by agent: networks, distributions, sampling and storage format.

A team's stored action is one row of numbers, as in `teams.actions`: indices of choices, from 0, and sampled components
of Boxes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.base.policy_value import POLICY_KEYS, new_policy, new_value
from agilerl.algorithms.teams.actions import AgentAction, TeamActions
from agilerl.algorithms.teams.base import MultiAgentRLAlgorithm
from agilerl.algorithms.teams.deterministic import config_of, fitting
from agilerl.algorithms.teams.networks import networks_by_group
from agilerl.core import tree
from agilerl.engine.protocol import Mask
from agilerl.envs.protocol import AGENTS, PRESENT
from agilerl.errors import AlgorithmError
from agilerl.networks.actors import SharedActorCritic, StochasticActor, box_action
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.distributions import ActionDistribution
from agilerl.networks.encoders import asks_for_memory
from agilerl.networks.q_networks import ContinuousQNetwork


@dataclass(frozen=True)
class TeamPolicies:
    """The action distributions of all agents, concatenated in their order.

    Attributes:
        actions: layout of actions and masks. kinds: the distribution of each agent.
        with_value: whether a value follows the outputs of each policy (`SharedActorCritic`).
    """

    actions: TeamActions
    kinds: tuple[ActionDistribution, ...]
    with_value: bool = False

    @cached_property
    def outputs(self) -> dict[str, slice]:
        """Slices of the outputs of all policies [..., F], without values."""
        wide = _slices(self.actions.agents, [kind.raw_size + self.with_value for kind in self.kinds])
        return {agent: slice(one.start, one.stop - self.with_value) for agent, one in wide.items()}

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


# --- networks and their inputs ----------------------------------------------------------------------------------------


def checked_networks(team: MultiAgentRLAlgorithm, user_networks: Any, what: str) -> Mapping[str, EvolvableNetwork]:
    """Return networks by group; AlgorithmError for a recurrent one that also reads the agent's id, and for a policy
    with a value that reads other observations."""
    networks = networks_by_group(team, f"{what}_networks", user_networks)
    for group, network in networks.items():
        if network.recurrent and isinstance(network, ContinuousQNetwork):
            raise AlgorithmError(
                f"{team.algo}: the {what} network of {group!r} is told who asks, which a recurrent one cannot take. "
                "fix: one without recurrent=True."
            )
        if isinstance(network, SharedActorCritic) and not team.reads_alone:
            raise AlgorithmError(f"{team.algo}: values read other observations than policies. fix: a StochasticActor.")
    return networks


def make_policy(team: Any, group: str, seed: int, units: Mapping[str, Any]) -> StochasticActor:
    """Build a group's policy from the team's `net_config`; see `new_policy`."""
    space, action, config = team.observation_space[group], team.action_space[group], dict(config_of(team, group))
    is_box = isinstance(action, gym.spaces.Box)
    config = {key: value for key, value in config.items() if is_box or key not in POLICY_KEYS}
    config |= {"recurrent": True} if team.recurrent else {}
    units = {**units, "squash_output": units["squash_output"] and is_box}
    policy = new_policy(team, space, action, config=fitting(config, space), units=units, random_seed=seed)
    if policy.action_scaling == "none":
        _begin_in_the_middle(policy)
    return policy


def _begin_in_the_middle(policy: StochasticActor) -> None:
    """Set the initial mean of Box actions to the middle of their bounds; squashed policies start there anyway.

    With an initial mean of 0 all samples may be out of bounds and clipped to one action, without a learning signal.
    """
    space = policy.action_space
    if policy.distribution.kind != "normal" or not isinstance(space, gym.spaces.Box):
        return
    middle = np.ravel(space.low).astype(np.float64) / 2 + np.ravel(space.high).astype(np.float64) / 2
    middle = np.where(np.isfinite(middle), middle, 0)  # open components have no middle
    with torch.no_grad():
        bias = policy.head_net.model.get_submodule("linear_output").get_parameter("bias")
        bias[: len(middle)] += torch.from_numpy(middle).to(bias)


def make_value(
    team: MultiAgentRLAlgorithm, group: str, reads: tuple[gym.Space[Any], int], seed: int, policy: EvolvableNetwork
) -> EvolvableNetwork:
    """Build a group's value that preprocesses like the policy; see `new_value`.

    A value of several agents' observations has dense layers of the same width in place of a recurrent encoder.

    Args:
        reads: space of its observations, number of agents whose one-hot id it also reads.
    """
    (space, told), recurrent = reads, policy.recurrent and team.reads_alone
    config = dict(config_of(team, group))
    if asks_for_memory(config) and not recurrent:
        config.pop("encoder_cls", None)
        width = (config.pop("encoder_config", None) or {}).get("hidden_state_size")
        config |= {} if width is None else {"encoder_config": {"hidden_size": [int(width)]}}
    if isinstance(config.get("head_config"), Mapping):  # applies only to policies
        config["head_config"] = {k: v for k, v in config["head_config"].items() if k != "output_activation"}
    config |= {"recurrent": recurrent, "scale_observations": policy.scale_observations}
    return new_value(space, fitting(config, space), told, device=team.device, random_seed=seed)


def own_rows(obs: Any, agents: Sequence[str], axis: int) -> Any:
    """Concatenate the observations of a group's agents as rows."""
    by_agent = [obs[AGENTS][agent] for agent in agents]
    return by_agent[0] if len(by_agent) == 1 else tree.concatenate(by_agent, axis)


def row_input(
    policies: Mapping[str, EvolvableNetwork],
    device: torch.device | str,
    joint: Callable[[Any], Mapping[str, Any]] | None = None,
) -> Callable[[Any], Any]:
    """Return a function that converts observations to inputs of networks over rows; `joint` adds inputs of values."""
    readers = {agent: policy.row_input for agent, policy in policies.items()}

    def prepare(obs: Any) -> dict[str, Any]:
        present = torch.as_tensor(obs[PRESENT], device=device)
        by_agent = {agent: read(obs[AGENTS][agent]) for agent, read in readers.items()}
        return {AGENTS: by_agent, **({} if joint is None else joint(obs)), PRESENT: present}

    return prepare
