"""`Sampler` and `ReplayDataset`: which rows come, in which way, and whose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from agilerl.components import sampler as module
from agilerl.components.data import ReplayDataset, Transition
from agilerl.components.replay_buffer import MultiStepReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer
from agilerl.components.sampler import Sampler
from agilerl.errors import ConfigError


def filled(buffer: Any, rows: int = 20) -> Any:
    """Row i has the observation [i], its successor [i + 1] and the reward i; no episode ends."""
    for i in range(rows):
        row = Transition([float(i)], 0, float(i), [float(i + 1)], False).unsqueeze(0)
        row.batch_size = [1]
        buffer.add(row)
    return buffer


def loader(dataset: ReplayDataset) -> Any:
    return DataLoader(dataset, batch_size=None, collate_fn=lambda batch: batch)


def test_a_plain_buffer_is_sampled_as_it_samples_itself() -> None:
    first, second = filled(ReplayBuffer(50, seed=3)), filled(ReplayBuffer(50, seed=3))
    ours, expected = Sampler(memory=first).sample(8, return_idx=True), second.sample(8, return_idx=True)
    assert torch.equal(ours["idxs"], expected["idxs"])
    assert torch.equal(ours["obs"], expected["obs"])


def test_a_prioritized_buffer_is_sampled_by_priority_with_the_weights_of_beta() -> None:
    buffer = filled(PrioritizedReplayBuffer(50, alpha=1.0))
    buffer.update_priorities(np.arange(20), np.r_[np.full(19, 1e-9), 1.0])
    batch = Sampler(memory=buffer, per=True).sample(16, 0.5)
    assert set(batch["idxs"].flatten().tolist()) == {19}
    assert torch.equal(batch["weights"].flatten(), torch.full((16,), buffer.weights(np.array([19]), 0.5)[0]).float())


def test_an_n_step_buffer_gives_the_n_step_transitions_of_the_rows_that_are_asked_for() -> None:
    buffer = filled(MultiStepReplayBuffer(50, n_step=3, gamma=0.5))
    sampler = Sampler(memory=buffer, n_step=True)
    batch = sampler.sample(np.array([0, 4]))
    assert batch["obs"].flatten().tolist() == [0.0, 4.0]
    assert batch["reward"].flatten().tolist() == [0 + 0.5 * 1 + 0.25 * 2, 4 + 0.5 * 5 + 0.25 * 6]
    assert len(sampler.sample(6)["obs"]) == 6  # as a memory of its own


def test_without_other_processes_a_data_set_gives_the_whole_batch_and_row_numbers_where_they_are_wanted() -> None:
    dataset = ReplayDataset(filled(ReplayBuffer(50)), 5)
    sampler = Sampler(dataset=dataset, dataloader=loader(dataset), distributed=True)
    batch = sampler.sample(9, return_idx=True)
    assert torch.equal(batch["obs"].flatten(), batch["idxs"].flatten().float())
    assert len(batch["obs"]) == 9
    assert len(next(iter(loader(dataset)))["obs"]) == 9  # the data set goes on with that size


def test_processes_share_a_batch_each_from_its_own_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for rank in range(3):
        monkeypatch.setattr(module, "_place", lambda rank=rank: (rank, 3))
        one, later = filled(ReplayBuffer(50)), filled(MultiStepReplayBuffer(50, n_step=2, gamma=0.5))
        batch = Sampler(dataset=ReplayDataset(one), dataloader=None).sample(10, return_idx=True)
        rows = batch["idxs"][batch["idxs"] < len(later)]  # the last row of a window waits for what follows it
        assert torch.equal(Sampler(memory=later).sample(rows)["obs"].flatten(), rows.flatten().float())
        seen.append(len(batch["obs"]))
    assert seen == [3, 3, 4]


def test_a_batch_that_has_no_row_for_a_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_place", lambda: (0, 4))
    with pytest.raises(ConfigError, match=r"^a batch of 3 rows is too small for 4 ranks\. fix: batch_size=4\.$"):
        Sampler(dataset=ReplayDataset(filled(ReplayBuffer(50)))).sample(3)


class Counting(IterableDataset[Any]):
    """A data set of the user's own."""

    batch_size = 2

    def __iter__(self) -> Any:
        while True:
            yield torch.arange(self.batch_size)


def test_another_data_set_is_read_through_its_loader() -> None:
    dataset = Counting()
    assert Sampler(dataset=dataset, dataloader=DataLoader(dataset, batch_size=None)).sample(4).tolist() == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match="read through its dataloader"):
        Sampler(dataset=dataset)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "got neither"),
        ({"memory": ReplayBuffer(5), "dataset": ReplayDataset(ReplayBuffer(5))}, "got both"),
        ({"memory": ReplayBuffer(5), "per": True}, "per=True got a ReplayBuffer, which is of another kind"),
        ({"memory": ReplayBuffer(5), "n_step": True}, "n_step=True got"),
        ({"memory": ReplayBuffer(5), "distributed": True}, "distributed=True got"),
    ],
)
def test_what_does_not_go_together_is_said(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Sampler(**given)
