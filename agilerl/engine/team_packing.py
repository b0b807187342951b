"""Packing of turn-based rollouts: decisions of all agents are moved into as few rows as possible."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.core.tree import map_leaves
from agilerl.engine.team_rollouts import TeamRollout
from agilerl.envs.protocol import AGENTS, PRESENT


def packed(rollout: TeamRollout, team: Any) -> TeamRollout:
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
