"""What IPPO and MAPPO have in common: networks by group, the update of all groups, rollouts, the published face.

They differ in what a value reads: `judged` of each. Shapes: [..., B, x] with a leading member axis over rows, without
one for modules. The K agents of a group are K·B rows of one batch, agent by agent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, optim

from agilerl import tree
from agilerl.algorithms import team_playing
from agilerl.algorithms.optimizer import OptimizerWrapper
from agilerl.algorithms.policy_gradient import policy_gradient
from agilerl.algorithms.registry import NetworkGroup
from agilerl.algorithms.rollouts import remember
from agilerl.algorithms.team_critics import config_of, fitting, rows_of
from agilerl.algorithms.team_policies import TeamPolicies, in_bounds
from agilerl.components.rollout_store import RolloutStore
from agilerl.engine.learner import learner_of
from agilerl.engine.protocol import Draws, Mask, RolloutBatch, UpdateEngine, UpdateResult
from agilerl.engine.rollouts import learn_rollout
from agilerl.engine.team_rollouts import make_team_rollout
from agilerl.envs.teams import AGENTS, PRESENT, STATE
from agilerl.errors import NotAvailableYetError, ShapeError, unknown_name
from agilerl.losses.actor_critic import clipped_value_loss
from agilerl.networks.actors import StochasticActor
from agilerl.networks.base import EvolvableNetwork, checked_arguments
from agilerl.networks.q_networks import ContinuousQNetwork
from agilerl.networks.value_networks import ValueNetwork
from agilerl.rng import Purpose, seeds

Team = Any  # IPPO or MAPPO, which take these functions as their methods

ADAM_EPS = 1e-5  # as of PPO
POLICY_KEYS = ("squash_output", "log_std_init")  # of `net_config`, not for values
FIELDS = ("observations", "actions", "log_probs", "rewards", "dones", "values", "next_obs", "next_done")
EXTRA = ("truncateds", "final_observations")
BY_STEP = (*FIELDS[:6], *EXTRA, "action_masks")


# --- networks ---------------------------------------------------------------------------------------------------------


def refuse_memory(team: Team, recurrent: bool) -> None:
    """NotAvailableYetError for policies with a memory."""
    if recurrent:
        raise NotAvailableYetError(
            f"{team.algo}(recurrent=True) is not built yet: teams act without a memory. fix: recurrent=False, and "
            "frames stacked in the environment where one observation does not tell enough."
        )


def build(team: Team, actors: Mapping[str, Any] | None, critics: Mapping[str, Any] | None) -> None:
    """Make, or take over, a policy and a value for each group, with one optimiser for both."""
    own = seeds(team.seed, Purpose.INITIAL_WEIGHTS, 2 * len(team.grouped_agents), generation=2).tolist()
    actors, critics = (_checked(team, given, what) for given, what in ((actors, "actor"), (critics, "critic")))
    for number, group in enumerate(team.grouped_agents):
        actor = actors.get(group) or make_policy(team, group, own[2 * number])
        scale = actor.scale_observations
        critic = critics.get(group) or team.make_value(group, own[2 * number + 1], scale_observations=scale)
        networks = [team.registered("actors", group, actor), team.registered("critics", group, critic)]
        for network in networks:
            network.normalize_images = team.normalize_images
        wrapper = OptimizerWrapper(optim.Adam, networks, team.lr, {"eps": ADAM_EPS}, lr_name="lr")
        setattr(team, f"optimizers.{group}", wrapper)
        team.register_network_group(NetworkGroup(networks[0], policy=True))
    for group in team.grouped_agents:
        team.register_network_group(NetworkGroup(getattr(team, f"critics.{group}")))


def _checked(team: Team, given: Mapping[str, Any] | None, what: str) -> Mapping[str, EvolvableNetwork]:
    """Networks by group; TypeError for what evolution cannot carry, ConfigError-like text for a group there is not."""
    given = given or {}
    for group, network in given.items():
        if group not in team.grouped_agents:
            raise ShapeError(f"{team.algo}: {what}_networks: {unknown_name('group', str(group), team.grouped_agents)}")
        if not isinstance(network, EvolvableNetwork):
            raise TypeError(
                f"All {what} networks must be instances of EvolvableNetwork; {group!r} is a "
                f"{type(network).__name__}. fix: StochasticActor, or ValueNetwork."
            )
    return given


def make_policy(team: Team, group: str, seed: int) -> StochasticActor:
    """The policy of a group, after the team's `net_config`."""
    space, action = team.observation_space[group], team.action_space[group]
    config = dict(config_of(team, group))
    if not isinstance(action, gym.spaces.Box):
        config = {key: value for key, value in config.items() if key not in POLICY_KEYS}
    arguments = checked_arguments(fitting(config, space), StochasticActor)
    if isinstance(action, gym.spaces.Box):
        arguments.setdefault("log_std_init", math.log(team.action_std_init))
    return StochasticActor(space, action, device=team.device, random_seed=seed, **arguments)


