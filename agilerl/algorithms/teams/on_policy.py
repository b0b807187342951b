"""Multi-agent proximal policy optimisation: base class of IPPO and MAPPO."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Self, Unpack

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn, optim

from agilerl.algorithms.base.declared import OF_WEIGHTS, TEAM_ROLLOUTS, hp
from agilerl.algorithms.base.observation_statistics import ObservationStatistics, Readers
from agilerl.algorithms.base.on_policy import HiddenStates, IndependentOptions, OnPolicyAlgorithm, unpacked
from agilerl.algorithms.base.optimizer import OptimizerWrapper
from agilerl.algorithms.base.policy_value import ADAM_EPS, check_noise, check_sharing, initial_std
from agilerl.algorithms.base.registry import HyperparameterConfig, NetworkGroup
from agilerl.algorithms.base.rollouts import hidden_of, output_of
from agilerl.algorithms.base.schedules import scheduled
from agilerl.algorithms.teams import evaluation as team_playing
from agilerl.algorithms.teams import policies as team_policies
from agilerl.algorithms.teams.base import MultiAgentRLAlgorithm
from agilerl.algorithms.teams.deterministic import rows_of
from agilerl.algorithms.teams.evaluation import observed
from agilerl.algorithms.teams.experiences import buffer_from_experiences
from agilerl.algorithms.teams.names import Losses, Spaces, keep_ids
from agilerl.algorithms.teams.networks import by_group
from agilerl.components.rollout_store import RolloutStore
from agilerl.core import tree
from agilerl.core.ranges import Count, Fraction, NonNegative, Positive
from agilerl.core.rng import Purpose, seeds
from agilerl.core.tree import Tree
from agilerl.engine.learner import Learner
from agilerl.engine.protocol import Draws, Mask, RolloutBatch, UpdateEngine, UpdateResult
from agilerl.engine.rollouts import Rollout, sequence_kind
from agilerl.engine.team_rollouts import equally_weighted, make_team_rollout
from agilerl.engine.team_sequences import TeamSequences
from agilerl.envs.protocol import PRESENT
from agilerl.envs.team import as_action
from agilerl.errors import ShapeError
from agilerl.modules.paths import resolve
from agilerl.networks.actors import SharedActorCritic
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.distributions import ActionDistribution, uniform_action, with_least


def _key(agent: str, kind: str, part: str) -> str:
    return f"{agent}:{kind}_{part}"


class TeamPPO(OnPolicyAlgorithm, MultiAgentRLAlgorithm):
    """PPO with a stochastic policy and a value for each group of agents.

    Subclasses may change the input of the value: `value_space`, `value_inputs`, `value_parts`, `value_scale` and
    `see_returns`. Shapes: [..., B, x], with a leading member axis over rows and without one for modules. The K agents
    of a group are K·B rows of one batch, agent by agent. See `teams.policies` for the networks.
    """

    network_kinds = ("actors", "critics")
    policies_are_distributions = True
    later_hyperparameters = frozenset({"clip_schedule"})
    experience = TEAM_ROLLOUTS
    actors = by_group("actors")
    critics = by_group("critics")
    optimizers = actor_optimizers = critic_optimizers = by_group("optimizers")

    @unpacked
    def __init__(
        self,
        observation_spaces: Spaces,
        action_spaces: Spaces,
        agent_ids: Sequence[str] | None = None,
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        net_config: dict[str, Any] | None = None,
        batch_size: Annotated[Count, hp(128, "fewer steps of less noise from a rollout")] = 64,
        lr: Annotated[Positive, hp(1e-3, "for small networks and few steps")] = 1e-4,
        learn_step: Annotated[Count, hp(1024, "each member of a population has fewer steps")] = 2048,
        gamma: Annotated[Fraction, hp()] = 0.99,
        gae_lambda: Annotated[Fraction, hp()] = 0.95,
        mut: str | None = None,
        action_std_init: Annotated[NonNegative, hp(fixed=OF_WEIGHTS)] = 0.6,
        clip_coef: Annotated[Positive, hp()] = 0.2,
        ent_coef: Annotated[NonNegative, hp()] = 0.01,
        vf_coef: Annotated[NonNegative, hp()] = 0.5,
        max_grad_norm: Annotated[Positive | None, hp()] = 0.5,
        target_kl: Annotated[Positive | None, hp()] = None,
        normalize_images: bool = True,
        update_epochs: Annotated[Count, hp(10, "the paper's, for control")] = 4,
        actor_networks: Mapping[str, EvolvableNetwork] | None = None,
        critic_networks: Mapping[str, EvolvableNetwork] | None = None,
        action_batch_size: Count | None = None,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        torch_compiler: str | None = None,
        wrap: bool = True,
        *,
        num_envs: Count = 1,
        seed: int | None = None,
        **options: Unpack[IndependentOptions],
    ) -> None:
        super().__init__(
            observation_spaces, action_spaces, index, agent_ids, hp_config, device, accelerator, torch_compiler,
            normalize_images, seed=seed,
        )  # fmt: skip
        if options.pop("share_encoders"):
            self.share_encoders = True  # not an attribute of other teams
        units = self._take(options, locals())
        self.bptt_sequence_type = sequence_kind(self.bptt_sequence_type)
        self.action_std_init = initial_std(action_std_init, type(self).__name__)
        self.action_batch_size = action_batch_size
        check_noise(self, self.possible_action_spaces.values(), self.noise_persistence)
        self._begin()
        self._build(actor_networks, critic_networks, units)
        self._begin_normalising()
        self.recurrent = any(map(self._hidden_parts, self.grouped_agents))

    def _build(self, actors: Any, critics: Any, units: dict[str, Any]) -> None:
        """Build a policy and a value for each group, or use the given ones, with one optimiser for both.

        Args:
            units: `action_scaling` and `squash_output` of new policies; `net_config` overrides them.
        """
        units = units | {"log_std_init": math.log(self.action_std_init)}
        drawn = seeds(self.seed, Purpose.INITIAL_WEIGHTS, 2 * len(self.grouped_agents), generation=2).tolist()
        actors = team_policies.checked_networks(self, actors, "actor")
        critics = team_policies.checked_networks(self, critics, "critic")
        if any(isinstance(actor, SharedActorCritic) for actor in actors.values()):
            self.share_encoders = True
        for group, seed, value_seed in zip(self.grouped_agents, drawn[::2], drawn[1::2], strict=True):
            actor, critic = actors.get(group) or team_policies.make_policy(self, group, seed, units), critics.get(group)
            check_sharing(self, actor, critic)
            networks = [self.registered("actors", group, actor)]
            if not self.share_encoders:
                reads = self.value_space(group)
                critic = critic or team_policies.make_value(self, group, reads, value_seed, actor)
                networks.append(self.registered("critics", group, critic))
            for network in networks:
                network.normalize_images = self.normalize_images
            wrapper = OptimizerWrapper(optim.Adam, networks, self.lr, {"eps": ADAM_EPS}, lr_name="lr")
            setattr(self, f"optimizers.{group}", wrapper)
            self.register_network_group(NetworkGroup(actor, policy=True))
        for critic in () if self.share_encoders else self.critics.values():
            self.register_network_group(NetworkGroup(critic))

    # --- input of the value: an agent's observation -------------------------------------------------------------------

    def value_space(self, group: str) -> tuple[gym.Space[Any], int]:
        """Return (space of the value's observations, number of agents whose one-hot id it also reads; 0 for none)."""
        return self.observation_space[group], 0

    def value_inputs(self, obs: Tree, group: str, axis: int) -> tuple[Tree, ...]:
        """Return the value inputs of a group's K agents for prepared observations, as rows [..., K·B, ...]."""
        return (team_policies.own_rows(obs, self.grouped_agents[group], axis),)

    def inputs_of(self, obs: Tree, group: str, axis: int) -> tuple[tuple[Tree, ...], ...]:
        """Return the inputs of each of a group's `networks`, as rows [..., K·B, ...]; see `value_inputs`."""
        of_policy = (team_policies.own_rows(obs, self.grouped_agents[group], axis),)
        return (of_policy,) if self.share_encoders else (of_policy, self.value_inputs(obs, group, axis))

    def value_parts(self, group: str, normalised: Sequence[str]) -> Sequence[str]:
        """Return the names of the statistics of a value's input, part by part; `normalised`: those of policies."""
        return (group,) if group in normalised else ()

    def value_scale(self) -> tuple[np.ndarray, np.ndarray]:
        """Return (mean, deviation) [M]; values are critic outputs · deviation + mean."""
        return np.zeros(self.n_agents), np.ones(self.n_agents)

    def see_returns(self, returns: np.ndarray, counts: np.ndarray) -> None:
        """Update the value scale with returns [rows, M]; `counts` [rows, M] selects entries. No-op by default."""

    # --- networks -----------------------------------------------------------------------------------------------------

    @property
    def policies(self) -> team_policies.TeamPolicies:
        """The distributions that the outputs of all policies parametrise."""
        kinds, spaces = {a: p.distribution for a, p in self.agent_policies().items()}, self.possible_action_spaces
        if self.action_std_min:
            kinds = {a: with_least(kind, spaces[a], self.action_std_min) for a, kind in kinds.items()}
        return team_policies.TeamPolicies(self.actions, tuple(kinds.values()), self.share_encoders)

    @property
    def _kinds(self) -> tuple[ActionDistribution, ...]:
        return self.policies.kinds

    @property
    def groups_of_agents(self) -> list[list[int]]:
        """Agent indices of each group."""
        return [[self.agent_ids.index(agent) for agent in members] for members in self.grouped_agents.values()]

    @property
    def row_input(self) -> Callable[[Any], Any]:
        """Function that prepares observations for networks over rows."""
        return team_policies.row_input(self.agent_policies(), self.device)

    def _readers(self) -> Readers:
        groups = [group for group in self.grouped_agents if any(self.actors[group].vector_widths)]
        policies = [(self.actors[group], (group,)) for group in groups or self.grouped_agents]
        valued = () if self.share_encoders else self.grouped_agents
        values = [(self.critics[group], self.value_parts(group, groups)) for group in valued]
        return [*policies, *((network, names) for network, names in values if names)]

    def encoder_inputs(self, obs: Tree) -> dict[str, np.ndarray]:
        rows = tree.map_leaves(lambda x: torch.as_tensor(x).flatten(0, 1), obs)
        readers = {names[0]: network for network, names in reversed(self._readers())}
        names = {name: f"actors.{name}" if name in self.grouped_agents else "critics" for name in readers}
        return {
            name: ObservationStatistics.rows(network, self.observations_for(names[name], rows))
            for name, network in readers.items()
        }

    def _policies(self) -> Sequence[nn.Module]:
        return list(self.actors.values())

    @staticmethod
    def presence(obs: Any) -> Any:
        """Return the presence mask [..., M] of a team's observations [..., ...]."""
        return obs[PRESENT]

    # --- acting -------------------------------------------------------------------------------------------------------

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Draws:
        """Draw standard normal numbers for Box components and uniform ones for choices, [*shape, R]."""
        drawn = self.policies.draw(rng, shape)
        return (self._persistent(drawn) if len(shape) > 1 else drawn,)

    def sample(self, outputs: Tensor, draws: Draws, mask: Mask = None) -> tuple[np.ndarray, np.ndarray]:
        """Sample (actions [..., A] to store, their log probabilities [..., M])."""
        return self.policies.sample(outputs, draws[0], mask)

    def greedy(self, outputs: Tensor, mask: Mask = None) -> np.ndarray:
        """Return the most probable actions to store [..., A]; for Box the mean (its tanh if squashed)."""
        return self.policies.mode(outputs, mask)

    def random_action(self, rng: np.random.Generator, shape: tuple[int, ...], mask: Mask = None) -> np.ndarray:
        """Sample legal actions to store [*shape, A]: uniform choices, and Box components uniform within bounds."""
        parts = []
        for agent, kind in zip(self.agent_ids, self.policies.kinds, strict=True):
            legal = self.actions.mask_of(agent, mask)
            parts.append(uniform_action(kind, self.possible_action_spaces[agent], rng, shape, legal))
        return np.concatenate(parts, -1)

    def environment_action(self, action: np.ndarray) -> np.ndarray:
        """Convert stored actions [..., A] to the format of team lanes: clipped, or scaled if squashed."""
        return self.policies.environment(action)

    @keep_ids
    def environment_actions(self, actions: Mapping[str, Any]) -> dict[str, Any]:
        """Convert actions by agent, as returned by `get_action` in training, to the environment's format.

        Dict and Tuple actions are nested like the space.
        """
        converted = {}
        for agent, action in actions.items():
            space, action = self.possible_action_spaces[agent], np.asarray(action)
            one, kind = self.actions.of_agent(agent), self.policies.kind(agent)
            if one.parts:
                action = as_action(space, team_policies.in_bounds(one, kind, action.reshape(-1, one.columns)))
            elif isinstance(space, gym.spaces.Box):
                flat = team_policies.in_bounds(one, kind, action.reshape(-1, one.size))
                action = flat.reshape(action.shape).astype(space.dtype)
            converted[agent] = action
        return converted

    def _run(self, obs: Any, hidden_state: Mapping[str, Tensor] | None = None) -> tuple[Tensor, Tensor, HiddenStates]:
        """Return (outputs [E, F], raw values [E, M], next hidden states) of the team's modules, computed in chunks of
        `action_batch_size` lanes."""
        lanes = len(obs[PRESENT])
        size, engine = self.action_batch_size or lanes, self._modules_engine
        hidden = self.get_initial_hidden_state(lanes) if hidden_state is None else hidden_state
        chunks = []
        with torch.no_grad():
            for start in range(0, lanes, size):
                part = tree.map_leaves(lambda x, s=start: torch.as_tensor(x[s : s + size], device=self.device), obs)
                chunks.append(self.recur(engine, part, {key: x[:, start : start + size] for key, x in hidden.items()}))
        outputs, values, after = zip(*chunks, strict=True)
        return torch.cat(outputs), torch.cat(values), {key: torch.cat([x[key] for x in after], 1) for key in after[0]}

    def observed(self, obs: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """Convert observations by agent to (team observation, number of lanes); see `teams.evaluation.observed`."""
        return observed(self, obs)

    @keep_ids
    def get_action(  # type: ignore[override]  # four mappings
        self,
        obs: Mapping[str, Any],
        infos: Mapping[str, Any] | None = None,
        training: bool | None = None,
        hidden_state: Any = None,
    ) -> tuple[Any, ...]:
        """Return (actions, log probabilities, entropies, values), each by agent: {agent: [E, ...]}.

        A recurrent team also returns the next hidden state.

        Args:
            obs: one observation or a batch [E, ...] of each agent; missing agents are absent. MAPPO needs those of all
                agents, or `state`.
            infos: by agent; `action_mask` (1 = legal) and `env_defined_actions` are applied.
            training: whether to sample; None: according to the team's mode. In training, Box actions are unclipped and
                in units of the space (in [-1, 1] if squashed), and Dict and Tuple actions are rows of numbers [E, K],
                the format of `learn`; `environment_actions` converts them for the environment.
            hidden_state: for a recurrent team, key -> [layers, E, units]; None starts an episode. `forget` resets those
                of agents whose episodes ended while others continue.
        """
        infos, (rows, lanes) = infos or {}, self.observed(obs)
        mask, policies = team_playing.masks_of(self, infos, lanes, obs), self.policies
        explores = self.training if training is None else training
        hidden = self._checked_hidden(hidden_state, lanes)
        outputs, raw_values, hidden = self._run(rows, hidden)
        if explores:
            stored, log_prob = self.sample(outputs, self._draws((lanes,)), mask)
            entropy = policies.evaluate_actions(outputs, stored, mask)[1]
        else:
            stored = self.greedy(outputs, mask)
            log_prob, entropy = policies.evaluate_actions(outputs, stored, mask)
        mean, deviation = self.value_scale()
        values = (raw_values.cpu().numpy() * deviation + mean).astype(log_prob.dtype)
        actions = {}
        for agent in self.agent_ids:
            if agent not in obs:
                continue
            one, action = self.actions.of_agent(agent), stored[..., self.actions.columns[agent]]
            if one.is_choice or not explores:
                action = policies.environment(stored)[..., self.actions.columns[agent]]
            space = self.possible_action_spaces[agent]
            if one.parts:  # rows of numbers to store, or nested like the space
                actions[agent] = action if explores else as_action(space, action)
                continue
            shaped = action.reshape(lanes, *(space.shape or ()))
            if not explores and isinstance(space, gym.spaces.Box):
                shaped = as_action(space, action)
            shaped = np.rint(shaped).astype(np.int64) if one.is_choice else shaped
            actions[agent] = team_playing.as_defined(self, agent, shaped, infos.get(agent))
        by_agent = [
            {a: x[..., k] for k, a in enumerate(self.agent_ids) if a in obs} for x in (log_prob, entropy, values)
        ]
        return (actions, *by_agent, hidden) if self.recurrent else (actions, *by_agent)

    # --- memory -------------------------------------------------------------------------------------------------------

    @property
    def hidden_state_architecture(self) -> dict[str, tuple[int, int]]:
        """Key of each part of the hidden state -> (layers, units); empty for a feed-forward team.

        Keys are `<agent>:<kind>_<part>`, such as `wolf_0:actors_encoder_h`. A part is [..., layers, E, units], with a
        leading member axis over rows. An agent's state is updated while the agent is present, unchanged while it is
        absent, and zero at the start of its episode.
        """
        return {
            _key(agent, kind, part): shape
            for group, agents in self.grouped_agents.items()
            for kind, part, shape in self._hidden_parts(group)
            for agent in agents
        }

    def _hidden_parts(self, group: str) -> list[tuple[str, str, tuple[int, int]]]:
        """Return (kind of network, part, (layers, units)) of all hidden states of an agent of the group."""
        networks = [(kind, resolve(self, f"{kind}.{group}")) for kind in self.networks]
        recurrent = [(kind, network.hidden_state_architecture) for kind, network in networks if network.recurrent]
        return [(kind, part, shape) for kind, shapes in recurrent for part, shape in shapes.items()]

    def hidden_of_group(self, group: str, hidden: Mapping[str, Tensor], axis: int = -2) -> HiddenStates:
        """Return the hidden states of a group's agents, concatenated along `axis`, with keys `<kind>_<part>`."""
        agents = self.grouped_agents[group]
        return {
            f"{kind}_{part}": torch.cat([hidden[_key(agent, kind, part)] for agent in agents], axis)
            for kind, part, _ in self._hidden_parts(group)
        }

    def recur(
        self, engine: UpdateEngine, obs: Any, hidden: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor, HiddenStates]:
        """Run one step of all networks: (outputs [..., E, F], raw values [..., E, M], next hidden states), detached.

        Hidden states of absent agents are unchanged.
        """
        obs = tree.map_leaves(lambda x: torch.as_tensor(x, device=self.device), obs)
        present, axis = obs[PRESENT].bool(), obs[PRESENT].dim() - 2
        by_kind: dict[str, dict[str, Tensor]] = {kind: {} for kind in self.networks}
        after: HiddenStates = {}
        with torch.no_grad():
            for group, agents in self.grouped_agents.items():
                joined = self.hidden_of_group(group, hidden)
                for kind, inputs in zip(self.networks, self.inputs_of(obs, group, axis), strict=True):
                    state_before = hidden_of(kind, joined)
                    result: Any = engine.frozen(f"{kind}.{group}")(*inputs, *state_before)
                    output, state = result if state_before else (result, {})
                    by_kind[kind] |= dict(zip(agents, output.chunk(len(agents), axis), strict=True))
                    for part, rows in state.items():
                        for agent, new in zip(agents, rows.chunk(len(agents), -2), strict=True):
                            key, is_present = _key(agent, kind, part), present[..., self.agent_ids.index(agent)]
                            after[key] = torch.where(is_present.unsqueeze(-2).unsqueeze(-1), new, hidden[key])
        outputs = torch.cat([by_kind["actors"][agent] for agent in self.agent_ids], -1)
        return outputs, torch.cat([by_kind[self.networks[-1]][agent][..., -1:] for agent in self.agent_ids], -1), after

    def forget(self, hidden: Mapping[str, Tensor], over: Tensor) -> HiddenStates:
        """Return the hidden states with those of agents whose episodes ended, `over` [..., E, M], set to zero."""
        states: HiddenStates = {}
        for k, agent in enumerate(self.agent_ids):
            rows = over[..., k].unsqueeze(-2).unsqueeze(-1)
            for kind, part, _ in self._hidden_parts(self.get_group_id(agent)):
                key = _key(agent, kind, part)
                states[key] = hidden[key].masked_fill(rows.to(hidden[key].device), 0)
        return states

    def end_episodes(self, over: np.ndarray) -> None:
        """Reset the evaluation's hidden states of agents whose episodes ended, `over` [E, M]."""
        if self._playing is not None:
            self._playing = self.forget(self._playing, torch.from_numpy(over))

    def _checked_hidden(self, hidden: Any, lanes: int) -> HiddenStates:
        """Return the given hidden states, or zeros for None.

        Raises:
            ShapeError: hidden states for a feed-forward team, or with wrong keys or shapes.
        """
        shapes = self.hidden_state_architecture
        if hidden is None:
            return self.get_initial_hidden_state(lanes)
        if not shapes:
            raise ShapeError(f"{self.algo}.get_action got a hidden_state, and has no memory. fix: recurrent=True.")
        expected = {key: (layers, lanes, units) for key, (layers, units) in shapes.items()}
        got = {key: tuple(part.shape) for key, part in dict(hidden).items()}
        wrong = next((key for key in {**expected, **got} if expected.get(key) != got.get(key)), None)
        if wrong is not None:
            raise ShapeError(
                f"{self.algo}.get_action got a hidden_state with {wrong!r} of shape {got.get(wrong)}; expected "
                f"{expected.get(wrong)}. fix: what the last get_action gave, or get_initial_hidden_state(num_envs)."
            )
        return dict(hidden)

    # --- learning -----------------------------------------------------------------------------------------------------

    def group_rows(self, batch: RolloutBatch, group: str) -> RolloutBatch:
        """Return the rows [..., K·B] of a group's K agents; `obs` has the inputs of its networks (`inputs_of`).

        A row has weight 1 if its agent decided, else 0.
        """
        agents, axis, policies = self.grouped_agents[group], batch.weight.dim() - 1, self.policies
        members = [self.agent_ids.index(agent) for agent in agents]
        is_row = (batch.weight > 0).unsqueeze(-1).expand(batch.log_prob.shape)
        counts = rows_of(is_row if batch.acted is None else is_row & batch.acted, members, axis).to(batch.weight.dtype)
        log_prob, value, advantage, returns = (
            rows_of(x, members, axis) for x in (batch.log_prob, batch.value, batch.advantage, batch.returns)
        )
        legal, noise = batch.legal, batch.noise
        if legal is not None:
            masks = [self.actions.mask_of(agent, legal) for agent in agents]
            legal = None if masks[0] is None else torch.cat(masks, axis)
        noise = None if noise is None else torch.cat([noise[..., policies.entropy_noise[a]] for a in agents], axis)
        return RolloutBatch(
            self.inputs_of(batch.obs, group, axis),
            torch.cat([policies.action(agent, batch.action) for agent in agents], axis),
            log_prob,
            value,
            advantage,
            returns,
            counts,
            legal=legal,
            live=batch.live,
            noise=noise,
        )

    def update(self, engine: UpdateEngine, batch: RolloutBatch | TeamSequences) -> UpdateResult:
        """Perform one step per group on a minibatch: L = L_clip + c_v L_v − c_e H, as in PPO.

        The loss is over the rows of the group's agents (arXiv:2011.09533, section 3; arXiv:2103.01955, appendix A).
        The reported divergence is the maximum over groups, averaged over ranks.
        """
        results = []
        if isinstance(batch, TeamSequences):
            groups, all_decided = batch.groups, False
        else:
            groups, all_decided = {g: self.group_rows(batch, g) for g in self.grouped_agents}, batch.acted is None
        batches = equally_weighted(groups, batch.live, all_decided, engine.ranks)
        for group, agents in self.grouped_agents.items():
            rows = batches[group]
            outputs = [
                output_of(engine.network(f"{kind}.{group}")(*inputs, *hidden_of(kind, rows.hidden)))
                for kind, inputs in zip(self.networks, rows.obs, strict=True)
            ]
            distribution = self.policies.kind(agents[0])
            results.append(self._descend(engine, f"optimizers.{group}", distribution, outputs, rows))
        loss, actor_loss, kl = (
            torch.stack(parts) for parts in zip(*((r.loss, r.actor_loss, r.kl) for r in results), strict=True)
        )
        return UpdateResult(loss.sum(0), actor_loss.sum(0), kl=engine.ranks.mean(kl).amax(0))

    def state_values(self, engine: UpdateEngine, obs: Any) -> Tensor:
        """Return raw values [..., B, M] of prepared observations, detached, with initial hidden states."""
        axis = obs[PRESENT].dim() - 2
        by_agent: dict[str, Tensor] = {}
        with torch.no_grad():
            for group, agents in self.grouped_agents.items():
                inputs = self.inputs_of(obs, group, axis)[-1]
                values = engine.frozen(f"{self.networks[-1]}.{group}")(*inputs)[..., -1]
                by_agent |= dict(zip(agents, values.chunk(len(agents), axis), strict=True))
        return torch.stack([by_agent[agent] for agent in self.agent_ids], -1)

    def update_hyperparameters(self) -> dict[str, float]:
        values = super().update_hyperparameters()
        if self.action_ent_steps is not None:  # which is of Box actions
            values["choice_ent_coef"] = scheduled(self.ent_coef, self.ent_schedule, self.progress)
        return values

    def update_options(self) -> tuple[Any, ...]:
        return *super().update_options(), self.action_ent_steps is None

    def draw_entropy_noise(self, rng: np.random.Generator, rows: int) -> np.ndarray | None:
        """Draw standard normal numbers [rows, C] that estimate the entropy of squashed policies; None without any."""
        width = max(columns.stop for columns in self.policies.entropy_noise.values())
        return rng.standard_normal((rows, width)) if width else None

    def make_buffer(self, steps: int, lanes: int, num_legal: int = 0) -> RolloutStore:
        space, action = self.team.observation_space, self.team.action_space
        shapes = self.hidden_state_architecture
        return RolloutStore(steps, lanes, space, action, shapes, num_legal, agents=self.n_agents)

    def learn(self, experiences: Any) -> dict[str, float]:
        """Learn from one rollout, in `update_epochs` passes of minibatches.

        Args:
            experiences: as in `PPO.learn`, each entry by agent. A mapping may also contain `action_masks` and, for a
                recurrent team, `hidden_states` (inputs of `get_action`), `final_values` (of the final observations) and
                `last_values` (of `next_obs`). An agent whose reward or flag is NaN did not act.

        Returns:
            {group: mean loss of the minibatches, summed over groups}; see `Losses`.

        Raises:
            ShapeError: missing entries, or lists of different lengths.
        """
        loss = self.learn_buffer(
            buffer_from_experiences(self, experiences, self.observed, self.value_scale(), self.make_buffer)
        )
        return Losses(dict.fromkeys(self.shared_agent_ids, loss))

    published_learn = learn

    def rollout(self, learner: Learner, group: int, members: Sequence[Self], buffer: RolloutStore) -> Rollout:
        return make_team_rollout(learner, group, members, buffer, next(iter(self.policy_module().parameters())))
