"""The published interface of teams: dictionaries by agent in, dictionaries by agent out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.teams.actions import ActingTeam
from agilerl.core import tree
from agilerl.core.spaces import nested
from agilerl.envs.masks import ActionMasks
from agilerl.envs.observed_masks import parted
from agilerl.envs.protocol import AGENTS, PRESENT, SeenByTeam
from agilerl.envs.team import MASKED, nothing
from agilerl.errors import ShapeError, unknown_choice, unknown_name


def as_defined(team: ActingTeam, agent: str, action: np.ndarray, info: object) -> np.ndarray:
    """Return the action, replaced by the environment-defined action where there is one."""
    defined = None if not isinstance(info, Mapping) else info.get("env_defined_actions", info.get("env_defined_action"))
    if defined is None:
        return action
    values = by_lane(defined, action.shape[1:], np.nan)
    if values.ndim and values.size not in (action.size, int(np.prod(action.shape[1:]))):
        raise ShapeError(
            f"{team.algo}: env_defined_actions of {agent} have shape {values.shape}; expected {action.shape}. "
            "fix: one action for each environment, None where the agent decides."
        )
    values = np.broadcast_to(values.reshape(-1, *action.shape[1:]) if values.ndim else values, action.shape)
    return np.where(np.isnan(values), action, values).astype(action.dtype)


def by_lane(given: Any, shape: tuple[int, ...], default: float) -> np.ndarray:
    """Return the float64 values of one info: unchanged, or one entry per environment, with `default` for None."""
    entries = given if isinstance(given, list | tuple) else list(given) if _is_of_objects(given) else None
    if entries is None or all(np.ndim(entry) == 0 and entry is not None for entry in entries):
        return np.asarray(given, float)
    rows = [np.full(shape, default) if entry is None else np.asarray(entry, float) for entry in entries]
    return np.stack([row.reshape(shape) if row.size == np.prod(shape) else row for row in rows])


def _is_of_objects(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == object and value.ndim > 0


def observed(team: ActingTeam, obs: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Convert observations by agent, one each or batches, to (team observation, number of lanes).

    An agent is absent if it is missing, its row contains NaN, or the presence mask (`SeenByTeam`) says so. The rest of
    its row is then ignored. `masks_of` handles action masks in observations.

    Raises:
        ShapeError: no agent, an unknown agent, or batches of different length.
    """
    if not isinstance(obs, Mapping):
        raise ShapeError(f"{team.algo} got {type(obs).__name__} for observations. fix: {{agent: observation}}.")
    unknown = [agent for agent in obs if agent not in team.possible_observation_spaces]
    if unknown or not obs:
        what = "no agent was observed"
        fix = "self.agents = list(self.possible_agents) in the environment's reset(), which follows an empty env.agents"
        if unknown:
            what, fix = unknown_name("agent", str(unknown[0]), team.agent_ids), "a mapping from agents to observations"
        raise ShapeError(f"{team.algo}: {what}. fix: {fix}.")
    batches = {agent: _batched(team, agent, seen) for agent, seen in obs.items()}
    counts = {agent: tree.count_rows(rows) for agent, rows in batches.items()}
    lanes = next(iter(counts.values()))
    if set(counts.values()) != {lanes}:
        raise ShapeError(f"{team.algo} got observations of different lengths: {counts}. fix: one row a lane.")
    there, declared = np.zeros((lanes, team.n_agents), np.int8), SeenByTeam.of(obs).present
    for agent, rows in batches.items():
        present = _rows_without_nan(rows, lanes)
        if not present.all():
            batches[agent] = with_nothing(team, agent, rows, present)
        there[:, team.agent_ids.index(agent)] = (
            present if declared is None else present & np.asarray(declared[agent], bool)
        )
    for agent in team.agent_ids:
        if agent not in batches:
            batches[agent] = nothing(team.possible_observation_spaces[agent], lanes)
    return {AGENTS: batches, PRESENT: torch.from_numpy(there)}, lanes


