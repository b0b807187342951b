"""What algorithms with centralised critics have in common: who reads what, agents of a group as rows, policy losses.

Shapes: [..., B, x] with a leading member axis over rows, without one for modules. The K agents of a group are K·B rows
of one batch, agent by agent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from agilerl import tree
from agilerl.algorithms.base import actions as base_actions
from agilerl.algorithms.base.actions import noise_paths
from agilerl.algorithms.base.building import check_memory
from agilerl.algorithms.teams.actions import Alike
from agilerl.algorithms.teams.base import MultiAgentRLAlgorithm
from agilerl.algorithms.teams.networks import by_group
from agilerl.engine.modules import soft_update
from agilerl.engine.protocol import Draws, TransitionBatch, UpdateEngine
from agilerl.envs.teams import AGENTS, JOINT, LAST_ACTION, PRESENT, WAITING
from agilerl.errors import ConfigError, unknown_name
from agilerl.losses.actor_critic import deterministic_policy_loss
from agilerl.modules.base import constructor_arguments
from agilerl.modules.cnn import EvolvableCNN
from agilerl.modules.configs import NetConfig
from agilerl.modules.lstm import EvolvableLSTM
from agilerl.modules.mlp import EvolvableMLP
from agilerl.modules.multi_input import EvolvableMultiInput
from agilerl.modules.paths import resolve
from agilerl.modules.resnet import EvolvableResNet
from agilerl.modules.simba import EvolvableSimBa
from agilerl.networks.actors import DeterministicActor
from agilerl.networks.base import EvolvableNetwork, checked_arguments
from agilerl.networks.encoders import asks_for_memory, encoder_named, mapping_of
from agilerl.networks.q_networks import ContinuousQNetwork
from agilerl.spaces import parts_of

Team = MultiAgentRLAlgorithm

LOGIT_DECAY = 1e-3  # of the authors' released code (openai/maddpg): weight of the policies' squared outputs
NOISE = frozenset({"expl_noise", "mean_noise"})  # arguments that may be given by agent
OF_PARTS = (EvolvableCNN, EvolvableResNet, EvolvableMultiInput)  # encoders that do not read parts side by side
_SHARED = {"activation", "output_activation", "device", "name", "random_seed"}  # keys that dense layers have too


# --- networks -----------------------------------------------------------------------------------------------------


class CentralisedCritics(MultiAgentRLAlgorithm):
    """A team with deterministic policies that explore by noise, and critics that read what all agents see and do.

    Attributes:
        critic_names: kinds of critics, the first of which policies follow.
    """

    arguments_by_agent = NOISE
    critic_names: ClassVar[tuple[str, ...]] = ("critics",)
    O_U_noise: bool
    expl_noise: Any
    mean_noise: Any
    noise_state: np.ndarray
    tau: float

    actors = by_group("actors")
    actor_targets = by_group("actor_targets")
    actor_optimizers = by_group("actor_optimizers")

    def joint_network(self) -> EvolvableNetwork:
        network: EvolvableNetwork = resolve(self, f"{self.critic_names[0]}.{self.shared_agent_ids[0]}")
        return network

    def soft_update(self, net: nn.Module, target: nn.Module) -> None:
        """Move a target network towards its network, in place: target ← (1 − τ)·target + τ·net."""
        soft_update(net, target, self.tau)

    @property
    def action_size(self) -> int:
        """Components of all Box actions."""
        return self.actions.components

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Draws:
        """(noise [*shape, C] on components, Gumbel numbers [*shape, F] on logits)."""
        steps = int(np.prod(shape[:-1], dtype=int))
        noise = noise_paths(self, rng, steps, shape[-1]).reshape(*shape, self.action_size)
        return noise, rng.gumbel(size=(*shape, self.actions.width))

    def action_noise(self, action: Any = None) -> np.ndarray:
        """Noise [E, C] float32 of one vector step for Box components [E, C]; without any E is that of the last call."""
        return base_actions.action_noise(self, action)

    def reset_action_noise(self, indices: Any) -> None:
        """Begin a new path in the lanes `indices`: their Ornstein-Uhlenbeck state becomes 0."""
        base_actions.reset_action_noise(self, indices)


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
        ConfigError: no mapping; parts by name, and none for this group, or one for nobody; a memory that the team does
            not keep.
    """
    config = _part_of(team, mapping_of(team.net_config), group)
    check_memory(team, asks_for_memory(config), "net_config")
    return config


