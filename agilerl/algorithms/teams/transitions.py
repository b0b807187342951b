"""Learning of teams from replay: conversion of sampled transitions by agent to one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from agilerl import tree
from agilerl.algorithms.teams.evaluation import masks_of, observed, stored_action
from agilerl.algorithms.teams.names import Losses
from agilerl.engine.learner import learn_alone
from agilerl.engine.protocol import TransitionBatch, UpdateResult
from agilerl.envs.teams import PRESENT, TeamObservations
from agilerl.errors import ShapeError

if TYPE_CHECKING:
    from agilerl.algorithms.teams.base import MultiAgentRLAlgorithm as Team

FIELDS = ("states", "actions", "rewards", "next_states", "dones")
ROLES = {"obs": "states", "action": "actions", "reward": "rewards", "next_obs": "next_states", "done": "dones"}
OF_ROLLOUTS = (
    "observations", "actions", "log_probs", "rewards", "dones", "values", "next_obs", "next_done", "truncateds",
    "final_observations",
)  # fmt: skip
OBSERVED = ("states", "next_states", "obs", "next_obs", "state", "next_state", "observations", "final_observations")
ROLES |= {"state": "states", "next_state": "next_states", "termination": "dones", "terminated": "dones"}


class TeamExperiences(tuple[Any, ...]):
    """The published tuple (states, actions, rewards, next_states, dones), with optional fields.

    Attributes:
        more: available fields by name: `discount` [B, M] of n steps, 0 after an end; `weights` [B] of prioritised
            replay; `obs_mask`, `next_mask` [B, W] legal choices (`TeamActions.masks`); `idxs` [B] rows of the memory.
    """

    more: dict[str, Any]

    def __new__(cls, entries: Iterable[Any], more: Mapping[str, Any] | None = None) -> Self:
        instance = super().__new__(cls, entries)
        instance.more = dict(more or {})
        return instance


def learn(team: Team, experiences: Any) -> dict[str, tuple[float | None, float]]:
    """Perform one update.

    Args:
        experiences: result of `MultiAgentReplayBuffer.sample`: (states, actions, rewards, next_states, dones), each by
            agent with a leading batch axis; or a mapping or TensorDict with these names, or obs, action, reward,
            next_obs, done.

    Returns:
        {group: (policy loss or None, critic loss)}, each summed over all groups; see `Losses`.
    """
    result = learn_batch(team, make_batch(team, experiences))
    policy = None if result.actor_loss is None else float(result.actor_loss.detach())
    return Losses(dict.fromkeys(team.shared_agent_ids, (policy, float(result.loss.detach()))))


def learn_batch(team: Team, batch: TransitionBatch, plain: bool = False) -> UpdateResult:
    """Perform one update from a prepared batch [B, ...]. No member axis."""
    team.remember_observations(batch.obs, batch.action)
    return learn_alone(team, batch, plain)


def make_batch(team: Team, experiences: Any) -> TransitionBatch:
    """Convert sampled transitions by agent to tensors.

    An agent is absent if it has no row, its row contains NaN, or the presence mask of the observations says so
    (`TeamObservations`, returned by vector environments and memories of teams).
    """
    fields, more = _fields(team, experiences)
    dtype = next(iter(team.policy_module().parameters())).dtype
    (obs, count), (next_obs, _) = observed(team, fields["states"]), observed(team, fields["next_states"])
    reward, done = (_columns(team, fields[name], count, dtype) for name in ("rewards", "dones"))
    absent = reward.isnan() | done.isnan()
    obs[PRESENT] = obs[PRESENT] * ~absent.cpu()
    action = torch.cat([stored_action(team, agent, fields["actions"], count, dtype) for agent in team.agent_ids], -1)
    drawn = team.draw_noise(team._exploration, (1, count))
    as_tensors = [tree.map_leaves(lambda x: torch.as_tensor(x, device=team.device), part) for part in (obs, next_obs)]
    weight = torch.full((count,), 1 / count, dtype=dtype, device=team.device)
    extra: dict[str, Any] = {}
    if "weights" in more:
        weight = weight * torch.as_tensor(more["weights"], device=team.device).to(dtype).reshape(count)
    if "discount" in more:
        extra["discount"] = torch.as_tensor(more["discount"], device=team.device).to(dtype)
    for name, field in (("obs_mask", "states"), ("next_mask", "next_states")):
        legal = more[name] if name in more else masks_of(team, {}, count, fields[field])
        if legal is not None:
            extra[name] = torch.as_tensor(legal, device=team.device).bool()
    return TransitionBatch(
        as_tensors[0],
        action.nan_to_num(),
        reward.nan_to_num(),
        as_tensors[1],
        done.nan_to_num(nan=1.0),
        weight,
        noise={name: torch.as_tensor(x[0]).to(team.device, dtype) for name, x in drawn.items()},
        number=team.learn_counter + 1,
        **extra,
    )


def with_observations(experiences: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to all observations by agent in the argument of `learn`, sampled or of a rollout."""
    if hasattr(experiences, "to_dict"):  # a TensorDict
        experiences = experiences.to_dict()
    if isinstance(experiences, Mapping):
        return {name: _changed(name, value, change) for name, value in experiences.items()}
    if len(experiences) == len(FIELDS):
        entries = [_changed(name, value, change) for name, value in zip(FIELDS, experiences, strict=True)]
        return TeamExperiences(entries, experiences.more if isinstance(experiences, TeamExperiences) else None)
    entries = [_changed(name, value, change) for name, value in zip(OF_ROLLOUTS, experiences, strict=False)]
    return tuple(entries)


def _changed(name: str, value: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to a field with observations; in a rollout they are lists over time by agent."""
    if value is None or name not in OBSERVED:
        return value
    if not any(isinstance(entries, list) for entries in value.values()):
        return change(value)
    steps = len(next(iter(value.values())))
    each = [change({agent: entries[t] for agent, entries in value.items()}) for t in range(steps)]
    return {agent: [step[agent] for step in each] for agent in value}


def _fields(team: Team, experiences: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (the five fields by their published names, optional fields)."""
    if hasattr(experiences, "to_dict"):  # a TensorDict
        experiences = experiences.to_dict()
    if isinstance(experiences, Mapping):
        fields = {ROLES.get(str(name), str(name)): value for name, value in experiences.items()}
        for name, presence_name in (("states", "obs_present"), ("next_states", "next_obs_present")):
            if presence_name in fields and name in fields:
                there = {
                    agent: torch.as_tensor(mask).cpu().reshape(-1) for agent, mask in fields[presence_name].items()
                }
                fields[name] = TeamObservations(fields[name], there)  # type: ignore[arg-type]  # tensors will do
    else:
        more = experiences.more if isinstance(experiences, TeamExperiences) else {}
        fields = {**dict(zip(FIELDS, experiences, strict=False)), **more}
    missing = [name for name in FIELDS if name not in fields]
    if missing:
        raise ShapeError(
            f"{team.algo}.learn got experiences without {', '.join(missing)}; it has {sorted(fields)}. "
            "fix: all five fields in every row that the memory gets."
        )
    return fields, fields


def _columns(team: Team, values: Mapping[str, Any], count: int, dtype: torch.dtype) -> Tensor:
    """Stack values by agent to [B, M]; NaN for missing agents."""
    columns = torch.full((count, team.n_agents), torch.nan, dtype=dtype, device=team.device)
    for k, agent in enumerate(team.agent_ids):
        if agent in values:
            columns[:, k] = torch.as_tensor(values[agent], device=team.device).to(dtype).reshape(count)
    return columns
