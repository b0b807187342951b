"""Observation and action spaces: as JSON, and observations as flat tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn import functional as F

from agilerl.errors import ConfigError, NotAvailableYetError, ShapeError, unknown_name


def space_to_json(space: spaces.Space[Any]) -> dict[str, Any]:
    """A JSON-able description of a Box, Discrete, MultiDiscrete or MultiBinary space."""
    if isinstance(space, spaces.Box):
        low, high = ([repr(float(v)) for v in bound.ravel()] for bound in (space.low, space.high))
        low, high = (bound[:1] if len(set(bound)) == 1 else bound for bound in (low, high))
        return {"type": "Box", "shape": list(space.shape), "low": low, "high": high, "dtype": str(space.dtype)}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"type": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else [int(n) for n in space.n]}
    raise NotAvailableYetError(f"a {type(space).__name__} space cannot be described as JSON yet")


def space_from_json(data: dict[str, Any]) -> spaces.Space[Any]:
    """The inverse of `space_to_json`."""
    kind = data.get("type")
    if kind == "Box":
        shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
        low, high = (np.array([float(v) for v in data[bound]]) for bound in ("low", "high"))
        low, high = (np.full(shape, b[0]) if len(b) == 1 else b.reshape(shape) for b in (low, high))
        return spaces.Box(low.astype(dtype), high.astype(dtype), shape, dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(data["n"], start=data["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(data["nvec"], start=data["start"])
    if kind == "MultiBinary":
        return spaces.MultiBinary(data["n"])
    raise ConfigError(unknown_name("space type", str(kind), ("Box", "Discrete", "MultiDiscrete", "MultiBinary")))


def flat_size(space: spaces.Space[Any]) -> int:
    """Number of encoder inputs that an observation of `space` becomes."""
    check_supported(space)
    return int(spaces.flatdim(space))


def check_supported(space: spaces.Space[Any]) -> None:
    """Raise NotAvailableYetError, naming what is missing, unless the space becomes one flat vector."""
    if isinstance(space, spaces.Box) and len(space.shape) > 1:
        raise NotAvailableYetError(f"image observations (Box of shape {space.shape}) need a convolutional encoder")
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        raise NotAvailableYetError(f"{type(space).__name__} observations need a multi-input encoder")
    if not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        raise NotAvailableYetError(f"observations of a {type(space).__name__} space need an encoder of their own")


def to_tensor(space: spaces.Space[Any], obs: Any, like: Tensor, owner: str) -> Tensor:
    """Observations as encoder input.

    Args:
        space: Box of rank 0 or 1, Discrete (one-hot), MultiDiscrete (one-hots side by side) or MultiBinary.
        obs: numpy array, tensor or number, one observation or any leading axes before it.
        like: decides dtype and device of the result.
        owner: who is named in an error.

    Returns:
        [..., I], with a batch axis of one for a single observation; a view of `obs` where nothing had to change.
    """
    shape = space.shape or ()
    x = torch.as_tensor(np.asarray(obs) if not isinstance(obs, Tensor) else obs, device=like.device)
    if x.dim() < len(shape) or tuple(x.shape[x.dim() - len(shape) :]) != shape:
        raise ShapeError(
            f"{owner} got observations of shape {tuple(x.shape)}; it was built for {shape}. "
            "fix: pass them as the environment gives them, and build the agent from that environment's spaces."
        )
    if isinstance(space, spaces.Discrete):
        x = F.one_hot(x.long() - int(space.start), int(space.n))
    elif isinstance(space, spaces.MultiDiscrete):
        sizes, starts = space.nvec.ravel().tolist(), space.start.ravel().tolist()
        x = x.long().reshape(*x.shape[: x.dim() - len(shape)], len(sizes))
        parts = [F.one_hot(x[..., i] - starts[i], sizes[i]) for i in range(len(sizes))]
        x = torch.cat(parts, dim=-1)
    else:
        x = x.reshape(*x.shape[: x.dim() - len(shape)], int(np.prod(shape, dtype=int)))
    x = x.to(like.dtype)
    return x.unsqueeze(0) if x.dim() == 1 else x


def bounds_to_unit(space: spaces.Space[Any]) -> tuple[Tensor, Tensor] | None:
    """(centre [I], factor [I]) float64 such that (x − centre) · factor maps the bounds of a Box to [−1, 1].

    A feature with an infinite bound keeps its value (centre 0, factor 1); None where there is nothing to map.
    """
    if not isinstance(space, spaces.Box):
        return None
    low, high = space.low.astype(np.float64).ravel(), space.high.astype(np.float64).ravel()
    bounded = np.isfinite(low) & np.isfinite(high) & (high > low) & (high - low < 1e30)
    with np.errstate(invalid="ignore", over="ignore"):
        centre = np.where(bounded, (low + high) / 2, 0.0)
        factor = np.where(bounded, 2 / np.where(bounded, high - low, 1.0), 1.0)
    return torch.from_numpy(centre), torch.from_numpy(factor)


def sample_batch(space: spaces.Space[Any], count: int, rng: np.random.Generator) -> Tensor:
    """`count` made-up observations [count, ...] from `rng`: the bounded range, a standard normal where unbounded.

    Bounds beyond ±10 count as unbounded: no task puts its observations uniformly over such a range.
    """
    if isinstance(space, spaces.Box):
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        normal = rng.standard_normal((count, *space.shape))
        bounded = (low >= -10) & (high <= 10)
        with np.errstate(invalid="ignore"):
            uniform = np.where(bounded, low, 0) + rng.random((count, *space.shape)) * np.where(bounded, high - low, 1)
        values = np.where(bounded, uniform, np.clip(normal, low, high))
        return torch.as_tensor(values.astype(space.dtype))
    if isinstance(space, spaces.Discrete):
        return torch.as_tensor(rng.integers(space.start, space.start + space.n, size=count))
    if isinstance(space, spaces.MultiDiscrete):
        draws = space.start + np.floor(rng.random((count, *space.shape)) * space.nvec)
        return torch.as_tensor(draws.astype(np.int64))
    if isinstance(space, spaces.MultiBinary):
        return torch.as_tensor(rng.integers(0, 2, size=(count, *space.shape)))
    raise NotAvailableYetError(f"observations of a {type(space).__name__} space cannot be drawn yet")
