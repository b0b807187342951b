"""Prioritised replay against numbers worked by hand and against the expected frequencies."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from agilerl.components.data import ReplayDataset, Transition
from agilerl.components.prioritized import beta_schedule
from agilerl.components.replay_buffer import PrioritizedReplayBuffer, ReplayBuffer
from agilerl.errors import ConfigError, RunError, ShapeError


def fill(buffer: ReplayBuffer, count: int, first: int = 0) -> None:
    """Rows whose reward says which row they are."""
    number = np.arange(first, first + count, dtype=np.float64)
    obs = np.repeat(number[:, None], 2, axis=1)
    buffer.write(obs, np.zeros(count, np.int64), number, obs + 1, np.zeros(count, bool))


def test_probabilities_and_weights_by_hand() -> None:
    # alpha 1/2: priorities 16, 1, 9, 4 scale to 4, 1, 3, 2; sum 10; P = .4 .1 .3 .2. With N = 4 and beta 1/2 the
    # weights (N P)^-1/2 are 1.6^-.5, .4^-.5, 1.2^-.5, .8^-.5; over the largest, .4^-.5: 4^-.5, 1, 3^-.5, 2^-.5.
    buffer = PrioritizedReplayBuffer(max_size=6, alpha=0.5)
    fill(buffer, 4)
    buffer.update_priorities(np.arange(4), np.array([16.0, 1.0, 9.0, 4.0]))
    expected = np.array([0.5, 1.0, 3**-0.5, 2**-0.5])
    np.testing.assert_allclose(buffer.weights(np.arange(4), 0.5), expected, rtol=1e-15)
    np.testing.assert_array_equal(buffer.weights(np.arange(4), 0.0), np.ones(4))
    np.testing.assert_allclose(buffer.weights([[0, 3], [2, 2]], 1.0), [[0.25, 0.5], [1 / 3, 1 / 3]], rtol=1e-15)
    # The largest weight is the buffer's: without row 1 in the batch no weight is 1.
    assert buffer.weights(np.array([0, 2]), 0.5).max() == pytest.approx(3**-0.5, rel=1e-15)
    # A point in [0, 10) falls into [0, 4) row 0, [4, 5) row 1, [5, 8) row 2, [8, 10) row 3.

    class Points:
        def random(self, shape: Any) -> np.ndarray:
            return np.array([0.0, 0.39, 0.41, 0.49, 0.51, 0.79, 0.81, 0.99])

    assert buffer.sample_indices(Points(), 8).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]  # type: ignore[arg-type]


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_draws_follow_the_probabilities(alpha: float) -> None:
    priorities = np.array([0.5, 4.0, 1.0, 0.01, 2.0, 8.0, 1.0, 3.0])
    buffer = PrioritizedReplayBuffer(max_size=11, alpha=alpha, seed=1)
    fill(buffer, 8)
    buffer.update_priorities(torch.arange(8), torch.from_numpy(priorities))
    indices = buffer.sample_indices(np.random.default_rng(7), (4, 5, 1000))
    assert indices.shape == (4, 5, 1000)
    expected = 20_000 * priorities**alpha / (priorities**alpha).sum()
    counts = np.bincount(indices.ravel(), minlength=8)
    # chi-squared with 7 degrees of freedom: 29.9 is exceeded with probability 1e-4.
    assert ((counts - expected) ** 2 / expected).sum() < 29.9
    assert len(counts) == 8


def test_weighting_undoes_the_prioritisation() -> None:
    # With beta 1 the weighted mean over draws is, up to the common factor, the plain mean: sum P_i w_i x_i ~ mean x.
    buffer = PrioritizedReplayBuffer(max_size=5, alpha=0.7)
    fill(buffer, 5)
    priorities = np.array([3.0, 1.0, 0.2, 5.0, 2.0])
    buffer.update_priorities(np.arange(5), priorities)
    share = priorities**0.7 / (priorities**0.7).sum()
    product = share * buffer.weights(np.arange(5), 1.0)
    np.testing.assert_allclose(product, np.full(5, share.min()), rtol=1e-14)


def test_new_rows_get_the_largest_priority_so_far_also_after_a_wraparound() -> None:
    buffer = PrioritizedReplayBuffer(max_size=4, alpha=1.0)
    fill(buffer, 3)
    assert buffer.weights(np.arange(3), 1.0).tolist() == [1.0] * 3
    assert buffer.max_priority == 1.0
    buffer.update_priorities([0, 1, 2], [0.5, 8.0, 0.25])
    buffer.update_priorities([1], [2.0])  # the largest so far stays 8
    fill(buffer, 3, first=3)  # rows 3, 0, 1
    # priorities 8, 8, 0.25, 8
    assert buffer.max_priority == 8.0
    assert buffer.weights(np.arange(4), 1.0).tolist() == [1 / 32, 1 / 32, 1.0, 1 / 32]
    fill(buffer, 9, first=6)  # more than fit at once
    assert buffer.weights(np.arange(4), 1.0).tolist() == [1.0] * 4
    assert sorted(buffer.gather(np.arange(4))["reward"].tolist()) == [11.0, 12.0, 13.0, 14.0]


def test_duplicates_floor_and_any_shape_of_priorities() -> None:
    buffer = PrioritizedReplayBuffer(max_size=4, alpha=1.0)
    fill(buffer, 4)
    buffer.update_priorities(torch.tensor([[0], [1], [0]]), torch.tensor([[5.0], [0.0], [4.0]], requires_grad=True))
    # row 0: the last of 5 and 4; row 1: 0 counts as 1e-5
    np.testing.assert_allclose(buffer.weights(np.arange(4), 1.0), [1e-5 / 4, 1.0, 1e-5, 1e-5], rtol=1e-14)
    buffer.update_priorities([], [])
    assert buffer.max_priority == 5.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1e-9])
def test_a_bad_priority_is_named_and_changes_nothing(bad: float) -> None:
    buffer = PrioritizedReplayBuffer(max_size=4)
    fill(buffer, 3)
    before = buffer.state()["priorities"]["scaled"].clone()
    with pytest.raises(ConfigError, match=r"finite and 0 or more; got .* for row 2 \(1 of 2 are bad\)\. fix:"):
        buffer.update_priorities([1, 2], [3.0, bad])
    assert torch.equal(buffer.state()["priorities"]["scaled"], before)
    assert buffer.max_priority == 1.0


def test_other_mistakes_are_named() -> None:
    buffer = PrioritizedReplayBuffer(max_size=4)
    for draw in (lambda: buffer.sample(2), lambda: buffer.sample_indices(np.random.default_rng(0), 2)):
        with pytest.raises(RunError, match="empty"):
            draw()
    fill(buffer, 3)
    with pytest.raises(ShapeError, match="2 indices and 3 priorities"):
        buffer.update_priorities([0, 1], [1.0, 2.0, 3.0])
    for index in ([3], [-1]):
        with pytest.raises(ShapeError, match=r"must be in 0\.\.2"):
            buffer.update_priorities(index, [1.0])
        with pytest.raises(ShapeError, match=r"must be in 0\.\.2"):
            buffer.weights(index, 0.4)
    with pytest.raises(ShapeError, match="must be integers"):
        buffer.update_priorities([0.0], [1.0])
    for beta in (-0.1, 1.0001, np.nan):
        with pytest.raises(ConfigError, match=r"beta must be in \[0, 1\]"):
            buffer.sample(2, beta)
    for alpha, range_ in ((-0.1, "at least 0"), (np.inf, "finite")):
        with pytest.raises(ConfigError, match=f"alpha must be {range_}"):
            PrioritizedReplayBuffer(4, alpha)


def test_published_dialect() -> None:
    buffer = PrioritizedReplayBuffer(max_size=10, alpha=0.6, device="cpu", seed=0)
    for i in range(12):
        transition = Transition(
            obs=np.full(4, i), action=i % 2, reward=float(i), next_obs=np.full(4, i + 1), done=False
        )
        buffer.add(transition.unsqueeze(0).to_tensordict())
    batch = buffer.sample(32, 0.4)
    assert isinstance(batch, TensorDict)
    assert set(batch.keys()) == {"obs", "action", "reward", "next_obs", "done", "weights", "idxs"}
    assert (batch["weights"].shape, batch["weights"].dtype) == ((32, 1), torch.float32)
    assert (batch["idxs"].shape, batch["idxs"].dtype) == ((32, 1), torch.int64)
    buffer.update_priorities(batch["idxs"], batch["reward"])
    assert buffer.max_priority == 11.0
    batch = buffer.sample(32, beta=1.0)
    np.testing.assert_array_equal(batch["weights"][:, 0], buffer.weights(batch["idxs"][:, 0], 1.0).astype(np.float32))
    again = buffer.sample_from_indices(batch["idxs"])
    assert torch.equal(again["reward"], batch["reward"])
    assert set(again.keys()) == {"obs", "action", "reward", "next_obs", "done"}
    assert next(iter(ReplayDataset(buffer, 7)))["weights"].shape == (7, 1)


def test_a_batch_larger_than_the_buffer_is_drawn_and_a_part_of_it_may_be_updated() -> None:
    buffer = PrioritizedReplayBuffer(max_size=100, seed=3)
    fill(buffer, 3)
    batch = buffer.sample(64, 0.5)
    assert sorted(set(batch["idxs"].flatten().tolist())) == [0, 1, 2]
    part = batch[:10]
    buffer.update_priorities(part["idxs"], part["reward"])
    weights = buffer.weights(batch["idxs"], 0.5)
    assert ((weights > 0) & (weights <= 1)).all()


def test_the_state_of_another_kind_is_refused() -> None:
    buffer = PrioritizedReplayBuffer(max_size=4, alpha=0.6)
    fill(buffer, 2)
    with pytest.raises(RunError, match=r"alpha 0\.6, this one 0\.7"):
        PrioritizedReplayBuffer(max_size=4, alpha=0.7).load_state(buffer.state())
    with pytest.raises(RunError, match="no priorities"):
        buffer.load_state(ReplayBuffer(max_size=4).state())


def test_memory_counts_the_trees() -> None:
    # 100 leaves need 128; a tree has twice as many nodes of 8 bytes, and there are two.
    plain, buffer = ReplayBuffer(100), PrioritizedReplayBuffer(100)
    for each in (plain, buffer):
        fill(each, 3)
    assert plain.memory_bytes == 100 * 4 * (2 + 1 + 1 + 2 + 1)
    assert buffer.memory_bytes == plain.memory_bytes + 2 * 256 * 8


def test_a_smaller_size_and_clear_take_the_priorities_along() -> None:
    buffer = PrioritizedReplayBuffer(max_size=6, alpha=1.0, seed=0)
    fill(buffer, 6)
    buffer.update_priorities(np.arange(6), [1.0, 2.0, 3.0, 1e6, 1e-3, 1e6])
    buffer.size = 3
    assert set(buffer.sample(200)["idxs"].flatten().tolist()) == {0, 1, 2}
    np.testing.assert_allclose(buffer.weights(np.arange(3), 1.0), [1.0, 1 / 2, 1 / 3], rtol=1e-15)
    buffer.clear()
    assert (len(buffer), buffer.max_priority) == (0, 1.0)
    fill(buffer, 2)
    assert set(buffer.sample(100)["idxs"].flatten().tolist()) == {0, 1}


def test_beta_rises_linearly_and_is_one_exactly_at_the_end_of_the_budget() -> None:
    assert [beta_schedule(0.4, steps, 1000) for steps in (0, 250, 500, 750, 1000)] == pytest.approx(
        [0.4, 0.55, 0.7, 0.85, 1.0], rel=1e-15
    )
    for start in (0.0, 0.1, 0.4, 0.7, 1.0):
        for budget in (1, 3, 7, 999, 10**6):
            betas = [beta_schedule(start, steps, budget) for steps in range(0, budget, max(1, budget // 50))]
            exact = [Fraction(start) + (1 - Fraction(start)) * Fraction(s, budget)
                     for s in range(0, budget, max(1, budget // 50))]  # fmt: skip
            assert betas == pytest.approx([float(beta) for beta in exact], rel=1e-15)
            assert betas == sorted(betas)
            assert start == 1.0 or max(betas) < 1.0  # not saturated before the end
            assert beta_schedule(start, budget, budget) == 1.0
            assert beta_schedule(start, budget * 2, budget) == 1.0
            if start < 1.0:
                assert beta_schedule(start, budget - 1, budget) < 1.0


@pytest.mark.parametrize("arguments", [(-0.1, 0, 10), (1.1, 0, 10), (0.4, -1, 10), (0.4, np.nan, 10), (0.4, 0, 0)])
def test_a_schedule_without_meaning_is_refused(arguments: tuple[float, float, float]) -> None:
    with pytest.raises(ConfigError):
        beta_schedule(*arguments)


def test_rows_that_are_kept_have_their_priorities_and_new_ones_the_largest_of_all() -> None:
    """alpha 1/2; of priorities 16, 1, 9, 4 the rows 1 and 3 stay, 16 is the largest so far: 1, 2 and 4 of 7."""
    buffer = PrioritizedReplayBuffer(max_size=4, alpha=0.5)
    fill(buffer, 6)  # rows 2 to 5 are in memory, the first two places hold the last ones
    buffer.update_priorities(np.array([2, 3, 0, 1]), np.array([16.0, 1.0, 9.0, 4.0]))
    buffer.keep_rows(np.array([3, 5]))
    assert buffer.max_priority == 16
    fill(buffer, 1, first=6)
    assert buffer.gather(np.arange(3))["reward"].tolist() == [3.0, 5.0, 6.0]
    np.testing.assert_allclose(buffer.weights(np.arange(3), 1.0), [1.0, 1 / 2, 1 / 4], rtol=1e-15)
    np.testing.assert_allclose(buffer._sampler.sums[:3], [1.0, 2.0, 4.0], rtol=1e-15)
