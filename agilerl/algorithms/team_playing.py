"""The published face of teams: dictionaries by agent in, dictionaries by agent out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from agilerl import tree
from agilerl.envs.masks import ActionMasks
from agilerl.envs.team import nothing
from agilerl.envs.teams import AGENTS, PRESENT
from agilerl.errors import ShapeError, unknown_name
from agilerl.spaces import nested

if TYPE_CHECKING:
    from agilerl.algorithms.multi_agent import MultiAgentRLAlgorithm as Team


def get_action(
    team: Team, obs: Mapping[str, Any], infos: Mapping[str, Any] | None = None, training: bool | None = None
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Actions for the environment, and what policies gave, both by agent.

    Args:
        obs: one observation or a batch [E, ...] of each agent; agents that are left out are not there.
        infos: by agent; `action_mask` (1 = legal) and `env_defined_actions` of each are heeded.
        training: whether to explore; the team's own mode where it is not given.

    Returns:
        ({agent: [E, *shape] actions of its space}, {agent: [E, F] float32}): the second one sums to 1 over the choices
        of a component, and is in [-1, 1] for Box actions, before the bounds of the space.
    """
    infos, (seen, lanes) = infos or {}, observed(team, obs)
    mask = masks_of(team, infos, lanes)
    with torch.no_grad():
        outputs = team.policy_output(seen)
    if team.training if training is None else training:
        draws = team.draw_exploration(team._exploration, (lanes,))
        stored, gumbel = team.explore(outputs, draws, 0.0, mask), draws[1]
    else:
        stored, gumbel = team.greedy(outputs, mask), np.zeros((lanes, team.actions.width))
    each, raw = team.team.split(team.environment_action(stored)), {}
    for agent in obs:
        one, logits = team.actions.of_agent(agent), outputs.numpy(force=True)[:, team.actions.widths[agent]]
        raw[agent] = stored[:, team.actions.columns[agent]]
        if one.is_choice:
            noisy = torch.from_numpy(np.asarray(logits + gumbel[:, team.actions.widths[agent]], np.float32))
            legal = team.actions.mask_of(agent, mask)
            raw[agent] = one.relaxed(noisy, 1.0, None if legal is None else torch.from_numpy(legal)).numpy()
    found = {agent: as_defined(team, agent, each[agent], infos.get(agent)) for agent in obs}
    return found, {agent: np.asarray(values, np.float32) for agent, values in raw.items()}


def as_defined(team: Team, agent: str, action: np.ndarray, info: Any) -> np.ndarray:
    """The action with what the environment has decided in its place, where it has."""
    defined = None if not isinstance(info, Mapping) else info.get("env_defined_actions", info.get("env_defined_action"))
    if defined is None:
        return action
    given = np.asarray(defined, dtype=float)
    given = np.broadcast_to(given.reshape(-1, *action.shape[1:]) if given.ndim else given, action.shape)
    return np.where(np.isnan(given), action, given).astype(action.dtype)


def observed(team: Team, obs: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """(the tree that networks are prepared from, lanes) of observations by agent, one each or batches.

    Who is left out is not there, nor who is not there by the word of the vector that gave the observations (`Seen`).

    Raises:
        ShapeError: no agent, an agent that is not of this team, or batches of different length.
    """
    unknown = [agent for agent in obs if agent not in team.possible_observation_spaces]
    if unknown or not obs:
        what = unknown_name("agent", str(unknown[0]), team.agent_ids) if unknown else "no agent was observed"
        raise ShapeError(f"{team.algo}: {what}. fix: a mapping from agents to what they see.")
    batches = {agent: _batched(team, agent, seen) for agent, seen in obs.items()}
    counts = {agent: tree.count_rows(rows) for agent, rows in batches.items()}
    lanes = next(iter(counts.values()))
    if set(counts.values()) != {lanes}:
        raise ShapeError(f"{team.algo} got observations of different lengths: {counts}. fix: one row a lane.")
    there, said = np.zeros((lanes, team.n_agents), np.int8), getattr(obs, "present", None)
    for agent in batches:
        there[:, team.agent_ids.index(agent)] = 1 if said is None else np.asarray(said[agent])
    for agent in team.agent_ids:
        if agent not in batches:
            batches[agent] = nothing(team.possible_observation_spaces[agent], lanes)
    return {AGENTS: batches, PRESENT: torch.from_numpy(there)}, lanes


def _batched(team: Team, agent: str, seen: Any) -> Any:
    """Observations of an agent with a leading axis of lanes."""
    space = nested(team.possible_observation_spaces[agent])

    def leaf(own: Any, values: Any) -> Any:
        array = values.numpy(force=True) if isinstance(values, Tensor) else np.asarray(values)
        return array[None] if array.ndim == len(own.shape or ()) else array

    return tree.map_leaves(leaf, space, seen)


def masks_of(team: Team, infos: Mapping[str, Any], lanes: int) -> np.ndarray | None:
    """The team's mask [E, W] of the masks in infos; None where there is none."""
    mask: np.ndarray | None = None
    for agent, info in infos.items():
        given = info.get("action_mask") if isinstance(info, Mapping) else None
        if given is None:
            continue
        if agent not in team.actions.masks:
            raise ShapeError(f"{team.algo}, action masks: {unknown_name('agent', str(agent), team.agent_ids)}")
        own, space = team.actions.masks[agent], team.possible_action_spaces[agent]
        if not own.stop - own.start:
            raise ShapeError(
                f"{team.algo}: an action mask of {agent}, whose actions {space} are no choices. fix: leave it out."
            )
        reader = ActionMasks(space, f"{team.algo}, agent {agent}", ShapeError)
        # An agent that waits for its turn is observed, too, and nothing may be legal for it.
        legal = reader.of_caller(given, lanes, is_over=np.ones(lanes, bool))
        mask = np.ones((lanes, team.actions.masks[team.agent_ids[-1]].stop), bool) if mask is None else mask
        mask[:, own] = legal
    return mask


def stored_action(team: Team, agent: str, actions: Mapping[str, Any], count: int, dtype: torch.dtype) -> Tensor:
    """[B, columns] of an agent's actions, given as choices or as rows over them (`get_action`); zeros if absent."""
    one = team.actions.of_agent(agent)
    if agent not in actions:
        return torch.zeros(count, one.columns, dtype=dtype, device=team.device)
    given = torch.as_tensor(actions[agent], device=team.device).to(dtype).reshape(count, -1)
    if one.is_choice and given.shape[1] == one.width and one.width != one.columns:
        parts = torch.split(given, list(one.sizes), -1)
        return torch.stack([part.argmax(-1) for part in parts], -1).to(dtype)
    if given.shape[1] != one.columns:
        raise ShapeError(
            f"{team.algo}: actions of {agent} have {given.shape[1]} numbers; expected {one.columns}, or {one.width} "
            "over its choices."
        )
    starts = torch.tensor(one.starts or (0,), dtype=dtype, device=team.device)
    return given - starts if one.is_choice else given
