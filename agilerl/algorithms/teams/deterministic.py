"""Shared parts of algorithms with centralised critics: network inputs, agents of a group as rows, policy losses.

Shapes: [..., B, x], with a leading member axis over rows and without one for modules. The K agents of a group are K·B
rows of one batch, agent by agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from agilerl.algorithms.base.actions import range_of
from agilerl.algorithms.base.actor_critic import RAW_RANGE, CriticRows, DeterministicActorCritic
from agilerl.algorithms.base.building import check_memory
from agilerl.algorithms.base.single_agent import UpdateLoss
from agilerl.algorithms.teams.actions import Alike
from agilerl.algorithms.teams.base import MultiAgentRLAlgorithm
from agilerl.algorithms.teams.networks import Networks, by_group, networks_by_group
from agilerl.core import tree
from agilerl.core.rng import Purpose, seeds
from agilerl.core.signatures import constructor_arguments
from agilerl.core.spaces import parts_of
from agilerl.engine.modules import soft_update
from agilerl.engine.protocol import Draws, Network, TransitionBatch, UpdateEngine
from agilerl.engine.recipes import AgentLayout, GroupLayout, TeamActorCriticRecipe
from agilerl.envs.protocol import AGENTS, JOINT, LAST_ACTION, PRESENT, WAITING
from agilerl.errors import ConfigError, unknown_choice
from agilerl.losses.actor_critic import deterministic_policy_loss, smoothed_action
from agilerl.modules.cnn import EvolvableCNN
from agilerl.modules.configs import NetConfig
from agilerl.modules.lstm import EvolvableLSTM
from agilerl.modules.mlp import EvolvableMLP
from agilerl.modules.multi_input import EvolvableMultiInput
from agilerl.modules.paths import resolve
from agilerl.modules.resnet import EvolvableResNet
from agilerl.modules.simba import EvolvableSimBa
from agilerl.networks.actors import DeterministicActor, get_output_bounds
from agilerl.networks.base import EvolvableNetwork, checked_arguments
from agilerl.networks.encoders import asks_for_memory, encoder_named, mapping_of
from agilerl.networks.q_networks import ContinuousQNetwork

Team = MultiAgentRLAlgorithm
Noise = float | np.ndarray | Mapping[str, float | Sequence[float] | np.ndarray]
TeamTree = Mapping[str, Any]  # observations of a team, see `envs.protocol`

LOGIT_DECAY = 1e-3  # of the authors' released code (openai/maddpg): weight of the policies' squared outputs
NOISE = frozenset({"expl_noise", "mean_noise"})  # arguments that also accept a mapping by agent
OF_PARTS = (EvolvableCNN, EvolvableResNet, EvolvableMultiInput)  # encoders that do not concatenate all parts
_SHARED = {"activation", "output_activation", "device", "name", "random_seed"}  # keys shared with dense layers


# --- networks -----------------------------------------------------------------------------------------------------


def by_component(name: str) -> Any:
    """Return a property of teams: noise, a number or [C] of all Box components. A mapping by agent may be assigned."""

    def assign(team: Team, value: Noise) -> None:
        team.__dict__[name] = noise_by_component(team, name, value)

    return property(lambda team: team.__dict__[name], assign)


class CentralisedCritics(MultiAgentRLAlgorithm, DeterministicActorCritic):
    """A team with deterministic policies, exploration noise, and critics of all agents' observations and actions."""

    arguments_by_agent = NOISE
    critic_names: ClassVar[tuple[str, ...]] = ("critics",)
    optimizer_names: ClassVar[tuple[str, ...]] = ("critic_optimizers",)
    raw_bounds = RAW_RANGE  # type: ignore[assignment]  # of all policies
    criterion = UpdateLoss()  # of the critics
    tau: float

    expl_noise, mean_noise = by_component("expl_noise"), by_component("mean_noise")
    actors = by_group("actors")
    actor_targets = by_group("actor_targets")
    actor_optimizers = by_group("actor_optimizers")

    def _build(self, actor_networks: Networks, *critic_networks: Networks) -> None:
        """Build networks that are not passed, with targets and optimisers.

        Args:
            critic_networks: of each kind.
        """
        count = (1 + len(self.critic_names)) * len(self.grouped_agents)
        weight_seeds = iter(seeds(self.seed, Purpose.INITIAL_WEIGHTS, count, generation=2).tolist())
        actors = networks_by_group(self, "actor_networks", actor_networks)
        critics = [networks_by_group(self, "critic_networks", networks) for networks in critic_networks]
        for group in self.grouped_agents:
            seed = next(weight_seeds)
            self.registered("actors", group, actors.get(group) or make_actor(self, group, seed))
            for kind, networks in zip(self.critic_names, critics, strict=True):
                seed = next(weight_seeds)
                self.registered(kind, group, networks.get(group) or make_critic(self, group, seed))
        for group in self.grouped_agents:
            self.register_network("actors", "actor_targets", "actor_optimizers", group, "lr_actor", policy=True)
        for kind, optimizers in zip(self.critic_names, self.optimizer_names, strict=True):
            for group in self.grouped_agents:
                targets = kind.replace("critics", "critic_targets")
                self.register_network(kind, targets, optimizers, group, "lr_critic")

    def joint_network(self) -> EvolvableNetwork:
        network: EvolvableNetwork = resolve(self, f"{self.critic_names[0]}.{self.shared_agent_ids[0]}")
        return network

    def soft_update(self, net: nn.Module, target: nn.Module) -> None:
        """Move a target network towards its network, in place: target ← (1 − τ)·target + τ·net."""
        soft_update(net, target, self.tau)

    def registered(self, kind: str, group: str, network: nn.Module) -> Any:
        """Assign as `<kind>.<group>` and return it; policies are checked by `check_range`."""
        if kind == "actors":
            check_range(self, group, network)
        return super().registered(kind, group, network)

    def load_state(self, state: Mapping[str, Any], source: str = "state") -> None:
        super().load_state(state, source)
        for group in self.grouped_agents:
            check_range(self, group, self.actors[group])

    def probe_actions(self, network: str, count: int = 256) -> Tensor | None:
        actions = self.taken_actions(count)
        if actions is None:
            return None
        obs, agents = self.probe_observations(count), self.agents_of(network)
        taken = self.taken_features(obs, actions)
        return critic_inputs(obs, [taken] * len(agents), 0)[1].reshape(len(agents), len(taken), -1)

    @property
    def action_size(self) -> int:  # type: ignore[override]  # not assigned
        """Number of components of all Box actions."""
        return self.actions.components

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Draws:
        """Draw (noise [*shape, C] for components, Gumbel noise [*shape, F] for logits)."""
        noise = DeterministicActorCritic.draw_exploration(self, rng, shape)
        return *noise, rng.gumbel(size=(*shape, self.actions.width))

    def action_noise(self, agent_id: str | None = None) -> np.ndarray:  # type: ignore[override]  # as published
        """Return noise [E, C] float32 of one vector step for all Box components, or for those of one agent."""
        noise = DeterministicActorCritic.action_noise(self)
        return noise if agent_id is None else noise[:, self.actions.boxes[agent_id]]

    # --- learning -----------------------------------------------------------------------------------------------------

    def update_options(self) -> tuple[Any, ...]:
        return self.temperature, self.policy_freq

    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Draw Gumbel noise for the relaxed discrete actions and normal noise for the smoothing, [*shape, F] each."""
        size = (*shape, self.actions.width)
        noise = {"gumbel": rng.gumbel(size=size)}
        return noise | {"smoothing": rng.standard_normal(size)} if self.smooths else noise

    def recipe(self) -> TeamActorCriticRecipe | None:
        if self.policy_freq > 1 and not self.tracks_with_policy:  # C moves all targets with the policies
            return None
        actions = self.actions
        agents = tuple(
            AgentLayout(name, one.sizes, actions.columns[name].start, actions.widths[name].start, one.width,
                        actions.masks[name].start)
            for name, one in zip(actions.agents, actions.each, strict=True)
        )  # fmt: skip
        groups = tuple(
            GroupLayout(
                tuple(actions.agents.index(agent) for agent in members), f"actors.{group}",
                tuple(f"{kind}.{group}" for kind in self.critic_names), f"actor_optimizers.{group}",
                tuple(f"{kind}.{group}" for kind in self.optimizer_names),
            )
            for group, members in self.grouped_agents.items()
        )  # fmt: skip
        return TeamActorCriticRecipe(agents, groups, float(self.temperature), self.policy_freq, self.smooths)

    def taken_features(self, obs: TeamTree, action: Tensor) -> Tensor:
        """Return stored actions as critics read them, [..., B, F]; 0 unless present or waiting."""
        features = self.actions.features(action)
        is_active = obs[PRESENT] if WAITING not in obs else obs[PRESENT] + obs[WAITING]
        mask: Tensor = is_active.to(features).index_select(-1, self.actions.owners_on[features.device])
        return features * mask

    def next_actions(self, engine: UpdateEngine, batch: TransitionBatch) -> Tensor:
        """Return the target policies' next actions [..., B, F], smoothed if `smooths`.

        A waiting agent holds its last action. The actions of other absent agents are 0.
        """
        by_agent: dict[str, Tensor] = {}
        actions, obs, legal, axis = self.actions, batch.next_obs, batch.next_mask, batch.reward.dim() - 2
        for group, agents in self.grouped_agents.items():
            outputs = outputs_of(engine.target(f"actors.{group}"), obs, agents, axis)
            for agent, out in zip(agents, outputs, strict=True):
                one, mask = actions.by_agent[agent], None if legal is None else legal[..., actions.masks[agent]]
                by_agent[agent] = one.chosen(out, mask) if one.is_choice else out
        chosen = torch.cat([by_agent[agent] for agent in self.agent_ids], -1)
        if self.smooths:
            chosen = self._smoothed(chosen, batch, engine.hp)
        owners = actions.owners_on[chosen.device]
        present: Tensor = obs[PRESENT].to(chosen).index_select(-1, owners)
        if LAST_ACTION not in obs:
            return chosen * present
        waits: Tensor = obs[WAITING].to(chosen).index_select(-1, owners)
        return chosen * present + actions.features(obs[LAST_ACTION].to(chosen)) * waits

    def _smoothed(self, features: Tensor, batch: TransitionBatch, hp: Mapping[str, Tensor]) -> Tensor:
        """Add noise to raw components of features [..., B, F]; discrete choices are unchanged."""
        noisy = smoothed_action(features, batch.noise["smoothing"], hp["policy_noise"], hp["noise_clip"])
        is_raw = [not one.is_choice for one in self.actions.each for _ in range(one.width)]
        return torch.where(torch.tensor(is_raw, device=features.device), noisy, features)

    def critic_rows(self, batch: TransitionBatch, gamma: Tensor) -> Sequence[CriticRows]:
        """Return the rows that critics learn from, for groups of each size; weights are 0 for absent agents.

        Critics also learn from waiting agents: rewards received while waiting, and the values that follow, belong to
        the last action. They propagate to it through the values of the states in which it is held.
        """
        discounts, axis, all_rows = batch.discounts(gamma), batch.reward.dim() - 2, []
        present, weights = batch.obs[PRESENT].to(batch.weight), batch.weight.unsqueeze(-1)
        for alike in self.actions.alike:
            weight = weights if alike.count == 1 else weights / alike.count
            policy_weight = critic_weight = of_groups(alike, weight * present, axis)
            if WAITING in batch.obs:
                critic_weight = of_groups(alike, weight * (present + batch.obs[WAITING].to(weight)), axis)
            critics, optimizers, policy_optimizers = (
                tuple(f"{kind}.{group}" for kind in kinds for group in alike.groups)
                for kinds in (self.critic_names, self.optimizer_names, ("actor_optimizers",))
            )
            reward, discount = (of_groups(alike, x, axis) for x in (batch.reward, discounts))
            all_rows.append(
                CriticRows(
                    alike.groups, alike.count, critics, optimizers, policy_optimizers, reward, discount, critic_weight,
                    policy_weight,
                )
            )  # fmt: skip
        return all_rows

    def critic_values(self, critics: Network, obs: TeamTree, actions: Tensor, rows: CriticRows) -> Tensor:
        """Return values [C, G, ..., K·B] of one joint action [..., B, F] by C kinds of critics of G groups."""
        inputs: tuple[Any, Tensor] = (obs.get(JOINT, obs[AGENTS]), actions)
        if rows.count > 1:
            inputs = critic_inputs(obs, [actions] * rows.count, rows.reward.dim() - 2)
        values = critics(*inputs).squeeze(-1)
        return values.view(len(self.critic_names), -1, *values.shape[1:])

    def policy_loss(self, engine: UpdateEngine, batch: TransitionBatch, taken: Tensor, rows: CriticRows) -> Tensor:
        """Return the policy loss [G, ...] of each group (arXiv:1706.02275, eq. 5).

        Each agent's action is replaced by its policy's; the others' come from replay. Squared logits are penalised, as
        in the authors' released code.

        Args:
            taken: [..., B, F].
        """
        actions, obs, legal, axis = self.actions, batch.obs, batch.obs_mask, batch.reward.dim() - 2
        inputs, sizes = [], list[Tensor | None]()
        for group in rows.groups:
            agents, replaced = self.grouped_agents[group], []
            is_choice = actions.by_agent[agents[0]].is_choice
            outputs = outputs_of(engine.network(f"actors.{group}"), obs, agents, axis)
            for agent, out in zip(agents, outputs, strict=True):
                span, action = actions.widths[agent], out
                if is_choice:
                    mask, gumbel = None if legal is None else legal[..., actions.masks[agent]], batch.noise["gumbel"]
                    action = actions.by_agent[agent].straight_through(out, gumbel[..., span], self.temperature, mask)
                replaced.append(torch.cat((taken[..., : span.start], action, taken[..., span.stop :]), -1))
            inputs.append(critic_inputs(obs, replaced, axis))
            means = [out.square().mean(-1) for out in outputs] if is_choice else []
            sizes.append((means[0] if len(means) == 1 else torch.cat(means, axis)) if means else None)
        values = engine.through_each(rows.critics[: len(rows.groups)])(inputs).squeeze(-1)
        penalties = [LOGIT_DECAY * size if size is not None else values.new_zeros(values.shape[1:]) for size in sizes]
        return deterministic_policy_loss(values - torch.stack(penalties), rows.policy_weight)

    def priorities(self, batch: TransitionBatch, errors: Sequence[Tensor]) -> Tensor | None:
        """Return replay priorities [..., B], the mean |δ| over active agents (0 without any); None if unused.

        Args:
            errors: |TD errors| [G, ..., K·B] for groups of each size.
        """
        if not batch.wants_priorities:
            return None
        by_agent: dict[int, Tensor] = {}
        for alike, sizes in zip(self.actions.alike, errors, strict=True):
            for members, of_group in zip(alike.numbers, sizes, strict=True):
                by_agent |= zip(members, of_group.chunk(len(members), batch.reward.dim() - 2), strict=True)
        active = batch.obs[PRESENT].to(batch.reward)
        if WAITING in batch.obs:
            active = active + batch.obs[WAITING].to(batch.reward)
        mean: Tensor = (torch.stack([by_agent[k] for k in range(self.n_agents)], -1) * active).sum(-1)
        return mean.div(active.sum(-1).clamp(min=1))


def make_actor(team: Team, group: str, seed: int) -> DeterministicActor:
    """Build a group's policy from the team's `net_config`."""
    space = team.observation_space[group]
    arguments = checked_arguments(fitting(config_of(team, group), space), DeterministicActor)
    return DeterministicActor(space, team.action_space[group], device=team.device, random_seed=seed, **arguments)


def check_range(team: Team, group: str, policy: nn.Module) -> None:
    """Raise ConfigError for a policy of Box actions whose output activation has another range than RAW_RANGE."""
    activation = range_of(policy)
    if isinstance(team.action_space[group], gym.spaces.Box) and get_output_bounds(activation) != RAW_RANGE:
        raise ConfigError(
            f"{team.algo}: the policy of the group {group!r} has output_activation={activation!r}, whose range is "
            f"{get_output_bounds(activation)}; Box actions of a team need {RAW_RANGE}. "
            "fix: output_activation='Tanh' or 'Softsign' in head_config."
        )


def make_critic(team: Team, group: str, seed: int) -> ContinuousQNetwork:
    """Build a critic of all agents' observations and actions; a shared one also reads the one-hot id of the agent."""
    config = dict(config_of(team, group))
    if isinstance(config.get("head_config"), Mapping):  # applies only to policies
        config["head_config"] = {k: v for k, v in config["head_config"].items() if k != "output_activation"}
    arguments = checked_arguments(fitting(config, team.team.joint_space), ContinuousQNetwork)
    count = len(team.grouped_agents[group])
    beside = gym.spaces.Box(-np.inf, np.inf, (team.actions.width + (count if count > 1 else 0),), np.float32)
    return ContinuousQNetwork(team.team.joint_space, beside, device=team.device, random_seed=seed, **arguments)


