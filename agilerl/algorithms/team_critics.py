"""What algorithms with centralised critics have in common: who reads what, agents of a group as rows, policy losses.

Shapes: [..., B, x] with a leading member axis over rows, without one for modules. The K agents of a group are K·B rows
of one batch, agent by agent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agilerl import tree
from agilerl.engine.protocol import TransitionBatch, UpdateEngine
from agilerl.envs.teams import AGENTS, JOINT, PRESENT
from agilerl.errors import ConfigError, unknown_name
from agilerl.losses.actor_critic import deterministic_policy_loss
from agilerl.modules.base import constructor_arguments
from agilerl.modules.cnn import EvolvableCNN
from agilerl.modules.mlp import EvolvableMLP
from agilerl.modules.multi_input import EvolvableMultiInput
from agilerl.networks.actors import DeterministicActor
from agilerl.networks.base import checked_arguments
from agilerl.networks.q_networks import ContinuousQNetwork
from agilerl.spaces import parts_of

if TYPE_CHECKING:
    from agilerl.algorithms.multi_agent import MultiAgentRLAlgorithm as Team

LOGIT_DECAY = 1e-3  # of the authors' released code (openai/maddpg): weight of the policies' squared outputs
_SHARED = {"activation", "output_activation", "device", "name", "random_seed"}  # keys that dense layers have too


# --- networks -----------------------------------------------------------------------------------------------------


def make_actor(team: Team, group: str, seed: int) -> DeterministicActor:
    """The policy of a group, after the team's `net_config`."""
    space = team.observation_space[group]
    arguments = checked_arguments(fitting(config_of(team, group), space), DeterministicActor)
    return DeterministicActor(space, team.action_space[group], device=team.device, random_seed=seed, **arguments)


def make_critic(team: Team, group: str, seed: int) -> ContinuousQNetwork:
    """A critic of all agents' observations and actions; one that several agents share is told whose value is asked."""
    config = dict(config_of(team, group))
    if isinstance(config.get("head_config"), Mapping):  # an output activation is the policies' alone
        config["head_config"] = {k: v for k, v in config["head_config"].items() if k != "output_activation"}
    arguments = checked_arguments(fitting(config, team.team.joint_space), ContinuousQNetwork)
    count = len(team.grouped_agents[group])
    beside = gym.spaces.Box(-np.inf, np.inf, (team.actions.width + (count if count > 1 else 0),), np.float32)
    return ContinuousQNetwork(team.team.joint_space, beside, device=team.device, random_seed=seed, **arguments)


def config_of(team: Team, group: str) -> Mapping[str, Any]:
    """`net_config` of a group: all of it, or its own part where the keys are names of groups or agents.

    Raises:
        ConfigError: parts by name, and none for this group, or one for nobody.
    """
    config = team.net_config or {}
    names = [*team.agent_ids, *team.grouped_agents]
    by_name = [key for key in config if key in names]
    if not by_name:
        return config
    unknown = [key for key in config if key not in names]
    if unknown:
        raise ConfigError(
            f"{team.algo}: net_config has parts by name, and {unknown_name('agent', str(unknown[0]), names)}"
        )
    found = next((config[name] for name in (group, *team.grouped_agents[group]) if name in config), None)
    if not isinstance(found, Mapping):
        raise ConfigError(f"{team.algo}: net_config has parts for {sorted(config)}, none for {group!r}. fix: add it.")
    return found


def fitting(config: Mapping[str, Any], space: gym.Space[Any]) -> dict[str, Any]:
    """`net_config` for a network that reads `space`: of a space of several parts, keys of convolutions are those of
    every image's encoder, and keys of dense layers those of one network over all vectors side by side."""
    given, encoder = dict(config), config.get("encoder_config", {})
    own = set(constructor_arguments(EvolvableMultiInput)) - _SHARED
    if parts_of(space) and isinstance(encoder, Mapping) and not set(encoder) & own:
        of_images = set(encoder) & (set(constructor_arguments(EvolvableCNN)) - set(constructor_arguments(EvolvableMLP)))
        part = "cnn_config" if of_images else "mlp_config"
        given["encoder_config"] = {"vector_space_mlp": True, **({part: dict(encoder)} if encoder else {})}
    return given


# --- agents of a group as more rows of one batch --------------------------------------------------------------------


def batch_axis(batch: TransitionBatch) -> int:
    """The axis of the batch in its tensors [..., B, M]: 1 over rows, 0 for modules."""
    return batch.reward.dim() - 2


