"""Action selection of teams with stochastic policies, for lanes and, as published, by agent."""

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
    """See `TeamPPO.get_action`."""
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
        one, action = team.actions.of_agent(agent), stored[..., team.actions.columns[agent]]
        if one.is_choice or not explores:
            action = policies.environment(stored)[..., team.actions.columns[agent]]
        space = team.possible_action_spaces[agent]
        if one.parts:  # rows of numbers to store, or nested like the space
            actions[agent] = action if explores else as_action(space, action)
            continue
        shaped = (
            action[..., 0] if isinstance(space, gym.spaces.Discrete) else action.reshape(lanes, *(space.shape or ()))
        )
        if not explores and isinstance(space, gym.spaces.Box):
            shaped = as_action(space, action)
        shaped = np.rint(shaped).astype(np.int64) if one.is_choice else shaped
        actions[agent] = team_playing.as_defined(team, agent, shaped, infos.get(agent))
    by_agent = [{a: x[..., k] for k, a in enumerate(team.agent_ids) if a in obs} for x in (log_prob, entropy, values)]
    return (actions, *by_agent, hidden) if team.recurrent else (actions, *by_agent)


def _run(team: TeamPPO, seen: Any, lanes: int, hidden: HiddenStates) -> tuple[Tensor, Tensor, HiddenStates]:
    """Return (outputs [E, F], raw values [E, M], next hidden states) of the team's modules, computed in chunks of
    `action_batch_size` lanes."""
    size, engine = team.action_batch_size or lanes, learner_of(team, plain=True).groups[0].engine
    chunks = []
    with torch.no_grad():
        for start in range(0, lanes, size):
            part = tree.map_leaves(lambda x, s=start: torch.as_tensor(x[s : s + size], device=team.device), seen)
            if team.recurrent:
                chunk_hidden = {key: x[:, start : start + size] for key, x in hidden.items()}
                chunks.append(team.recur(engine, part, chunk_hidden))
            else:
                chunks.append((team.policy_output(part), team.state_values(engine, part), {}))
    outputs, values, after = zip(*chunks, strict=True)
    return torch.cat(outputs), torch.cat(values), {key: torch.cat([x[key] for x in after], 1) for key in after[0]}


def play_in_lanes(team: TeamPPO, obs: Any, mask: Mask = None, rng: np.random.Generator | None = None) -> np.ndarray:
    """Return greedy actions [E, A] for team lanes, or sampled ones; hidden states continue from the last call.

    Args:
        rng: samples actions; None acts greedily.
    """
    if team.recurrent:
        lanes = len(obs[PRESENT])
        hidden = team._playing or team.get_initial_hidden_state(lanes)
        outputs, _, team._playing = _run(team, obs, lanes, hidden)
    else:
        with torch.no_grad():
            outputs = team.policy_output(obs)
    if rng is None:
        return team.environment_action(team.greedy(outputs, mask))
    draws = team.draw_exploration(rng, tuple(outputs.shape[:-1]))
    return team.environment_action(team.sample(outputs, draws, mask)[0])


@keep_ids
def environment_actions(team: TeamPPO, actions: Mapping[str, Any]) -> dict[str, Any]:
    """See `TeamPPO.environment_actions`."""
    converted = {}
    for agent, action in actions.items():
        space, action = team.possible_action_spaces[agent], np.asarray(action)
        one, kind = team.actions.of_agent(agent), team.policies.kind(agent)
        if one.parts:
            action = as_action(space, in_bounds(one, kind, action.reshape(-1, one.columns)))
        elif isinstance(space, gym.spaces.Box):
            flat = in_bounds(one, kind, action.reshape(-1, one.size))
            action = flat.reshape(action.shape).astype(space.dtype)
        converted[agent] = action
    return converted