def config_of(team: Team, group: str) -> Mapping[str, Any]:
    """Return a group's `net_config`: its entry if the keys are names of groups or agents, else the whole.

    Raises:
        ConfigError: not a mapping; no entry for this group, or one for an unknown name; a recurrent encoder in a team
            without hidden states.
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
            f"{team.algo}: net_config has parts by name, and {unknown_choice('agent', str(unknown[0]), names)}"
        )
    part = next((config[name] for name in (group, *team.grouped_agents[group]) if name in config), None)
    if part is None:
        raise ConfigError(f"{team.algo}: net_config has parts for {sorted(config)}, none for {group!r}. fix: add it.")
    return mapping_of(part)


def fitting(config: Mapping[str, Any], space: gym.Space[Any]) -> dict[str, Any]:
    """Adapt `net_config` to a network that reads `space`.

    For a space with several parts, keys of convolutional layers apply to the encoder of every image, and keys of dense
    layers to one network over all concatenated vectors. Encoders that concatenate all parts themselves keep their keys:
    recurrent, SimBa and user-defined ones.
    """
    named = encoder_named(config)
    is_by_class = config.get("encoder_cls") is not None and named not in OF_PARTS
    reads_all = named in (EvolvableLSTM, EvolvableSimBa) or is_by_class
    fitted, encoder = dict(config), config.get("encoder_config", {})
    encoder = dict(encoder) if isinstance(encoder, NetConfig) else encoder  # read like a mapping
    multi_input_keys = set(constructor_arguments(EvolvableMultiInput)) - _SHARED
    if not reads_all and parts_of(space) and isinstance(encoder, Mapping) and not set(encoder) & multi_input_keys:
        of_images = set(encoder) & (set(constructor_arguments(EvolvableCNN)) - set(constructor_arguments(EvolvableMLP)))
        part = "cnn_config" if of_images else "mlp_config"
        fitted["encoder_config"] = {"vector_space_mlp": True, **({part: dict(encoder)} if encoder else {})}
    return fitted


# --- exploring ----------------------------------------------------------------------------------------------------


def noise_by_component(team: Team, name: str, given: Noise) -> float | np.ndarray:
    """Convert a mapping by agent or group to the noise [C] of all Box components; anything else is unchanged.

    Raises:
        ConfigError: an unknown agent, a missing entry of an agent with Box actions, or an entry of wrong size.
    """
    if not isinstance(given, Mapping):
        return given
    names = [*team.agent_ids, *team.grouped_agents]
    unknown = [str(key) for key in given if key not in names]
    if unknown:
        raise ConfigError(f"{team.algo}, {name}: {unknown_choice('agent', unknown[0], names)}")
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
# These functions run in every update, so constants are cached in `TeamActions` and small steps are inlined.


def rows_of(per_agent: Tensor, own: Sequence[int], axis: int) -> Tensor:
    """Concatenate the columns `own` of [..., B, M] to [..., K·B], agent by agent."""
    parts = [per_agent[..., k] for k in own]
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)


def outputs_of(policy: Network, obs: TeamTree, agents: Sequence[str], axis: int) -> Sequence[Tensor]:
    """Return a policy's outputs for each of its agents, [..., B, out]."""
    seen = obs[AGENTS]
    if len(agents) == 1:
        return (policy(seen[agents[0]]),)
    outputs: Sequence[Tensor] = policy(tree.concatenate([seen[agent] for agent in agents], axis)).chunk(
        len(agents), axis
    )
    return outputs


def critic_inputs(obs: TeamTree, actions: list[Tensor], axis: int) -> tuple[Any, Tensor]:
    """Return a critic's inputs for K agents of a group: all observations [..., B, ..] and joint actions [..., K·B, F],
    followed by the agent's one-hot id [K] if K > 1."""
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
    """Convert [..., B, M] to [G, ..., K·B], the agents of G groups."""
    if alike.count == 1:
        return torch.stack([per_agent[..., members[0]] for members in alike.numbers])
    return torch.stack([torch.cat([per_agent[..., k] for k in members], axis) for members in alike.numbers])
