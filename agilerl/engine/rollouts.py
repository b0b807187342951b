"""Learning from a stored rollout: values, advantages and returns, sequences, epochs of minibatches.

The code is the same for groups of members and for single agents; the learner selects the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.components.rollout_store import RolloutStore
from agilerl.core.tree import map_leaves, stack, take
from agilerl.engine.learner import Learner
from agilerl.engine.protocol import RolloutBatch
from agilerl.errors import ConfigError, unknown_choice
from agilerl.losses.returns import following_values, gae, standardised
from agilerl.ranks import ONE, Ranks

KINDS = ("chunked", "maximum", "fifty_percent_overlap")


def sequence_kind(kind: Any) -> str:
    """Return the kind of sequences, one of `KINDS`, from a name or an enum member."""
    name = str(kind.value if isinstance(kind, Enum) else kind).lower()
    if name not in KINDS:
        raise ConfigError(unknown_choice("bptt_sequence_type", name, KINDS))
    return name


@dataclass(frozen=True)
class EpochPlan:
    """One pass over rollouts of N members, in minibatches.

    Attributes:
        rows: [K, N, B] int64, indices of samples within each member's rollout (0 where the weight is 0).
        weight: [K, N, B] float64: 1/B_k in the rows of minibatch k, 0 beyond.
        live: [K, N] bool: whether a member has a k-th minibatch, on any rank.
    """

    rows: np.ndarray
    weight: np.ndarray
    live: np.ndarray

    def live_in(self, k: int) -> tuple[bool, ...] | None:
        """Return whether each member has a k-th minibatch; None if all do."""
        return None if self.live[k].all() else tuple(self.live[k].tolist())


def plan_epoch(
    rngs: Sequence[np.random.Generator],
    samples: Sequence[np.ndarray],
    sizes: Sequence[int],
    active: Sequence[bool],
    counted: np.ndarray | None = None,
    rank: int = 0,
) -> EpochPlan:
    """Draw every sample of every active member once, in random order, in minibatches of the member's batch size.

    Args:
        rngs: one per member; an inactive member draws nothing.
        samples: indices of the valid samples per member. sizes: B_i.
        counted: [W, N] number of samples of each member on each of W ranks that share the minibatches. rank: index of
            this rank.
    """
    if counted is not None:
        return _shared_epoch(rngs, samples, sizes, active, counted, rank)
    counts = [
        -(-len(member_samples) // size) if go else 0
        for member_samples, size, go in zip(samples, sizes, active, strict=True)
    ]
    widest = max(
        (min(len(member_samples), size) for member_samples, size in zip(samples, sizes, strict=True)), default=0
    )
    shape = (max(counts, default=0), len(sizes), widest)
    rows, weight = np.zeros(shape, np.int64), np.zeros(shape)
    for member, (rng, member_samples, size, count) in enumerate(zip(rngs, samples, sizes, counts, strict=True)):
        if not count:
            continue
        order = rng.permutation(member_samples)
        size = min(size, len(member_samples))
        padded = np.zeros(count * size, np.int64)
        padded[: len(order)] = order
        rows[:count, member, :size] = padded.reshape(count, size)
        weight[:count, member, :size] = 1 / size
        rest = len(order) - (count - 1) * size
        weight[count - 1, member, :size] = np.where(np.arange(size) < rest, 1 / rest, 0.0)
    live = np.arange(shape[0])[:, None] < np.asarray(counts)
    return EpochPlan(rows, weight, live)


def _shared_epoch(
    rngs: Sequence[np.random.Generator],
    samples: Sequence[np.ndarray],
    sizes: Sequence[int],
    active: Sequence[bool],
    counted: np.ndarray,
    rank: int,
) -> EpochPlan:
    """Like `plan_epoch` on one of W ranks, where B_i is the size of a minibatch over all ranks.

    The number of minibatches equals that of one process with all samples, and is the same on every rank. Weights are
    W / (samples of the minibatch), so that the mean over ranks weights all samples equally.
    """
    totals, ranks = counted.sum(0), len(counted)
    counts = [-(-int(n) // size) if go else 0 for n, size, go in zip(totals, sizes, active, strict=True)]
    parts = [dealt(counted[:, member], count) for member, count in enumerate(counts)]  # [W, K_i] each
    widest = max([1, *(int(member_samples[rank].max(initial=0)) for member_samples in parts)])
    shape = (max(counts, default=0), len(sizes), widest)
    rows, weight = np.zeros(shape, np.int64), np.zeros(shape)
    for member, (rng, member_samples, part) in enumerate(zip(rngs, samples, parts, strict=True)):
        if not counts[member]:
            continue
        order, ends = rng.permutation(member_samples), np.cumsum(part[rank])
        for k, (end, here, together) in enumerate(zip(ends, part[rank], part.sum(0), strict=True)):
            rows[k, member, :here] = order[end - here : end]
            weight[k, member, :here] = ranks / together
    return EpochPlan(rows, weight, np.arange(shape[0])[:, None] < np.asarray(counts))


def dealt(counted: np.ndarray, count: int) -> np.ndarray:
    """Distribute the samples `counted` [W] of W ranks over `count` minibatches: [W, count] numbers of samples.

    On every rank, and in the sum over ranks, the numbers differ by at most one.
    """
    even, rest = np.divmod(counted.astype(np.int64), max(1, count))
    first = np.cumsum(rest) - rest  # the remainder of a rank starts where that of the previous rank ends
    turn = (np.arange(count) - first[:, None]) % max(1, count)
    shares: np.ndarray = even[:, None] + (turn < rest[:, None])
    return shares


@dataclass(frozen=True)
class Rollout:
    """Rollouts of N members as tensors [N, T·E, ...] in time order, from which minibatches are gathered.

    Attributes:
        obs: network inputs. numbers: [N, T·E, 4], for teams [N, T·E, M, 4]: log probability, value, standardised
            advantage, return.
        samples: valid rows per member; of teams those in which at least one agent decided.
        acted: [N, T·E, M] bool, for teams: valid rows per agent; None if all are valid.
    """

    obs: Any
    action: Tensor
    numbers: Tensor
    legal: Tensor | None
    samples: list[np.ndarray]
    acted: Tensor | None = field(default=None, kw_only=True)

    @property
    def size(self) -> int:
        """Number of rows of one member."""
        return int(self.numbers.shape[1])

    def _columns(self, noise: Tensor | None) -> list[tuple[str, Tensor]]:
        """Return the per-row fields of a batch by name, without observations."""
        names = ("log_prob", "value", "advantage", "returns", "action", "legal", "noise", "acted")
        columns = (*self.numbers.unbind(-1), self.action, self.legal, noise, self.acted)
        return [(name, x) for name, x in zip(names, columns, strict=True) if x is not None]

    def batches(self, plan: EpochPlan, noise: Tensor | None = None, ranks: Ranks = ONE) -> Iterator[RolloutBatch]:
        """Yield the minibatches of one epoch.

        Args:
            noise: [N, T·E, A], per row.
            ranks: processes that share the minibatches; needed if samples differ in length. Otherwise the weights of
                the plan already account for the ranks.
        """
        count, members, width = plan.rows.shape
        device = self.numbers.device
        rows = torch.from_numpy((plan.rows + self.size * np.arange(members)[:, None]).reshape(-1)).to(device)

        def gather(x: Tensor) -> list[Tensor]:
            chosen = x.flatten(0, 1).index_select(0, rows)
            return list(chosen.view(count, members, width, *x.shape[2:]).unbind())

        columns: dict[str, Any] = {name: gather(x) for name, x in self._columns(noise)}
        columns["weight"] = torch.from_numpy(plan.weight).to(device, self.numbers.dtype).unbind()
        obs = map_leaves(gather, self.obs)  # lists are leaves
        for k in range(count):
            yield RolloutBatch(
                take(obs, k), live=plan.live_in(k), **{name: column[k] for name, column in columns.items()}
            )


@dataclass(frozen=True)
class SequenceRollout(Rollout):
    """Rollouts of recurrent members; a sample is a sequence.

    Attributes:
        samples: indices of the sequences per member.
        sequences: per member [S, 3]: lane, first step, length. lanes: number of lanes per member.
        hidden: key -> [N, T·E, layers, units] before every step.
    """

    sequences: list[np.ndarray]
    lanes: int
    hidden: Mapping[str, Tensor]

    def batches(self, plan: EpochPlan, noise: Tensor | None = None, ranks: Ranks = ONE) -> Iterator[RolloutBatch]:
        """Yield the minibatches of one epoch; all steps of a minibatch have equal weight, over all ranks."""
        count, members, _ = plan.rows.shape
        chosen = np.stack(
            [member_sequences[plan.rows[:, i]] for i, member_sequences in enumerate(self.sequences)], 1
        )  # [K, N, S, 3]
        lane, start, length = (chosen[..., k, None] for k in range(3))
        length = np.where(plan.weight[..., None] > 0, length, 0)
        steps = np.maximum(ranks.average(length.sum((2, 3))), 1 / ranks.size)  # [K, N], mean over ranks
        for k in range(count):
            max_length = max(1, int(length[k].max()))  # a rank may have no sequence of a minibatch
            offset = np.arange(max_length)
            step = start[k] + np.minimum(offset, np.maximum(length[k] - 1, 0))
            rows = step * self.lanes + lane[k]  # [N, S, L]
            real = offset < length[k]
            weight = real / steps[k, :, None, None]
            rest = sequences_at(rows, self.obs, self.hidden, dict(self._columns(noise)))
            rest["weight"] = torch.from_numpy(weight.reshape(members, -1)).to(self.numbers)
            yield RolloutBatch(**rest, live=plan.live_in(k))


def sequences_at(
    rows: np.ndarray, obs: Any, hidden: Mapping[str, Tensor], columns: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Gather sequences as arguments of `RolloutBatch`.

    Args:
        rows: [N, S, L] indices of the steps of S sequences among a member's R rows.
        obs, hidden, columns: [N, R, ...] of all rows; `columns`: the other arguments by name.
    """
    members, sequences, length = rows.shape
    like = next(iter(columns.values()))
    rows = rows + like.shape[1] * np.arange(members)[:, None, None]
    index, starts = (torch.from_numpy(x.reshape(-1)).to(like.device) for x in (rows, rows[:, :, 0]))

    def gather(x: Tensor) -> Tensor:
        return x.flatten(0, 1).index_select(0, index).view(members, sequences * length, *x.shape[2:])

    at_start = {
        key: x.flatten(0, 1).index_select(0, starts).view(members, sequences, *x.shape[2:]).transpose(1, 2)
        for key, x in hidden.items()
    }
    gathered = {name: gather(x) for name, x in columns.items()}
    return {"obs": map_leaves(gather, obs), "hidden": at_start, "length": length, **gathered}