def rows_of(per_agent: Tensor, own: list[int], axis: int) -> Tensor:
    """[..., B, M] -> [..., K·B] of the agents `own`, agent by agent."""
    return torch.cat([per_agent[..., k] for k in own], axis)


def outputs_of(policy: Any, obs: Any, agents: list[str], axis: int) -> list[Tensor]:
    """A policy's outputs for each of its agents [..., B, out]."""
    seen = [obs[AGENTS][agent] for agent in agents]
    joined = seen[0] if len(seen) == 1 else tree.concatenate(seen, axis)
    return list(policy(joined).chunk(len(agents), axis))


def judged(critic: Any, obs: Any, actions: list[Tensor], axis: int) -> Tensor:
    """Values [..., K·B] of the K agents of a group, each for its own idea of the team's actions [..., B, F]."""
    count, joint = len(actions), obs.get(JOINT, obs[AGENTS])
    if count > 1:
        told = []
        for k, action in enumerate(actions):
            who = action.new_zeros(*action.shape[:-1], count)
            who[..., k] = 1
            told.append(torch.cat((action, who), -1))
        joint, actions = tree.map_leaves(lambda x: torch.cat([x] * count, axis), joint), [torch.cat(told, axis)]
    values: Tensor = critic(joint, actions[0]).squeeze(-1)
    return values


def presence(team: Team, obs: Any, like: Tensor) -> Tensor:
    """[..., B, F]: 1 in the features of the agents that are there."""
    widths = torch.tensor([one.width for one in team.actions.each], device=like.device)
    there: Tensor = obs[PRESENT].to(like).repeat_interleave(widths, -1)
    return there


def weights_of(batch: TransitionBatch, own: list[int], axis: int) -> Tensor:
    """[..., K·B]: the rows' weights, 0 for agents that were not there, over the agents of the group."""
    there = batch.obs[PRESENT].to(batch.weight)
    return rows_of(batch.weight.unsqueeze(-1) * there, own, axis) / len(own)


def next_actions(
    team: Team, engine: UpdateEngine, batch: TransitionBatch, smooth: Callable[[Tensor], Tensor] | None = None
) -> Tensor:
    """What the target policies do next [..., B, F], 0 for agents that are not there; `smooth` changes it before."""
    found: dict[str, Tensor] = {}
    for group, agents in team.grouped_agents.items():
        outputs = outputs_of(engine.target(f"actors.{group}"), batch.next_obs, agents, batch_axis(batch))
        for agent, out in zip(agents, outputs, strict=True):
            one, legal = team.actions.of_agent(agent), team.actions.mask_of(agent, batch.next_mask)
            found[agent] = one.chosen(out, legal) if one.is_choice else out
    joined = torch.cat([found[agent] for agent in team.agent_ids], -1)
    if smooth is not None:
        joined = smooth(joined)
    return joined * presence(team, batch.next_obs, joined)


def policy_loss(
    team: Team, engine: UpdateEngine, batch: TransitionBatch, group: str, critic: str, taken: Tensor, weight: Tensor
) -> Tensor:
    """Each agent of the group replaces its own action by its policy's; the others' are those of the replay
    (arXiv:1706.02275, eq. 5). Logits are kept small as in the authors' released code."""
    agents, axis, replaced = team.grouped_agents[group], batch_axis(batch), []
    outputs = outputs_of(engine.network(f"actors.{group}"), batch.obs, agents, axis)
    for agent, out in zip(agents, outputs, strict=True):
        span, one, own = team.actions.widths[agent], team.actions.of_agent(agent), out
        if one.is_choice:
            legal = team.actions.mask_of(agent, batch.obs_mask)
            own = one.straight_through(out, batch.noise["gumbel"][..., span], team.temperature, legal)
        replaced.append(torch.cat((taken[..., : span.start], own, taken[..., span.stop :]), -1))
    values = judged(engine.through(critic), batch.obs, replaced, axis)
    if team.actions.of_agent(agents[0]).is_choice:
        values = values - LOGIT_DECAY * torch.cat([out.square().mean(-1) for out in outputs], axis)
    return deterministic_policy_loss(values, weight)


def critic_errors(error: Tensor, count: int, axis: int) -> Tensor:
    """[..., B]: the largest error of the group's agents in each row."""
    return torch.stack(error.detach().abs().chunk(count, axis)).amax(0)
