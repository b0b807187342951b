"""Networks of a team, `<kind>.<group>`: how they are registered, what they read, and policies as one program."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn, optim

from agilerl import tree
from agilerl.algorithms.optimizer import OptimizerWrapper
from agilerl.algorithms.registry import NetworkGroup
from agilerl.algorithms.team_names import group_of
from agilerl.envs.teams import AGENTS, HELD, JOINT, PRESENT, WAITING

if TYPE_CHECKING:
    from agilerl.algorithms.multi_agent import MultiAgentRLAlgorithm as Team


def registered(team: Team, kind: str, group: str, network: nn.Module) -> Any:
    """Assign a network as `<kind>.<group>` and give it back."""
    setattr(team, f"{kind}.{group}", network)
    return network


def register_network(
    team: Team, kind: str, targets: str, optimizers: str, group: str, lr: str, policy: bool = False
) -> None:
    """Give the network `<kind>.<group>` a frozen target `<targets>.<group>` and an Adam optimiser of its own."""
    network = getattr(team, f"{kind}.{group}")
    shadow = registered(team, targets, group, network.clone())
    shadow.requires_grad_(False)
    wrapper = OptimizerWrapper(optim.Adam, network, getattr(team, lr), lr_name=lr)
    setattr(team, f"{optimizers}.{group}", wrapper)
    team.register_network_group(NetworkGroup(network, shadow, policy=policy))


def observations_for(team: Team, network: str, observations: Any) -> Any:
    """What of a team's observations [B, ...] a network of this name reads: its agents', one after another, where
    they were there; those of all agents for a critic."""
    seen, group = observations[AGENTS], network.partition(".")[2]
    policies = [each for each in team.registry.groups if each.policy]
    if network not in {str(n) for each in policies for n in (each.eval_network, *(each.shared_networks or ()))}:
        return seen
    there, agents = observations[PRESENT].bool(), team.grouped_agents[group]
    rows = [tree.take(seen[agent], there[:, team.agent_ids.index(agent)]) for agent in agents]
    return tree.concatenate(rows)


def row_input(team: Team) -> Callable[[Any], Any]:
    """What gives observations as networks over rows take them: each agent's, and all of them for critics."""
    actors = {agent: getattr(team, f"actors.{group_of(agent)}").row_input for agent in team.agent_ids}
    joint = team.joint_network().row_input

    def prepare(obs: Any) -> dict[str, Any]:
        seen = obs[AGENTS]
        present = torch.as_tensor(obs[PRESENT], device=team.device)
        found = {AGENTS: {a: read(seen[a]) for a, read in actors.items()}, JOINT: joint(seen), PRESENT: present}
        if WAITING not in obs or not obs[WAITING].any():  # most teams never wait, and need not pay for it
            return found
        return found | {key: torch.as_tensor(obs[key], device=team.device) for key in (WAITING, HELD) if key in obs}

    return prepare


def policy_program(team: Team, network: Callable[[str], Any], axis: int = 2) -> Callable[[Any], Tensor]:
    """Outputs of all policies side by side [..., E, F] for prepared observations, given what runs a network.

    axis: of the lanes; a group's agents act in one pass, as more lanes."""
    runs = {group: network(f"actors.{group}") for group in team.grouped_agents}

    def program(obs: Any) -> Tensor:
        found: dict[str, Tensor] = {}
        for group, agents in team.grouped_agents.items():
            parts = [obs[AGENTS][agent] for agent in agents]
            joined = parts[0] if len(parts) == 1 else tree.concatenate(parts, axis - 1)
            found |= zip(agents, runs[group](joined).chunk(len(agents), axis - 1), strict=True)
        return torch.cat([found[agent] for agent in team.agent_ids], -1)

    return program
