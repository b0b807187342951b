"""Learning from rollouts of teams: advantages per agent, values in a running scale, minibatches of whole teams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.components.rollout_store import RolloutStore
from agilerl.core.tree import map_leaves
from agilerl.engine.learner import Learner
from agilerl.engine.protocol import RolloutBatch
from agilerl.engine.rollouts import Rollout, StoredRollout, by_member, sequences_of, standardised_over
from agilerl.engine.team_sequences import TeamSequenceRollout, pieces_of
from agilerl.envs.protocol import AGENTS, PRESENT
from agilerl.losses.returns import gae_of_agents
from agilerl.ranks import Ranks


def make_team_rollout(
    learner: Learner, group: int, members: Sequence[Any], buffer: RolloutStore, like: Tensor
) -> Rollout:
    """Convert a full buffer of N·E lanes (member by member) of teams to rollouts with advantages and returns.

    Advantages are standardised over all agents of a group. Networks output values in the scale of `value_scale()`,
    which is updated with the returns of this rollout before they are learned from in that scale (Yu et al. 2022,
    arXiv:2103.01955, section 5.1).

    Args:
        members: teams with `gamma`, `gae_lambda`, `groups_of_agents` (indices of the agents of each group),
            `presence(obs)`, `value_scale()` -> (mean [M], deviation [M]) and `see_returns(returns [rows, M], acted)`;
            recurrent ones also with the attributes used by `make_rollout` and `TeamSequenceRollout`.
        like: tensor with the dtype and device to use.
    """
    stored, count = StoredRollout.read(learner, group, members, buffer, like), len(members)
    raw = stored.value
    final = torch.zeros_like(raw)  # values of the final observations of truncated episodes
    for member, steps, lanes, values in stored.finals:
        final[member, steps, lanes] = values
    mean, deviation = _scales(members, like)
    wide, narrow = (count, 1, 1, -1), (count, 1, -1)
    value, final = (x * deviation.view(wide) + mean.view(wide) for x in (raw, final))
    last = stored.last * deviation.view(narrow) + mean.view(narrow)
    present = by_member(np.asarray(members[0].presence(buffer.stored("obs"))), count).bool()  # [N, T, E, M]
    last_present = torch.from_numpy(np.asarray(members[0].presence(buffer.last_obs))).view(count, -1).bool()
    advantage, counts = _advantages(stored, value, last, final, present, last_present)
    advantage, counts = (x.view(raw.shape).flatten(1, 2) for x in (advantage, counts))  # [N, T·E, M]
    returns = advantage + value.flatten(1, 2)
    for member, member_returns, counted in zip(members, *_everywhere(learner.ranks, returns, counts), strict=True):
        member.see_returns(member_returns, counted)
    mean, deviation = _scales(members, like)
    goal = (returns - mean.unsqueeze(1)) / deviation.unsqueeze(1)
    scaled = _standardised(learner.ranks, members[0].groups_of_agents, advantage, counts)
    packed = torch.stack((stored.log_prob.flatten(1, 2), raw.flatten(1, 2), scaled, goal), -1)
    packed = packed.masked_fill(~counts.unsqueeze(-1), 0)  # invalid entries must be finite
    decided = counts.any(-1).cpu().numpy()
    arguments: dict[str, Any] = {**stored.common, "numbers": packed, "acted": None if bool(counts.all()) else counts}
    if not buffer.hidden_state_architecture:
        return Rollout(samples=[np.flatnonzero(rows) for rows in decided], **arguments)
    windows, pieces, samples = _sequences(members[0], stored, present.numpy(), decided)
    return TeamSequenceRollout(samples=samples, windows=windows, pieces=pieces, lead=members[0], **arguments)


def _advantages(
    stored: StoredRollout, value: Tensor, last: Tensor, final: Tensor, present: Tensor, last_present: Tensor
) -> tuple[Tensor, Tensor]:
    """Return (advantages, valid mask) [N, T, E·M] by `gae_of_agents`, from values in the scale of rewards."""
    flags = (stored.terminated, stored.truncated, stored.valid, present)
    terminated, truncated, acted, present = (x.flatten(2).to(value.device) for x in flags)
    return gae_of_agents(
        stored.reward.flatten(2),
        stored.gamma * (~terminated).to(value.dtype),
        value.flatten(2),
        final.flatten(2),
        last.flatten(1),
        terminated | truncated,
        acted,
        present,
        last_present.to(value.device),
        stored.lam,
    )


def _everywhere(ranks: Ranks, returns: Tensor, counts: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return returns and valid mask [N, R, M], concatenated over all ranks."""
    local = returns.double().cpu().numpy(), counts.cpu().numpy()
    if ranks.size == 1:
        return local
    gathered = np.concatenate(list(ranks.gather_rows(np.stack(local))), axis=2)
    return gathered[0], gathered[1] > 0


def _standardised(ranks: Ranks, groups: Sequence[Sequence[int]], advantage: Tensor, counts: Tensor) -> Tensor:
    """Standardise advantages [N, R, M] over the valid entries of all agents of a group."""
    scaled = torch.zeros_like(advantage)
    for group in groups:
        chosen = list(group)
        counted = counts[..., chosen].to(advantage.dtype).flatten(1)
        parts = standardised_over(ranks, advantage[..., chosen].flatten(1), counted)
        scaled[..., chosen] = parts.view(*advantage.shape[:2], len(chosen))
    return scaled