def _part_of(team: Team, config: Mapping[str, Any], group: str) -> Mapping[str, Any]:
    names = [*team.agent_ids, *team.grouped_agents]
    by_name = [key for key in config if key in names]
    if not by_name:
        return config
    unknown = [key for key in config if key not in names]
    if unknown:
        raise ConfigError(
            f"{team.algo}: net_config has parts by name, and {unknown_name('agent', str(unknown[0]), names)}"
        )
    part = next((config[name] for name in (group, *team.grouped_agents[group]) if name in config), None)
    if part is None:
        raise ConfigError(f"{team.algo}: net_config has parts for {sorted(config)}, none for {group!r}. fix: add it.")
    return mapping_of(part)


def fitting(config: Mapping[str, Any], space: gym.Space[Any]) -> dict[str, Any]:
    """`net_config` for a network that reads `space`: of a space of several parts, keys of convolutions are those of
    every image's encoder, and keys of dense layers those of one network over all vectors side by side. An encoder that
    reads all parts side by side itself keeps its keys: a recurrent one, one of residual blocks, one of the user's."""
    named = encoder_named(config)
    is_by_class = config.get("encoder_cls") is not None and named not in OF_PARTS
    reads_all = named in (EvolvableLSTM, EvolvableSimBa) or is_by_class
    fitted, encoder = dict(config), config.get("encoder_config", {})
    encoder = dict(encoder) if isinstance(encoder, NetConfig) else encoder  # typed, it is read as its mapping is
    multi_input_keys = set(constructor_arguments(EvolvableMultiInput)) - _SHARED
    if not reads_all and parts_of(space) and isinstance(encoder, Mapping) and not set(encoder) & multi_input_keys:
        of_images = set(encoder) & (set(constructor_arguments(EvolvableCNN)) - set(constructor_arguments(EvolvableMLP)))
        part = "cnn_config" if of_images else "mlp_config"
        fitted["encoder_config"] = {"vector_space_mlp": True, **({part: dict(encoder)} if encoder else {})}
    return fitted


# --- exploring ----------------------------------------------------------------------------------------------------


def noise_by_component(team: Team, name: str, given: Any) -> Any:
    """Numbers [C] of the noise on all Box components, from a mapping by agent or group; anything else as it is.

    Raises:
        ConfigError: an unknown agent, an agent of Box actions without an entry, or one of other numbers than it has
            components.
    """
    if not isinstance(given, Mapping):
        return given
    names = [*team.agent_ids, *team.grouped_agents]
    unknown = [str(key) for key in given if key not in names]
    if unknown:
        raise ConfigError(f"{team.algo}, {name}: {unknown_name('agent', unknown[0], names)}")
    parts = [np.zeros(0)]
    for agent, one in zip(team.actions.agents, team.actions.each, strict=True):
        values = given.get(agent, given.get(team.get_group_id(agent)))
        numbers = np.ravel(np.asarray(0.0 if values is None else values, float))
        is_off = not np.isfinite(numbers).all() or (name == "expl_noise" and (numbers < 0).any())
        if one.size and (values is None or numbers.size not in (1, one.size) or is_off):
            raise ConfigError(
                f"{team.algo}, {name}: {agent} has {one.size} components, got {values!r}. "
                "fix: one number, or one for each component."
            )
        parts.append(np.broadcast_to(numbers[: one.size], (one.size,)))
    return np.concatenate(parts)


# --- agents of a group as more rows of one batch --------------------------------------------------------------------
#
# All of it runs in every update: what is the same in each is looked up in `TeamActions`, and small steps are no calls.


