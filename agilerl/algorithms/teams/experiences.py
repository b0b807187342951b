"""Conversion of a team's published experiences of one rollout to a rollout buffer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.base.rollouts import EXTRA, FIELDS, entries_of
from agilerl.algorithms.teams import evaluation as team_playing
from agilerl.algorithms.teams.actions import ActingTeam
from agilerl.components.rollout_store import RolloutStore
from agilerl.core import tree
from agilerl.envs.protocol import AGENTS, PRESENT, STATE
from agilerl.envs.team import by_name
from agilerl.errors import ShapeError, unknown_choice

BY_STEP = (*FIELDS[:6], *EXTRA, "action_masks", "final_values")


Observed = Callable[[Mapping[str, Any]], tuple[dict[str, Any], int]]  # see `teams.evaluation.observed`


def buffer_from_experiences(
    team: ActingTeam,
    experiences: Mapping[str, Any] | Sequence[Any],
    observed: Observed,
    scale: tuple[np.ndarray, np.ndarray],
    make_buffer: Callable[[int, int, int], RolloutStore],
) -> RolloutStore:
    """Convert the published experiences of one rollout to a full buffer; see `TeamPPO.learn`.

    Args:
        scale: (mean, deviation) [M] of the values. make_buffer: creates an empty buffer, see `TeamPPO.make_buffer`.
    """
    fields, seen_at = _named(team, experiences), partial(_seen, team, observed)
    steps, lanes = np.reshape(
        _stacked(fields["rewards"], team), (len(_first(fields["rewards"])), -1, team.n_agents)
    ).shape[:2]
    numbers = {
        name: _stacked(fields[name], team).reshape(steps, lanes, team.n_agents)
        for name in ("log_probs", "rewards", "dones", "values")
    }
    last_done = _stacked({a: [x] for a, x in fields["next_done"].items()}, team).reshape(1, lanes, team.n_agents)
    # Rewards and ends of an agent that did not act belong to its last action.
    acted = ~(np.isnan(numbers["rewards"]) | np.isnan(numbers["dones"]) | np.isnan(numbers["log_probs"]))
    ended = np.nan_to_num(np.concatenate((numbers["dones"][1:], last_done))).astype(bool)
    cut = np.zeros_like(ended)
    if fields.get("truncateds") is not None:
        if fields.get("final_observations") is None:
            raise ShapeError(f"{team.algo}.learn: truncateds need final_observations, before the reset.")
        cut = np.nan_to_num(_stacked(fields["truncateds"], team)).astype(bool).reshape(ended.shape)
    masks = fields.get("action_masks") or _masks_beside(team, fields["observations"])
    hidden, (mean, deviation) = fields.get("hidden_states"), scale
    if hidden is not None and len(hidden) != steps:
        raise ShapeError(f"{team.algo}.learn got {len(hidden)} hidden_states for {steps} steps. fix: one before each.")
    final_values = None
    if fields.get("final_values") is not None:
        final_values = (_stacked(fields["final_values"], team).reshape(cut.shape) - mean) / deviation
    buffer = make_buffer(steps, lanes, 0 if masks is None else list(team.actions.masks.values())[-1].stop)
    for t in range(steps):
        legal = None
        if masks is not None:
            infos = {agent: {"action_mask": agent_masks[t]} for agent, agent_masks in masks.items()}
            legal = team_playing.masks_of(team, infos, lanes)
        finals = None if not cut.any() else seen_at(fields["final_observations"], t, lanes, np.ones(acted[t].shape))
        action = [_action_columns(team, agent, fields["actions"], t, lanes) for agent in team.agent_ids]
        buffer.add(
            seen_at(fields["observations"], t, lanes, acted[t]),
            np.concatenate(action, -1),
            np.nan_to_num(numbers["rewards"][t]),
            ended[t] & ~cut[t],
            cut[t],
            np.nan_to_num(numbers["log_probs"][t]),
            (np.nan_to_num(numbers["values"][t]) - mean) / deviation,
            final_obs=finals,
            final_value=None if final_values is None else np.nan_to_num(final_values[t]),
            hidden=None if hidden is None else {key: _array(part) for key, part in hidden[t].items()},
            valid=acted[t],
            legal=legal,
        )
    there = np.stack([np.full(lanes, agent in fields["next_obs"]) for agent in team.agent_ids], -1)
    there &= ~np.isnan(last_done[0])
    buffer.last_obs = seen_at({a: [x] for a, x in fields["next_obs"].items()}, 0, lanes, there)
    if fields.get("last_values") is not None:
        last_values = _stacked({a: [x] for a, x in fields["last_values"].items()}, team).reshape(lanes, team.n_agents)
        buffer.last_value = np.nan_to_num((last_values - mean) / deviation)
    return buffer


def _masks_beside(team: ActingTeam, observations: Mapping[str, Any]) -> dict[str, list[Any]] | None:
    """Return action masks [T] by agent from the observations; None without any."""
    each = {
        agent: [team_playing.mask_beside(team, agent, seen) for seen in steps] for agent, steps in observations.items()
    }
    return {agent: masks for agent, masks in each.items() if any(mask is not None for mask in masks)} or None


def _named(team: ActingTeam, experiences: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any]:
    entries = entries_of(experiences, team.algo, "as listed, each by agent")
    fields = {name: by_name(value) for name, value in entries.items()}
    lengths = {f"{name} of {a}": len(x) for name in BY_STEP if fields.get(name) for a, x in fields[name].items()}
    if len(set(lengths.values())) != 1 or not next(iter(lengths.values())):
        raise ShapeError(f"{team.algo}.learn got lists of lengths {lengths}. fix: one of each in every step.")
    shown = (*team.agent_ids, STATE)  # the state belongs to no agent
    unknown = [a for name in BY_STEP if fields.get(name) for a in fields[name] if a not in shown]
    if unknown:
        raise ShapeError(f"{team.algo}.learn: {unknown_choice('agent', str(unknown[0]), team.agent_ids)}")
    return fields


def _first(by_agent: Mapping[str, Any]) -> Any:
    return next(iter(by_agent.values()))


def _array(x: tree.Tree) -> np.ndarray:
    return x.detach().cpu().numpy() if isinstance(x, Tensor) else np.asarray(x)


def _stacked(by_agent: Mapping[str, Any], team: ActingTeam) -> np.ndarray:
    """Stack values by agent to [T, E, M]; NaN for missing agents."""
    each = {
        a: np.stack([np.asarray(_array(x), np.float64).reshape(-1) for x in steps]) for a, steps in by_agent.items()
    }
    absent = np.full(_first(each).shape, np.nan)
    return np.stack([each.get(agent, absent) for agent in team.agent_ids], -1)


def _seen(
    team: ActingTeam, observed: Observed, by_agent: Mapping[str, Any], t: int, lanes: int, there: np.ndarray
) -> dict[str, Any]:
    """Return a team's observation [E, ...] of one step, with placeholders for absent agents."""
    seen, count = observed({agent: steps[t] for agent, steps in by_agent.items()})
    if count != lanes:
        raise ShapeError(f"{team.algo}.learn got {count} observations in a step of {lanes} lanes.")
    rows = {}
    for k, agent in enumerate(team.agent_ids):
        rows[agent] = team_playing.with_nothing(
            team, agent, tree.map_leaves(_array, seen[AGENTS][agent]), there[:, k].astype(bool)
        )
    others = {key: tree.map_leaves(_array, part) for key, part in seen.items() if key not in (AGENTS, PRESENT)}
    return {AGENTS: rows, PRESENT: there.astype(np.int8), **others}


def _action_columns(team: ActingTeam, agent: str, actions: Mapping[str, Any], t: int, lanes: int) -> np.ndarray:
    step_action = {agent: actions[agent][t]} if agent in actions else {}
    action = team_playing.stored_action(team, agent, step_action, lanes, torch.float32)
    return action.nan_to_num().cpu().numpy()
