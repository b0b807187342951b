"""Multi-agent algorithms: a team of agents in one environment, with shared networks for groups of similar agents.

A team is trained like a single agent (`base.single_agent`): its observation is a tree, its action a row of numbers
(`teams.actions`), its reward and termination one number per agent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from agilerl.algorithms.base import evaluation as playing
from agilerl.algorithms.base.agent import EvolvableAlgorithm
from agilerl.algorithms.base.declared import TEAM_TRANSITIONS, Experience
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.algorithms.base.transitions import check_not_empty
from agilerl.algorithms.teams import evaluation as team_playing
from agilerl.algorithms.teams import files as team_files
from agilerl.algorithms.teams import networks as team_networks
from agilerl.algorithms.teams import transitions as team_transitions
from agilerl.algorithms.teams.actions import TeamActions, team_of_spaces
from agilerl.algorithms.teams.names import Named as Named
from agilerl.algorithms.teams.names import Spaces as Spaces
from agilerl.algorithms.teams.names import group_of, groups_of, spaces_by_agent
from agilerl.engine.modules import raw_output
from agilerl.engine.protocol import Draws, Mask, TransitionBatch, UpdateEngine, UpdateResult
from agilerl.engine.recipes import Recipe
from agilerl.errors import ConfigError, unknown_name
from agilerl.modules.paths import resolve
from agilerl.networks.actors import DeterministicActor
from agilerl.networks.base import EvolvableNetwork
from agilerl.rng import Purpose, resolve_seed, seeds, stream
from agilerl.signatures import by_position_or_name, construct
from agilerl.spaces import short_form
from agilerl.telemetry.evaluation import Evaluation
from agilerl.threads import one_thread


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
        accelerator: Any = None,
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
                f"{self.algo}: {unknown_name('agent', agent_id, [*self.agent_ids, *self.grouped_agents])}"
            )
        return group

    get_network_id = get_group_id

    def agents_of(self, network: str) -> list[str]:
        """Return the agents that share a network, such as `actors.speaker`."""
        return self.grouped_agents[network.partition(".")[2]]

    def observations_for(self, network: str, observations: Any) -> Any:
        """Return the part of a team's observations [B, ...] that a network reads: for a policy, rows of its present
        agents, concatenated; for a critic, those of all agents."""
        return team_networks.observations_for(self, network, observations)

    def registered(self, kind: str, group: str, network: nn.Module) -> Any:
        """Assign a network as `<kind>.<group>` and return it."""
        return team_networks.registered(self, kind, group, network)

    def register_network(
        self, kind: str, targets: str, optimizers: str, group: str, lr: str, policy: bool = False
    ) -> None:
        """Create a frozen target `<targets>.<group>` and an Adam optimiser for the network `<kind>.<group>`."""
        team_networks.register_network(self, kind, targets, optimizers, group, lr, policy)

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

    def reading(self) -> tuple[Any, ...]:
        """See `engine.protocol.Trainable`; one entry per network."""
        return tuple(network.reading() for network in self.evaluation_networks().values())  # type: ignore[operator]

    @property
    def row_input(self) -> Callable[[Any], Any]:
        """Function that converts observations to inputs of networks over rows: by agent, and joint for critics."""
        return team_networks.row_input(self)

    def policy_program(self, network: Callable[[str], Any], axis: int = 2) -> Callable[[Any], Tensor]:
        """Return a function from prepared observations to concatenated outputs of all policies [..., E, F].

        Args:
            network: network name -> function that runs it.
            axis: number of leading axes (members, lanes). A group's agents act in one pass, concatenated as lanes.
        """
        return team_networks.policy_program(self, network, axis)

    def joint_network(self) -> EvolvableNetwork:
        """Return a network that reads the observations of all agents."""
        raise NotImplementedError(f"{type(self).__name__} must implement joint_network()")

    def policy_output(self, obs: Any, noisy: bool = False) -> Tensor:
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

    def draw_acting_noise(self, rng: np.random.Generator, count: int) -> np.ndarray | None:
        """Return None: no policy has noisy layers."""
        return None

    def greedy(self, outputs: Tensor, mask: Mask = None) -> np.ndarray:
        """Return greedy actions to store [..., A] from policy outputs [..., F]."""
        return self.actions.act(outputs.cpu().numpy(), None, None, mask)

    def explore(self, outputs: Tensor, draws: Draws, epsilon: float, mask: Mask = None) -> np.ndarray:
        """Return exploring actions to store [..., A]: sampled choices, noisy components. `epsilon` is ignored."""
        return self.actions.act(outputs.cpu().numpy(), draws[0], draws[1], mask)

    def begin_episodes(self) -> None:
        """Start an episode in all evaluation environments; a no-op for feed-forward teams."""

    # --- learning -----------------------------------------------------------------------------------------------------

    def update_options(self) -> tuple[Any, ...]:
        """Options that `update` branches on."""
        return ()

    def update_interval(self) -> float:
        """Return the environment steps between updates."""
        return self.learn_step if hasattr(self, "learn_step") else 1

    def recipe(self) -> Recipe | None:
        """See `engine.protocol.Trainable`; None by default."""
        return None

    def update(self, engine: UpdateEngine, batch: Any) -> UpdateResult:
        """Perform one update of every member in `engine`."""
        raise NotImplementedError(f"{type(self).__name__} must implement update(engine, batch) or learn(experiences)")

    update.is_missing = True  # type: ignore[attr-defined]

    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
        """Draw the random numbers for updates, name -> [updates, B, ...]; none by default."""
        return {}

    def learn(self, experiences: Any) -> Any:
        """Perform one update from sampled transitions of the team; see `learn_from`."""
        return self.learn_from(experiences)

    # A subclass that overrides this `learn` cannot be run by an engine.
    published_learn = learn

    def with_observations(self, experiences: Any, change: Callable[[Any], Any]) -> Any:
        """Apply `change` to all observations by agent in the argument of `learn`; used by observation wrappers."""
        return team_transitions.with_observations(experiences, change)

    def learn_from(self, experiences: Any) -> dict[str, tuple[float | None, float]]:
        """Perform one update.

        Args:
            experiences: result of `MultiAgentReplayBuffer.sample`: (states, actions, rewards, next_states, dones), each
                by agent with a leading batch axis; or a mapping or TensorDict with these names, or obs, action, reward,
                next_obs, done.

        Returns:
            {group: (policy loss or None, critic loss)}, each summed over all groups; see `Losses`.
        """
        return team_transitions.learn(self, experiences)

    def learn_batch(self, batch: TransitionBatch, plain: bool = False) -> UpdateResult:
        """Perform one update from a prepared batch [B, ...]. No member axis."""
        return team_transitions.learn_batch(self, batch, plain)

    def make_batch(self, experiences: Any) -> TransitionBatch:
        """Convert sampled transitions by agent to tensors; see `teams.transitions.make_batch`."""
        return team_transitions.make_batch(self, experiences)

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
        return team_playing.get_action(self, obs, infos, training)

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
        """Return the mean greedy return of the first finished episode per environment, averaged over `loop` rounds.

        The training mode is restored. The result, or its mean over agents, is appended to `fitness`.

        Args:
            env: vector or parallel environment; it is reset, never closed.
            sum_scores: sum the agents' returns; False returns them by agent [M], in the order of `agent_ids`.

        See `RLAlgorithm.test` for the other arguments.

        Returns:
            A float, or float64 [M].
        """
        more: dict[str, Any] = {"callback": callback, "by_agent": not sum_scores}
        return playing.run_test(self, env, swap_channels, max_steps, loop, **more)

    def evaluate(
        self, episodes: int = 100, seed: int | None = None, env: Any = None, max_steps: int | None = None
    ) -> Evaluation:
        """Run greedy episodes and summarise their returns; see `RLAlgorithm.evaluate`."""
        return playing.evaluate(self, episodes, seed, env, max_steps)

    def _greedy(self, obs: Any, mask: Mask = None) -> np.ndarray:
        """Return greedy actions [E, A] for team lanes."""
        with torch.no_grad():
            outputs = self.policy_output(obs)
        return self.environment_action(self.greedy(outputs, mask))

    def _sampled(self, rng: np.random.Generator, obs: Any, mask: Mask = None) -> np.ndarray:
        """Return sampled actions [E, A] for team lanes; the greedy ones of policies without a distribution."""
        return self._greedy(obs, mask)

    # --- files, copies, populations -----------------------------------------------------------------------------------

    def policy_spec(self) -> dict[str, Any]:
        """Return a JSON-able description of the policies: one network per group, and the groups' agents."""
        return team_files.policy_spec(self)

    def policy_state(self) -> dict[str, Tensor]:
        """Return contiguous copies of all policies' weights, `<group>.<name>`."""
        return team_files.policy_state(self)

    def state(self) -> dict[str, Any]:
        return {**super().state(), **team_files.own_state(self)}

    def load_state(self, state: Mapping[str, Any], source: str = "state") -> None:
        super().load_state(state, source)
        if "exploration" in state:
            self._exploration.bit_generator.state = state["exploration"]

    def unsaved_attributes(self) -> list[str]:
        """Return the attributes of every agent, except those rebuilt from the spaces."""
        return [
            name for name in super().unsaved_attributes() if name.partition(" ")[0] not in team_files.MADE_OF_SPACES
        ]

    @classmethod
    def _blank(cls, state: Mapping[str, Any], device: str | torch.device, accelerator: Any) -> Any:
        """Create a team from the spaces and arguments in a state. RunError if the spaces are missing."""
        return team_files.blank(cls, state, device, accelerator)

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
        return team_files.from_policy(cls, spec, state, device, options)

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