def by_member(x: np.ndarray, members: int) -> Tensor:
    """Convert [T, N·E, ...] to a tensor [N, T, E, ...]."""
    steps, lanes = x.shape[:2]
    shaped = x.reshape(steps, members, lanes // members, *x.shape[2:])
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(shaped, 1, 0)))


@dataclass(frozen=True)
class StoredRollout:
    """A full buffer of N·E lanes (member by member) as tensors [N, T, E], for teams [N, T, E, M].

    Values that were not stored are computed in one pass over the rollout: the policy is constant in it.

    Attributes:
        merged: converts an array of the buffer to [N, T·E, ...]. common: inputs of networks, actions, legal actions and
            hidden states [N, T·E, ...], as arguments of rollouts.
        last: values after the last step [N, E(, M)]. finals: see `outcomes`. gamma, lam: [N, 1, 1].
    """

    merged: Callable[[np.ndarray], Tensor]
    common: dict[str, Any]
    reward: Tensor
    log_prob: Tensor
    terminated: Tensor
    truncated: Tensor
    valid: Tensor
    value: Tensor
    last: Tensor
    finals: list[tuple[int, Tensor, Tensor, Tensor]]
    gamma: Tensor
    lam: Tensor

    @classmethod
    def read(
        cls, learner: Learner, group: int, members: Sequence[Any], buffer: RolloutStore, like: Tensor
    ) -> StoredRollout:
        """See `make_rollout` for the arguments."""
        count = len(members)

        def merged(x: np.ndarray) -> Tensor:
            return by_member(x, count).flatten(1, 2).to(like.device)

        obs = learner.groups[group].prepare(map_leaves(merged, buffer.stored("obs")))
        fields = {name: by_member(buffer.stored(name), count) for name in ("terminated", "truncated", "valid")}
        names = ("reward", "log_prob", *(("value",) if buffer.values_known else ()))
        fields |= {name: by_member(buffer.stored(name), count).to(like.device, like.dtype) for name in names}
        if not buffer.values_known:
            fields["value"] = learner.groups[group].values(obs).view_as(fields["reward"])
        last, finals = outcomes(learner, group, count, buffer, fields["value"])
        hyper = torch.tensor([[m.gamma, m.gae_lambda] for m in members], dtype=like.dtype, device=like.device)
        gamma, lam = (x.view(count, 1, 1) for x in hyper.unbind(1))
        legal = merged(buffer.stored("legal")) if "legal" in buffer.fields else None
        common = {"obs": obs, "action": merged(buffer.stored("action")), "legal": legal}
        if buffer.hidden_state_architecture:
            common["hidden"] = {key: merged(x).to(like.dtype) for key, x in buffer.stored("hidden").items()}
        return cls(merged, common, **fields, last=last, finals=finals, gamma=gamma, lam=lam)


