"""From a stored rollout to what minibatches are gathered from: values, advantages, returns and sequences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.components.rollout_buffer import RolloutBuffer
from agilerl.engine.batches import RolloutBatch
from agilerl.engine.epochs import EpochPlan, learn_rollout
from agilerl.engine.protocol import GroupLearner, RolloutMember
from agilerl.losses.returns import following_values, gae, standardised
from agilerl.tree import map_leaves

__all__ = ["KINDS", "Rollout", "SequenceRollout", "learn_rollout", "make_rollout"]

KINDS = ("chunked", "maximum", "fifty_percent_overlap")


@dataclass(frozen=True)
class Rollout:
    """Rollouts of N members as tensors [N, T·E, ...], in the order of time; what minibatches are gathered from.

    Attributes:
        obs: prepared. numbers: [N, T·E, 4]: log probability, value, standardised advantage, return.
        samples: per member the rows that count.
    """

    obs: Any
    action: Tensor
    numbers: Tensor
    legal: Tensor | None
    samples: list[np.ndarray]

    @property
    def size(self) -> int:
        """Rows of one member."""
        return int(self.numbers.shape[1])

    def batches(self, plan: EpochPlan, noise: Tensor | None = None) -> Iterator[RolloutBatch]:
        """The minibatches of one epoch; `noise` [N, T·E, A] goes with the rows."""
        count, members, width = plan.rows.shape
        device = self.numbers.device
        rows = torch.from_numpy((plan.rows + self.size * np.arange(members)[:, None]).reshape(-1)).to(device)

        def gather(x: Tensor) -> list[Tensor]:
            chosen = x.flatten(0, 1).index_select(0, rows)
            return list(chosen.view(count, members, width, *x.shape[2:]).unbind())

        log_prob, value, advantage, returns = (gather(x) for x in self.numbers.unbind(-1))
        action = gather(self.action)
        legal = None if self.legal is None else gather(self.legal)
        numbers = None if noise is None else gather(noise)
        obs = _unbound(self.obs, gather, count)
        weight = torch.from_numpy(plan.weight).to(device, self.numbers.dtype).unbind()
        for k in range(count):
            live = plan.live[k]
            yield RolloutBatch(
                obs[k],
                action[k],
                log_prob[k],
                value[k],
                advantage[k],
                returns[k],
                weight[k],
                None if legal is None else legal[k],
                live=None if live.all() else tuple(live.tolist()),
                noise=None if numbers is None else numbers[k],
            )


@dataclass(frozen=True)
class SequenceRollout(Rollout):
    """Rollouts of recurrent members; a sample is a sequence.

    Attributes:
        samples: per member the numbers of its sequences.
        sequences: per member [S, 3]: lane, first step, length. lanes: of one member.
        hidden: key -> [N, T·E, layers, units] from before every step.
    """

    sequences: list[np.ndarray]
    lanes: int
    hidden: Mapping[str, Tensor]

    def batches(self, plan: EpochPlan, noise: Tensor | None = None) -> Iterator[RolloutBatch]:
        """The minibatches of one epoch; the steps of a minibatch's sequences count alike."""
        count, members, _ = plan.rows.shape
        chosen = np.stack([own[plan.rows[:, i]] for i, own in enumerate(self.sequences)], 1)  # [K, N, S, 3]
        lane, start, length = (chosen[..., k, None] for k in range(3))
        length = np.where(plan.weight[..., None] > 0, length, 0)
        for k in range(count):
            most = int(length[k].max())
            offset = np.arange(most)
            step = start[k] + np.minimum(offset, np.maximum(length[k] - 1, 0))
            rows = step * self.lanes + lane[k] + self.size * np.arange(members)[:, None, None]  # [N, S, L]
            real = offset < length[k]
            weight = real / np.maximum(real.sum((1, 2), keepdims=True), 1)
            live = plan.live[k]
            yield self._batch(rows, weight.reshape(members, -1), None if live.all() else tuple(live.tolist()), noise)

    def _batch(
        self, rows: np.ndarray, weight: np.ndarray, live: tuple[bool, ...] | None, noise: Tensor | None
    ) -> RolloutBatch:
        members, sequences, length = rows.shape
        device = self.numbers.device
        index = torch.from_numpy(rows.reshape(-1)).to(device)
        starts = torch.from_numpy(rows[:, :, 0].reshape(-1)).to(device)

        def gather(x: Tensor) -> Tensor:
            return x.flatten(0, 1).index_select(0, index).view(members, sequences * length, *x.shape[2:])

        hidden = {
            key: x.flatten(0, 1).index_select(0, starts).view(members, sequences, *x.shape[2:]).transpose(1, 2)
            for key, x in self.hidden.items()
        }
        log_prob, value, advantage, returns = gather(self.numbers).unbind(-1)
        return RolloutBatch(
            map_leaves(gather, self.obs),
            gather(self.action),
            log_prob,
            value,
            advantage,
            returns,
            torch.from_numpy(weight).to(device, self.numbers.dtype),
            None if self.legal is None else gather(self.legal),
            hidden,
            live,
            length,
            None if noise is None else gather(noise),
        )


