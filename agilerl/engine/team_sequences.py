"""Rollouts of recurrent teams as sequences: an agent's sequence contains the steps of one episode with it present.

A sample is a time window of one lane with all agents, just as a row of one lane is for feed-forward teams. Within a
window each agent has one sequence per episode, without steps in which it was absent, so that training unrolls exactly
the steps of acting.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.engine.protocol import RolloutBatch
from agilerl.engine.rollouts import EpochPlan, Rollout, sequences_at
from agilerl.ranks import ONE, Ranks


@dataclass(frozen=True)
class TeamSequences:
    """A minibatch for recurrent teams.

    Attributes:
        groups: group -> rows [..., S·L] of its agents, S sequences of L steps; `obs` holds the inputs of policies and,
            in a tuple, those of values. The weight of a row is 1 if its agent decided, else 0.
        live: see `RolloutBatch`.
    """

    groups: Mapping[str, RolloutBatch]
    live: tuple[bool, ...] | None = None

    def of_member(self, member: int) -> TeamSequences:
        """Return the part of one member, without the member axis."""
        live = None if self.live is None else (self.live[member],)
        return TeamSequences({name: batch.of_member(member) for name, batch in self.groups.items()}, live)


@dataclass(frozen=True)
class Pieces:
    """Sequences of one member's agents of one group.

    Attributes:
        rows: [P, L] row indices among the K·T·E rows of the group (agent by agent), padded with the last one.
        length: [P]. first: [S + 1]; window s has the sequences first[s] .. first[s + 1] - 1.
    """

    rows: np.ndarray
    length: np.ndarray
    first: np.ndarray

    def of(self, windows: np.ndarray) -> np.ndarray:
        """Return the indices of the sequences of some windows."""
        ranges = [np.arange(self.first[w], self.first[w + 1]) for w in windows]
        return np.concatenate(ranges) if ranges else np.zeros(0, np.int64)


def pieces_of(windows: np.ndarray, lanes: int, is_present: np.ndarray, breaks: np.ndarray) -> Pieces:
    """Return the sequences of K agents within time windows.

    Args:
        windows: [S, 3] lane, first step, length. lanes: number of lanes per member.
        is_present: [T·E, K] bool, of the agents. breaks: [T·E, K] bool, whether the hidden state after the step does
            not follow from the step: the episode ended, or the row is not a transition.
    """
    size, sequences, first = len(is_present), [], [0]
    for lane, start, length in windows.tolist():
        rows = (start + np.arange(length)) * lanes + lane
        for k in range(is_present.shape[1]):
            present = is_present[rows, k]
            episode = np.concatenate(([0], np.cumsum(breaks[rows, k])[:-1]))[present]
            chosen = rows[present] + k * size
            sequences += [part for part in np.split(chosen, np.flatnonzero(np.diff(episode)) + 1) if len(part)]
        first.append(len(sequences))
    lengths = np.array([len(part) for part in sequences], np.int64)
    padded = np.zeros((len(sequences), int(lengths.max(initial=1))), np.int64)
    for into, part in zip(padded, sequences, strict=True):
        into[: len(part)], into[len(part) :] = part, part[-1]
    return Pieces(padded, lengths, np.array(first))


@dataclass(frozen=True)
class TeamSequenceRollout(Rollout):
    """Rollouts of N recurrent teams of M agents; a sample is a time window of one lane.

    Attributes:
        samples: windows with at least one valid decision, per member.
        windows: per member [S, 3]: lane, first step, length. pieces: by group, one entry per member.
        hidden: key -> [N, T·E, layers, units] before every step.
        lead: a member, which selects the data of a group by `group_rows(batch, group)` and
            `hidden_of_group(group, hidden, axis)`.
    """

    windows: list[np.ndarray]
    pieces: Mapping[str, list[Pieces]]
    hidden: Mapping[str, Tensor]
    lead: Any

    def batches(  # type: ignore[override]  # by group
        self, plan: EpochPlan, noise: Tensor | None = None, ranks: Ranks = ONE
    ) -> Iterator[TeamSequences]:
        """Yield the minibatches of one epoch."""
        columns: dict[str, Any] = dict(self._columns(noise))
        whole = RolloutBatch(self.obs, **columns, weight=self.numbers.new_ones(self.numbers.shape[:2]))
        rows = {
            group: replace(self.lead.group_rows(whole, group), hidden=self.lead.hidden_of_group(group, self.hidden, 1))
            for group in self.pieces
        }
        for k in range(len(plan.rows)):
            chosen = [sequences[weight > 0] for sequences, weight in zip(plan.rows[k], plan.weight[k], strict=True)]
            batches = {group: _gathered(rows[group], sequences, chosen) for group, sequences in self.pieces.items()}
            yield TeamSequences(batches, plan.live_in(k))


def _gathered(rows: RolloutBatch, pieces: list[Pieces], windows: list[np.ndarray]) -> RolloutBatch:
    """Gather the sequences of every member's windows [N, S·L, ...]; the weight of padding is 0."""
    parts = [member_pieces.of(chosen) for member_pieces, chosen in zip(pieces, windows, strict=True)]
    max_sequences = max(1, *(len(ids) for ids in parts))
    longest = max(
        1, *(int(member_pieces.length[ids].max(initial=0)) for member_pieces, ids in zip(pieces, parts, strict=True))
    )
    index, length = (
        np.zeros((len(parts), max_sequences, longest), np.int64),
        np.zeros((len(parts), max_sequences, 1), np.int64),
    )
    for i, (member_pieces, ids) in enumerate(zip(pieces, parts, strict=True)):
        width = min(longest, member_pieces.rows.shape[1])
        index[i, : len(ids), :width] = member_pieces.rows[ids, :width]
        index[i, : len(ids), width:] = member_pieces.rows[ids, width - 1 : width]
        length[i, : len(ids), 0] = member_pieces.length[ids]
    columns = {name: x for name, x in vars(rows).items() if isinstance(x, Tensor) and name != "obs"}
    batch = RolloutBatch(**sequences_at(index, rows.obs, rows.hidden, columns))
    real = torch.from_numpy((np.arange(longest) < length).reshape(len(parts), -1)).to(rows.weight.device)
    return replace(batch, weight=batch.weight * real)