def make_rollout(learner: Learner, group: int, members: Sequence[Any], buffer: RolloutStore, like: Tensor) -> Rollout:
    """Convert a full buffer of N·E lanes (member by member) to rollouts with advantages and returns.

    Args:
        members: agents with `gamma` and `gae_lambda`; recurrent ones also with `bptt_sequence_type` and
            `sequence_limit(steps)`, the maximum length of a sequence in a rollout of that many steps.
        like: tensor with the dtype and device to use.
    """
    stored = StoredRollout.read(learner, group, members, buffer, like)
    value, terminated, truncated, valid = stored.value, stored.terminated, stored.truncated, stored.valid
    after = following_values(value, stored.last)  # or the values of the FINAL observations of truncated episodes
    for member, steps, lanes, values in stored.finals:
        after[member, steps, lanes] = values
    # The row after an invalid one (for example of a replaced lane) is not the successor of the row before it.
    before_gap = torch.cat((~valid[:, 1:], torch.zeros_like(valid[:, :1])), 1)
    cut = (terminated | truncated | ~valid | before_gap).to(like.device)
    discount = stored.gamma * (~terminated).to(like.device, like.dtype)
    advantage = gae(stored.reward, discount, value, after, cut, stored.lam)
    returns = advantage + value
    counts = valid.flatten(1).to(like.device, like.dtype)
    scaled = standardised_over(learner.ranks, advantage.flatten(1), counts)
    packed = torch.stack((stored.log_prob.flatten(1), value.flatten(1), scaled, returns.flatten(1)), -1)
    if not buffer.hidden_state_architecture:
        samples = [np.flatnonzero(row) for row in valid.flatten(1).numpy()]
        return Rollout(numbers=packed, samples=samples, **stored.common)
    ends = (terminated | truncated).numpy()
    longest, kind = members[0].sequence_limit(len(buffer)), members[0].bptt_sequence_type
    sequences = [sequences_of(e, v, longest, kind) for e, v in zip(ends, valid.numpy(), strict=True)]
    samples = [np.arange(len(member_sequences)) for member_sequences in sequences]
    lanes_each = buffer.num_envs // len(members)
    return SequenceRollout(numbers=packed, samples=samples, sequences=sequences, lanes=lanes_each, **stored.common)


