"""How teams with stochastic policies act: what engines ask of them, and the published face by agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agilerl import tree
from agilerl.algorithms.base.rollouts import HiddenStates
from agilerl.algorithms.teams import evaluation as team_playing
from agilerl.algorithms.teams import recurrent as team_memory
from agilerl.algorithms.teams.names import keep_ids
from agilerl.algorithms.teams.policies import in_bounds
from agilerl.engine.learner import learner_of
from agilerl.engine.protocol import Mask
from agilerl.envs.team import as_action
from agilerl.envs.teams import PRESENT

if TYPE_CHECKING:
    from agilerl.algorithms.teams.on_policy import TeamPPO


def get_action(
    team: TeamPPO,
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
            space (in [-1, 1] where squashed) and not clipped, and Dict and Tuple actions are rows of numbers [E, K], as
            `learn` wants them: `environment_actions` gives them as the environment takes them.
        hidden_state: of a team with a memory, key -> [layers, E, units]; None begins an episode. `forget` begins those
            of agents anew that have ended while others go on.
    """
    infos, (seen, lanes) = infos or {}, team.observed(obs)
    mask, policies = team_playing.masks_of(team, infos, lanes, obs), team.policies
    explores = team.training if training is None else training
    hidden = team_memory.checked_hidden(team, hidden_state, lanes)
    outputs, raw_values, hidden = _run(team, seen, lanes, hidden)
    if explores:
        stored, log_prob = team.sample(outputs, team.draw_exploration(team._exploration, (lanes,)), mask)
        entropy = policies.evaluate_actions(outputs, stored, mask)[1]
    else:
        stored = team.greedy(outputs, mask)
        log_prob, entropy = policies.evaluate_actions(outputs, stored, mask)
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
        if one.parts:  # rows of numbers to store, else nested as the space is
            actions[agent] = own if explores else as_action(space, own)
            continue
        shaped = own[..., 0] if isinstance(space, gym.spaces.Discrete) else own.reshape(lanes, *(space.shape or ()))
        if not explores and isinstance(space, gym.spaces.Box):
            shaped = as_action(space, own)
        shaped = np.rint(shaped).astype(np.int64) if one.is_choice else shaped
        actions[agent] = team_playing.as_defined(team, agent, shaped, infos.get(agent))
    by_agent = [{a: x[..., k] for k, a in enumerate(team.agent_ids) if a in obs} for x in (log_prob, entropy, values)]
    return (actions, *by_agent, hidden) if team.recurrent else (actions, *by_agent)


def _run(team: TeamPPO, seen: Any, lanes: int, hidden: HiddenStates) -> tuple[Tensor, Tensor, HiddenStates]:
    """(outputs [E, F], raw values [E, M], next hidden states) of the team's own modules, `action_batch_size` lanes at a
    time."""
    size, engine = team.action_batch_size or lanes, learner_of(team, plain=True).groups[0].engine
    found = []
    with torch.no_grad():
        for start in range(0, lanes, size):
            part = tree.map_leaves(lambda x, s=start: torch.as_tensor(x[s : s + size], device=team.device), seen)
            if team.recurrent:
                own = {key: x[:, start : start + size] for key, x in hidden.items()}
                found.append(team.recur(engine, part, own))
            else:
                found.append((team.policy_output(part), team.state_values(engine, part), {}))
    outputs, values, after = zip(*found, strict=True)
    return torch.cat(outputs), torch.cat(values), {key: torch.cat([x[key] for x in after], 1) for key in after[0]}


def greedy_in_lanes(team: TeamPPO, obs: Any, mask: Mask = None) -> np.ndarray:
    """Greedy actions of a team [E, A] as its lanes take them; a memory goes on from the last call."""
    if team.recurrent:
        lanes = len(obs[PRESENT])
        hidden = team._playing or team.get_initial_hidden_state(lanes)
        outputs, _, team._playing = _run(team, obs, lanes, hidden)
    else:
        with torch.no_grad():
            outputs = team.policy_output(obs)
    return team.environment_action(team.greedy(outputs, mask))


@keep_ids
def environment_actions(team: TeamPPO, actions: Mapping[str, Any]) -> dict[str, Any]:
    """Actions by agent, as `get_action` gave them while training, as the environment takes them; Dict and Tuple actions
    nested as the space is."""
    found = {}
    for agent, action in actions.items():
        space, action = team.possible_action_spaces[agent], np.asarray(action)
        one, kind = team.actions.of_agent(agent), team.policies.kind(agent)
        if one.parts:
            action = as_action(space, in_bounds(one, kind, action.reshape(-1, one.columns)))
        elif isinstance(space, gym.spaces.Box):
            flat = in_bounds(one, kind, action.reshape(-1, one.size))
            action = flat.reshape(action.shape).astype(space.dtype)
        found[agent] = action
    return found