def batch_axis(batch: TransitionBatch) -> int:
    """The axis of the batch in its tensors [..., B, M]: 1 over rows, 0 for modules."""
    return batch.reward.dim() - 2


def rows_of(per_agent: Tensor, own: Sequence[int], axis: int) -> Tensor:
    """[..., B, M] -> [..., K·B] of the agents `own`, agent by agent."""
    parts = [per_agent[..., k] for k in own]
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)


def outputs_of(policy: Any, obs: Any, agents: Sequence[str], axis: int) -> Sequence[Tensor]:
    """A policy's outputs for each of its agents [..., B, out]."""
    seen = obs[AGENTS]
    if len(agents) == 1:
        return (policy(seen[agents[0]]),)
    outputs: Sequence[Tensor] = policy(tree.concatenate([seen[agent] for agent in agents], axis)).chunk(
        len(agents), axis
    )
    return outputs


def critic_values(critic: Any, obs: Any, actions: Tensor, count: int, axis: int) -> Tensor:
    """Values [..., K·B] of the K agents of a group, all of them for the same actions of the team [..., B, F]."""
    joint, read = (obs.get(JOINT, obs[AGENTS]), actions) if count == 1 else critic_inputs(obs, [actions] * count, axis)
    values: Tensor = critic(joint, read).squeeze(-1)
    return values


def critic_inputs(obs: Any, actions: list[Tensor], axis: int) -> tuple[Any, Tensor]:
    """What a critic reads to judge K agents of a group: all observations [..., B, ..], and the actions
    [..., K·B, F + who]."""
    count, joint = len(actions), obs.get(JOINT, obs[AGENTS])
    if count == 1:
        return joint, actions[0]
    rows = []
    for k, action in enumerate(actions):
        one_hot = action.new_zeros(*action.shape[:-1], count)
        one_hot[..., k] = 1
        rows.append(torch.cat((action, one_hot), -1))
    return joint, torch.cat(rows, axis)


def of_groups(alike: Alike, per_agent: Tensor, axis: int) -> Tensor:
    """[..., B, M] -> [G, ..., K·B] of the agents of G groups."""
    if alike.count == 1:
        return torch.stack([per_agent[..., members[0]] for members in alike.numbers])
    return torch.stack([torch.cat([per_agent[..., k] for k in members], axis) for members in alike.numbers])


def presence(team: Team, obs: Any, like: Tensor) -> Tensor:
    """[..., B, F]: 1 in the features of the agents that are there, or wait and hold what they did last."""
    there = obs[PRESENT] if WAITING not in obs else obs[PRESENT] + obs[WAITING]
    mask: Tensor = there.to(like).index_select(-1, torch.from_numpy(team.actions.owners).to(like.device))
    return mask


def weights_of(batch: TransitionBatch, alike: Alike, axis: int) -> tuple[Tensor, Tensor]:
    """(critics', policies') weights of the rows [G, ..., K·B], over the agents of each group: 0 for agents that were
    not there.

    Those of critics count agents that wait as well: what they get meanwhile, and what follows, is what their last
    action was worth, and reaches it step by step through the values of the states in which they hold it.
    """
    weight = batch.weight.unsqueeze(-1)
    weight = weight if alike.count == 1 else weight / alike.count
    there = batch.obs[PRESENT].to(weight)
    deciding = of_groups(alike, weight * there, axis)
    if WAITING not in batch.obs:
        return deciding, deciding
    return of_groups(alike, weight * (there + batch.obs[WAITING].to(weight)), axis), deciding


