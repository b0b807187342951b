"""Proximal policy optimisation of teams: the class that IPPO and MAPPO derive from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.base.building import initial_std
from agilerl.algorithms.base.declared import TEAM_ROLLOUTS, hp
from agilerl.algorithms.base.on_policy import OnPolicyAlgorithm
from agilerl.algorithms.base.policy_gradient import policy_gradient
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.algorithms.base.rollouts import HiddenStates, hidden_of, remember
from agilerl.algorithms.base.schedules import Schedule, check_schedules, scheduled
from agilerl.algorithms.teams import acting, actor_critics
from agilerl.algorithms.teams import recurrent as memory
from agilerl.algorithms.teams.actor_critics import own_rows
from agilerl.algorithms.teams.base import MultiAgentRLAlgorithm
from agilerl.algorithms.teams.deterministic import rows_of
from agilerl.algorithms.teams.evaluation import observed
from agilerl.algorithms.teams.experiences import buffer_from_experiences
from agilerl.algorithms.teams.names import Losses, Spaces, keep_ids
from agilerl.algorithms.teams.networks import by_group
from agilerl.algorithms.teams.policies import TeamPolicies
from agilerl.components.rollout_store import RolloutStore
from agilerl.engine.learner import learner_of
from agilerl.engine.protocol import Draws, Mask, RolloutBatch, UpdateEngine, UpdateResult
from agilerl.engine.rollouts import learn_rollout, sequence_kind
from agilerl.engine.team_rollouts import make_team_rollout
from agilerl.engine.team_sequences import TeamSequences
from agilerl.envs.teams import PRESENT
from agilerl.losses.actor_critic import clipped_value_loss
from agilerl.networks.actors import StochasticActor
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.distributions import uniform_action
from agilerl.ranges import Count, Fraction, NonNegative, Positive
from agilerl.ranks import Ranks


class TeamPPO(OnPolicyAlgorithm, MultiAgentRLAlgorithm):
    """Proximal policy optimisation of a team: a stochastic policy and a value for each group of agents.

    Algorithms differ in what a value reads: `make_value`, `value_inputs`, `value_scale` and `see_returns` are theirs.
    Shapes: [..., B, x] with a leading member axis over rows, without one for modules. The K agents of a group are K·B
    rows of one batch, agent by agent. `actor_critics` makes the networks, `acting` has the published face by agent,
    `recurrent` the hidden states.
    """

    policies_are_distributions = True
    experience = TEAM_ROLLOUTS
    actors = by_group("actors")
    critics = by_group("critics")
    optimizers = by_group("optimizers")

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
        learn_step: Annotated[Count, hp(1024, "members of a population see less each")] = 2048,
        gamma: Annotated[Fraction, hp()] = 0.99,
        gae_lambda: Annotated[Fraction, hp()] = 0.95,
        mut: str | None = None,
        action_std_init: Annotated[NonNegative, hp()] = 0.6,
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
        recurrent: Annotated[bool, hp()] = False,
        bptt_sequence_type: Annotated[
            Any, hp(values=Literal["chunked", "maximum", "fifty_percent_overlap"])
        ] = "chunked",
        max_seq_len: Annotated[Count | None, hp()] = None,
        clip_value_loss: Annotated[bool, hp()] = True,
        lr_schedule: Annotated[Schedule, hp()] = "constant",
        ent_schedule: Annotated[Schedule, hp()] = "constant",
        action_scaling: Annotated[str, hp(values=Literal["bounds", "none"])] = "bounds",
        squash_output: Annotated[bool, hp()] = False,
        seed: int | None = None,
    ) -> None:
        super().__init__(
            observation_spaces,
            action_spaces,
            index,
            agent_ids,
            hp_config,
            device,
            accelerator,
            torch_compiler,
            normalize_images,
            seed=seed,
        )
        self.recurrent, self.max_seq_len = bool(recurrent), max_seq_len
        self.bptt_sequence_type = sequence_kind(bptt_sequence_type)
        self.batch_size, self.lr, self.learn_step = int(batch_size), lr, int(learn_step)
        self.gamma, self.gae_lambda, self.mut, self.net_config = gamma, gae_lambda, mut, net_config
        self.lr_schedule, self.ent_schedule = check_schedules(lr_schedule, ent_schedule)
        self.action_std_init, self.clip_coef = initial_std(action_std_init, type(self).__name__), clip_coef
        self.ent_coef, self.vf_coef, self.max_grad_norm = ent_coef, vf_coef, max_grad_norm
        self.target_kl, self.update_epochs, self.num_envs = target_kl, int(update_epochs), int(num_envs)
        self.action_batch_size, self.clip_value_loss = action_batch_size, bool(clip_value_loss)
        self._begin()
        units = {"action_scaling": action_scaling, "squash_output": squash_output}
        actor_critics.build(self, actor_networks, critic_networks, units)
        self.recurrent = memory.remembers(self)

    # --- what a value reads: of each algorithm ------------------------------------------------------------------------

    def make_value(self, group: str, seed: int, **more: Any) -> EvolvableNetwork:
        """A new value network of a group."""
        raise NotImplementedError(f"{type(self).__name__} must implement make_value(group, seed, **more)")

    def value_inputs(self, obs: Any, group: str, axis: int) -> tuple[Any, ...]:
        """Inputs of the value of a group's K agents for prepared observations, as rows [..., K·B, ...]."""
        raise NotImplementedError(f"{type(self).__name__} must implement value_inputs(obs, group, axis)")

    def value_scale(self) -> tuple[np.ndarray, np.ndarray]:
        """(mean, deviation) [M]: critics' outputs, times the deviation and plus the mean, are values."""
        return np.zeros(self.n_agents), np.ones(self.n_agents)

    def see_returns(self, returns: np.ndarray, counts: np.ndarray) -> None:
        """Update the scale of values with the returns [rows, M] of agents that count [rows, M]."""

    # --- networks -----------------------------------------------------------------------------------------------------

    @property
    def policies(self) -> TeamPolicies:
        """The distributions that the outputs of all policies parametrise."""
        return actor_critics.policies_of(self)

    @property
    def groups_of_agents(self) -> list[list[int]]:
        """Numbers of the agents of each group."""
        return [[self.agent_ids.index(agent) for agent in members] for members in self.grouped_agents.values()]

    @property
    def row_input(self) -> Callable[[Any], Any]:
        """What prepares observations for networks over rows."""
        return actor_critics.row_input(self)

    def _sampling_actors(self) -> list[Any]:
        """The policies, whose distributions are sampled."""
        return list(self.actors.values())

    @staticmethod
    def presence(obs: Any) -> Any:
        """[..., M] who is there, of a team's observations [..., ...]."""
        return obs[PRESENT]

    # --- acting -------------------------------------------------------------------------------------------------------

    def draw_exploration(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Draws:
        """Standard normal numbers for Box components, uniform ones for choices [*shape, R]."""
        return (self.policies.draw(rng, shape),)

    def sample(self, outputs: Tensor, draws: Draws, mask: Mask = None) -> tuple[np.ndarray, np.ndarray]:
        """(actions [..., A] to store, their log probabilities [..., M])."""
        return self.policies.sample(outputs, draws[0], mask)

    def greedy(self, outputs: Tensor, mask: Mask = None) -> np.ndarray:
        """The most probable actions to store [..., A]; of Box the mean (its tanh where squashed)."""
        return self.policies.mode(outputs, mask)

    def random_action(self, rng: np.random.Generator, shape: tuple[int, ...], mask: Mask = None) -> np.ndarray:
        """Random legal actions to store [*shape, A]: uniform choices, and Box components uniform in their bounds."""
        each = []
        for agent, kind in zip(self.agent_ids, self.policies.kinds, strict=True):
            legal = self.actions.mask_of(agent, mask)
            each.append(uniform_action(kind, self.possible_action_spaces[agent], rng, shape, legal))
        return np.concatenate(each, -1)

    def environment_action(self, action: np.ndarray) -> np.ndarray:
        """Stored actions [..., A] as lanes of teams take them: clipped, or scaled where squashed."""
        return self.policies.environment(action)

    def environment_actions(self, actions: Mapping[str, Any]) -> dict[str, Any]:
        """Actions by agent, as `get_action` gave them while training, as the environment takes them; Dict and Tuple
        actions nested as the space is."""
        converted: dict[str, Any] = acting.environment_actions(self, actions)
        return converted

    def observed(self, obs: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
        """(observations of a team, number of lanes) from observations by agent; see `teams.evaluation.observed`."""
        return observed(self, obs)

    @keep_ids
    def get_action(  # type: ignore[override]  # four mappings
        self,
        obs: Mapping[str, Any],
        infos: Mapping[str, Any] | None = None,
        training: bool | None = None,
        hidden_state: Any = None,
    ) -> tuple[Any, ...]:
        """(actions, log probabilities, entropies, values), each by agent: {agent: [E, ...]}.

        A team with a memory returns the next hidden state as a fifth.

        Args:
            obs: one observation or a batch [E, ...] of each agent; agents that are left out are not there. MAPPO needs
                those of all agents, or `state`.
            infos: by agent; `action_mask` (1 = legal) and `env_defined_actions` of each are heeded.
            training: whether to sample; the team's own mode where it is not given. Then Box actions are in units of the
                space (in [-1, 1] where squashed) and not clipped, and Dict and Tuple actions are rows of numbers [E,
                K], as `learn` wants them: `environment_actions` gives them as the environment takes them.
            hidden_state: of a team with a memory, key -> [layers, E, units]; None begins an episode. `forget` begins
                those of agents anew that have ended while others go on.
        """
        return acting.get_action(self, obs, infos, training, hidden_state)

    def _greedy(self, obs: Any, mask: Mask = None) -> np.ndarray:
        """Greedy actions of a team [E, A] as its lanes take them; a memory goes on from the last call."""
        return acting.greedy_in_lanes(self, obs, mask)

    # --- memory -------------------------------------------------------------------------------------------------------

    @property
    def hidden_state_architecture(self) -> dict[str, tuple[int, int]]:
        """Key of each part of the hidden state -> (layers, units); empty for a team without a memory."""
        return memory.hidden_state_architecture(self)

    def hidden_of_group(self, group: str, hidden: Mapping[str, Tensor], axis: int = -2) -> HiddenStates:
        """The hidden states of a group's agents one after another along `axis`, as `<kind>_<part>`."""
        return memory.of_group(self, group, hidden, axis)

    def sequence_limit(self, steps: int) -> int:
        """Most steps of a training sequence, in a rollout of `steps`."""
        return memory.sequence_limit(self, steps)

    def recur(
        self, engine: UpdateEngine, obs: Any, hidden: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor, HiddenStates]:
        """One step of all networks, as constants: (outputs [..., E, F], values [..., E, M] as networks give them, next
        hidden states). Who is not there remembers what it did."""
        return memory.recur(self, engine, obs, hidden)

    def forget(self, hidden: Mapping[str, Tensor], over: Tensor) -> HiddenStates:
        """The hidden states after a step in which the episodes of agents `over` [..., E, M] ended: theirs begin
        anew."""
        return memory.forget(self, hidden, over)

    def end_episodes(self, over: np.ndarray) -> None:
        """Episodes of agents `over` [E, M] have ended where the team is evaluated; others go on."""
        if self._playing is not None:
            self._playing = self.forget(self._playing, torch.from_numpy(over))

    # --- learning -----------------------------------------------------------------------------------------------------

    def group_rows(self, batch: RolloutBatch, group: str) -> RolloutBatch:
        """The rows [..., K·B] of a group's K agents, and what its policy and its value read: `obs` is (the one, the
        inputs of the other). The weight of a row is 1 where its agent decided, else 0."""
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
            (own_rows(batch.obs, agents, axis), self.value_inputs(batch.obs, group, axis)),
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
        """One minibatch, group by group: L = L_clip + c_v L_v − c_e H, as of PPO, over the rows of the group's agents
        (arXiv:2011.09533, section 3; arXiv:2103.01955, appendix A).

        The divergence reported is that of the group that moved most, on all ranks together.
        """
        hp, losses, policy_losses, divergences = engine.hp, [], [], []
        flat = {name: hp[name].squeeze(-1) if hp[name].dim() else hp[name] for name in ("vf_coef", "ent_coef")}
        batches = group_batches(self, batch, engine.ranks)
        for group, agents in self.grouped_agents.items():
            rows = batches[group]
            seen, critic_inputs = rows.obs
            raw = _output(engine.network(f"actors.{group}")(seen, *hidden_of("actors", rows.hidden)))
            value = _output(engine.network(f"critics.{group}")(*critic_inputs, *hidden_of("critics", rows.hidden)))
            with torch.no_grad():
                clip = hp["clip_coef"] if self.clip_value_loss else None
                value_loss, of_value = clipped_value_loss(value[..., -1], rows.value, rows.returns, clip, rows.weight)
                of_value = (hp["vf_coef"] * of_value).unsqueeze(-1)
            kind = self.policies.kind(agents[0])
            actor_loss, entropy, kl, of_raw = policy_gradient(kind, raw.detach(), rows.action, rows, hp)
            engine.descend_all(f"optimizers.{group}", [raw, value], [of_raw, of_value], hp["max_grad_norm"], rows.live)
            losses.append(actor_loss + flat["vf_coef"] * value_loss - flat["ent_coef"] * entropy)
            policy_losses.append(actor_loss)
            divergences.append(kl)
        total, of_policies = torch.stack(losses).sum(0), torch.stack(policy_losses).sum(0)
        return UpdateResult(total, of_policies, kl=engine.ranks.mean(torch.stack(divergences)).amax(0))

    def state_values(self, engine: UpdateEngine, obs: Any) -> Tensor:
        """V [..., B, M] of prepared observations for every agent, as networks give it, as constants; a memory is
        empty."""
        axis = obs[PRESENT].dim() - 2
        by_agent: dict[str, Tensor] = {}
        with torch.no_grad():
            for group, agents in self.grouped_agents.items():
                values = engine.frozen(f"critics.{group}")(*self.value_inputs(obs, group, axis)).squeeze(-1)
                by_agent |= dict(zip(agents, values.chunk(len(agents), axis), strict=True))
        return torch.stack([by_agent[agent] for agent in self.agent_ids], -1)

    def update_hyperparameters(self) -> dict[str, float]:
        entropy = scheduled(self.ent_coef, self.ent_schedule, self.progress)
        return {**super().update_hyperparameters(), "ent_coef": entropy}

    def update_options(self) -> tuple[Any, ...]:
        sequences = self.bptt_sequence_type, self.max_seq_len
        return (self.clip_value_loss, *sequences, *self.policies.kinds)

    def draw_entropy_noise(self, rng: np.random.Generator, rows: int) -> np.ndarray | None:
        """Standard normal numbers [rows, C] for squashed policies, whose entropy is estimated by new actions."""
        width = max(columns.stop for columns in self.policies.entropy_noise.values())
        return rng.standard_normal((rows, width)) if width else None

    def make_buffer(self, steps: int, lanes: int, num_legal: int = 0) -> RolloutStore:
        """An empty store for rollouts of this team, or of several of its kind in lockstep."""
        space, action = self.team.observation_space, self.team.action_space
        shapes = self.hidden_state_architecture
        return RolloutStore(steps, lanes, space, action, shapes, num_legal, agents=self.n_agents)

    def learn(self, experiences: Any) -> dict[str, float]:
        """Learn from one rollout, in `update_epochs` passes of minibatches.

        Args:
            experiences: (observations, actions, log_probs, rewards, dones, values, next_obs, next_done), each by agent:
                of the first six lists over time of [E, ...] arrays, as `get_action` and the environment gave them;
                `dones[t]` is the flag BEFORE step t. Such an end counts as termination, unless a ninth and a tenth
                entry (or, in a mapping, `truncateds` and `final_observations`) say of every step who was cut off, and
                what it saw last. A mapping may hold `action_masks`, too; and of a team with a memory, whose
                observations do not tell all, `hidden_states` (a list of what `get_action` was given, else sequences
                begin at zero), `final_values` (of the final observations, by agent) and `last_values` (of `next_obs`).
                An agent whose reward or flag is NaN did not act.

        Returns:
            {group: mean loss of the minibatches, summed over groups}; see `Losses`.

        Raises:
            ShapeError: entries that are missing, or of different lengths.
        """
        loss = self.learn_buffer(buffer_from_experiences(self, experiences))
        return Losses(dict.fromkeys(self.shared_agent_ids, loss))

    published_learn = learn

    def learn_buffer(self, buffer: RolloutStore) -> float:
        """As `learn`, from a rollout buffer with the lanes of this team alone; it is left as it is."""
        learner = learner_of(self)
        rollout = make_team_rollout(learner, 0, [self], buffer, next(iter(self.policy_module().parameters())))
        (report,) = learn_rollout(learner, 0, [self], rollout, [self._minibatches])
        learner.settle()
        remember(self, buffer, slice(None))
        return report.mean_loss

    # --- copies and files ---------------------------------------------------------------------------------------------

    @classmethod
    def policy_from_spec(cls, spec: Mapping[str, Any], device: str | torch.device) -> EvolvableNetwork:
        """The policy network that a saved `spec` describes, with fresh weights."""
        return StochasticActor.from_spec(spec, device=device)


def group_batches(team: TeamPPO, batch: RolloutBatch | TeamSequences, ranks: Ranks) -> dict[str, RolloutBatch]:
    """The rows of every group as `group_rows`; those that their agent decided, on all ranks together, count alike.

    Weights sum to 1 in one process, and on average over several ranks. A group of which nobody decided does not move.
    """
    if isinstance(batch, TeamSequences):
        rows, all_decided = dict(batch.groups), False
    else:
        rows = {group: team.group_rows(batch, group) for group in team.grouped_agents}
        all_decided = batch.acted is None and ranks.size == 1
    totals = ranks.mean(torch.stack([group_batch.weight.sum(-1, keepdim=True) for group_batch in rows.values()]))
    batches = {}
    for (group, group_batch), total in zip(rows.items(), totals, strict=True):
        live = batch.live
        if not all_decided:
            has_rows = (total > 0).flatten().tolist()
            live = tuple(a and b for a, b in zip(live or (True,) * len(has_rows), has_rows, strict=True))
        # A single decision of all ranks is 1 / ranks of one on average.
        batches[group] = replace(group_batch, weight=group_batch.weight / total.clamp(min=1 / ranks.size), live=live)
    return batches


def _output(result: Any) -> Tensor:
    """What a network gives, without the hidden state beside it."""
    output: Tensor = result[0] if isinstance(result, tuple) else result
    return output