def _unbound(obs: Any, gather: Any, count: int) -> list[Any]:
    """`gather` on every leaf; the parts of minibatch k together."""
    parts = map_leaves(gather, obs)  # lists are leaves
    return [_at(parts, k) for k in range(count)]


def _at(rows: Any, k: int) -> Any:
    """Entry k of every leaf."""
    return map_leaves(lambda x: x[k], rows)


def by_member(x: np.ndarray, members: int) -> Tensor:
    """[T, N·E, ...] as a tensor [N, T, E, ...]."""
    steps, lanes = x.shape[:2]
    shaped = x.reshape(steps, members, lanes // members, *x.shape[2:])
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(shaped, 1, 0)))


def make_rollout(
    learner: GroupLearner, group: int, members: Sequence[RolloutMember], buffer: RolloutBuffer, like: Tensor
) -> Rollout:
    """What a full buffer of N·E lanes (member by member) teaches.

    Values that nobody stored are computed here, in one pass over the rollout: the policy did not change in it.

    Args:
        like: gives dtype and device.
    """
    count = len(members)

    def numbers(name: str) -> Tensor:
        return by_member(buffer.stored(name), count).to(like.device, like.dtype)

    def merged(x: np.ndarray) -> Tensor:
        return by_member(x, count).flatten(1, 2).to(like.device)

    obs = learner.prepare(group, map_leaves(merged, buffer.stored("obs")))
    reward, log_prob = numbers("reward"), numbers("log_prob")
    terminated, truncated, valid = (by_member(buffer.stored(x), count) for x in ("terminated", "truncated", "valid"))
    value = numbers("value") if buffer.values_known else learner.values(group, obs).view_as(reward)
    after = _bootstrap(learner, group, count, buffer, value)
    hyper = torch.tensor([[m.gamma, m.gae_lambda] for m in members], dtype=like.dtype, device=like.device)
    gamma, lam = (x.view(count, 1, 1) for x in hyper.unbind(1))
    # What follows a row that is no transition (a lane that was replaced, say) is not the outcome of the row before it.
    before_gap = torch.cat((~valid[:, 1:], torch.zeros_like(valid[:, :1])), 1)
    cut = (terminated | truncated | ~valid | before_gap).to(like.device)
    discount = gamma * (~terminated).to(like.device, like.dtype)
    advantage = gae(reward, discount, value, after, cut, lam)
    returns = advantage + value
    weight = valid.flatten(1).to(like.device, like.dtype)
    weight = weight / weight.sum(1, keepdim=True)
    scaled = standardised(advantage.flatten(1), weight)
    columns = (log_prob.flatten(1), value.flatten(1), scaled, returns.flatten(1))
    legal = merged(buffer.stored("legal")) if "legal" in buffer.fields else None
    packed, action = torch.stack(columns, -1), merged(buffer.stored("action"))
    if not buffer.hidden_state_architecture:
        samples = [np.flatnonzero(row) for row in valid.flatten(1).numpy()]
        return Rollout(obs, action, packed, legal, samples)
    ends = (terminated | truncated).numpy()
    longest, kind = members[0].sequence_limit(len(buffer)), members[0].bptt_sequence_type
    sequences = [sequences_of(e, v, longest, kind) for e, v in zip(ends, valid.numpy(), strict=True)]
    hidden = {key: merged(x).to(like.dtype) for key, x in buffer.stored("hidden").items()}
    samples = [np.arange(len(own)) for own in sequences]
    width = buffer.num_envs // count
    return SequenceRollout(obs, action, packed, legal, samples, sequences, width, hidden)


