"""Published helpers for Minari data sets, for custom loops; training functions take `minari_dataset_id=`."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from agilerl.components.uniform import ReplayBuffer
from agilerl.core import tree as trees
from agilerl.data.dataset import open_minari, read_minari

__all__ = ["load_minari_dataset", "minari_to_agile_buffer", "minari_to_agile_dataset"]


def load_minari_dataset(dataset_id: str, accelerator: Any = None, remote: bool = False) -> Any:
    """Load the `minari.MinariDataset` of this id.

    Args:
        accelerator: of `accelerate`; its main process loads first, so that a download happens once.
        remote: download it if it is not on this machine.

    Raises:
        ConfigError: Minari is not installed, or the data set is missing and cannot be downloaded.
    """
    with contextlib.nullcontext() if accelerator is None else accelerator.main_process_first():
        return open_minari(dataset_id, remote=remote)


def minari_to_agile_buffer(dataset_id: str, memory: ReplayBuffer, accelerator: Any = None, remote: bool = False) -> Any:
    """Add the transitions of a data set to a `ReplayBuffer`, in order; see `data.dataset.read_minari`.

    A memory that is too small keeps the last ones. Rewards are float32 columns; `done` means terminated.

    Returns:
        The memory.
    """
    with contextlib.nullcontext() if accelerator is None else accelerator.main_process_first():
        data = read_minari(dataset_id, remote=remote)
    rows = {
        "obs": data.obs, "action": data.action, "reward": data.reward.astype(np.float32), "next_obs": data.next_obs,
        "done": data.terminated,
    }  # fmt: skip
    for start in range(0, len(data), memory.max_size):
        memory.add(trees.take(rows, np.arange(start, min(start + memory.max_size, len(data)))))
    return memory


def minari_to_agile_dataset(dataset_id: str, remote: bool = False) -> dict[str, Any]:
    """A data set as arrays [N, ...], for `train_offline(dataset=)`.

    Returns:
        "observations", "actions", "rewards", "next_observations", "terminals" and "timeouts" (ends of episodes without
        termination). The published function returns an open HDF5 file with the same keys.
    """
    data = read_minari(dataset_id, remote=remote)
    return {
        "observations": data.obs, "actions": data.action, "rewards": data.reward, "next_observations": data.next_obs,
        "terminals": data.terminated, "timeouts": data.ended & ~data.terminated,
    }  # fmt: skip