def make_network(
    team: Team, group: str, space: gym.Space[Any], seed: int, told: int, **more: Any
) -> ValueNetwork | ContinuousQNetwork:
    """A value of observations of `space`; with `told` its head takes beside them which of so many agents asks."""
    config = {key: value for key, value in config_of(team, group).items() if key not in POLICY_KEYS}
    if isinstance(config.get("head_config"), Mapping):  # an output activation is the policies' alone
        config["head_config"] = {k: v for k, v in config["head_config"].items() if k != "output_activation"}
    cls = ContinuousQNetwork if told else ValueNetwork
    arguments = checked_arguments(fitting(config, space), cls) | more
    if not told:
        return ValueNetwork(space, device=team.device, random_seed=seed, **arguments)
    who = gym.spaces.Box(0, 1, (told,), np.float32)
    return ContinuousQNetwork(space, who, device=team.device, random_seed=seed, **arguments)


def policies_of(team: Team) -> TeamPolicies:
    """What the outputs of all policies mean."""
    squashed = {a: getattr(team, f"actors.{team.get_group_id(a)}").squash_output for a in team.agent_ids}
    return TeamPolicies.of(team.actions, team.possible_action_spaces, squashed)


def own_rows(obs: Any, agents: Sequence[str], axis: int) -> Any:
    """What the agents of a group see, as more rows."""
    seen = [obs[AGENTS][agent] for agent in agents]
    return seen[0] if len(seen) == 1 else tree.concatenate(seen, axis)


# --- the update -------------------------------------------------------------------------------------------------------


def group_batch(team: Team, batch: RolloutBatch, group: str) -> RolloutBatch:
    """The rows [..., K·B] of a group's K agents; each that decided counts alike, those of others have weight 0."""
    agents, axis, policies = team.grouped_agents[group], batch.weight.dim() - 1, team.policies
    own = [team.agent_ids.index(agent) for agent in agents]
    is_row = (batch.weight > 0).unsqueeze(-1).expand(batch.log_prob.shape)
    counts = rows_of(is_row if batch.acted is None else is_row & batch.acted, own, axis).to(batch.weight.dtype)
    total = counts.sum(-1, keepdim=True)
    weight, live = counts / total.clamp(min=1), batch.live
    if batch.acted is not None:  # a group of which nobody decided does not move
        has_rows = (total > 0).flatten().tolist()
        live = tuple(a and b for a, b in zip(live or (True,) * len(has_rows), has_rows, strict=True))
    log_prob, value, advantage, returns = (
        rows_of(x, own, axis) for x in (batch.log_prob, batch.value, batch.advantage, batch.returns)
    )
    legal, noise = batch.legal, batch.noise
    chosen = team.actions.of_agent(agents[0]).is_choice
    legal = (
        torch.cat([legal[..., team.actions.masks[a]] for a in agents], axis) if legal is not None and chosen else None
    )
    noise = None if noise is None else torch.cat([noise[..., policies.entropy_noise[a]] for a in agents], axis)
    return RolloutBatch(
        own_rows(batch.obs, agents, axis),
        torch.cat([policies.action(agent, batch.action) for agent in agents], axis),
        log_prob,
        value,
        advantage,
        returns,
        weight,
        legal=legal,
        live=live,
        noise=noise,
    )


