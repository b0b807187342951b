"""Rollouts worked by hand: advantages over ends, cuts and gaps, sequences and their weights, epochs and divergences."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor

from agilerl.components.rollout_store import RolloutStore
from agilerl.engine.protocol import UpdateResult
from agilerl.engine.rollouts import (
    EpochPlan,
    Rollout,
    SequenceRollout,
    cut_points,
    learn_rollout,
    make_rollout,
    plan_epoch,
    sequences_of,
)
from agilerl.ranks import ONE

BOX, CHOICE = gym.spaces.Box(-9, 9, (1,), np.float64), gym.spaces.Discrete(2)
LIKE = torch.zeros((), dtype=torch.float64)
# Two lanes of four steps, with values of their observations: an end, a time limit and, in the second lane, a gap.
REWARD = np.array([[1.0, 1.0], [5.0, 1.0], [3.0, 9.0], [4.0, 4.0]])
VALUE = np.array([[1.0, 2.0], [2.0, 1.0], [3.0, 7.0], [4.0, 3.0]])
LAST, FINAL = np.array([6.0, 2.0]), 8.0
VALID = np.array([[1, 1], [1, 1], [1, 0], [1, 1]], bool)


def values_learner() -> Any:
    """A learner whose critic says of an observation the number that it is."""
    group = SimpleNamespace(prepare=torch.as_tensor, values=lambda obs: obs[..., 0])
    return SimpleNamespace(groups=[group], ranks=ONE)


def rollout(stores_values: bool, recurrent: bool = False) -> tuple[RolloutStore, Any]:
    """The rollout above; with `stores_values` those that were stored while acting."""
    units = {"policy": (1, 2)} if recurrent else None
    buffer = RolloutStore(4, 2, BOX, CHOICE, hidden_state_architecture=units)
    for t in range(4):
        end, cut = np.array([t == 1, False]), np.array([t == 2, False])
        fields: dict[str, Any] = {"value": VALUE[t], "final_value": np.array([FINAL, 0.0])} if stores_values else {}
        if recurrent:
            fields["hidden"] = {"policy": np.full((1, 2, 2), t, float)}
        buffer.add(
            VALUE[t][:, None], np.zeros(2, np.int64), REWARD[t], end, cut, np.zeros(2),
            final_obs=np.array([[FINAL], [0.0]]), valid=VALID[t], **fields,
        )  # fmt: skip
    buffer.last_obs = LAST[:, None]
    buffer.last_value = LAST if stores_values else None
    agent = SimpleNamespace(gamma=0.5, gae_lambda=0.5, bptt_sequence_type="chunked", sequence_limit=lambda steps: 3)
    return buffer, agent


@pytest.mark.parametrize("stores_values", [True, False], ids=["values stored", "values computed"])
def test_advantages_over_an_end_a_time_limit_and_a_gap(stores_values: bool) -> None:
    """γ = λ = ½, so that a trace is a quarter of the advantage that follows.

    First lane: 4 + 3 − 4; 3 + ½ · 8 − 3 at the time limit; 5 − 2 at the end; 1 + 1 − 1 + 3/4.
    Second lane: 4 + 1 − 3; a gap; 1 + ½ · 7 − 1 before the gap, without a trace; 1 + ½ − 2 + 3.5/4.
    """
    buffer, agent = rollout(stores_values)
    result = make_rollout(values_learner(), 0, [agent], buffer, LIKE)
    advantage = np.array([[1.75, 0.375], [3.0, 3.5], [4.0, np.nan], [3.0, 2.0]])
    valid = VALID.ravel()
    assert result.samples[0].tolist() == np.flatnonzero(valid).tolist()
    numbers = result.numbers[0].numpy()[valid]
    np.testing.assert_allclose(numbers[:, 1], VALUE.ravel()[valid], rtol=1e-15)
    expected = advantage.ravel()[valid]
    np.testing.assert_allclose(numbers[:, 3], expected + VALUE.ravel()[valid], rtol=1e-14)
    scaled = (expected - expected.mean()) / (expected.std() + 1e-8)
    np.testing.assert_allclose(numbers[:, 2], scaled, rtol=1e-12)


def test_sequences_end_with_episodes_and_leave_gaps_out() -> None:
    buffer, agent = rollout(True, recurrent=True)
    result = make_rollout(values_learner(), 0, [agent], buffer, LIKE)
    assert isinstance(result, SequenceRollout)
    # (lane, first step, length): the end after step 1, the time limit after step 2, the gap at step 2.
    assert result.sequences[0].tolist() == [[0, 0, 2], [0, 2, 1], [0, 3, 1], [1, 0, 2], [1, 3, 1]]
    plan = EpochPlan(np.array([[[0, 4, 1]]]), np.array([[[1 / 2, 1 / 2, 0]]]), np.array([[True]]))
    (batch,) = result.batches(plan)
    assert batch.length == 2
    # Two sequences of 2 and 1 steps, the second one padded by its last row, and one beyond the minibatch.
    np.testing.assert_allclose(batch.weight, [[1 / 3, 1 / 3, 1 / 3, 0, 0, 0]])
    assert batch.value[0, :4].tolist() == [1, 2, 3, 3]
    assert batch.hidden["policy"].shape == (1, 1, 3, 2)
    assert batch.hidden["policy"][0, 0, :, 0].tolist() == [0, 3, 2], "states at the first steps"


@pytest.mark.parametrize(
    ("kind", "longest", "expected"),
    [
        ("chunked", 3, [(0, 3), (3, 3), (6, 1)]),
        ("maximum", 7, [(0, 7)]),
        ("fifty_percent_overlap", 4, [(0, 4), (2, 4), (4, 3)]),
        ("fifty_percent_overlap", 5, [(0, 5), (2, 5)]),
        ("fifty_percent_overlap", 3, [(0, 3), (1, 3), (2, 3), (3, 3), (4, 3)]),
        ("fifty_percent_overlap", 1, [(k, 1) for k in range(7)]),
    ],
)
def test_sequences_cover_an_episode_of_seven_steps(kind: str, longest: int, expected: list[tuple[int, int]]) -> None:
    assert cut_points(7, longest, kind) == expected


def test_invalid_rows_are_in_no_sequence_of_their_lane() -> None:
    valid = np.array([[1, 0, 1], [1, 1, 1], [0, 1, 1], [1, 1, 0]], bool)
    result = sequences_of(np.zeros((4, 3), bool), valid, 9, "chunked").tolist()
    assert [row for row in result if row[2]] == [[0, 0, 2], [0, 3, 1], [1, 1, 3], [2, 0, 3]]


def test_minibatches_of_a_members_own_size_weigh_each_row_of_theirs_equally() -> None:
    rngs = [np.random.default_rng(seed) for seed in (3, 4)]
    plan = plan_epoch(rngs, [np.array([1, 4, 5, 7, 8]), np.arange(3)], [2, 3], [True, True])
    np.testing.assert_allclose(plan.weight[:, 0], [[1 / 2, 1 / 2, 0], [1 / 2, 1 / 2, 0], [1, 0, 0]])
    np.testing.assert_allclose(plan.weight[:, 1], [[1 / 3] * 3, [0] * 3, [0] * 3])
    assert plan.live.tolist() == [[True, True], [True, False], [True, False]]
    assert sorted(plan.rows[:, 0][plan.weight[:, 0] > 0]) == [1, 4, 5, 7, 8]


class Scripted:
    """A learner whose minibatches have these divergences, by epoch; it notes which members were live."""

    def __init__(self, divergences: list[list[float]]) -> None:
        self.divergences, self.live, self.ranks = divergences, list[list[list[bool]]](), ONE
        self.groups = [SimpleNamespace(refresh=lambda: None)]

    def learn_epoch(self, group: int, of: Rollout, plan: EpochPlan) -> list[UpdateResult]:
        kl = torch.tensor(self.divergences[len(self.live)], dtype=torch.float64)
        self.live.append(plan.live.tolist())
        shares = [torch.as_tensor(live, dtype=torch.float64) for live in plan.live]
        return [UpdateResult(share, kl=share * kl) for share in shares]


def member(size: int, epochs: int, target: float | None) -> Any:
    return SimpleNamespace(
        batch_size=size, update_epochs=epochs, target_kl=target, adapts_rate=False, action_ent_steps=None,
        draw_entropy_noise=lambda rng, rows: None, learned_steps=0,
    )  # fmt: skip


def test_members_stop_by_their_own_epochs_and_mean_divergence() -> None:
    """Four rows: the first member has two minibatches an epoch, the second one, the third one.

    The divergence is a mean over a member's own minibatches: 0.5 does not exceed the second member's limit, 0.7 does.
    """
    empty = torch.zeros(3, 4, 4, dtype=torch.float64)
    whole = Rollout(empty, empty[..., 0], empty, None, [np.arange(4)] * 3)
    members = [member(2, 3, 0.35), member(4, 3, 0.6), member(4, 1, 0.1)]
    learner: Any = Scripted([[0.3, 0.5, 0.0], [0.3, 0.7, 0.0], [0.4, 0.0, 0.0]])
    rngs = [np.random.default_rng(seed) for seed in range(3)]
    reports = learn_rollout(learner, 0, members, whole, rngs)
    assert learner.live == [
        [[True, True, True], [True, False, False]],
        [[True, True, False], [True, False, False]],
        [[True, False, False], [True, False, False]],
    ]
    assert [(r.epochs, r.updates, r.loss) for r in reports] == [(3, 6, 6.0), (2, 2, 2.0), (1, 1, 1.0)]
    assert [r.kl for r in reports] == pytest.approx([0.4, 0.7, 0.0])
    assert [m.learned_steps for m in members] == [4, 4, 4]


def test_steps_before_the_first_mask_had_every_choice() -> None:
    buffer = RolloutStore(3, 2, BOX, CHOICE)
    zeros = np.zeros(2)
    step = (np.zeros((2, 1)), np.zeros(2, np.int64), zeros, zeros.astype(bool), zeros.astype(bool), zeros, zeros)
    buffer.add(*step)
    buffer.add(*step, legal=np.array([[True, False], [False, True]]))
    buffer.add(*step)
    legal: Tensor | Any = buffer.stored("legal")
    assert legal.tolist() == [[[True, True]] * 2, [[True, False], [False, True]], [[True, True]] * 2]