def next_actions(
    team: Team,
    engine: UpdateEngine,
    batch: TransitionBatch,
    axis: int,
    smooth: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """What the target policies do next [..., B, F]; `smooth` changes it before. Who waits then holds what it did last,
    and of other agents that are not there it is 0."""
    by_agent: dict[str, Tensor] = {}
    actions, obs, legal = team.actions, batch.next_obs, batch.next_mask
    for group, agents in team.grouped_agents.items():
        outputs = outputs_of(engine.target(f"actors.{group}"), obs, agents, axis)
        for agent, out in zip(agents, outputs, strict=True):
            one, mask = actions.by_agent[agent], None if legal is None else legal[..., actions.masks[agent]]
            by_agent[agent] = one.chosen(out, mask) if one.is_choice else out
    chosen = torch.cat([by_agent[agent] for agent in team.agent_ids], -1)
    if smooth is not None:
        chosen = smooth(chosen)
    owners = torch.from_numpy(actions.owners).to(chosen.device)
    there: Tensor = obs[PRESENT].to(chosen).index_select(-1, owners)
    if LAST_ACTION not in obs:
        return chosen * there
    waits: Tensor = obs[WAITING].to(chosen).index_select(-1, owners)
    return chosen * there + actions.features(obs[LAST_ACTION].to(chosen)) * waits


def policy_loss(
    team: Team,
    engine: UpdateEngine,
    batch: TransitionBatch,
    alike: Alike,
    critics: tuple[str, ...],
    taken: Tensor,
    weight: Tensor,
    axis: int,
) -> Tensor:
    """[G, ...]: each agent of a group replaces its own action by its policy's; the others' are those of the replay
    (arXiv:1706.02275, eq. 5). Logits are kept small as in the authors' released code.

    Args:
        critics: of each of the groups. taken: [..., B, F]. weight: [G, ..., K·B].
    """
    actions, obs, legal, inputs, sizes = team.actions, batch.obs, batch.obs_mask, [], list[Tensor | None]()
    for group, agents in zip(alike.groups, alike.agents, strict=True):
        replaced, is_choice = [], actions.by_agent[agents[0]].is_choice
        outputs = outputs_of(engine.network(f"actors.{group}"), obs, agents, axis)
        for agent, out in zip(agents, outputs, strict=True):
            span, action = actions.widths[agent], out
            if is_choice:
                mask, gumbel = None if legal is None else legal[..., actions.masks[agent]], batch.noise["gumbel"]
                action = actions.by_agent[agent].straight_through(out, gumbel[..., span], team.temperature, mask)
            replaced.append(torch.cat((taken[..., : span.start], action, taken[..., span.stop :]), -1))
        inputs.append(critic_inputs(obs, replaced, axis))
        means = [out.square().mean(-1) for out in outputs] if is_choice else []
        sizes.append((means[0] if len(means) == 1 else torch.cat(means, axis)) if means else None)
    values = engine.through_each(critics)(inputs).squeeze(-1)
    penalties = [LOGIT_DECAY * size if size is not None else values.new_zeros(values.shape[1:]) for size in sizes]
    return deterministic_policy_loss(values - torch.stack(penalties), weight)


def errors_of(alike: Alike, error: Tensor, axis: int) -> dict[int, Tensor]:
    """Errors [G, ..., K·B] of G groups as those of their agents, by the agents' places: [..., B] each."""
    by_agent: dict[int, Tensor] = {}
    for members, of_group in zip(alike.numbers, error, strict=True):
        by_agent |= zip(members, of_group.chunk(len(members), axis), strict=True)
    return by_agent


def priorities(batch: TransitionBatch, errors: Mapping[int, Tensor]) -> Tensor | None:
    """[..., B]: what replay is sampled by, the mean of |δ| over the agents that were there or waited; 0 where none.
    None where nobody asks for them.

    Args:
        errors: TD errors by number of the agent [..., B].
    """
    if not batch.wants_priorities:
        return None
    there = batch.obs[PRESENT].to(batch.reward)
    if WAITING in batch.obs:
        there = there + batch.obs[WAITING].to(batch.reward)
    sizes = torch.stack([errors[k].detach().abs() for k in range(there.shape[-1])], -1)
    mean: Tensor = (sizes * there).sum(-1) / there.sum(-1).clamp(min=1)
    return mean