def _bootstrap(learner: GroupLearner, group: int, count: int, buffer: RolloutBuffer, value: Tensor) -> Tensor:
    """v(s'ₜ) [N, T, E]: of the next observation, and of the FINAL one where a time limit cut an episode off."""
    width = buffer.num_envs // count
    cuts: list[list[tuple[int, int, Any]]] = [[] for _ in range(count)]
    for part in buffer.truncations:
        for i, lane in enumerate(part.lanes.tolist()):
            known = None if part.value is None else part.value[i]
            cuts[lane // width].append((part.step, lane % width, (_at(part.obs, i), known)))
    if buffer.last_value is not None:
        last = torch.from_numpy(np.asarray(buffer.last_value)).to(value).view(count, width)
    else:
        shaped = map_leaves(lambda x: torch.from_numpy(np.asarray(x)).to(value.device), buffer.last_obs)
        shaped = map_leaves(lambda x: x.view(count, width, *x.shape[1:]), shaped)
        last = learner.values(group, learner.prepare(group, shaped))
    after = following_values(value, last)
    most = max(map(len, cuts))
    if not most:
        return after
    if buffer.truncations[0].value is not None:
        found = [[known for *_, (_, known) in own] for own in cuts]
        values = [torch.tensor(np.array(own, np.float64)).to(value) for own in found]
    else:
        spare = next(own[0][2][0] for own in cuts if own)
        rows = [[obs for *_, (obs, _) in own] + [spare] * (most - len(own)) for own in cuts]
        stacked = _stack([_stack(own) for own in rows])
        moved = map_leaves(lambda x: torch.from_numpy(np.asarray(x)).to(value.device), stacked)
        values = list(learner.values(group, learner.prepare(group, moved)).unbind())
    for member, own in enumerate(cuts):
        if own:
            steps, lanes = (torch.tensor([entry[k] for entry in own]) for k in (0, 1))
            after[member, steps, lanes] = values[member][: len(own)]
    return after


def _stack(rows: Sequence[Any]) -> Any:
    first = rows[0]
    if isinstance(first, dict):
        return {key: _stack([row[key] for row in rows]) for key in first}
    if isinstance(first, tuple):
        return tuple(_stack([row[i] for row in rows]) for i in range(len(first)))
    return np.stack([np.asarray(row) for row in rows])


# --- sequences for truncated back-propagation through time ----------------------------------------------------------


def cut_points(length: int, longest: int, kind: str) -> list[tuple[int, int]]:
    """(start, length) of the sequences of one episode of `length` steps; together they cover every step.

    * "chunked": one after the other, `longest` steps each; the last one is what is left.
    * "maximum": as "chunked". `longest` alone bounds it: with none the episode is one sequence.
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
    """All sequences of a rollout of some lanes: no sequence crosses the end of an episode.

    Args:
        cut: [T, E] bool, the episode ended with this step. valid: [T, E] bool, False where a row is no transition.
        longest: most steps of a sequence.

    Returns:
        [S, 3] int64: lane, first step, length; lane by lane, in the order of time.
    """
    found = []
    steps = len(cut)
    for lane in range(cut.shape[1]):
        # An episode goes from the row after an end, or after a row that is no transition, to the next of either.
        ends = np.flatnonzero(cut[:, lane] | ~valid[:, lane]) + 1
        start = 0
        for end in (*ends.tolist(), steps):
            stop = end if end == steps or valid[end - 1, lane] else end - 1
            if end == steps and steps and not valid[steps - 1, lane]:
                stop = steps - 1
            found += [(lane, start + first, count) for first, count in cut_points(stop - start, longest, kind)]
            start = end
    return np.array(found, np.int64).reshape(-1, 3)