def update(team: Team, engine: UpdateEngine, batch: RolloutBatch) -> UpdateResult:
    """One minibatch, group by group: L = L_clip + c_v L_v − c_e H, as of PPO, over the rows of the group's agents
    (arXiv:2011.09533, section 3; arXiv:2103.01955, appendix A).

    The divergence reported is that of the group that moved most.
    """
    hp, losses, policy_losses, divergences = engine.hp, [], [], []
    axis = batch.weight.dim() - 1
    flat = {name: hp[name].squeeze(-1) if hp[name].dim() else hp[name] for name in ("vf_coef", "ent_coef")}
    for group, agents in team.grouped_agents.items():
        own = group_batch(team, batch, group)
        raw = engine.network(f"actors.{group}")(own.obs)
        value = team.judged(engine.network(f"critics.{group}"), batch.obs, group, axis)
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
    return UpdateResult(total, of_policies, kl=torch.stack(divergences).amax(0))


def state_values(team: Team, engine: UpdateEngine, obs: Any) -> Tensor:
    """V [..., B, M] of prepared observations for every agent, as networks give it, as constants."""
    axis = obs[PRESENT].dim() - 2
    found: dict[str, Tensor] = {}
    with torch.no_grad():
        for group, agents in team.grouped_agents.items():
            values = team.judged(engine.frozen(f"critics.{group}"), obs, group, axis).squeeze(-1)
            found |= dict(zip(agents, values.chunk(len(agents), axis), strict=True))
    return torch.stack([found[agent] for agent in team.agent_ids], -1)


def update_hyperparameters(team: Team) -> dict[str, float]:
    return {
        "lr": team.lr,
        "clip_coef": team.clip_coef,
        "ent_coef": team.ent_coef,
        "vf_coef": team.vf_coef,
        "max_grad_norm": math.inf if team.max_grad_norm is None else team.max_grad_norm,
    }


def hyperparameters(team: Team) -> dict[str, float]:
    """What the records show: the live attributes."""
    names = ("lr", "clip_coef", "ent_coef", "vf_coef", "batch_size", "learn_step", "update_epochs", "gamma")
    return {name: getattr(team, name) for name in dict.fromkeys([*names, *team.hp_config.names()])}


def update_options(team: Team) -> tuple[Any, ...]:
    return (team.clip_value_loss, *(kind.kind for kind in team.policies.kinds))