def _sequences(
    lead: Any, stored: StoredRollout, present: np.ndarray, counted: np.ndarray
) -> tuple[list[Any], Any, list[Any]]:
    """Return (windows, sequences by group, indices of the windows with a valid decision), member by member.

    Args:
        present: [N, T, E, M] bool. counted: [N, T·E] bool, rows with a valid decision of at least one agent.
    """
    done = (stored.terminated | stored.truncated).numpy()
    undecided = ~stored.valid.numpy().any(-1, keepdims=True)  # for example of a replaced lane
    breaks, (_, steps, lanes, agents) = done | undecided, done.shape
    longest, kind = lead.sequence_limit(steps), lead.bptt_sequence_type
    everything = np.ones(done.shape[1:3], bool)
    windows = [sequences_of(member_rows.all(-1), everything, longest, kind) for member_rows in done]
    pieces = {
        group: [
            pieces_of(member_rows, lanes, t.reshape(-1, agents)[:, numbers], b.reshape(-1, agents)[:, numbers])
            for member_rows, t, b in zip(windows, present, breaks, strict=True)
        ]
        for group, numbers in zip(lead.grouped_agents, lead.groups_of_agents, strict=True)
    }
    samples = [
        np.flatnonzero(
            [rows[(start + np.arange(length)) * lanes + lane].any() for lane, start, length in member_rows.tolist()]
        )
        for member_rows, rows in zip(windows, counted, strict=True)
    ]
    return windows, pieces, samples


def _scales(members: Sequence[Any], like: Tensor) -> tuple[Tensor, Tensor]:
    """Return (means, deviations) [N, M] of the members' values."""
    scales = [member.value_scale() for member in members]
    means, deviations = (
        torch.from_numpy(np.stack(part)).to(like.device, like.dtype) for part in zip(*scales, strict=True)
    )
    return means, deviations


def equally_weighted(
    groups: Mapping[str, RolloutBatch], live: tuple[bool, ...] | None, all_decided: bool, ranks: Ranks
) -> dict[str, RolloutBatch]:
    """Return the rows of every group with equal weights for all decisions on all ranks.

    Weights sum to 1 in one process, and on average over several ranks. A group without decisions is not updated.

    Args:
        live: members that learn; None if all do. all_decided: whether every agent decided in every row.
    """
    totals = ranks.mean(torch.stack([rows.weight.sum(-1, keepdim=True) for rows in groups.values()]))
    batches = {}
    for (group, rows), total in zip(groups.items(), totals, strict=True):
        learns = live
        if not all_decided or ranks.size > 1:
            has_rows = (total > 0).flatten().tolist()
            learns = tuple(a and b for a, b in zip(live or (True,) * len(has_rows), has_rows, strict=True))
        # One decision over all ranks is 1 / ranks on average.
        batches[group] = replace(rows, weight=rows.weight / total.clamp(min=1 / ranks.size), live=learns)
    return batches


def packed(rollout: Rollout, team: Any) -> Rollout:
    """Return the same decisions in as many rows as the agent with the most decisions has.

    Each agent's rows are aligned with those of the others, regardless of their time step. This is equivalent for
    algorithms whose policies and values read only the agent's own observation: a minibatch of packed rows contains
    decisions only, twice as many if two agents take turns.

    Args:
        team: has `agent_ids`, and `actions.columns` and `actions.masks` by agent.
    """
    if rollout.acted is None:
        return rollout
    acted = rollout.acted.cpu().numpy()
    counts = acted.sum(1)  # [N, M]
    rows = np.zeros((acted.shape[0], acted.shape[2], int(counts.max(initial=1))), np.int64)
    for member, agent in np.ndindex(*counts.shape):
        rows[member, agent, : counts[member, agent]] = np.flatnonzero(acted[member, :, agent])
    indices = [torch.from_numpy(rows[:, k]).to(rollout.numbers.device) for k in range(rows.shape[1])]
    row = torch.arange(len(rows), device=rollout.numbers.device).unsqueeze(1)

    def side_by_side(x: Tensor, columns: list[slice]) -> Tensor:
        return torch.cat([x[row, index][..., part] for index, part in zip(indices, columns, strict=True)], -1)

    agent_obs = rollout.obs[AGENTS]
    obs = {
        AGENTS: {
            a: map_leaves(lambda x, index=index: x[row, index], agent_obs[a])
            for a, index in zip(team.agent_ids, indices, strict=True)
        }
    }
    is_valid = np.arange(rows.shape[-1])[:, None] < counts[:, None, :]  # [N, R, M]
    valid = torch.from_numpy(is_valid).to(rollout.numbers.device)
    numbers = torch.stack([rollout.numbers[row, index, k] for k, index in enumerate(indices)], 2)
    masks = [team.actions.masks[a] for a in team.agent_ids]
    return replace(
        rollout,
        obs=obs | {PRESENT: valid.to(rollout.obs[PRESENT].dtype)},
        action=side_by_side(rollout.action, [team.actions.columns[a] for a in team.agent_ids]),
        numbers=numbers,
        legal=None if rollout.legal is None else side_by_side(rollout.legal, masks),
        samples=[np.arange(most) for most in counts.max(1)],
        acted=None if is_valid.all() else valid,
    )
