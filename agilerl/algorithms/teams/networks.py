"""Networks of a team, `<kind>.<group>`: registration, inputs, and all policies as one program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from agilerl.algorithms import takes_argument
from agilerl.algorithms.base.building import check_memory
from agilerl.algorithms.teams.actions import ActingTeam
from agilerl.algorithms.teams.names import Named, group_of
from agilerl.envs.protocol import AGENTS, JOINT, LAST_ACTION, PRESENT, WAITING
from agilerl.errors import ConfigError, unknown_choice
from agilerl.modules.base import ModuleDict
from agilerl.modules.multi_input import EvolvableMultiInput
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.stacks import overrides

Networks = (
    Mapping[str, EvolvableNetwork] | Sequence[EvolvableNetwork] | None
)  # by group or agent, or in order of groups
READ_BY = ("preprocess", "row_input", "encoder_input")  # methods by which a subclass may change how it reads


def networks_by_group(team: ActingTeam, argument: str, given: Networks) -> dict[str, EvolvableNetwork]:
    """Return the networks passed by the user, by group.

    Args:
        argument: argument name, for messages. given: a mapping or `ModuleDict` by group (or by agent of a group), a
            list in the order of the groups, or None.

    Raises:
        ConfigError: unknown group, two networks for one group, wrong list length, or a recurrent network for a team
            without hidden states.
        TypeError: another type, or a network that is not an `EvolvableNetwork`.
    """
    groups, networks = team.grouped_agents, dict[str, EvolvableNetwork]()
    if isinstance(given, list | tuple):
        if len(given) != len(groups):
            raise ConfigError(
                f"{team.algo}: {argument} lists {len(given)} networks for the groups {list(groups)}. "
                "fix: {group: network}."
            )
        given = dict(zip(groups, given, strict=True))
    if not isinstance(given, Mapping | ModuleDict | nn.ModuleDict | None):
        raise TypeError(
            f"{team.algo}: {argument} must map groups to networks; got {type(given).__name__}. fix: {{group: network}}."
        )
    for name, network in () if given is None else given.items():
        group = group_of(str(name)) if name in team.agent_ids else str(name)
        if group not in groups:
            raise ConfigError(f"{team.algo}, {argument}: {unknown_choice('group', str(name), groups)}")
        if networks.get(group, network) is not network:
            raise ConfigError(
                f"{team.algo}: {argument} has two networks for the group {group!r}, whose agents share one. "
                f"fix: {{{group!r}: network}}."
            )
        if not isinstance(network, EvolvableNetwork):
            raise TypeError(
                f"All {argument.replace('_', ' ')} must be instances of EvolvableNetwork; {name!r} is a "
                f"{type(network).__name__}. fix: a network of agilerl.networks."
            )
        check_memory(team, network.recurrent and not takes_argument(type(team), "recurrent"), argument)
        networks[group] = network
    return networks


def by_group(kind: str) -> Any:
    """Return a property of teams: networks or optimisers of one kind, by group. Assignment replaces them.

    Assign a mapping by group or by agent, or a list in the order of the groups, with one entry for each group. The
    optimiser moments of a replaced network are reset.
    """

    def assign(team: ActingTeam, value: Networks | Mapping[str, Any]) -> None:
        parts: Any = value if kind.endswith("optimizers") else networks_by_group(team, kind, value)
        parts = {team.get_group_id(name): part for name, part in parts.items()}
        missing = [group for group in team.grouped_agents if group not in parts]
        if missing:
            raise ConfigError(f"{team.algo}: {kind} has nothing for the group {missing[0]!r}. fix: one for each group.")
        for group, part in parts.items():
            team.registered(kind, group, part)

    return property(lambda team: Named(team, kind), assign)


@dataclass(frozen=True)
class _Plain:
    """A policy that reads one unprocessed vector [..., width], in its dtype and on its device."""

    network: EvolvableNetwork
    width: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, network: EvolvableNetwork) -> _Plain | None:
        """Create from a network; None if it may preprocess observations."""
        space, changed = network.observation_space, overrides(network, EvolvableNetwork, *READ_BY)
        if changed or not network.reads_vectors or not isinstance(space, spaces.Box) or len(space.shape) != 1:
            return None
        if network.scale_observations or network.encoder_source is not None:
            return None
        like = next(network.parameters())
        return cls(network, space.shape[0], like.dtype, like.device)


def _side_by_side(joint: EvolvableNetwork, plain: Mapping[str, _Plain | None]) -> list[str] | None:
    """Return the agent order in which a joint network concatenates the policies' inputs; None for other inputs."""
    encoder, like = joint.encoder, next(joint.parameters())
    if not isinstance(encoder, EvolvableMultiInput) or overrides(joint, EvolvableNetwork, *READ_BY):
        return None
    alike = all(p is not None and (p.dtype, p.device) == (like.dtype, like.device) for p in plain.values())
    is_whole = not encoder.part_names and set(encoder.vector_keys) == set(plain)
    return list(encoder.vector_keys) if alike and is_whole and not joint.scale_observations else None


def row_input(
    networks: Mapping[str, EvolvableNetwork], joint: EvolvableNetwork, device: torch.device | str
) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Return a function that converts observations to inputs of networks over rows: by agent, and joint for critics.

    It runs three times per step, so plain vectors are converted inline, and the critics' inputs are concatenated from
    the policies' inputs.

    Args:
        networks: the policy of each agent. joint: a critic of all observations.
    """
    plain = {agent: _Plain.of(network) for agent, network in networks.items()}
    order, read_joint = _side_by_side(joint, plain), joint.row_input

    def prepare(obs: Mapping[str, Any]) -> dict[str, Any]:
        seen, inputs, together = obs[AGENTS], {}, order is not None
        for agent, policy in plain.items():
            rows = seen[agent]
            if policy is not None and isinstance(rows, np.ndarray | Tensor) and rows.shape[-1:] == (policy.width,):
                is_real = rows.is_floating_point() if isinstance(rows, Tensor) else rows.dtype.kind == "f"
                if is_real and rows.ndim > 1 and "obs_mean" not in policy.network._buffers:
                    inputs[agent] = torch.as_tensor(rows, device=policy.device).to(policy.dtype)
                    continue
            inputs[agent], together = networks[agent].row_input(rows), False
        joined = torch.cat([inputs[agent] for agent in order], -1) if together and order else read_joint(seen)
        prepared = {AGENTS: inputs, JOINT: joined, PRESENT: torch.as_tensor(obs[PRESENT], device=device)}
        if WAITING not in obs or not obs[WAITING].any():  # most teams never wait
            return prepared
        return prepared | {
            key: torch.as_tensor(obs[key], device=device) for key in (WAITING, LAST_ACTION) if key in obs
        }

    return prepare
