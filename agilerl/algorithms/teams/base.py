"""Multi-agent algorithms: a team of agents in one environment, with shared networks for groups of similar agents.

A team is trained like a single agent (`base.single_agent`): its observation is a tree, its action a row of numbers
(`teams.actions`), its reward and termination one number per agent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn, optim

from agilerl.algorithms.base.agent import EvolvableAlgorithm
from agilerl.algorithms.base.copies import space_or_none
from agilerl.algorithms.base.declared import TEAM_TRANSITIONS, Experience
from agilerl.algorithms.base.evaluation import run_test
from agilerl.algorithms.base.optimizer import OptimizerWrapper
from agilerl.algorithms.base.predict import Policy, check_count, is_one_observation
from agilerl.algorithms.base.registry import HyperparameterConfig, NetworkGroup
from agilerl.algorithms.base.transitions import check_not_empty
from agilerl.algorithms.teams import networks as team_networks
from agilerl.algorithms.teams import transitions as team_transitions
from agilerl.algorithms.teams.actions import TeamActions, team_of_spaces
from agilerl.algorithms.teams.evaluation import as_defined, masks_of, observed, stored_action
from agilerl.algorithms.teams.names import Losses, group_of, groups_of, keep_ids, spaces_by_agent
from agilerl.algorithms.teams.names import Named as Named
from agilerl.algorithms.teams.names import Spaces as Spaces
from agilerl.algorithms.teams.transitions import FIELDS, ROLES, TeamExperiences
from agilerl.core import foreign, tree
from agilerl.core.rng import Purpose, resolve_seed, seeds, stream
from agilerl.core.signatures import by_position_or_name, construct, construct_without_repeats, constructor_arguments
from agilerl.core.spaces import short_form, space_from_json
from agilerl.core.threads import one_thread
from agilerl.engine.learner import learn_alone
from agilerl.engine.modules import raw_output
from agilerl.engine.protocol import Draws, Mask, TransitionBatch, UpdateResult
from agilerl.envs.masks import MASK
from agilerl.envs.observed_masks import parted
from agilerl.envs.protocol import AGENTS, PRESENT, TeamObservations
from agilerl.errors import ConfigError, RunError, ShapeError, unknown_choice
from agilerl.modules.paths import resolve
from agilerl.networks.actors import DeterministicActor
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.specs import check_sizes
from agilerl.telemetry.evaluation import Callback

MADE_OF_SPACES = (
    "possible_observation_spaces", "possible_action_spaces", "observation_spaces", "action_spaces",
    "observation_space", "action_space", "team", "actions",
)  # fmt: skip


class MultiAgentRLAlgorithm(EvolvableAlgorithm):
    """An algorithm for several agents in one environment.

    Args:
        observation_spaces, action_spaces: spaces of each agent: a list in the order of `agent_ids`, or a mapping by
            agent.
        agent_ids: names of the agents; by default the keys of the mappings. Agents whose names are equal up to the last
            underscore form a group, which shares one set of networks.
        normalize_images: divide image observations by 255.
        placeholder_value: accepted for compatibility; absent agents are masked.
        seed: seed of this team's exploration and evaluation streams.

    See `EvolvableAlgorithm` for the other arguments.

    Attributes:
        agent_ids, n_agents: the agents. grouped_agents: group -> its agents. shared_agent_ids: the groups.
        possible_observation_spaces, possible_action_spaces: spaces of each agent.
        observation_space, action_space: spaces of each group.
        team: description of all agents for multi-agent environments. actions: layout of the agents' actions.

    Raises:
        TypeError: spaces that are neither a list nor a mapping.
        AlgorithmError: agents of one group with different spaces, or spaces that do not match the ids.
    """

    experience: ClassVar[Experience] = TEAM_TRANSITIONS
    policies_are_distributions: ClassVar[bool] = False  # allows MultiBinary and unbounded Box actions
    learns_from_obs_mask = True
    environment: dict[str, Any] | None
    net_config: dict[str, Any] | None
    temperature: float

    def __init__(
        self,
        observation_spaces: Spaces,
        action_spaces: Spaces,
        index: int = 0,
        agent_ids: Sequence[str] | None = None,
        hp_config: HyperparameterConfig | None = None,
        device: str | torch.device = "cpu",
        accelerator: foreign.Accelerator | None = None,
        torch_compiler: str | None = None,
        normalize_images: bool = True,
        placeholder_value: float | None = -1,
        name: str | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(index, hp_config, device, accelerator, torch_compiler, name)
        observed, acted, ids = spaces_by_agent(self.algo, observation_spaces, action_spaces, agent_ids)
        for agent in ids:
            check_not_empty(f"{self.algo}, {agent}", "read", observed[agent])
            check_not_empty(f"{self.algo}, {agent}", "act in", acted[agent])
        self.agent_ids, self.n_agents = ids, len(ids)
        self.possible_observation_spaces, self.possible_action_spaces = observed, acted
        self.observation_spaces, self.action_spaces = list(observed.values()), list(acted.values())
        self.grouped_agents = groups_of(self.algo, observed, acted)
        self.shared_agent_ids = list(self.grouped_agents)
        first = {group: agents[0] for group, agents in self.grouped_agents.items()}
        self.observation_space = {group: observed[agent] for group, agent in first.items()}
        self.action_space = {group: acted[agent] for group, agent in first.items()}
        self.team, self.actions = (
            team_of_spaces(observed, acted),
            TeamActions.of(acted, self.algo, self.policies_are_distributions),
        )
        self.normalize_images, self.placeholder_value = normalize_images, placeholder_value
        self.seed = resolve_seed(seed)
        if seed is None and index:
            self.seed = int(seeds(self.seed, Purpose.INITIAL_WEIGHTS, 1, generation=3, member=abs(int(index)))[0])
        self.environment = None
        self._exploration = stream(self.seed, Purpose.EXPLORATION, member=index)
        self.learn_counter = 0

    # --- agents and groups --------------------------------------------------------------------------------------------

    def has_grouped_agents(self) -> bool:
        """Whether agents share networks."""
        return any(len(agents) > 1 for agents in self.grouped_agents.values())

    def get_group_id(self, agent_id: str) -> str:
        """Return the group of an agent; the name of a group is returned unchanged."""
        group = agent_id if agent_id in self.grouped_agents else group_of(agent_id)
        if group not in self.grouped_agents:
            raise ConfigError(
                f"{self.algo}: {unknown_choice('agent', agent_id, [*self.agent_ids, *self.grouped_agents])}"
            )
        return group

    get_network_id = get_group_id

    def agents_of(self, network: str) -> list[str]:
        """Return the agents that share a network, such as `actors.speaker`."""
        return self.grouped_agents[network.partition(".")[2]]

    def observations_for(self, network: str, observations: Any) -> Any:
        """Return the part of a team's observations [B, ...] that a network reads: for a policy, rows of its present
        agents, concatenated; for a critic, those of all agents."""
        agent_obs, group = observations[AGENTS], network.partition(".")[2]
        policies = [one for one in self.registry.groups if one.policy]
        if network not in {str(n) for one in policies for n in (one.eval_network, *(one.shared_networks or ()))}:
            return agent_obs
        is_present, agents = observations[PRESENT].bool(), self.grouped_agents[group]
        rows = [tree.take(agent_obs[agent], is_present[:, self.agent_ids.index(agent)]) for agent in agents]
        return tree.concatenate(rows)

    def registered(self, kind: str, group: str, network: nn.Module) -> Any:
        """Assign a network as `<kind>.<group>` and return it."""
        setattr(self, f"{kind}.{group}", network)
        return network

    def register_network(
        self, kind: str, targets: str, optimizers: str, group: str, lr: str, policy: bool = False
    ) -> None:
        """Create a frozen target `<targets>.<group>` and an Adam optimiser for the network `<kind>.<group>`."""
        network = resolve(self, f"{kind}.{group}")
        shadow = self.registered(targets, group, network.clone())
        shadow.requires_grad_(False)
        wrapper = OptimizerWrapper(optim.Adam, network, resolve(self, lr), lr_name=lr)
        setattr(self, f"{optimizers}.{group}", wrapper)
        self.register_network_group(NetworkGroup(network, shadow, policy=policy))

    def _described_spaces(self) -> Iterator[str]:
        for group, agents in self.grouped_agents.items():
            count = f" ({len(agents)} agents)" if len(agents) > 1 else ""
            seen, done = short_form(self.observation_space[group]), short_form(self.action_space[group])
            yield f"group     {group}{count}  {seen} -> {done}"

    # --- interface for engines and learners ---------------------------------------------------------------------------

    def policy_network(self) -> EvolvableNetwork:
        """Return the first policy."""
        policy = self.policy_module()
        assert isinstance(policy, EvolvableNetwork)
        return policy

    def agent_policies(self) -> dict[str, Any]:
        """Return the policy of each agent."""
        return {agent: resolve(self, f"actors.{self.get_group_id(agent)}") for agent in self.agent_ids}

    def reading(self) -> tuple[Any, ...]:
        """See `engine.protocol.Trainable`; one entry per network."""
        return tuple(network.reading() for network in self.evaluation_networks().values())  # type: ignore[operator]

    @property
    def row_input(self) -> Callable[[Any], Any]:
        """Function that converts observations to inputs of networks over rows: by agent, and joint for critics."""
        return team_networks.row_input(self.agent_policies(), self.joint_network(), self.device)

    def policy_program(self, network: Callable[[str], Any], axis: int = 2) -> Callable[[Any], Tensor]:
        """Return a function from prepared observations to concatenated outputs of all policies [..., E, F].

        Args:
            network: network name -> function that runs it.
            axis: number of leading axes (members, lanes). A group's agents act in one pass, concatenated as lanes.
        """
        runs = {group: network(f"actors.{group}") for group in self.grouped_agents}

        def program(obs: Any) -> Tensor:
            outputs: dict[str, Tensor] = {}
            for group, agents in self.grouped_agents.items():
                parts = [obs[AGENTS][agent] for agent in agents]
                joined = parts[0] if len(parts) == 1 else tree.concatenate(parts, axis - 1)
                outputs |= zip(agents, runs[group](joined).chunk(len(agents), axis - 1), strict=True)
            return torch.cat([outputs[agent] for agent in self.agent_ids], -1)

        return program

    def joint_network(self) -> EvolvableNetwork:
        """Return a network that reads the observations of all agents."""
        raise NotImplementedError(f"{type(self).__name__} must implement joint_network()")

    def policy_output(self, obs: tree.Tree, noisy: bool = False) -> Tensor:
        """Return the outputs of all policy modules [E, F] for observations [E, ...]."""
        return self.policy_program(lambda name: raw_output(resolve(self, name)), axis=1)(obs)

    def environment_action(self, action: np.ndarray) -> np.ndarray:
        """Convert stored actions [..., A] to the format of team lanes."""
        return self.actions.environment(action)

    def legal_choices(self, mask: np.ndarray) -> np.ndarray:
        """Return the environment's masks unchanged."""
        return mask

    def random_action(self, rng: np.random.Generator, shape: tuple[int, ...], mask: Mask = None) -> np.ndarray:
        """Sample uniform legal actions to store, [*shape, A]."""
        zero = np.zeros((*shape, self.actions.width))
        noise = rng.uniform(-1, 1, (*shape, self.actions.components))
        return self.actions.act(zero, noise, rng.gumbel(size=zero.shape), mask)

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Draws:
        """Draw random numbers for `explore`: noise for components [*shape, C], Gumbel noise for logits [*shape, F]."""
        raise NotImplementedError(f"{type(self).__name__} must implement draw_exploration(rng, shape)")

    def greedy(self, outputs: Tensor, mask: Mask = None) -> np.ndarray:
        """Return greedy actions to store [..., A] from policy outputs [..., F]."""
        return self.actions.act(outputs.cpu().numpy(), None, None, mask)

    def explore(self, outputs: Tensor, draws: Draws, epsilon: float, mask: Mask = None) -> np.ndarray:
        """Return exploring actions to store [..., A]: sampled choices, noisy components. `epsilon` is ignored."""
        return self.actions.act(outputs.cpu().numpy(), draws[0], draws[1], mask)

    def begin_episodes(self) -> None:
        """Start an episode in all evaluation environments; a no-op for feed-forward teams."""

    # --- learning -----------------------------------------------------------------------------------------------------

    def update_interval(self) -> float:
        """Return the environment steps between updates."""
        return self.learn_step if hasattr(self, "learn_step") else 1

    def learn(self, experiences: Mapping[str, Any] | Sequence[Any]) -> Any:
        """Perform one update from sampled transitions of the team; see `learn_from`."""
        return self.learn_from(experiences)

    # A subclass that overrides this `learn` cannot be run by an engine.
    published_learn = learn

    def with_observations(self, experiences: Mapping[str, Any] | Sequence[Any], change: Callable[[Any], Any]) -> Any:
        """Apply `change` to all observations by agent in the argument of `learn`; used by observation wrappers."""
        return team_transitions.with_observations(experiences, change)

    def learn_from(self, experiences: Mapping[str, Any] | Sequence[Any]) -> dict[str, tuple[float | None, float]]:
        """Perform one update.

        Args:
            experiences: result of `MultiAgentReplayBuffer.sample`: (states, actions, rewards, next_states, dones), each
                by agent with a leading batch axis; or a mapping or TensorDict with these names, or obs, action, reward,
                next_obs, done.

        Returns:
            {group: (policy loss or None, critic loss)}, each summed over all groups; see `Losses`.
        """
        result = self.learn_batch(self.make_batch(experiences))
        policy = None if result.actor_loss is None else float(result.actor_loss.detach())
        return Losses(dict.fromkeys(self.shared_agent_ids, (policy, float(result.loss.detach()))))

    def learn_batch(self, batch: Any, plain: bool = False) -> UpdateResult:
        """Perform one update from a prepared batch [B, ...]; `plain` forces plain torch modules. No member axis."""
        self.remember_observations(batch.obs, batch.action)
        return learn_alone(self, batch, plain)

    def make_batch(self, experiences: Mapping[str, Any] | Sequence[Any]) -> TransitionBatch:
        """Convert sampled transitions by agent to tensors.

        An agent is absent if it has no row, its row contains NaN, or the presence mask of the observations says so
        (`TeamObservations`, returned by vector environments and memories of teams).
        """
        fields = self._fields(experiences)
        dtype = next(iter(self.policy_module().parameters())).dtype
        (obs, count), (next_obs, _) = observed(self, fields["states"]), observed(self, fields["next_states"])
        reward, done = (self._columns(fields[name], count, dtype) for name in ("rewards", "dones"))
        absent = reward.isnan() | done.isnan()
        obs[PRESENT] = obs[PRESENT] * ~absent.cpu()
        action = torch.cat(
            [stored_action(self, agent, fields["actions"], count, dtype) for agent in self.agent_ids], -1
        )
        drawn = self.draw_noise(self._exploration, (1, count))
        as_tensors = [
            tree.map_leaves(lambda x: torch.as_tensor(x, device=self.device), part) for part in (obs, next_obs)
        ]
        weight = torch.full((count,), 1 / count, dtype=dtype, device=self.device)
        extra: dict[str, Any] = {}
        if "weights" in fields:
            weight = weight * torch.as_tensor(fields["weights"], device=self.device).to(dtype).reshape(count)
        if "discount" in fields:
            extra["discount"] = torch.as_tensor(fields["discount"], device=self.device).to(dtype)
        for name, field in (("obs_mask", "states"), ("next_mask", "next_states")):
            legal = fields[name] if name in fields else masks_of(self, {}, count, fields[field])
            if legal is not None:
                extra[name] = torch.as_tensor(legal, device=self.device).bool()
        return TransitionBatch(
            as_tensors[0],
            action.nan_to_num(),
            reward.nan_to_num(),
            as_tensors[1],
            done.nan_to_num(nan=1.0),
            weight,
            noise={name: torch.as_tensor(x[0]).to(self.device, dtype) for name, x in drawn.items()},
            number=self.learn_counter + 1,
            **extra,
        )

    def _fields(self, experiences: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
        """Return the five fields by their published names, and optional fields."""
        if hasattr(experiences, "to_dict"):  # a TensorDict
            experiences = experiences.to_dict()
        if isinstance(experiences, Mapping):
            fields = {ROLES.get(str(name), str(name)): value for name, value in experiences.items()}
            for name, presence_name in (("states", "obs_present"), ("next_states", "next_obs_present")):
                if presence_name in fields and name in fields:
                    present = {
                        agent: torch.as_tensor(mask).cpu().reshape(-1) for agent, mask in fields[presence_name].items()
                    }
                    fields[name] = TeamObservations(fields[name], present)  # type: ignore[arg-type]  # tensors will do
        else:
            optional = experiences.more if isinstance(experiences, TeamExperiences) else {}
            fields = {**dict(zip(FIELDS, () if experiences is None else experiences, strict=False)), **optional}
        missing = [name for name in FIELDS if name not in fields]
        if missing:
            raise ShapeError(
                f"{self.algo}.learn got experiences without {', '.join(missing)}; it has {sorted(fields)}. "
                "fix: all five fields in every row that the memory gets."
            )
        return fields

    def _columns(self, values: Mapping[str, Any], count: int, dtype: torch.dtype) -> Tensor:
        """Stack values by agent to [B, M]; NaN for missing agents."""
        columns = torch.full((count, self.n_agents), torch.nan, dtype=dtype, device=self.device)
        for k, agent in enumerate(self.agent_ids):
            if agent in values:
                columns[:, k] = torch.as_tensor(values[agent], device=self.device).to(dtype).reshape(count)
        return columns

    @keep_ids
    def get_action(
        self, obs: Mapping[str, Any], infos: Mapping[str, Any] | None = None, training: bool | None = None
    ) -> Any:
        """Return environment actions and raw policy outputs, both by agent.

        Args:
            obs: one observation or a batch [E, ...] of each agent; missing agents are absent. PettingZoo's
                {"observation", "action_mask"} is accepted.
            infos: by agent; `action_mask` (1 = legal) and `env_defined_actions` are applied.
            training: whether to explore; None: according to the team's mode.

        Returns:
            ({agent: [E, *shape] actions of its space}, {agent: [E, F] float32}): the second sums to 1 over the choices
            of a component, and is in [-1, 1] for Box actions, before scaling to the bounds.
        """
        infos, (rows, lanes) = infos or {}, observed(self, obs)
        mask = masks_of(self, infos, lanes, obs)
        with torch.no_grad():
            outputs = self.policy_output(rows)
        if self.training if training is None else training:
            draws = self.draw_exploration(self._exploration, (lanes,))
            stored, gumbel = self.explore(outputs, draws, 0.0, mask), draws[1]
        else:
            stored, gumbel = self.greedy(outputs, mask), np.zeros((lanes, self.actions.width))
        actions, raw = self.team.split(self.environment_action(stored)), {}
        for agent in obs:
            one, logits = self.actions.of_agent(agent), outputs.numpy(force=True)[:, self.actions.widths[agent]]
            raw[agent] = stored[:, self.actions.columns[agent]]
            if one.is_choice:
                noisy = torch.from_numpy(np.asarray(logits + gumbel[:, self.actions.widths[agent]], np.float32))
                legal = self.actions.mask_of(agent, mask)
                raw[agent] = one.relaxed(noisy, 1.0, None if legal is None else torch.from_numpy(legal)).numpy()
        env_actions = {agent: as_defined(self, agent, actions[agent], infos.get(agent)) for agent in obs}
        return env_actions, {agent: np.asarray(values, np.float32) for agent, values in raw.items()}

    # --- evaluation -----------------------------------------------------------------------------------------------

    def test(
        self,
        env: foreign.Env,
        swap_channels: bool = False,
        max_steps: int | None = None,
        loop: int = 1,
        sum_scores: bool = True,
        *,
        callback: Callback | None = None,
    ) -> Any:
        """Return the mean greedy return of the first finished episode per environment, averaged over `loop` rounds.

        The training mode is restored. The result, or its mean over agents, is appended to `fitness`.

        Args:
            env: vector or parallel environment; it is reset, never closed.
            sum_scores: sum the agents' returns; False returns them by agent [M], in the order of `agent_ids`.

        See `RLAlgorithm.test` for the other arguments.

        Returns:
            A float, or float64 [M].
        """
        return run_test(self, env, swap_channels, max_steps, loop, callback=callback, by_agent=not sum_scores)

    def _greedy(self, obs: tree.Tree, mask: Mask = None) -> np.ndarray:
        """Return greedy actions [E, A] for team lanes."""
        with torch.no_grad():
            outputs = self.policy_output(obs)
        return self.environment_action(self.greedy(outputs, mask))

    def _sampled(self, rng: np.random.Generator, obs: tree.Tree, mask: Mask = None) -> np.ndarray:
        """Return sampled actions [E, A] for team lanes; the greedy ones of policies without a distribution."""
        return self._greedy(obs, mask)

    @keep_ids
    def predicted_actions(self, obs: Any, mask: Any, policy: Policy, episode_start: Any) -> dict[str, Any]:
        """Return the actions of a policy by agent; see `predict.predict`."""
        masks = {agent: {MASK: agent_mask} for agent, agent_mask in dict(mask or {}).items()}
        team_obs, lanes = observed(self, obs)
        check_count(self, lanes, episode_start)
        actions = self.team.split(policy(team_obs, masks_of(self, masks, lanes, obs)))
        first = next(iter(obs))
        space = self.possible_observation_spaces[first]
        is_one = is_one_observation(space, parted(obs[first], space)[0])
        return {agent: tree.take(actions[agent], 0) if is_one else actions[agent] for agent in obs}

    # --- files, copies, populations -----------------------------------------------------------------------------------

    def policy_spec(self) -> dict[str, Any]:
        """Return a JSON-able description of the policies: one network per group, and the groups' agents."""
        first = {
            "algo": self.algo,
            "networks": {group: resolve(self, f"actors.{group}").spec() for group in self.grouped_agents},
            "groups": {group: list(agents) for group, agents in self.grouped_agents.items()},
            "agents": list(self.agent_ids),
            "hyperparameters": self.hyperparameters(),
            "environment": self.environment,
        }
        return first | ({"action_masks": True} if self.action_masks else {})

    def policy_state(self) -> dict[str, Tensor]:
        """Return contiguous copies of all policies' weights, `<group>.<name>`."""
        return {
            f"{group}.{name}": value.detach().clone(memory_format=torch.contiguous_format)
            for group in self.grouped_agents
            for name, value in resolve(self, f"actors.{group}").state_dict().items()
        }

    def state(self) -> dict[str, Any]:
        spaces = {
            "observation_spaces": {a: space_or_none(s) for a, s in self.possible_observation_spaces.items()},
            "action_spaces": {a: space_or_none(s) for a, s in self.possible_action_spaces.items()},
        }
        return {**super().state(), "spaces": spaces, "exploration": self._exploration.bit_generator.state}

    def load_state(self, state: Mapping[str, Any], source: str = "state") -> None:
        super().load_state(state, source)
        if "exploration" in state:
            self._exploration.bit_generator.state = state["exploration"]

    def unsaved_attributes(self) -> list[str]:
        """Return the attributes of every agent, except those rebuilt from the spaces."""
        return [name for name in super().unsaved_attributes() if name.partition(" ")[0] not in MADE_OF_SPACES]

    @classmethod
    def _blank(
        cls, state: Mapping[str, Any], device: str | torch.device, accelerator: foreign.Accelerator | None
    ) -> Any:
        """Create a team from the spaces and arguments in a state. RunError if the spaces are missing."""
        spaces = {
            name: {agent: None if space is None else space_from_json(space) for agent, space in by_agent.items()}
            for name, by_agent in state["spaces"].items()
        }
        unknown = [agent for by_agent in spaces.values() for agent, space in by_agent.items() if space is None]
        if unknown:
            raise RunError(f"the file does not hold the spaces of {unknown[0]}. fix: make the team, load_checkpoint.")
        rest = cls._blank_arguments(
            {**state, "spaces": {}, "attributes": {**state["attributes"], **spaces}}, device, accelerator
        )
        arguments = {**rest, **spaces, "agent_ids": list(state["attributes"]["agent_ids"])}
        return construct_without_repeats(cls, (), arguments)

    @classmethod
    def from_policy(
        cls,
        spec: Mapping[str, Any],
        state: Mapping[str, Tensor],
        device: str | torch.device = "cpu",
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        """Create a team from the results of `policy_spec` and `policy_state`; critics are reinitialised.

        `options`: further constructor arguments; hyperparameters of the policy take precedence.
        """
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
            observation_spaces={agent: member[agent].observation_space for agent in spec["agents"]},
            action_spaces={agent: member[agent].action_space for agent in spec["agents"]},
        )
        team = construct(cls, *spaces, actor_networks=networks, device=device, **named, **values)
        team.environment, team.action_masks = spec.get("environment"), bool(spec.get("action_masks"))
        team.set_training_mode(False)
        return team

    def clone(self, index: int | None = None, wrap: bool = True) -> Self:
        twin = super().clone(index, wrap)
        if index is not None and index != self.index:
            twin._exploration = stream(self.seed, Purpose.EXPLORATION, len(self.fitness), index)
        return twin

    @classmethod
    def policy_from_spec(cls, spec: Mapping[str, Any], device: str | torch.device) -> EvolvableNetwork:
        """Build the policy network that a saved `spec` describes, with fresh weights."""
        return DeterministicActor.from_spec(spec, device=device)

    @classmethod
    def population(
        cls,
        size: int,
        observation_spaces: Spaces,
        action_spaces: Spaces,
        wrapper_cls: Any = None,
        wrapper_kwargs: dict[str, Any] | None = None,
        *,
        seed: int | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Create `size` teams with indices 0 .. size-1 and independent weights."""
        member_seeds = seeds(resolve_seed(seed), Purpose.INITIAL_WEIGHTS, size)
        spaces, named = by_position_or_name(cls, observation_spaces=observation_spaces, action_spaces=action_spaces)
        with one_thread():
            teams: list[Any] = [
                construct(cls, *spaces, index=i, seed=int(member_seeds[i]), **named, **kwargs) for i in range(size)
            ]
        return [wrapper_cls(a, **(wrapper_kwargs or {})) for a in teams] if wrapper_cls else teams


def weights_of(group: str, groups: Iterable[str], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return one group's part of `policy_state`. Names may contain dots: "bot" and "bot.0" may both be groups."""
    start = f"{group}."
    others = tuple(f"{other}." for other in groups if other.startswith(start))
    return {k.removeprefix(start): v for k, v in state.items() if k.startswith(start) and not k.startswith(others)}
