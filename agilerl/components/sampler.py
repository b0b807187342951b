"""Batch sampling for custom training loops: one call for all kinds of buffers and any number of processes."""

from __future__ import annotations

from typing import Any

import torch

from agilerl.components.data import ReplayDataset
from agilerl.components.multi_step import MultiStepReplayBuffer
from agilerl.components.prioritized import PrioritizedReplayBuffer
from agilerl.core import foreign
from agilerl.errors import ConfigError

FIX = "fix: Sampler(memory=memory), or Sampler(dataset=ReplayDataset(memory, batch_size), dataloader=loader)."


class Sampler:
    """Sample batches from a replay buffer, with the arguments of its kind.

    | made with | `sample(...)` |
    |---|---|
    | `memory=ReplayBuffer` | `(batch_size, return_idx=False)`: uniformly |
    | `memory=PrioritizedReplayBuffer` | `(batch_size, beta)`: by priority, with `weights` and `idxs` |
    | `memory=MultiStepReplayBuffer` | `(idxs)`: the n-step transitions of these rows; `(batch_size)`: uniformly |
    | `dataset`, `dataloader` | `(batch_size, ...)`: this process's share of the rows, from its own buffer |

    With a data set `batch_size` is the total over all processes of `torch.distributed`, and further arguments are those
    of the buffer's `sample`: `return_idx=True` returns the rows for a paired n-step sampler, also with several
    processes.

    Departs from the published class: there a batch comes from `dataloader`, which when prepared by `accelerate` gives
    every process rows of rank 0, so that other processes never learn from their own data, and which has no row numbers,
    so that n-step transitions cannot be looked up. Here the loader is read only if the data set is not a
    `ReplayDataset`.

    Args:
        memory: a replay buffer. dataset, dataloader: alternatively, a `ReplayDataset` and its loader.
        distributed, per, n_step: expected kind; None expects nothing.

    Attributes:
        distributed, per, n_step: kind of this sampler.

    Raises:
        ConfigError: neither or both sources, or not of the expected kind.
    """

    def __init__(
        self,
        memory: Any = None,
        dataset: object = None,
        dataloader: Any = None,
        *,
        distributed: bool | None = None,
        per: bool | None = None,
        n_step: bool | None = None,
    ) -> None:
        if (memory is None) == (dataset is None):
            passed = "neither" if memory is None else "both"
            raise ConfigError(f"a Sampler needs a memory, or a dataset with its dataloader; got {passed}. {FIX}")
        if dataset is not None and dataloader is None and not isinstance(dataset, ReplayDataset):
            raise ConfigError(f"a {type(dataset).__name__} is read through its dataloader; got none. {FIX}")
        self.memory, self.dataset, self.dataloader = memory, dataset, dataloader
        buffer = dataset.buffer if isinstance(dataset, ReplayDataset) else memory
        self.distributed = dataset is not None
        self.per = isinstance(buffer, PrioritizedReplayBuffer) or foreign.has_methods(buffer, "update_priorities")
        self.n_step = isinstance(buffer, MultiStepReplayBuffer)
        for name, wanted in (("distributed", distributed), ("per", per), ("n_step", n_step)):
            if wanted is not None and wanted != vars(self)[name]:
                kind = type(buffer if buffer is not None else dataset).__name__
                raise ConfigError(f"a Sampler with {name}={wanted} got a {kind}, which is of another kind. {FIX}")

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        """Sample one batch; see the table of the class for the arguments."""
        if self.distributed:
            return self._shared(*args, **kwargs)
        rows = kwargs["idxs"] if "idxs" in kwargs else args[0] if args else None
        if self.n_step and rows is not None and not isinstance(rows, int):
            return self.memory.sample_from_indices(rows)
        return self.memory.sample(*args, **kwargs)

    def _shared(self, batch_size: int, *args: Any, **kwargs: Any) -> Any:
        """Return this process's share of a batch."""
        rank, size = _place()
        share = batch_size * (rank + 1) // size - batch_size * rank // size
        if share < 1:
            raise ConfigError(f"a batch of {batch_size} rows is too small for {size} ranks. fix: batch_size={size}.")
        if isinstance(self.dataset, ReplayDataset):
            self.dataset.batch_size = share
            return self.dataset.draw(*args, **kwargs)
        if hasattr(self.dataset, "batch_size"):
            self.dataset.batch_size = batch_size  # a custom loader splits it itself
        return next(iter(self.dataloader))


def _place() -> tuple[int, int]:
    """Return (rank, number of processes) of `torch.distributed`, as set up by `accelerate`; (0, 1) without it."""
    dist = torch.distributed
    if not (dist.is_available() and dist.is_initialized()):
        return 0, 1
    return dist.get_rank(), dist.get_world_size()
