"""Serialisation of teams: policies, state, and teams rebuilt from either."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import torch
from torch import Tensor

from agilerl.algorithms.base import copies
from agilerl.algorithms.base.copies import space_or_none
from agilerl.errors import RunError
from agilerl.modules.paths import resolve
from agilerl.networks.specs import check_sizes
from agilerl.signatures import by_position_or_name, construct, construct_without_repeats, constructor_arguments
from agilerl.spaces import space_from_json

if TYPE_CHECKING:
    from agilerl.algorithms.teams.base import MultiAgentRLAlgorithm as Team

MADE_OF_SPACES = (
    "possible_observation_spaces", "possible_action_spaces", "observation_spaces", "action_spaces",
    "observation_space", "action_space", "team", "actions",
)  # fmt: skip


def policy_spec(team: Team) -> dict[str, Any]:
    """Return a JSON-able description of the policies: one network per group, and the groups' agents."""
    first = {
        "algo": team.algo,
        "networks": {group: resolve(team, f"actors.{group}").spec() for group in team.grouped_agents},
        "groups": {group: list(agents) for group, agents in team.grouped_agents.items()},
        "agents": list(team.agent_ids),
        "hyperparameters": team.hyperparameters(),
        "environment": team.environment,
    }
    return first | ({"action_masks": True} if team.action_masks else {})


def policy_state(team: Team) -> dict[str, Tensor]:
    """Return contiguous copies of all policies' weights, `<group>.<name>`."""
    return {
        f"{group}.{name}": value.detach().clone(memory_format=torch.contiguous_format)
        for group in team.grouped_agents
        for name, value in resolve(team, f"actors.{group}").state_dict().items()
    }


def weights_of(group: str, groups: Iterable[str], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return one group's part of `policy_state`. Names may contain dots: "bot" and "bot.0" may both be groups."""
    start = f"{group}."
    others = tuple(f"{other}." for other in groups if other.startswith(start))
    return {k.removeprefix(start): v for k, v in state.items() if k.startswith(start) and not k.startswith(others)}


def own_state(team: Team) -> dict[str, Any]:
    """Return a team's additions to the state of every agent."""
    spaces = {
        "observation_spaces": {a: space_or_none(s) for a, s in team.possible_observation_spaces.items()},
        "action_spaces": {a: space_or_none(s) for a, s in team.possible_action_spaces.items()},
    }
    return {"spaces": spaces, "exploration": team._exploration.bit_generator.state}


def blank(cls: Any, state: Mapping[str, Any], device: str | torch.device, accelerator: Any) -> Any:
    """Create a team from the spaces and arguments in a state. RunError if the spaces are missing."""
    spaces = {
        name: {agent: None if space is None else space_from_json(space) for agent, space in by_agent.items()}
        for name, by_agent in state["spaces"].items()
    }
    unknown = [agent for by_agent in spaces.values() for agent, space in by_agent.items() if space is None]
    if unknown:
        raise RunError(f"the file does not hold the spaces of {unknown[0]}. fix: make the team, load_checkpoint.")
    rest = copies.blank_arguments(
        cls, {**state, "spaces": {}, "attributes": {**state["attributes"], **spaces}}, device, accelerator
    )
    arguments = {**rest, **spaces, "agent_ids": list(state["attributes"]["agent_ids"])}
    return construct_without_repeats(cls, (), arguments)


def from_policy(
    cls: Any,
    spec: Mapping[str, Any],
    state: Mapping[str, Tensor],
    device: str | torch.device = "cpu",
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Implement `MultiAgentRLAlgorithm.from_policy`."""
    networks, groups = {}, spec["groups"]
    for group, network_spec in spec["networks"].items():
        check_sizes({"policy": {"spec": network_spec, "weights": state}}, "the policy")
        networks[group] = cls.policy_from_spec(network_spec, device)
        networks[group].load_state_dict(weights_of(group, spec["networks"], state))
    member = {agent: networks[group] for group, agents in groups.items() for agent in agents}
    accepted = constructor_arguments(cls)
    values = {k: v for k, v in {**(options or {}), **spec["hyperparameters"]}.items() if k in accepted}
    spaces, named = by_position_or_name(
        cls,
        observation_spaces={agent: given_space(member[agent].observation_space) for agent in spec["agents"]},
        action_spaces={agent: given_space(member[agent].action_space) for agent in spec["agents"]},
    )
    team = construct(cls, *spaces, actor_networks=networks, device=device, **named, **values)
    team.environment, team.action_masks = spec.get("environment"), bool(spec.get("action_masks"))
    team.set_training_mode(False)
    return team


def given_space(space: gym.Space[Any] | None) -> gym.Space[Any]:
    """Return a policy's space, which is never None."""
    assert space is not None
    return space
