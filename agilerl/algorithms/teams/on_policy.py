"""Proximal policy optimisation of teams: the class that IPPO and MAPPO derive from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.base.declared import TEAM_ROLLOUTS
from agilerl.algorithms.base.policy_gradient import PolicyUnit, policy_gradient
from agilerl.algorithms.base.rollouts import HiddenStates, hidden_of, remember
from agilerl.algorithms.base.schedules import Schedule, scheduled
from agilerl.algorithms.teams import acting, actor_critics, recurrent
from agilerl.algorithms.teams.actor_critics import own_rows
from agilerl.algorithms.teams.base import MultiAgentRLAlgorithm
from agilerl.algorithms.teams.deterministic import rows_of
from agilerl.algorithms.teams.evaluation import observed
from agilerl.algorithms.teams.experiences import buffer_from_experiences
from agilerl.algorithms.teams.names import Losses, keep_ids
from agilerl.algorithms.teams.networks import by_group
from agilerl.algorithms.teams.policies import TeamPolicies
from agilerl.components.rollout_store import RolloutStore
from agilerl.engine.learner import learner_of
from agilerl.engine.protocol import Draws, Mask, RolloutBatch, UpdateEngine, UpdateResult
from agilerl.engine.rollouts import learn_rollout
from agilerl.engine.team_rollouts import make_team_rollout
from agilerl.engine.team_sequences import TeamSequences
from agilerl.envs.teams import PRESENT
from agilerl.losses.actor_critic import clipped_value_loss
from agilerl.networks.actors import StochasticActor
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.distributions import uniform_action
from agilerl.ranks import Ranks
from agilerl.rng import Purpose, seeds


class TeamPPO(MultiAgentRLAlgorithm):
    """Proximal policy optimisation of a team: a stochastic policy and a value for each group of agents.

    Algorithms differ in what a value reads: `make_value`, `value_inputs`, `value_scale` and `see_returns` are theirs.
    Shapes: [..., B, x] with a leading member axis over rows, without one for modules. The K agents of a group are K·B
    rows of one batch, agent by agent. `actor_critics` makes the networks, `acting` has the published face by agent,
    `recurrent` the hidden states.
    """

    policies_are_distributions = True
    experience = TEAM_ROLLOUTS
    recurrent: bool
    max_seq_len: int | None
    bptt_sequence_type: str
    action_batch_size: int | None
    action_std_init: float
    clip_value_loss: bool
    lr: float
    lr_schedule: Schedule
    ent_schedule: Schedule
    clip_coef: float
    ent_coef: float
    vf_coef: float
    max_grad_norm: float | None
    learn_step: int
    num_envs: int
    progress: float
    _minibatches: np.random.Generator
    _playing: HiddenStates | None

    actors = by_group("actors")
    critics = by_group("critics")
    optimizers = by_group("optimizers")
    action_scaling, squash_output = PolicyUnit("action_scaling", "none"), PolicyUnit("squash_output", False)

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
        return [[self.agent_ids.index(agent) for agent in own] for own in self.grouped_agents.values()]

    @property
    def row_input(self) -> Callable[[Any], Any]:
        """What prepares observations for networks over rows."""
        return actor_critics.row_input(self)

    def sampling_actors(self) -> list[Any]:
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

    def explore(self, outputs: Tensor, draws: Draws, epsilon: float = 0.0, mask: Mask = None) -> np.ndarray:
        """A sample of the policies [..., A]; `epsilon` is ignored."""
        return self.policies.sample(outputs, draws[0], mask)[0]

    def greedy(self, outputs: Tensor, mask: Mask = None) -> np.ndarray:
        """The most probable actions to store [..., A]; of Box the mean (its tanh where squashed)."""
        return self.policies.mode(outputs, mask)

    def random_action(self, rng: np.random.Generator, shape: tuple[int, ...], mask: Mask = None) -> np.ndarray:
        """Random legal actions to store [*shape, A]: uniform choices, and Box components uniform in their bounds."""
        each = []
        for agent, kind in zip(self.agent_ids, self.policies.kinds, strict=True):
            own = self.actions.mask_of(agent, mask)
            each.append(uniform_action(kind, self.possible_action_spaces[agent], rng, shape, own))
        return np.concatenate(each, -1)

    def environment_action(self, action: np.ndarray) -> np.ndarray:
        """Stored actions [..., A] as lanes of teams take them: clipped, or scaled where squashed."""
        return self.policies.environment(action)

    def environment_actions(self, actions: Mapping[str, Any]) -> dict[str, Any]:
        """Actions by agent, as `get_action` gave them while training, as the environment takes them; Dict and Tuple
        actions nested as the space is."""
        found: dict[str, Any] = acting.environment_actions(self, actions)
        return found

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
    def is_recurrent(self) -> bool:  # type: ignore[override]
        """Whether any network has a memory."""
        return self.recurrent

    @property
    def hidden_state_architecture(self) -> dict[str, tuple[int, int]]:
        """Key of each part of the hidden state -> (layers, units); empty for a team without a memory."""
        return recurrent.hidden_state_architecture(self)

    def get_initial_hidden_state(self, num_envs: int = 1) -> HiddenStates:
        """Zeros [layers, E, units] under every key of `hidden_state_architecture`: all agents begin an episode."""
        return recurrent.get_initial_hidden_state(self, num_envs)

    def hidden_of_group(self, group: str, hidden: Mapping[str, Tensor], axis: int = -2) -> HiddenStates:
        """The hidden states of a group's agents one after another along `axis`, as `<kind>_<part>`."""
        return recurrent.of_group(self, group, hidden, axis)

    def sequence_limit(self, steps: int) -> int:
        """Most steps of a training sequence, in a rollout of `steps`."""
        return recurrent.sequence_limit(self, steps)

    def recur(
        self, engine: UpdateEngine, obs: Any, hidden: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor, HiddenStates]:
        """One step of all networks, as constants: (outputs [..., E, F], values [..., E, M] as networks give them, next
        hidden states). Who is not there remembers what it did."""
        return recurrent.recur(self, engine, obs, hidden)

    def forget(self, hidden: Mapping[str, Tensor], over: Tensor) -> HiddenStates:
        """The hidden states after a step in which the episodes of agents `over` [..., E, M] ended: theirs begin
        anew."""
        return recurrent.forget(self, hidden, over)

    def begin_episodes(self) -> None:
        """All environments that this team is evaluated in begin an episode."""
        self._playing = None

    def end_episodes(self, over: np.ndarray) -> None:
        """Episodes of agents `over` [E, M] have ended where the team is evaluated; others go on."""
        if self._playing is not None:
            self._playing = self.forget(self._playing, torch.from_numpy(over))

    # --- learning -----------------------------------------------------------------------------------------------------

    def group_rows(self, batch: RolloutBatch, group: str) -> RolloutBatch:
        """The rows [..., K·B] of a group's K agents, and what its policy and its value read: `obs` is (the one, the
        inputs of the other). The weight of a row is 1 where its agent decided, else 0."""
        agents, axis, policies = self.grouped_agents[group], batch.weight.dim() - 1, self.policies
        own = [self.agent_ids.index(agent) for agent in agents]
        is_row = (batch.weight > 0).unsqueeze(-1).expand(batch.log_prob.shape)
        counts = rows_of(is_row if batch.acted is None else is_row & batch.acted, own, axis).to(batch.weight.dtype)
        log_prob, value, advantage, returns = (
            rows_of(x, own, axis) for x in (batch.log_prob, batch.value, batch.advantage, batch.returns)
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
            own = batches[group]
            seen, critic_inputs = own.obs
            raw = _output(engine.network(f"actors.{group}")(seen, *hidden_of("actors", own.hidden)))
            value = _output(engine.network(f"critics.{group}")(*critic_inputs, *hidden_of("critics", own.hidden)))
            with torch.no_grad():
                clip = hp["clip_coef"] if self.clip_value_loss else None
                value_loss, of_value = clipped_value_loss(value[..., -1], own.value, own.returns, clip, own.weight)
                of_value = (hp["vf_coef"] * of_value).unsqueeze(-1)
            kind = self.policies.kind(agents[0])
            actor_loss, entropy, kl, of_raw = policy_gradient(kind, raw.detach(), own.action, own, hp)
            engine.descend_all(f"optimizers.{group}", [raw, value], [of_raw, of_value], hp["max_grad_norm"], own.live)
            losses.append(actor_loss + flat["vf_coef"] * value_loss - flat["ent_coef"] * entropy)
            policy_losses.append(actor_loss)
            divergences.append(kl)
        total, of_policies = torch.stack(losses).sum(0), torch.stack(policy_losses).sum(0)
        return UpdateResult(total, of_policies, kl=engine.ranks.mean(torch.stack(divergences)).amax(0))

    def state_values(self, engine: UpdateEngine, obs: Any) -> Tensor:
        """V [..., B, M] of prepared observations for every agent, as networks give it, as constants; a memory is
        empty."""
        axis = obs[PRESENT].dim() - 2
        found: dict[str, Tensor] = {}
        with torch.no_grad():
            for group, agents in self.grouped_agents.items():
                values = engine.frozen(f"critics.{group}")(*self.value_inputs(obs, group, axis)).squeeze(-1)
                found |= dict(zip(agents, values.chunk(len(agents), axis), strict=True))
        return torch.stack([found[agent] for agent in self.agent_ids], -1)

    def update_hyperparameters(self) -> dict[str, float]:
        return {
            "lr": scheduled(self.lr, self.lr_schedule, self.progress),
            "clip_coef": self.clip_coef,
            "ent_coef": scheduled(self.ent_coef, self.ent_schedule, self.progress),
            "vf_coef": self.vf_coef,
            "max_grad_norm": math.inf if self.max_grad_norm is None else self.max_grad_norm,
        }

    def hyperparameters(self) -> dict[str, float]:
        """What the records show: the live attributes."""
        names = ("lr", "clip_coef", "ent_coef", "vf_coef", "batch_size", "learn_step", "update_epochs", "gamma")
        return self._numbers(*dict.fromkeys([*names, *self.hp_config.names()]))

    def update_options(self) -> tuple[Any, ...]:
        sequences = self.bptt_sequence_type, self.max_seq_len
        return (self.clip_value_loss, *sequences, *self.policies.kinds)

    def update_interval(self) -> int:
        """Vector steps of a rollout."""
        return -(-int(self.learn_step) // int(self.num_envs))

    def draw_entropy_noise(self, rng: np.random.Generator, rows: int) -> np.ndarray | None:
        """Standard normal numbers [rows, C] for squashed policies, whose entropy is estimated by new actions."""
        width = max(own.stop for own in self.policies.entropy_noise.values())
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

    def learn_batch(self, batch: RolloutBatch, plain: bool = True) -> UpdateResult:  # type: ignore[override]
        """One minibatch with plain torch modules; see `learn` for whole rollouts."""
        result = learner_of(self, plain=True).learn(0, batch.map(lambda x: x.unsqueeze(0)))
        return result.map(lambda x: x[0])

    # --- copies and files ---------------------------------------------------------------------------------------------

    @classmethod
    def policy_from_spec(cls, spec: Mapping[str, Any], device: str | torch.device) -> EvolvableNetwork:
        """The policy network that a saved `spec` describes, with fresh weights."""
        return StochasticActor.from_spec(spec, device=device)

    def clone(self, index: int | None = None, wrap: bool = True) -> Self:
        """As of every team; a copy of another index draws its minibatches from a stream of its own."""
        twin = super().clone(index, wrap)
        if index is not None and index != self.index:
            own = seeds(self.seed, Purpose.REPLAY, 1, generation=len(self.fitness), member=index)
            twin._minibatches = np.random.default_rng(own)
        return twin

    def state(self) -> dict[str, Any]:
        """As of every team, with the stream of minibatches."""
        return {**super().state(), "minibatches": self._minibatches.bit_generator.state}

    def load_state(self, state: Mapping[str, Any], source: str = "state") -> None:
        """Become the team that `state` was taken from."""
        super().load_state(state, source)
        if "minibatches" in state:
            self._minibatches.bit_generator.state = state["minibatches"]


def group_batches(team: TeamPPO, batch: RolloutBatch | TeamSequences, ranks: Ranks) -> dict[str, RolloutBatch]:
    """The rows of every group as `group_rows`; those that their agent decided, on all ranks together, count alike.

    Weights sum to 1 in one process, and on average over several ranks. A group of which nobody decided does not move.
    """
    if isinstance(batch, TeamSequences):
        rows, all_decided = dict(batch.groups), False
    else:
        rows = {group: team.group_rows(batch, group) for group in team.grouped_agents}
        all_decided = batch.acted is None and ranks.size == 1
    totals = ranks.mean(torch.stack([own.weight.sum(-1, keepdim=True) for own in rows.values()]))
    batches = {}
    for (group, own), total in zip(rows.items(), totals, strict=True):
        live = batch.live
        if not all_decided:
            has_rows = (total > 0).flatten().tolist()
            live = tuple(a and b for a, b in zip(live or (True,) * len(has_rows), has_rows, strict=True))
        # A single decision of all ranks is 1 / ranks of one on average.
        batches[group] = replace(own, weight=own.weight / total.clamp(min=1 / ranks.size), live=live)
    return batches


def _output(found: Any) -> Tensor:
    """What a network gives, without the hidden state beside it."""
    output: Tensor = found[0] if isinstance(found, tuple) else found
    return output


def minibatch_stream(team: TeamPPO) -> np.random.Generator:
    """What a new team draws the order of its minibatches from."""
    return np.random.default_rng(seeds(team.seed, Purpose.REPLAY, 1, member=team.index))