def standardised_over(ranks: Ranks, values: Tensor, counts: Tensor) -> Tensor:
    """Like `standardised`, over the entries [N, B] of all ranks; `counts` is 1 for valid entries and 0 for others."""
    if ranks.size > 1:
        both = ranks.gather_rows(torch.stack((values, counts)).double().cpu().numpy())  # [W, 2, N, B]
        all_values, all_counts = (torch.from_numpy(x).permute(1, 0, 2).flatten(1) for x in both.swapaxes(0, 1))
        width = values.shape[1]
        scaled = standardised_over(ONE, all_values, all_counts)
        return scaled[:, ranks.rank * width : (ranks.rank + 1) * width].to(values)
    return standardised(values, counts / counts.sum(1, keepdim=True).clamp(min=1))


def outcomes(
    learner: Learner, group: int, count: int, buffer: RolloutStore, like: Tensor
) -> tuple[Tensor, list[tuple[int, Tensor, Tensor, Tensor]]]:
    """Return the bootstrap values of the rollouts of N members.

    Returns:
        (values after the last step [N, E, ...]; member, steps [k], lanes [k] and values [k, ...] of the FINAL
        observations of truncated episodes, for each member that has any).
    """
    width = buffer.num_envs // count
    cuts: list[list[tuple[int, int, Any]]] = [[] for _ in range(count)]
    for part in buffer.truncations:
        for i, lane in enumerate(part.lanes.tolist()):
            value = None if part.value is None else part.value[i]
            cuts[lane // width].append((part.step, lane % width, (take(part.obs, i), value)))
    if buffer.last_value is not None:
        last = torch.from_numpy(np.asarray(buffer.last_value)).to(like)
        last = last.view(count, width, *last.shape[1:])
    else:
        shaped = map_leaves(lambda x: torch.from_numpy(np.asarray(x)).to(like.device), buffer.last_obs)
        shaped = map_leaves(lambda x: x.view(count, width, *x.shape[1:]), shaped)
        last = learner.groups[group].values(learner.groups[group].prepare(shaped))
    max_cuts = max(map(len, cuts))
    if not max_cuts:
        return last, []
    if buffer.truncations[0].value is not None:
        final_values = [[value for *_, (_, value) in member_entries] for member_entries in cuts]
        values = [torch.tensor(np.array(member_entries, np.float64)).to(like) for member_entries in final_values]
    else:
        spare = next(member_entries[0][2][0] for member_entries in cuts if member_entries)
        rows = [
            [obs for *_, (obs, _) in member_entries] + [spare] * (max_cuts - len(member_entries))
            for member_entries in cuts
        ]
        stacked = stack(None, [stack(None, member_entries) for member_entries in rows])
        moved = map_leaves(lambda x: torch.from_numpy(np.asarray(x)).to(like.device), stacked)
        values = list(learner.groups[group].values(learner.groups[group].prepare(moved)).unbind())
    finals = []
    for member, member_entries in enumerate(cuts):
        if member_entries:
            steps, lanes = (torch.tensor([entry[k] for entry in member_entries]) for k in (0, 1))
            finals.append((member, steps, lanes, values[member][: len(member_entries)]))
    return last, finals


# --- sequences for truncated backpropagation through time -----------------------------------------------------------


def cut_points(length: int, longest: int, kind: str) -> list[tuple[int, int]]:
    """Return (start, length) of the sequences that cover one episode of `length` steps.

    * "chunked": consecutive sequences of `longest` steps; the last one may be shorter.
    * "maximum": same as "chunked"; without a limit `longest` the episode is one sequence.
    * "fifty_percent_overlap": a start every `longest // 2` steps (at least one), up to the sequence that reaches the
      end; steps in two sequences count twice.
    """
    stride = max(1, longest // 2) if kind == "fifty_percent_overlap" else longest
    points = []
    for start in range(0, length, stride):
        points.append((start, min(longest, length - start)))
        if start + longest >= length:
            break
    return points


def sequences_of(cut: np.ndarray, valid: np.ndarray, longest: int, kind: str) -> np.ndarray:
    """Return all sequences of a rollout; no sequence crosses the end of an episode.

    Args:
        cut: [T, E] bool, the episode ended with this step. valid: [T, E] bool, False if a row is not a transition.
        longest: maximum steps of a sequence.

    Returns:
        [S, 3] int64: lane, first step, length; lane by lane, in time order.
    """
    sequences = []
    steps = len(cut)
    for lane in range(cut.shape[1]):
        # An episode starts after an end or an invalid row, and extends to the next of either.
        ends = np.flatnonzero(cut[:, lane] | ~valid[:, lane]) + 1
        start = 0
        for end in (*ends.tolist(), steps):
            stop = end if end == steps or valid[end - 1, lane] else end - 1
            if end == steps and steps and not valid[steps - 1, lane]:
                stop = steps - 1
            sequences += [(lane, start + first, count) for first, count in cut_points(stop - start, longest, kind)]
            start = end
    return np.array(sequences, np.int64).reshape(-1, 3)


# --- epochs -----------------------------------------------------------------------------------------------------------


def _entropy_noise(
    members: Sequence[Any], rollout: Rollout, rngs: Sequence[np.random.Generator], active: Sequence[bool]
) -> Tensor | None:
    """Draw numbers [N, T·E, A] for one epoch, from one stream per active member; None if none are needed."""
    drawn = {i: m.draw_entropy_noise(rngs[i], rollout.size) for i, m in enumerate(members) if active[i]}
    noises = {i: numbers for i, numbers in drawn.items() if numbers is not None}
    if not noises:
        return None
    noise = np.zeros((len(members), *next(iter(noises.values())).shape))
    for i, numbers in noises.items():
        noise[i] = numbers
    return torch.from_numpy(noise).to(rollout.numbers.device, rollout.numbers.dtype)


@dataclass
class LearnReport:
    """Result of one member's learning from one rollout.

    Attributes:
        updates: optimiser steps. loss: sum over them. kl: mean over the minibatches of the last epoch.
        epochs: passes over the rollout that were started.
    """

    updates: int = 0
    epochs: int = 0
    loss: float = 0.0
    kl: float = 0.0

    @property
    def mean_loss(self) -> float:
        """Mean loss per minibatch."""
        return self.loss / max(1, self.updates)


def learn_rollout(
    learner: Learner, group: int, members: Sequence[Any], rollout: Rollout, rngs: Sequence[np.random.Generator]
) -> list[LearnReport]:
    """Run all epochs of a group; batch size, epochs and `target_kl` are per member.

    A member stops after the epoch whose mean divergence exceeds its `target_kl` (like Schulman et al.'s released code,
    openai/spinningup, ppo.py); the others continue.

    Args:
        members: agents with `batch_size`, `update_epochs`, `target_kl` and `draw_entropy_noise(rng, rows)`, which draws
            the random numbers [rows, A] of one epoch, or None. `learned_steps` is advanced.
    """
    reports = [LearnReport() for _ in members]
    active, ranks = [True] * len(members), learner.ranks
    sizes = [int(m.batch_size) for m in members]
    counted = None  # samples on all ranks, which share the minibatches
    if ranks.size > 1:
        counted = ranks.gather_rows(np.array([len(rows) for rows in rollout.samples])).astype(np.int64)
    adapts = [bool(member.adapts_rate) for member in members]
    losses: list[Tensor] = []
    for epoch in range(max(int(m.update_epochs) for m in members)):
        active = [go and epoch < int(m.update_epochs) for go, m in zip(active, members, strict=True)]
        if not any(active):
            break
        plan = plan_epoch(rngs, rollout.samples, sizes, active, counted, ranks.rank)
        noise = _entropy_noise(members, rollout, rngs, active)
        results = learner.learn_epoch(group, rollout, plan) if noise is None else None
        if results is None:
            results = [learner.learn(group, batch) for batch in rollout.batches(plan, noise, ranks)]
        losses += [result.loss for result in results]
        divergence: Any = sum(result.kl for result in results if result.kl is not None)
        needs_kl = any(adapts) or any(m.target_kl is not None for m in members)
        has_kl = needs_kl and isinstance(divergence, Tensor)
        if has_kl:
            divergence = ranks.mean(divergence)  # so that all ranks stop after the same epoch
        counts, kl_sums = plan.live.sum(0), divergence.tolist() if has_kl else [0.0] * len(members)
        for i, (report, member) in enumerate(zip(reports, members, strict=True)):
            if not active[i]:
                continue
            report.updates += int(counts[i])
            report.epochs += 1
            report.kl = kl_sums[i] / max(1, int(counts[i]))
            limit = member.divergence_limit if adapts[i] else member.target_kl
            if limit is not None and report.kl > limit:
                active[i] = False
    for member, report, follows in zip(members, reports, adapts, strict=True):
        member.learned_steps += rollout.size * ranks.size
        if follows:
            member.adapt_rate(report.kl)
    if any(adapts) or any(member.action_ent_steps for member in members):
        learner.groups[group].refresh()
    if losses:
        total: Any = sum(losses)
        for report, value in zip(reports, total.tolist(), strict=True):
            report.loss = value
    return reports
