"""Conversion of experience for the buffers: `Transition`, and nested tensors from common containers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from agilerl.core.tree import Tree, leaves, map_leaves, untuple
from agilerl.envs.protocol import SeenByTeam
from agilerl.errors import ConfigError, ShapeError, warn_once

if TYPE_CHECKING:
    from tensordict import TensorDict


def to_tensordict(
    data: Mapping[str, Any], dtype: torch.dtype | None = None, batch_size: Sequence[int] = (),
    device: str | torch.device | None = None,
) -> TensorDict:  # fmt: skip
    """A (nested) dict of tensors as a TensorDict; a tuple becomes keys `tuple_obs_0`, `tuple_obs_1`, ...

    Tensors are not copied; arrays and numbers follow the rules of `Transition`.

    Args:
        dtype: dtype of every tensor; None keeps integers, bytes and bools (published: float32 throughout).

    Raises:
        ConfigError: not a dtype.
    """
    _check_dtype("to_tensordict", dtype)
    # Imported here because it costs 1.2 CPU seconds and the training loops never need it.
    from tensordict import TensorDict as Dict

    tensors = _tensors(data)
    if dtype is not None:
        tensors = map_leaves(lambda leaf: leaf.to(dtype), tensors)
    return Dict(tensors, batch_size=list(batch_size), device=device)


def to_torch_tensor(
    data: Mapping[str, Any], dtype: torch.dtype | None = torch.float32, device: str | torch.device | None = None
) -> Any:
    """Convert all leaves to tensors of `dtype` on `device`; dicts and tuples are kept."""
    _check_dtype("to_torch_tensor", dtype)
    return map_leaves(lambda leaf: torch.as_tensor(leaf, dtype=dtype, device=device), data)


def _check_dtype(function: str, dtype: object) -> None:
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise ConfigError(f"{function}(dtype=) must be a torch.dtype; got {dtype!r}. fix: torch.float32.")


def with_batch_axis(value: Any) -> Any:
    """Add a leading axis of length 1 to every leaf; None is unchanged."""
    return map_leaves(lambda x: x if x is None else (x if isinstance(x, Tensor) else np.asarray(x))[None], value)


class Transition:
    """One transition (or a batch of them) as tensors.

    float64 becomes float32; integers, uint8 and bool keep their dtype; Python and numpy scalars become tensors of
    shape (1,); dict and tuple observations are nested. `done` means terminated: an episode truncated by a time limit
    is not done.

    Args:
        device: target device of the tensors; None leaves them in place.

    Attributes:
        batch_size: leading batch axes; settable, as in `transition.batch_size = [1]`.
    """

    FIELDS = ("obs", "action", "reward", "next_obs", "done")

    def __init__(
        self, obs: Any, action: Any, reward: Any, next_obs: Any, done: Any, batch_size: Sequence[int] = (),
        device: str | torch.device | None = None,
    ) -> None:  # fmt: skip
        trees = (_tensors(value) for value in (obs, action, reward, next_obs, done))
        placed = trees if device is None else (map_leaves(lambda leaf: leaf.to(device), tree) for tree in trees)
        self.obs, self.action, self.reward, self.next_obs, self.done = placed
        self._batch_size = torch.Size(batch_size)

    @property
    def batch_size(self) -> torch.Size:
        """Leading batch axes of every field."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, size: Sequence[int]) -> None:
        size = torch.Size(size)
        for name in self.FIELDS:
            for leaf in leaves(vars(self)[name]):
                if leaf.shape[: len(size)] != size:
                    raise ShapeError(f"batch_size {list(size)} does not fit {name} of shape {list(leaf.shape)}.")
        self._batch_size = size

    @property
    def device(self) -> torch.device:
        """Device of the tensors."""
        first: Any = next(leaves(self.obs))
        place: torch.device = first.device
        return place

    def unsqueeze(self, dim: int) -> Transition:
        """Add a batch axis of length 1 at `dim` (views of the same tensors)."""
        if not 0 <= dim <= len(self._batch_size):
            raise ShapeError(f"dim must be an axis of the batch, 0..{len(self._batch_size)}; got {dim}.")
        fields = {name: map_leaves(lambda leaf: leaf.unsqueeze(dim), vars(self)[name]) for name in self.FIELDS}
        size = [*self._batch_size[:dim], 1, *self._batch_size[dim:]]
        return Transition(**fields, batch_size=size)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a plain (nested) dict of tensors, without copying."""
        return {name: vars(self)[name] for name in self.FIELDS}

    def to_tensordict(self) -> TensorDict:
        """Return the fields as a TensorDict with this batch size, without copying."""
        return to_tensordict(self.to_dict(), batch_size=self._batch_size)

    def __repr__(self) -> str:
        shapes = {name: [list(leaf.shape) for leaf in leaves(vars(self)[name])] for name in self.FIELDS}
        return f"Transition(batch_size={list(self._batch_size)}, shapes={shapes})"


class MultiAgentTransition(Transition):
    """One multi-agent transition (or a batch): each field is a dict by agent where `Transition` has one value.

    With observations of a vector environment of `agilerl.vector`, `next_obs` is the final observation where an episode
    has ended. Presence masks are stored as entries `obs_present` and `next_obs_present`.
    """

    def __init__(
        self, obs: Any, action: Tree, reward: Tree, next_obs: Tree, done: Tree, batch_size: Sequence[int] = (),
        device: str | torch.device | None = None,
    ) -> None:  # fmt: skip
        later = SeenByTeam.of(next_obs)
        before, after, acted = SeenByTeam.of(obs).present, later.present, later.acted
        if before is not None and acted is not None:  # where an environment was replaced no agent has a transition
            before = {agent: presence & acted[agent] for agent, presence in before.items()}
        if later.final is not None:
            next_obs, after = later.final, later.final_present
        super().__init__(obs, action, reward, next_obs, done, batch_size, device)
        masks = {"obs_present": before, "next_obs_present": after}
        self._presence: dict[str, Any] = {
            name: _tensors(presence) for name, presence in masks.items() if presence is not None
        }

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), **self._presence}


class ReplayDataset(IterableDataset[Any]):
    """Endless iterable of batches, for `DataLoader(dataset, batch_size=None, collate_fn=lambda batch: batch)`.

    Every process samples from its own buffer. A loader prepared by `accelerate` does not: by default it reads only the
    data set of rank 0 and splits its batches over processes. `components.sampler.Sampler` avoids this, and
    `Accelerator(dataloader_config=DataLoaderConfiguration(dispatch_batches=False))` disables it.

    Args:
        buffer: a replay buffer. batch_size: rows per batch; settable, from the next batch on.
    """

    def __init__(self, buffer: Any, batch_size: int = 256) -> None:
        if batch_size <= 0:
            raise ConfigError(f"Batch size must be greater than zero (rows per batch); got {batch_size}. fix: use 64.")
        if not hasattr(buffer, "sample"):
            warn_once("replay_dataset:buffer", f"buffer should be a replay buffer with sample(); got {type(buffer)}.")
        self.buffer, self.batch_size = buffer, batch_size

    def draw(self, *args: Any, **kwargs: Any) -> Any:
        """Sample one batch of `batch_size` rows; further arguments are passed to the buffer's `sample`."""
        return self.buffer.sample(self.batch_size, *args, **kwargs)

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield self.draw()


def _tensors(data: Mapping[str, Any] | Tensor) -> Any:
    return untuple(map_leaves(_tensor, data))


def _tensor(leaf: Any) -> Tensor:
    if isinstance(leaf, Tensor):
        tensor = leaf
    else:
        is_scalar = not isinstance(leaf, np.ndarray) and np.ndim(leaf) == 0
        tensor = torch.as_tensor(np.asarray(leaf).reshape(1) if is_scalar else np.asarray(leaf))
    return tensor.float() if tensor.dtype == torch.float64 else tensor