def update_interval(team: Team) -> int:
    """Vector steps of a rollout."""
    return -(-int(team.learn_step) // int(team.num_envs))


# --- acting -----------------------------------------------------------------------------------------------------------


def draw_exploration(team: Team, rng: np.random.Generator, shape: tuple[int, ...]) -> Draws:
    """Standard normal numbers for Box components, uniform ones for choices [*shape, R]."""
    return (team.policies.draw(rng, shape),)


def sample(team: Team, outputs: Tensor, draws: Draws, mask: Mask = None) -> tuple[np.ndarray, np.ndarray]:
    """(actions [..., A] to store, their log probabilities [..., M])."""
    policies: TeamPolicies = team.policies
    return policies.sample(outputs, draws[0], mask)


def explore(team: Team, outputs: Tensor, draws: Draws, epsilon: float = 0.0, mask: Mask = None) -> np.ndarray:
    """A sample of the policies [..., A]; `epsilon` has no meaning."""
    policies: TeamPolicies = team.policies
    return policies.sample(outputs, draws[0], mask)[0]


def greedy(team: Team, outputs: Tensor, mask: Mask = None) -> np.ndarray:
    """The most probable actions to store [..., A]; of Box the mean (its tanh where squashed)."""
    policies: TeamPolicies = team.policies
    return policies.mode(outputs, mask)


def random_action(team: Team, rng: np.random.Generator, shape: tuple[int, ...], mask: Mask = None) -> np.ndarray:
    """Random legal actions to store [*shape, A]: uniform choices, and Box components uniform in their bounds."""
    policies: TeamPolicies = team.policies
    outputs = torch.zeros(*shape, sum(kind.raw_size for kind in policies.kinds))
    stored = policies.sample(outputs, policies.draw(rng, shape), mask)[0]
    for agent, one, kind in zip(team.agent_ids, team.actions.each, policies.kinds, strict=True):
        if not one.is_choice:
            low, high = (-1.0, 1.0) if kind.kind == "squashed" else (one.low, one.high)
            stored[..., team.actions.columns[agent]] = rng.uniform(low, high, (*shape, one.size))
    return stored


def environment_action(team: Team, action: np.ndarray) -> np.ndarray:
    """Stored actions [..., A] as lanes of teams take them: clipped, or scaled where squashed."""
    policies: TeamPolicies = team.policies
    return policies.environment(action)


def draw_entropy_noise(team: Team, rng: np.random.Generator, rows: int) -> np.ndarray | None:
    """Standard normal numbers [rows, C] for squashed policies, whose entropy is estimated by new actions."""
    width = max(own.stop for own in team.policies.entropy_noise.values())
    return rng.standard_normal((rows, width)) if width else None


def get_action(
    team: Team, obs: Mapping[str, Any], infos: Mapping[str, Any] | None = None, training: bool | None = None
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(actions, log probabilities, entropies, values), each by agent: {agent: [E, ...]}.

    Args:
        obs: one observation or a batch [E, ...] of each agent; agents that are left out are not there. MAPPO needs
            those of all agents, or `state`.
        infos: by agent; `action_mask` (1 = legal) and `env_defined_actions` of each are heeded.
        training: whether to sample; the team's own mode where it is not given. Then Box actions are neither clipped nor
            scaled, as `learn` wants them: `environment_actions` gives them as the environment takes them.
    """
    infos, (seen, lanes) = infos or {}, team.observed(obs)
    mask, policies = team_playing.masks_of(team, infos, lanes), team.policies
    explores = team.training if training is None else training
    outputs, raw_values = _run(team, seen, lanes)
    if explores:
        stored, log_prob = team.sample(outputs, team.draw_exploration(team._exploration, (lanes,)), mask)
        entropy = policies.judged(outputs, stored, mask)[1]
    else:
        stored = team.greedy(outputs, mask)
        log_prob, entropy = policies.judged(outputs, stored, mask)
    mean, deviation = team.value_scale()
    values = (raw_values.cpu().numpy() * deviation + mean).astype(log_prob.dtype)
    actions = {}
    for agent in team.agent_ids:
        if agent not in obs:
            continue
        one, own = team.actions.of_agent(agent), stored[..., team.actions.columns[agent]]
        if one.is_choice or not explores:
            own = policies.environment(stored)[..., team.actions.columns[agent]]
        space = team.possible_action_spaces[agent]
        shaped = own[..., 0] if isinstance(space, gym.spaces.Discrete) else own.reshape(lanes, *(space.shape or ()))
        shaped = np.rint(shaped).astype(np.int64) if one.is_choice else shaped
        actions[agent] = team_playing.as_defined(team, agent, shaped, infos.get(agent))
    by_agent = [{a: x[..., k] for k, a in enumerate(team.agent_ids) if a in obs} for x in (log_prob, entropy, values)]
    return actions, by_agent[0], by_agent[1], by_agent[2]


def _run(team: Team, seen: Any, lanes: int) -> tuple[Tensor, Tensor]:
    """(outputs [E, F], raw values [E, M]) of the team's own modules, `action_batch_size` lanes at a time."""
    size, engine = team.action_batch_size or lanes, learner_of(team, plain=True).groups[0].engine
    outputs, values = [], []
    with torch.no_grad():
        for start in range(0, lanes, size):
            part = tree.map_leaves(lambda x, s=start: torch.as_tensor(x[s : s + size], device=team.device), seen)
            outputs.append(team.policy_output(part))
            values.append(state_values(team, engine, part))
    return torch.cat(outputs), torch.cat(values)


def environment_actions(team: Team, actions: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Actions by agent, as `get_action` gave them while training, as the environment takes them."""
    found = {}
    for agent, action in actions.items():
        space, action = team.possible_action_spaces[agent], np.asarray(action)
        if isinstance(space, gym.spaces.Box):
            one, kind = team.actions.of_agent(agent), team.policies.kind(agent)
            flat = in_bounds(one, kind, action.reshape(-1, one.size))
            action = flat.reshape(action.shape).astype(space.dtype)
        found[agent] = action
    return found


# --- learning from a rollout ------------------------------------------------------------------------------------------


def make_buffer(team: Team, steps: int, lanes: int, num_legal: int = 0) -> RolloutStore:
    """An empty store for rollouts of this team, or of several of its kind in lockstep."""
    space, action = team.team.observation_space, team.team.action_space
    return RolloutStore(steps, lanes, space, action, None, num_legal, agents=team.n_agents)


def learn(team: Team, experiences: Any) -> dict[str, float]:
    """Learn from one rollout, in `update_epochs` passes of minibatches.

    Args:
        experiences: (observations, actions, log_probs, rewards, dones, values, next_obs, next_done), each by agent: of
            the first six lists over time of [E, ...] arrays, as `get_action` and the environment gave them; `dones[t]`
            is the flag BEFORE step t. Such an end counts as termination, unless a ninth and a tenth entry (or, in a
            mapping, `truncateds` and `final_observations`) say of every step who was cut off, and what it saw last. A
            mapping may hold `action_masks`, too. An agent whose reward or flag is NaN did not act.

    Returns:
        {group: mean loss of the minibatches, summed over groups}.

    Raises:
        ShapeError: entries that are missing, or of different lengths.
    """
    loss = team.learn_buffer(buffer_from_experiences(team, experiences))
    return dict.fromkeys(team.shared_agent_ids, loss)


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


def buffer_from_experiences(team: Team, experiences: Any) -> RolloutStore:
    """The published experiences of one rollout as a full buffer; see `learn`."""
    given = _named(team, experiences)
    steps, lanes = np.reshape(
        _stacked(given["rewards"], team), (len(_first(given["rewards"])), -1, team.n_agents)
    ).shape[:2]
    numbers = {
        name: _stacked(given[name], team).reshape(steps, lanes, team.n_agents)
        for name in ("log_probs", "rewards", "dones", "values")
    }
    last_done = _stacked({a: [x] for a, x in given["next_done"].items()}, team).reshape(1, lanes, team.n_agents)
    acted = ~(np.isnan(numbers["rewards"]) | np.isnan(numbers["dones"]))
    ended = np.nan_to_num(np.concatenate((numbers["dones"][1:], last_done))).astype(bool) & acted
    cut = np.zeros_like(ended)
    if given.get("truncateds") is not None:
        if given.get("final_observations") is None:
            raise ShapeError(
                f"{team.algo}.learn: truncateds need final_observations: what was seen last before resets."
            )
        cut = np.nan_to_num(_stacked(given["truncateds"], team)).astype(bool).reshape(ended.shape) & acted
    masks = given.get("action_masks")
    buffer: RolloutStore = team.make_buffer(
        steps, lanes, 0 if masks is None else list(team.actions.masks.values())[-1].stop
    )
    for t in range(steps):
        legal = None
        if masks is not None:
            infos = {agent: {"action_mask": own[t]} for agent, own in masks.items()}
            legal = team_playing.masks_of(team, infos, lanes)
        finals = None if not cut.any() else _seen(team, given["final_observations"], t, lanes, np.ones(acted[t].shape))
        action = [_action_columns(team, agent, given["actions"], t, lanes) for agent in team.agent_ids]
        buffer.add(
            _seen(team, given["observations"], t, lanes, acted[t]),
            np.concatenate(action, -1),
            np.nan_to_num(numbers["rewards"][t]),
            ended[t] & ~cut[t],
            cut[t],
            np.nan_to_num(numbers["log_probs"][t]),
            (np.nan_to_num(numbers["values"][t]) - team.value_scale()[0]) / team.value_scale()[1],
            final_obs=finals,
            valid=acted[t],
            legal=legal,
        )
    there = np.stack([np.full(lanes, agent in given["next_obs"]) for agent in team.agent_ids], -1)
    there &= ~np.isnan(last_done[0])
    buffer.last_obs = _seen(team, {a: [x] for a, x in given["next_obs"].items()}, 0, lanes, there)
    return buffer


def _named(team: Team, experiences: Any) -> dict[str, Any]:
    if isinstance(experiences, Mapping):
        found = dict(experiences)
    elif isinstance(experiences, tuple | list) and len(experiences) in (len(FIELDS), len(FIELDS) + len(EXTRA)):
        found = dict(zip((*FIELDS, *EXTRA), experiences, strict=False))
    else:
        raise ShapeError(
            f"{team.algo}.learn got a {type(experiences).__name__}; expected a tuple of {len(FIELDS)}: "
            f"{', '.join(FIELDS)}, each by agent."
        )
    missing = [name for name in FIELDS if found.get(name) is None]
    if missing:
        raise ShapeError(f"{team.algo}.learn got experiences without {', '.join(missing)}.")
    lengths = {f"{name} of {a}": len(x) for name in BY_STEP if found.get(name) for a, x in found[name].items()}
    if len(set(lengths.values())) != 1 or not next(iter(lengths.values())):
        raise ShapeError(
            f"{team.algo}.learn got lists of different lengths, or empty ones: {lengths}. fix: one of each in every "
            "vector step."
        )
    shown = (*team.agent_ids, STATE)  # the state is no agent's
    unknown = [a for name in BY_STEP if found.get(name) for a in found[name] if a not in shown]
    if unknown:
        raise ShapeError(f"{team.algo}.learn: {unknown_name('agent', str(unknown[0]), team.agent_ids)}")
    return found


def _first(by_agent: Mapping[str, Any]) -> Any:
    return next(iter(by_agent.values()))


def _array(x: Any) -> np.ndarray:
    return x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)


def _stacked(by_agent: Mapping[str, Any], team: Team) -> np.ndarray:
    """Numbers [T, E, M]; NaN for an agent that is left out."""
    each = {a: np.stack([np.asarray(_array(x), np.float64).reshape(-1) for x in own]) for a, own in by_agent.items()}
    absent = np.full(_first(each).shape, np.nan)
    return np.stack([each.get(agent, absent) for agent in team.agent_ids], -1)


def _seen(team: Team, by_agent: Mapping[str, Any], t: int, lanes: int, there: np.ndarray) -> dict[str, Any]:
    """A team's observation [E, ...] of one step, zero where an agent was not there."""
    seen, count = team.observed({agent: own[t] for agent, own in by_agent.items()})
    if count != lanes:
        raise ShapeError(f"{team.algo}.learn got {count} observations in a step of {lanes} lanes.")
    rows = {}
    for k, agent in enumerate(team.agent_ids):
        own = there[:, k].astype(bool)
        rows[agent] = tree.map_leaves(
            lambda x, own=own: np.where(own.reshape(-1, *[1] * (x.ndim - 1)), _array(x), 0).astype(_array(x).dtype),
            seen[AGENTS][agent],
        )
    others = {key: tree.map_leaves(_array, part) for key, part in seen.items() if key not in (AGENTS, PRESENT)}
    return {AGENTS: rows, PRESENT: there.astype(np.int8), **others}


def _action_columns(team: Team, agent: str, actions: Mapping[str, Any], t: int, lanes: int) -> np.ndarray:
    own = {agent: actions[agent][t]} if agent in actions else {}
    found = team_playing.stored_action(team, agent, own, lanes, torch.float32)
    return found.nan_to_num().cpu().numpy()
