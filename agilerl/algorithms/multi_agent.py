"""Multi-agent algorithms: a team of agents in one environment, of which groups of alike ones share their networks.

A sibling of `single_agent`. A team is trained as an agent is: its observation is a tree, its action a row of numbers
(`team_actions`), its reward and its end one number for each agent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn, optim

from agilerl import tree
from agilerl.algorithms import copies, playing, team_playing
from agilerl.algorithms.agent import EvolvableAlgorithm
from agilerl.algorithms.copies import space_or_none
from agilerl.algorithms.declared import TEAM_TRANSITIONS, Experience
from agilerl.algorithms.optimizer import OptimizerWrapper
from agilerl.algorithms.registry import HyperparameterConfig, NetworkGroup
from agilerl.algorithms.team_actions import TeamActions, team_of_spaces
from agilerl.engine.modules import raw_output
from agilerl.engine.protocol import Draws, Mask, UpdateEngine, UpdateResult
from agilerl.envs.teams import AGENTS, JOINT, PRESENT
from agilerl.errors import AlgorithmError, ConfigError, RunError, unknown_name
from agilerl.modules.base import constructor_arguments
from agilerl.networks.actors import DeterministicActor
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.specs import check_sizes
from agilerl.rng import Purpose, resolve_seed, seeds, stream
from agilerl.spaces import differ, short_form, space_from_json
from agilerl.threads import one_thread

MADE_OF_SPACES = (
    "possible_observation_spaces", "possible_action_spaces", "observation_spaces", "action_spaces",
    "observation_space", "action_space", "team", "actions",
)  # fmt: skip
Spaces = Sequence[gym.Space[Any]] | Mapping[str, gym.Space[Any]]


class Named(Mapping[str, Any]):
    """The attributes `<prefix>.<name>` of an agent by name: `agent.actors["speaker"]`, `agent.actors.speaker`."""

    def __init__(self, owner: Any, prefix: str) -> None:
        self.__dict__["_owner"], self.__dict__["_prefix"] = owner, prefix

    def __getitem__(self, name: str) -> Any:
        key = f"{self._prefix}.{name}"
        if key not in self._owner.__dict__:
            raise ConfigError(f"{self._owner.algo}: {unknown_name(self._prefix, name, self)}")
        return self._owner.__dict__[key]

    def __iter__(self) -> Iterator[str]:
        start = f"{self._prefix}."
        return iter([key.removeprefix(start) for key in self._owner.__dict__ if key.startswith(start)])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return f"{self._prefix}.{name}" in self._owner.__dict__

    def __getattr__(self, name: str) -> Any:
        key = f"{self._prefix}.{name}"
        if key not in self._owner.__dict__:
            raise AttributeError(f"{self._owner.algo} has no {key}")
        return self._owner.__dict__[key]


def group_of(agent: str) -> str:
    """The group of an agent: its id up to the last underscore, "speaker" of "speaker_0"; the id without one."""
    return agent.rpartition("_")[0] or agent


class MultiAgentRLAlgorithm(EvolvableAlgorithm):
    """An algorithm for several agents in one environment.

    Args:
        observation_spaces, action_spaces: of each agent: a list in the order of `agent_ids`, or a mapping by agent.
        agent_ids: names of the agents; the keys of the mappings where they are left out. Agents whose names are equal
            up to the last underscore are a group, which has one set of networks.
        normalize_images: divide image observations by 255.
        placeholder_value: accepted for compatibility; who is not there is said by a mask.
        seed: of this team's exploration and evaluation streams.

    The other arguments are `EvolvableAlgorithm`'s.

    Attributes:
        agent_ids, n_agents: the agents. grouped_agents: group -> its agents. shared_agent_ids: the groups.
        possible_observation_spaces, possible_action_spaces: of each agent.
        observation_space, action_space: of each group.
        team: all of it, as environments of several agents have it. actions: how the agents' actions are laid out.

    Raises:
        TypeError: spaces that are neither a list nor a mapping.
        AlgorithmError: agents of one group with different spaces, or spaces and ids that do not go together.
    """

    experience: ClassVar[Experience] = TEAM_TRANSITIONS
    action_spaces_kinds: ClassVar[tuple[str, ...]] = ("Discrete", "MultiDiscrete", "Box")
    is_recurrent = False
    learns_from_obs_mask = True
    combined_reward = False
    action_masks = False
    evaluated_in: Any = None
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
        accelerator: Any = None,
        torch_compiler: str | None = None,
        normalize_images: bool = True,
        placeholder_value: float | None = -1,
        name: str | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(index, hp_config, device, accelerator, torch_compiler, name)
        observed, acted, ids = _by_agent(self.algo, observation_spaces, action_spaces, agent_ids)
        self.agent_ids, self.n_agents = ids, len(ids)
        self.possible_observation_spaces, self.possible_action_spaces = observed, acted
        self.observation_spaces, self.action_spaces = list(observed.values()), list(acted.values())
        self.grouped_agents: dict[str, list[str]] = {}
        for agent in ids:
            self.grouped_agents.setdefault(group_of(agent), []).append(agent)
        self.shared_agent_ids = list(self.grouped_agents)
        self._check_groups()
        first = {group: agents[0] for group, agents in self.grouped_agents.items()}
        self.observation_space = {group: observed[agent] for group, agent in first.items()}
        self.action_space = {group: acted[agent] for group, agent in first.items()}
        self.team, self.actions = team_of_spaces(observed, acted), TeamActions.of(acted, self.algo)
        self.normalize_images, self.placeholder_value = normalize_images, placeholder_value
        self.seed = resolve_seed(seed)
        if seed is None and index:
            self.seed = int(seeds(self.seed, Purpose.INITIAL_WEIGHTS, 1, generation=3, member=abs(int(index)))[0])
        self.environment = None
        self._exploration = stream(self.seed, Purpose.EXPLORATION, member=index)
        self.learn_counter = 0

    def _check_groups(self) -> None:
        for group, agents in self.grouped_agents.items():
            for what, spaces in (
                ("observe", self.possible_observation_spaces),
                ("act in", self.possible_action_spaces),
            ):
                other = next((agent for agent in agents if differ(spaces[agents[0]], spaces[agent])), None)
                if other is not None:
                    raise AlgorithmError(
                        f"{self.algo}: {agents[0]} and {other} are the group {group!r}, which has one set of networks, "
                        f"but {what} different spaces: {spaces[agents[0]]} and {spaces[other]}. fix: names that differ "
                        "before the last underscore."
                    )

    # --- who is who ---------------------------------------------------------------------------------------------------

    def has_grouped_agents(self) -> bool:
        """Whether agents share networks."""
        return any(len(agents) > 1 for agents in self.grouped_agents.values())

    def get_group_id(self, agent_id: str) -> str:
        """The group of an agent; a group's own name is its group."""
        group = agent_id if agent_id in self.grouped_agents else group_of(agent_id)
        if group not in self.grouped_agents:
            raise ConfigError(
                f"{self.algo}: {unknown_name('agent', agent_id, [*self.agent_ids, *self.grouped_agents])}"
            )
        return group

    get_network_id = get_group_id

    def agents_of(self, network: str) -> list[str]:
        """The agents that share the network of this name, `actors.speaker` say."""
        return self.grouped_agents[network.partition(".")[2]]

    def observations_for(self, network: str, observations: Any) -> Any:
        """What of a team's observations [B, ...] a network of this name reads: its agents', one after another, where
        they were there; those of all agents for a critic."""
        seen, group = observations[AGENTS], network.partition(".")[2]
        if network not in self._policy_names():
            return seen
        there, agents = observations[PRESENT].bool(), self.grouped_agents[group]
        rows = [tree.take(seen[agent], there[:, self.agent_ids.index(agent)]) for agent in agents]
        return tree.concatenate(rows)

    def _described_spaces(self) -> Iterator[str]:
        for group, agents in self.grouped_agents.items():
            count = f" ({len(agents)} agents)" if len(agents) > 1 else ""
            seen, done = short_form(self.observation_space[group]), short_form(self.action_space[group])
            yield f"group     {group}{count}  {seen} -> {done}"

    def _policy_names(self) -> set[str]:
        """The policies and their targets."""
        groups = [each for each in self.registry.groups if each.policy]
        return {str(name) for each in groups for name in (each.eval_network, *(each.shared_networks or ()))}

    def registered(self, kind: str, group: str, network: nn.Module) -> Any:
        """Assign a network as `<kind>.<group>` and give it back."""
        setattr(self, f"{kind}.{group}", network)
        return network

    def register_network(
        self, kind: str, targets: str, optimizers: str, group: str, lr: str, policy: bool = False
    ) -> None:
        """Give the network `<kind>.<group>` a frozen target `<targets>.<group>` and an Adam optimiser of its own."""
        network = getattr(self, f"{kind}.{group}")
        shadow = self.registered(targets, group, network.clone())
        shadow.requires_grad_(False)
        wrapper = OptimizerWrapper(optim.Adam, network, getattr(self, lr), lr_name=lr)
        setattr(self, f"{optimizers}.{group}", wrapper)
        self.register_network_group(NetworkGroup(network, shadow, policy=policy))

    # --- what engines and learners ask --------------------------------------------------------------------------------

    def policy_network(self) -> EvolvableNetwork:
        """The first policy."""
        policy = self.policy_module()
        assert isinstance(policy, EvolvableNetwork)
        return policy

    def reading(self) -> tuple[Any, ...]:
        """What of preprocessing is an option, network by network."""
        return tuple(network.reading() for network in self.evaluation_networks().values())  # type: ignore[operator]

    @property
    def row_input(self) -> Callable[[Any], Any]:
        """What gives observations as networks over rows take them: each agent's, and all of them for critics."""
        actors = {agent: getattr(self, f"actors.{group_of(agent)}").row_input for agent in self.agent_ids}
        joint = self.joint_network().row_input

        def prepare(obs: Any) -> dict[str, Any]:
            seen = obs[AGENTS]
            present = torch.as_tensor(obs[PRESENT], device=self.device)
            return {AGENTS: {a: read(seen[a]) for a, read in actors.items()}, JOINT: joint(seen), PRESENT: present}

        return prepare

    def joint_network(self) -> EvolvableNetwork:
        """A network that reads the observations of all agents."""
        raise NotImplementedError(f"{type(self).__name__} must implement joint_network()")

    def policy_program(self, network: Callable[[str], Any], axis: int = 2) -> Callable[[Any], Tensor]:
        """Outputs of all policies side by side [..., E, F] for prepared observations, given what runs a network.

        axis: of the lanes; a group's agents act in one pass, as more lanes."""
        runs = {group: network(f"actors.{group}") for group in self.grouped_agents}

        def program(obs: Any) -> Tensor:
            found: dict[str, Tensor] = {}
            for group, agents in self.grouped_agents.items():
                parts = [obs[AGENTS][agent] for agent in agents]
                joined = parts[0] if len(parts) == 1 else tree.concatenate(parts, axis - 1)
                found |= zip(agents, runs[group](joined).chunk(len(agents), axis - 1), strict=True)
            return torch.cat([found[agent] for agent in self.agent_ids], -1)

        return program

    def policy_output(self, obs: Any, noisy: bool = False) -> Tensor:
        """Outputs of all policies' own modules [E, F] for observations [E, ...]."""
        return self.policy_program(lambda name: raw_output(getattr(self, name)), axis=1)(obs)

    def environment_action(self, action: np.ndarray) -> np.ndarray:
        """Stored actions [..., A] as lanes of teams take them."""
        return self.actions.environment(action)

    def legal_choices(self, mask: np.ndarray) -> np.ndarray:
        """Masks are those of the environment."""
        return mask

    def random_action(self, rng: np.random.Generator, shape: tuple[int, ...], mask: Mask = None) -> np.ndarray:
        """Uniformly random legal actions to store [*shape, A]."""
        zero = np.zeros((*shape, self.actions.width))
        noise = rng.uniform(-1, 1, (*shape, self.actions.components))
        return self.actions.act(zero, noise, rng.gumbel(size=zero.shape), mask)

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Draws:
        """Random numbers for `explore`: noise on components [*shape, C], Gumbel numbers on logits [*shape, F]."""
        raise NotImplementedError(f"{type(self).__name__} must implement draw_exploration(rng, shape)")

    def draw_acting_noise(self, rng: np.random.Generator, count: int) -> np.ndarray | None:
        """No policy has noisy layers."""
        return None

    def greedy(self, outputs: Tensor, mask: Mask = None) -> np.ndarray:
        """Greedy actions to store [..., A], from policy outputs [..., F]."""
        return self.actions.act(outputs.cpu().numpy(), None, None, mask)

    def explore(self, outputs: Tensor, draws: Draws, epsilon: float, mask: Mask = None) -> np.ndarray:
        """Exploring actions to store [..., A]: choices are sampled, components get noise. `epsilon` has no meaning."""
        return self.actions.act(outputs.cpu().numpy(), draws[0], draws[1], mask)

    def begin_episodes(self) -> None:
        """Teams without a memory have nothing to begin."""

    # --- learning -----------------------------------------------------------------------------------------------------

    def update_options(self) -> tuple[Any, ...]:
        """Options that `update` branches on."""
        return ()

    def update_interval(self) -> int:
        """How often this team learns, in environment steps."""
        return int(getattr(self, "learn_step", 1))

    def update(self, engine: UpdateEngine, batch: Any) -> UpdateResult:
        """One update of every member in `engine`."""
        raise NotImplementedError(f"{type(self).__name__} must implement update(engine, batch) or learn(experiences)")

    update.is_missing = True  # type: ignore[attr-defined]

    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Random numbers that updates need, name -> [updates, B, ...]; none by default."""
        return {}

    def learn(self, experiences: Any) -> Any:
        """One update from sampled transitions of the team; see `team_transitions`."""
        return self.learn_from(experiences)

    # The `learn` of this package: a subclass whose own differs from it brings an algorithm that no engine runs.
    published_learn = learn

    learn_from = team_playing.learn
    learn_batch = team_playing.learn_batch
    make_batch = team_playing.make_batch
    get_action = team_playing.get_action

    # --- evaluation -----------------------------------------------------------------------------------------------

    def test(
        self,
        env: Any,
        swap_channels: bool = False,
        max_steps: int | None = None,
        loop: int = 1,
        sum_scores: bool = True,
        *,
        callback: playing.Callback | None = None,
    ) -> Any:
        """Mean return of the first finished episode of each environment, averaged over `loop` rounds; greedy.

        The training mode is restored. The result, or the mean of a row, is appended to `fitness`.

        Args:
            env: a vector or one parallel environment; it is reset, never closed.
            sum_scores: sum the agents' returns; False gives a row of them [M], in the order of `agent_ids`.
            others: as of `RLAlgorithm.test`.

        Returns:
            A float, or float64 [M].
        """
        more: dict[str, Any] = {"callback": callback, "by_agent": not sum_scores}
        return playing.run_test(self, env, swap_channels, max_steps, loop, **more)

    evaluate = playing.evaluate

    def _greedy(self, obs: Any, mask: Mask = None) -> np.ndarray:
        """Greedy actions of a team [E, A], as its lanes take them."""
        with torch.no_grad():
            outputs = self.policy_output(obs)
        return self.environment_action(self.greedy(outputs, mask))

    # --- files, copies, populations -----------------------------------------------------------------------------------

    def policy_spec(self) -> dict[str, Any]:
        """JSON-able description of the policies: one network a group, and who is in it."""
        first = {
            "algo": self.algo,
            "networks": {group: getattr(self, f"actors.{group}").spec() for group in self.grouped_agents},
            "groups": {group: list(agents) for group, agents in self.grouped_agents.items()},
            "agents": list(self.agent_ids),
            "hyperparameters": self.hyperparameters(),
            "environment": self.environment,
        }
        return first | ({"action_masks": True} if self.action_masks else {})

    def policy_state(self) -> dict[str, Tensor]:
        """All policies' weights, `<group>.<name>`: contiguous copies."""
        return {
            f"{group}.{name}": value.detach().clone(memory_format=torch.contiguous_format)
            for group in self.grouped_agents
            for name, value in getattr(self, f"actors.{group}").state_dict().items()
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
        """As of every agent; what the spaces say is made again from them."""
        return [said for said in super().unsaved_attributes() if said.partition(" ")[0] not in MADE_OF_SPACES]

    @classmethod
    def _blank(cls, state: Mapping[str, Any], device: str | torch.device, accelerator: Any) -> Self:
        spaces = {
            name: {agent: None if space is None else space_from_json(space) for agent, space in found.items()}
            for name, found in state["spaces"].items()
        }
        unknown = [agent for found in spaces.values() for agent, space in found.items() if space is None]
        if unknown:
            raise RunError(f"the file does not hold the spaces of {unknown[0]}. fix: make the team, load_checkpoint.")
        rest = copies.blank_arguments(
            cls, {**state, "spaces": {}, "attributes": {**state["attributes"], **spaces}}, device, accelerator
        )
        return cls(**{**rest, **spaces, "agent_ids": list(state["attributes"]["agent_ids"])})

    def clone(self, index: int | None = None, wrap: bool = True) -> Self:
        twin = super().clone(index, wrap)
        if index is not None and index != self.index:
            twin._exploration = stream(self.seed, Purpose.EXPLORATION, len(self.fitness), index)
        return twin

    @classmethod
    def policy_from_spec(cls, spec: Mapping[str, Any], device: str | torch.device) -> EvolvableNetwork:
        """The policy network that a saved `spec` describes, with fresh weights."""
        return DeterministicActor.from_spec(spec, device=device)

    @classmethod
    def from_policy(
        cls, spec: Mapping[str, Any], state: Mapping[str, Tensor], device: str | torch.device = "cpu"
    ) -> Self:
        """The team behind saved policies: what `policy_spec` and `policy_state` gave; critics start anew."""
        networks, groups = {}, spec["groups"]
        for group, own in spec["networks"].items():
            check_sizes({"policy": {"spec": own, "weights": state}}, "the policy")
            networks[group] = cls.policy_from_spec(own, device)
            start = f"{group}."
            weights = {k.removeprefix(start): v for k, v in state.items() if k.startswith(start)}
            networks[group].load_state_dict(weights)
        member = {agent: networks[group] for group, agents in groups.items() for agent in agents}
        accepted = constructor_arguments(cls)
        values = {k: v for k, v in spec["hyperparameters"].items() if k in accepted}
        team = cls(
            {agent: given_space(member[agent].observation_space) for agent in spec["agents"]},
            {agent: given_space(member[agent].action_space) for agent in spec["agents"]},
            actor_networks=networks,  # type: ignore[call-arg]  # of the algorithms
            device=device,
            **values,
        )
        team.environment, team.action_masks = spec.get("environment"), bool(spec.get("action_masks"))
        team.set_training_mode(False)
        return team

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
        """`size` teams with indices 0 .. size-1, each with weights of its own."""
        own = seeds(resolve_seed(seed), Purpose.INITIAL_WEIGHTS, size)
        with one_thread():
            teams: list[Any] = [
                cls(observation_spaces, action_spaces, index=i, seed=int(own[i]), **kwargs) for i in range(size)
            ]
        return [wrapper_cls(a, **(wrapper_kwargs or {})) for a in teams] if wrapper_cls else teams


def given_space(space: gym.Space[Any] | None) -> gym.Space[Any]:
    """The space of a policy, which has both."""
    assert space is not None
    return space


def _by_agent(
    algo: str, observation_spaces: Any, action_spaces: Any, agent_ids: Sequence[str] | None
) -> tuple[dict[str, gym.Space[Any]], dict[str, gym.Space[Any]], list[str]]:
    """(observation spaces, action spaces) by agent, and the agents in their order."""
    given = {"observation": observation_spaces, "action": action_spaces}
    for what, found in given.items():
        if isinstance(found, gym.spaces.Dict):
            given[what] = dict(found.spaces)
        elif not isinstance(found, Mapping | list | tuple):
            raise TypeError(
                f"{what.capitalize()} spaces must be a list or dictionary; got {type(found).__name__}. fix: "
                f"{{agent: env.{what}_space(agent) for agent in env.possible_agents}}."
            )
    ids = None if agent_ids is None else [str(agent) for agent in agent_ids]
    if ids is None:
        keyed = next((found for found in given.values() if isinstance(found, Mapping)), None)
        if keyed is None:
            raise AlgorithmError(f"{algo}: lists of spaces need the agents' names. fix: agent_ids=env.possible_agents.")
        ids = [str(agent) for agent in keyed]
    by_agent = []
    for what, found in given.items():
        if isinstance(found, Mapping):
            missing = [agent for agent in ids if agent not in found]
            if missing or len(found) != len(ids):
                raise AlgorithmError(f"{algo}: {what} spaces are of {sorted(found)}; the agents are {ids}.")
            by_agent.append({agent: found[agent] for agent in ids})
        else:
            if len(found) != len(ids):
                raise AlgorithmError(f"{algo}: {len(found)} {what} spaces for {len(ids)} agents. fix: one for each.")
            by_agent.append(dict(zip(ids, found, strict=True)))
    return by_agent[0], by_agent[1], ids
