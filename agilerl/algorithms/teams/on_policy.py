"""What IPPO and MAPPO have in common: the update of all groups, learning from rollouts, copies and files.

They differ in what a value reads: `value_inputs` of each. Shapes: [..., B, x] with a leading member axis over rows,
without one for modules. The K agents of a group are K·B rows of one batch, agent by agent. Their networks are made in
`team_actor_critics`; how they act is in `team_acting`, what they remember in `team_memory`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.base.policy_gradient import policy_gradient
from agilerl.algorithms.base.rollouts import hidden_of, remember
from agilerl.algorithms.base.schedules import scheduled
from agilerl.algorithms.teams.actor_critics import Team, own_rows
from agilerl.algorithms.teams.base import MultiAgentRLAlgorithm
from agilerl.algorithms.teams.deterministic import rows_of
from agilerl.algorithms.teams.experiences import buffer_from_experiences
from agilerl.algorithms.teams.names import Losses
from agilerl.components.rollout_store import RolloutStore
from agilerl.engine.learner import learner_of
from agilerl.engine.protocol import RolloutBatch, UpdateEngine, UpdateResult
from agilerl.engine.rollouts import learn_rollout
from agilerl.engine.team_rollouts import make_team_rollout
from agilerl.engine.team_sequences import TeamSequences
from agilerl.envs.teams import PRESENT
from agilerl.losses.actor_critic import clipped_value_loss
from agilerl.networks.actors import StochasticActor
from agilerl.networks.base import EvolvableNetwork
from agilerl.ranks import Ranks
from agilerl.rng import Purpose, seeds

# --- the update ------------------------------------------------------------------------------------------------------


def group_rows(team: Team, batch: RolloutBatch, group: str) -> RolloutBatch:
    """The rows [..., K·B] of a group's K agents, and what its policy and its value read: `obs` is (the one, the inputs
    of the other). The weight of a row is 1 where its agent decided, else 0."""
    agents, axis, policies = team.grouped_agents[group], batch.weight.dim() - 1, team.policies
    own = [team.agent_ids.index(agent) for agent in agents]
    is_row = (batch.weight > 0).unsqueeze(-1).expand(batch.log_prob.shape)
    counts = rows_of(is_row if batch.acted is None else is_row & batch.acted, own, axis).to(batch.weight.dtype)
    log_prob, value, advantage, returns = (
        rows_of(x, own, axis) for x in (batch.log_prob, batch.value, batch.advantage, batch.returns)
    )
    legal, noise = batch.legal, batch.noise
    if legal is not None:
        masks = [team.actions.mask_of(agent, legal) for agent in agents]
        legal = None if masks[0] is None else torch.cat(masks, axis)
    noise = None if noise is None else torch.cat([noise[..., policies.entropy_noise[a]] for a in agents], axis)
    return RolloutBatch(
        (own_rows(batch.obs, agents, axis), team.value_inputs(batch.obs, group, axis)),
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


def group_batches(team: Team, batch: RolloutBatch | TeamSequences, ranks: Ranks) -> dict[str, RolloutBatch]:
    """The rows of every group as `group_rows`; those that their agent decided, on all ranks together, count alike.

    Weights sum to 1 in one process, and on average over several ranks. A group of which nobody decided does not move.
    """
    if isinstance(batch, TeamSequences):
        rows, all_decided = dict(batch.groups), False
    else:
        rows = {group: group_rows(team, batch, group) for group in team.grouped_agents}
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


def update(team: Team, engine: UpdateEngine, batch: RolloutBatch | TeamSequences) -> UpdateResult:
    """One minibatch, group by group: L = L_clip + c_v L_v − c_e H, as of PPO, over the rows of the group's agents
    (arXiv:2011.09533, section 3; arXiv:2103.01955, appendix A).

    The divergence reported is that of the group that moved most, on all ranks together.
    """
    hp, losses, policy_losses, divergences = engine.hp, [], [], []
    flat = {name: hp[name].squeeze(-1) if hp[name].dim() else hp[name] for name in ("vf_coef", "ent_coef")}
    batches = group_batches(team, batch, engine.ranks)
    for group, agents in team.grouped_agents.items():
        own = batches[group]
        seen, critic_inputs = own.obs
        raw = _output(engine.network(f"actors.{group}")(seen, *hidden_of("actors", own.hidden)))
        value = _output(engine.network(f"critics.{group}")(*critic_inputs, *hidden_of("critics", own.hidden)))
        with torch.no_grad():
            clip = hp["clip_coef"] if team.clip_value_loss else None
            value_loss, of_value = clipped_value_loss(value[..., -1], own.value, own.returns, clip, own.weight)
            of_value = (hp["vf_coef"] * of_value).unsqueeze(-1)
        kind = team.policies.kind(agents[0])
        actor_loss, entropy, kl, of_raw = policy_gradient(kind, raw.detach(), own.action, own, hp)
        engine.descend_all(f"optimizers.{group}", [raw, value], [of_raw, of_value], hp["max_grad_norm"], own.live)
        losses.append(actor_loss + flat["vf_coef"] * value_loss - flat["ent_coef"] * entropy)
        policy_losses.append(actor_loss)
        divergences.append(kl)
    total, of_policies = torch.stack(losses).sum(0), torch.stack(policy_losses).sum(0)
    return UpdateResult(total, of_policies, kl=engine.ranks.mean(torch.stack(divergences)).amax(0))


def _output(found: Any) -> Tensor:
    """What a network gives, without the hidden state beside it."""
    output: Tensor = found[0] if isinstance(found, tuple) else found
    return output


def state_values(team: Team, engine: UpdateEngine, obs: Any) -> Tensor:
    """V [..., B, M] of prepared observations for every agent, as networks give it, as constants; a memory is empty."""
    axis = obs[PRESENT].dim() - 2
    found: dict[str, Tensor] = {}
    with torch.no_grad():
        for group, agents in team.grouped_agents.items():
            values = engine.frozen(f"critics.{group}")(*team.value_inputs(obs, group, axis)).squeeze(-1)
            found |= dict(zip(agents, values.chunk(len(agents), axis), strict=True))
    return torch.stack([found[agent] for agent in team.agent_ids], -1)


def update_hyperparameters(team: Team) -> dict[str, float]:
    return {
        "lr": scheduled(team.lr, team.lr_schedule, team.progress),
        "clip_coef": team.clip_coef,
        "ent_coef": scheduled(team.ent_coef, team.ent_schedule, team.progress),
        "vf_coef": team.vf_coef,
        "max_grad_norm": math.inf if team.max_grad_norm is None else team.max_grad_norm,
    }


def hyperparameters(team: Team) -> dict[str, float]:
    """What the records show: the live attributes."""
    names = ("lr", "clip_coef", "ent_coef", "vf_coef", "batch_size", "learn_step", "update_epochs", "gamma")
    return {name: getattr(team, name) for name in dict.fromkeys([*names, *team.hp_config.names()])}


def update_options(team: Team) -> tuple[Any, ...]:
    sequences = team.bptt_sequence_type, team.max_seq_len
    return (team.clip_value_loss, *sequences, *team.policies.kinds)


def update_interval(team: Team) -> int:
    """Vector steps of a rollout."""
    return -(-int(team.learn_step) // int(team.num_envs))


def draw_entropy_noise(team: Team, rng: np.random.Generator, rows: int) -> np.ndarray | None:
    """Standard normal numbers [rows, C] for squashed policies, whose entropy is estimated by new actions."""
    width = max(own.stop for own in team.policies.entropy_noise.values())
    return rng.standard_normal((rows, width)) if width else None


# --- learning from a rollout ------------------------------------------------------------------------------------------


def make_buffer(team: Team, steps: int, lanes: int, num_legal: int = 0) -> RolloutStore:
    """An empty store for rollouts of this team, or of several of its kind in lockstep."""
    space, action = team.team.observation_space, team.team.action_space
    shapes = team.hidden_state_architecture
    return RolloutStore(steps, lanes, space, action, shapes, num_legal, agents=team.n_agents)


def learn(team: Team, experiences: Any) -> dict[str, float]:
    """Learn from one rollout, in `update_epochs` passes of minibatches.

    Args:
        experiences: (observations, actions, log_probs, rewards, dones, values, next_obs, next_done), each by agent: of
            the first six lists over time of [E, ...] arrays, as `get_action` and the environment gave them; `dones[t]`
            is the flag BEFORE step t. Such an end counts as termination, unless a ninth and a tenth entry (or, in a
            mapping, `truncateds` and `final_observations`) say of every step who was cut off, and what it saw last. A
            mapping may hold `action_masks`, too; and of a team with a memory, whose observations do not tell all,
            `hidden_states` (a list of what `get_action` was given, else sequences begin at zero), `final_values` (of
            the final observations, by agent) and `last_values` (of `next_obs`). An agent whose reward or flag is NaN
            did not act.

    Returns:
        {group: mean loss of the minibatches, summed over groups}; see `Losses`.

    Raises:
        ShapeError: entries that are missing, or of different lengths.
    """
    loss = team.learn_buffer(buffer_from_experiences(team, experiences))
    return Losses(dict.fromkeys(team.shared_agent_ids, loss))


def learn_buffer(team: Team, buffer: RolloutStore) -> float:
    """As `learn`, from a rollout buffer with the lanes of this team alone; it is left as it is."""
    learner = learner_of(team)
    rollout = make_team_rollout(learner, 0, [team], buffer, next(iter(team.policy_module().parameters())))
    (report,) = learn_rollout(learner, 0, [team], rollout, [team._minibatches])
    learner.settle()
    remember(team, buffer, slice(None))
    return report.mean_loss


def learn_batch(team: Team, batch: RolloutBatch, plain: bool = True) -> UpdateResult:
    """One minibatch with plain torch modules; see `learn` for whole rollouts."""
    result = learner_of(team, plain=True).learn(0, batch.map(lambda x: x.unsqueeze(0)))
    return result.map(lambda x: x[0])


# --- copies and files -------------------------------------------------------------------------------------------------


def minibatch_stream(team: Team) -> np.random.Generator:
    """What a new team draws the order of its minibatches from."""
    return np.random.default_rng(seeds(team.seed, Purpose.REPLAY, 1, member=team.index))


def policy_from_spec(cls: type, spec: Mapping[str, Any], device: str | torch.device) -> EvolvableNetwork:
    """The policy network that a saved `spec` describes, with fresh weights."""
    return StochasticActor.from_spec(spec, device=device)


def clone(team: Team, index: int | None = None, wrap: bool = True) -> Any:
    """As of every team; a copy of another index draws its minibatches from a stream of its own."""
    twin: Any = MultiAgentRLAlgorithm.clone(team, index, wrap)
    if index is not None and index != team.index:
        own = seeds(team.seed, Purpose.REPLAY, 1, generation=len(team.fitness), member=index)
        twin._minibatches = np.random.default_rng(own)
    return twin


def state(team: Team) -> dict[str, Any]:
    """As of every team, with the stream of minibatches."""
    return {**MultiAgentRLAlgorithm.state(team), "minibatches": team._minibatches.bit_generator.state}


def load_state(team: Team, state: Mapping[str, Any], source: str = "state") -> None:
    """Become the team that `state` was taken from."""
    MultiAgentRLAlgorithm.load_state(team, state, source)
    if "minibatches" in state:
        team._minibatches.bit_generator.state = state["minibatches"]