def _batched(team: ActingTeam, agent: str, seen: tree.Tree) -> Any:
    """Return an agent's observations with a leading lane axis."""
    space = nested(team.possible_observation_spaces[agent])

    def leaf(part: Any, values: Any) -> Any:
        array, shape = values.numpy(force=True) if isinstance(values, Tensor) else np.asarray(values), part.shape or ()
        if array.ndim == len(shape):
            return array[None]
        # replay stores scalars as columns [E, 1]
        return array[:, 0] if array.ndim == len(shape) + 2 and array.shape[1] == 1 and not shape else array

    return tree.map_leaves(leaf, space, parted(seen, team.possible_observation_spaces[agent])[0])


def _rows_without_nan(rows: tree.Tree, lanes: int) -> np.ndarray:
    """Return [E] bool: rows without NaN."""
    is_finite = np.ones(lanes, bool)
    for leaf in tree.leaves(rows):
        if leaf.dtype.kind == "f":
            is_finite &= ~np.isnan(leaf.reshape(lanes, -1)).any(1)
    return is_finite


def with_nothing(team: ActingTeam, agent: str, rows: tree.Tree, given: np.ndarray) -> Any:
    """Replace rows that are not `given` [E] by the placeholder of an absent agent."""
    empty = nothing(team.possible_observation_spaces[agent], len(given))

    def leaf(values: Any, absent: np.ndarray) -> np.ndarray:
        chosen = given.reshape(-1, *[1] * (values.ndim - 1))
        return np.where(chosen, values, absent.reshape(values.shape).astype(values.dtype))

    return tree.map_leaves(leaf, rows, empty)


def mask_beside(team: ActingTeam, agent: str, seen: tree.Tree) -> Any:
    """Return the action mask in an agent's observations, as in PettingZoo's board games; None without one."""
    return parted(seen, team.possible_observation_spaces.get(agent))[1]


def masks_of(
    team: ActingTeam, infos: Mapping[str, Any], lanes: int, obs: Mapping[str, Any] | None = None
) -> np.ndarray | None:
    """Return the team's action mask [E, W] from infos, or from observations where infos have none; None without any."""
    mask: np.ndarray | None = None
    beside = {agent: {MASKED[1]: mask_beside(team, agent, seen)} for agent, seen in (obs or {}).items()}
    for agent, info in {**_with_masks(beside), **_with_masks(infos)}.items():
        agent_mask = info[MASKED[1]]
        if agent not in team.actions.masks:
            raise ShapeError(f"{team.algo}, action masks: {unknown_choice('agent', str(agent), team.agent_ids)}")
        columns, space = team.actions.masks[agent], team.possible_action_spaces[agent]
        if not columns.stop - columns.start:
            raise ShapeError(f"{team.algo}: a mask of {agent}, whose {space} is not discrete. fix: leave it out.")
        reader = ActionMasks(space, f"{team.algo}, agent {agent}", ShapeError)
        # An agent waiting for its turn is also observed, possibly without any legal action.
        legal = reader.of_caller(agent_mask, lanes, is_over=np.ones(lanes, bool))
        mask = np.ones((lanes, team.actions.masks[team.agent_ids[-1]].stop), bool) if mask is None else mask
        mask[:, columns] = legal
    return mask


def _with_masks(infos: Mapping[str, Any]) -> dict[str, Any]:
    """Return the infos that have a mask."""
    return {a: info for a, info in infos.items() if isinstance(info, Mapping) and info.get(MASKED[1]) is not None}


def stored_action(team: ActingTeam, agent: str, actions: Mapping[str, Any], count: int, dtype: torch.dtype) -> Tensor:
    """Return an agent's stored actions [B, columns], from choices or raw outputs of `get_action`; zeros if absent."""
    one = team.actions.of_agent(agent)
    if agent not in actions:
        return torch.zeros(count, one.columns, dtype=dtype, device=team.device)
    action = torch.as_tensor(actions[agent], device=team.device).to(dtype).reshape(count, -1)
    if one.is_choice and action.shape[1] == one.width and one.width != one.columns:
        parts = torch.split(action, list(one.sizes), -1)
        return torch.stack([part.argmax(-1) for part in parts], -1).to(dtype)
    if action.shape[1] != one.columns:
        raise ShapeError(
            f"{team.algo}: actions of {agent} have {action.shape[1]} numbers; expected {one.columns}, or {one.width} "
            "over its choices."
        )
    starts = torch.tensor(one.starts or (0,), dtype=dtype, device=team.device)
    return action - starts if one.is_choice else action
