"""The replay buffer against a deque, in its two published dialects and through the engine's interface."""

from __future__ import annotations

import warnings
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch.utils.data import DataLoader

import agilerl.errors
from agilerl.components.data import ReplayDataset, Transition, to_torch_tensor
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.errors import ConfigError, RunError, ShapeError

FIELDS = ["state", "action", "reward", "next_state", "done"]


def rows(rng: np.random.Generator, count: int, num_obs: int = 3) -> tuple[np.ndarray, ...]:
    obs = rng.normal(size=(count, num_obs)).astype(np.float32)
    next_obs = rng.normal(size=(count, num_obs)).astype(np.float32)
    return obs, rng.integers(4, size=count), rng.normal(size=count), next_obs, rng.random(count) < 0.3


def contents(buffer: ReplayBuffer) -> set[tuple[float, ...]]:
    data = buffer.gather(np.arange(len(buffer)))
    columns = [data["obs"], data["action"][:, None], data["reward"][:, None], data["next_obs"], data["done"][:, None]]
    return {tuple(row) for row in torch.cat([column.double() for column in columns], dim=1).tolist()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_after_any_number_of_writes_the_buffer_holds_what_a_deque_holds(dtype: torch.dtype, device: str) -> None:
    rng = np.random.default_rng(0)
    buffer, reference = ReplayBuffer(max_size=37, device=device, dtype=dtype), deque[Any](maxlen=37)
    added = 0
    for count in (1, 16, 16, 16, 5, 0, 36, 37, 38, 100, 3):
        batch = rows(rng, count)
        mask = rng.random(count) < 0.8
        assert buffer.write(*batch, mask=mask) == mask.sum()
        added += int(mask.sum())
        kept = torch.float64 if dtype == torch.float64 else torch.float32
        for obs, action, reward, next_obs, done in zip(*(field[mask] for field in batch), strict=True):
            number = torch.tensor(reward, dtype=kept).item()
            reference.append((*obs.tolist(), float(action), number, *next_obs.tolist(), float(done)))
        assert contents(buffer) == set(reference)
        assert (len(buffer), buffer.counter, buffer.is_full) == (len(reference), added, len(reference) == 37)


def test_one_gather_serves_a_whole_population() -> None:
    rng = np.random.default_rng(1)
    buffer = ReplayBuffer(max_size=50)
    batch = rows(rng, 40)
    buffer.write(*batch)
    indices = buffer.sample_indices(rng, (4, 16))
    data = buffer.gather(indices)
    assert indices.shape == (4, 16)
    assert data["action"].dtype == torch.int64
    for name, field in zip(Transition.FIELDS, batch, strict=True):
        expected = field[indices].astype(np.int64 if name == "action" else np.float32)
        np.testing.assert_array_equal(data[name].numpy(), expected, err_msg=name)
    np.testing.assert_array_equal(buffer.gather(torch.from_numpy(indices))["obs"], data["obs"])
    data["obs"].zero_()
    assert buffer.gather(indices)["obs"].abs().sum() > 0


def test_continuous_actions_keep_their_axis_and_reward_given_as_integer_may_become_a_fraction() -> None:
    buffer = ReplayBuffer(max_size=4)
    buffer.write(np.zeros((1, 2)), np.full((1, 1), 0.25), np.array([1]), np.zeros((1, 2)), np.array([False]))
    buffer.write(np.zeros((1, 2)), np.full((1, 1), 0.75), np.array([0.5]), np.zeros((1, 2)), np.array([True]))
    data = buffer.gather(np.arange(2))
    assert data["action"].tolist() == [[0.25], [0.75]]
    assert data["reward"].tolist() == [1.0, 0.5]
    assert data["done"].tolist() == [0.0, 1.0]


def test_sampling_is_uniform_over_the_rows_that_are_there_and_with_replacement() -> None:
    buffer = ReplayBuffer(max_size=1000, seed=3)
    buffer.write(*rows(np.random.default_rng(0), 10))
    counts = np.bincount(buffer.sample(20_000, return_idx=True)["idxs"].numpy(), minlength=10)
    # chi-squared with 9 degrees of freedom: 33.7 is exceeded with probability 1e-4.
    assert ((counts - 2000.0) ** 2 / 2000.0).sum() < 33.7
    assert len(counts) == 10


def test_tensordict_dialect_gives_back_keys_dtypes_and_trailing_axes() -> None:
    buffer = ReplayBuffer(max_size=8, device="cpu", seed=0)
    assert not buffer.initialized
    assert buffer.storage is None
    for i in range(11):
        transition = Transition(
            obs=np.full(4, i), action=i % 2, reward=float(i), next_obs=np.full(4, i + 1), done=i == 3
        )
        transition = transition.unsqueeze(0)
        transition.batch_size = [1]
        buffer.add(transition.to_tensordict())
    batch = buffer.sample(32, return_idx=True)
    assert isinstance(batch, TensorDict)
    assert batch.batch_size == torch.Size([32])
    assert set(batch.keys()) == {"obs", "action", "reward", "next_obs", "done", "idxs"}
    assert [batch[key].shape[1:] for key in ("action", "reward", "done")] == [torch.Size([1])] * 3
    assert (batch["action"].dtype, batch["done"].dtype) == (torch.int64, torch.bool)
    assert batch["idxs"].shape == (32,)
    assert torch.equal(batch["obs"][:, :1].float(), batch["reward"])
    assert torch.equal(batch["next_obs"][:, 0], batch["obs"][:, 0] + 1)
    assert buffer.storage.batch_size[0] == 8
    assert (buffer.size, buffer.counter, buffer.is_full) == (8, 11, True)
    assert sorted(buffer.storage["reward"][:, 0].tolist()) == list(range(3, 11))
    assert buffer.gather(np.arange(3))["action"].shape == (3,)
    buffer.clear()
    assert (len(buffer), buffer.counter, buffer.initialized) == (0, 0, False)


def test_arbitrary_and_nested_keys_come_back_as_added_and_the_engine_finds_them() -> None:
    buffer = ReplayBuffer(max_size=6)
    obs = {"a": torch.rand(4, 2), "b": torch.rand(4)}
    buffer.add({"state": obs, "action": torch.arange(4), "next_state": (obs["a"], obs["b"]), "extra": torch.arange(4)})
    batch = buffer.sample(5)
    assert set(batch.keys()) == {"state", "action", "next_state", "extra"}
    assert batch["state", "b"].shape == (5, 1)
    assert set(batch["next_state"].keys()) == {"tuple_obs_0", "tuple_obs_1"}
    assert batch["extra"].dtype == torch.int64
    assert torch.equal(buffer.gather(np.arange(4))["obs"]["a"], obs["a"])


def test_the_older_dialect_returns_float_tensors_in_field_order_and_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agilerl.errors, "_warned", set())
    with pytest.warns(DeprecationWarning, match="older form"):
        memory = ReplayBuffer(memory_size=100, field_names=FIELDS, device=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        positional = ReplayBuffer(100, FIELDS, "cpu")
    assert positional.field_names == FIELDS
    state = np.random.default_rng(0).normal(size=(5, 3))
    done = np.array([0, 1, 0, 0, 1], dtype=np.uint8)
    memory.save_to_memory(state, np.arange(5), np.arange(5) * 0.5, state + 1, done, is_vectorised=True)
    memory.save_to_memory_vect_envs(state, np.arange(5), np.arange(5) * 0.5, state + 1, done)
    memory.save_to_memory(state[0], 0, 0.0, state[0] + 1, False)
    memory.save_to_memory_single_env(state[1], np.int64(1), 0.5, state[1] + 1, True)
    assert (memory.counter, len(memory)) == (12, 12)
    *fields, idxs = memory.sample(64, return_idx=True)
    got_state, action, reward, next_state, got_done = fields
    assert all(field.dtype == torch.float32 for field in fields)
    assert [tuple(field.shape) for field in fields] == [(64, 3), (64, 1), (64, 1), (64, 3), (64, 1)]
    order = action[:, 0].long().numpy()
    np.testing.assert_array_equal(got_state, state.astype(np.float32)[order])
    np.testing.assert_array_equal(next_state, (state + 1).astype(np.float32)[order])
    np.testing.assert_array_equal(reward[:, 0], order * 0.5)
    np.testing.assert_array_equal(got_done[:, 0], done[order])
    assert idxs.shape == (64,)
    memory.write(state, np.arange(5), np.arange(5) * 0.5, state + 1, done)  # the engine writes to the same memory
    assert len(memory) == 17


@pytest.mark.filterwarnings("ignore:.*older form:DeprecationWarning")
def test_what_the_engine_wrote_comes_out_in_either_dialect() -> None:
    batch = rows(np.random.default_rng(0), 9)
    older, newer = ReplayBuffer(memory_size=9, field_names=FIELDS, seed=4), ReplayBuffer(max_size=9, seed=4)
    for buffer in (older, newer):
        buffer.write(*batch)
    by_key = newer.sample(30)
    for got, key in zip(older.sample(30), Transition.FIELDS, strict=True):
        assert torch.equal(got, by_key[key].float())
    assert by_key["action"].shape == (30, 1)


def test_two_names_for_one_role_stay_two_fields() -> None:
    buffer = ReplayBuffer(max_size=4)
    buffer.add({"obs": torch.zeros(2, 3), "state": torch.ones(2, 5), "next_state": torch.ones(2, 3)})
    batch = buffer.sample(2)
    shapes = {key: tuple(value.shape) for key, value in batch.items()}
    assert shapes == {"obs": (2, 3), "state": (2, 5), "next_state": (2, 3)}


def test_the_state_of_another_size_is_refused() -> None:
    with pytest.raises(RunError, match="max_size 20, this one 21"):
        ReplayBuffer(max_size=21).load_state(ReplayBuffer(max_size=20).state())


def test_an_empty_buffer_and_wrong_fields_are_named() -> None:
    buffer = ReplayBuffer(max_size=10)
    with pytest.raises(RunError, match="empty"):
        buffer.sample(1)
    with pytest.raises(ShapeError, match="leading batch axis"):
        buffer.add(Transition(obs=np.zeros(2), action=0, reward=0.0, next_obs=np.zeros(2), done=False))
    buffer.write(*rows(np.random.default_rng(0), 4))
    with pytest.raises(ShapeError, match=r"'obs' has rows of shape \[3\]; got \[1\]"):
        buffer.write(*rows(np.random.default_rng(0), 4, num_obs=1))
    with pytest.raises(ShapeError, match=r"missing: \['reward'\]"):
        buffer.add({"obs": np.zeros((1, 3)), "action": [0], "next_obs": np.zeros((1, 3)), "done": [0]})
    with pytest.raises(ShapeError, match="not exact"):
        buffer.write(np.zeros((1, 3)), np.array([2**24 + 1]), [0.0], np.zeros((1, 3)), [False])
    for size in (0, None, 2.5):
        with pytest.raises(ConfigError, match="max_size must be an integer of at least 1"):
            ReplayBuffer(max_size=size)
    with pytest.raises(ConfigError, match="dtype"):
        ReplayBuffer(max_size=1, dtype=torch.bfloat16)
    with pytest.raises(ConfigError, match="field_names"):
        buffer.save_to_memory(1)


def test_transition_keeps_integers_and_narrows_doubles() -> None:
    transition = Transition(
        obs={"x": np.zeros((2, 2)), "y": (np.zeros(1, np.uint8), np.int32(3))},
        action=torch.tensor([1]),
        reward=1.5,
        next_obs=np.zeros(2, np.float32),
        done=True,
    )
    assert transition.obs["x"].dtype == torch.float32
    assert transition.obs["y"]["tuple_obs_0"].dtype == torch.uint8
    assert transition.obs["y"]["tuple_obs_1"].shape == (1,)
    assert (transition.reward.dtype, transition.reward.shape) == (torch.float32, (1,))
    assert transition.done.dtype == torch.bool
    one = transition.unsqueeze(0)
    assert one.batch_size == torch.Size([1])
    assert one.to_tensordict()["obs", "x"].shape == (1, 2, 2)
    with pytest.raises(ShapeError, match="batch_size"):
        one.batch_size = [3]
    assert to_torch_tensor({"a": (np.int64(2), [1, 2])})["a"][1].dtype == torch.float32


def test_the_dataset_feeds_a_data_loader() -> None:
    buffer = ReplayBuffer(max_size=10)
    buffer.write(*rows(np.random.default_rng(0), 10))
    batch = next(iter(DataLoader(ReplayDataset(buffer, 7), batch_size=None, collate_fn=lambda batch: batch)))
    assert batch["obs"].shape == (7, 3)
    with pytest.raises(ValueError, match="Batch size must be greater than zero"):
        ReplayDataset(buffer, 0)
    with pytest.warns(UserWarning, match="replay buffer"):
        ReplayDataset([], 4)  # type: ignore[arg-type]
