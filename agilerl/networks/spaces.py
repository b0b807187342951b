"""Observation and action spaces: as JSON, what is in them, and made-up observations of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from agilerl.envs.spaces import observation_space_channels_to_first
from agilerl.errors import ConfigError, NotAvailableYetError, unknown_name
from agilerl.modules.parts import is_image, parts_of

__all__ = [
    "channels_first",
    "check_supported",
    "flat_size",
    "is_byte_image",
    "is_channels_last",
    "is_image",
    "parts_of",
    "sample_batch",
    "space_from_json",
    "space_to_json",
]

KINDS = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple")


def space_to_json(space: spaces.Space[Any]) -> dict[str, Any]:
    """A JSON-able description of a Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple space."""
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
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": {key: space_to_json(sub) for key, sub in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [space_to_json(sub) for sub in space.spaces]}
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
    if kind == "Dict":
        return spaces.Dict({key: space_from_json(sub) for key, sub in data["spaces"].items()})
    if kind == "Tuple":
        return spaces.Tuple([space_from_json(sub) for sub in data["spaces"]])
    raise ConfigError(unknown_name("space type", str(kind), KINDS))


def flat_size(space: spaces.Space[Any]) -> int:
    """Number of encoder inputs that an observation of `space` becomes when everything in it is laid side by side."""
    check_supported(space)
    return int(spaces.flatdim(space))


def check_supported(space: spaces.Space[Any]) -> None:
    """Raise NotAvailableYetError, naming the space, unless it is made of the kinds that can be encoded."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        for sub in parts_of(space).values():
            check_supported(sub)
    elif not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        raise NotAvailableYetError(f"observations of a {type(space).__name__} space need an encoder of their own")


def is_channels_last(space: spaces.Space[Any]) -> bool:
    """True for an image [H, W, C]: its last axis is shorter than both others and has at most 16 entries."""
    if not is_image(space):
        return False
    height, width, channels = space.shape or (0, 0, 0)
    return channels < min(height, width) and channels <= 16


def is_byte_image(space: spaces.Space[Any]) -> bool:
    """True for a Box of three axes or more whose values run from 0 to 255."""
    if not isinstance(space, spaces.Box) or len(space.shape) < 3:
        return False
    return bool((space.low == 0).all() and (space.high == 255).all())


def differ(built: spaces.Space[Any], given: spaces.Space[Any]) -> bool:
    """Whether a network that was built for one space would misread what the other holds.

    Bounds may differ, but for images of bytes, which are scaled by them.
    """
    mine, theirs = parts_of(built), parts_of(given)
    if mine or theirs:
        return mine.keys() != theirs.keys() or any(differ(part, theirs[key]) for key, part in mine.items())
    for name in ("shape", "n", "nvec", "start"):
        one, other = getattr(built, name, None), getattr(given, name, None)
        if not np.array_equal(np.asarray(one), np.asarray(other)):
            return True
    return is_byte_image(built) != is_byte_image(given)


def channels_first(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """The space with every image [H, W, C] in it as [C, H, W]; unchanged where there is none."""
    if is_channels_last(space):
        return observation_space_channels_to_first(space)
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: channels_first(sub) for key, sub in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([channels_first(sub) for sub in space.spaces])
    return space


def sample_batch(space: spaces.Space[Any], count: int, rng: np.random.Generator) -> Any:
    """`count` made-up observations [count, ...] from `rng`: the bounded range, a standard normal where unbounded.

    Bounds beyond ±10 count as unbounded: no task puts its observations uniformly over such a range. Images of bytes
    are uniform over all values. A Dict or Tuple space gives a TensorDict (of TensorDicts) of `count` rows.
    """
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        # Imported here because it costs a second and spaces without parts never need it.
        from tensordict import TensorDict

        return TensorDict({k: sample_batch(v, count, rng) for k, v in parts_of(space).items()}, batch_size=[count])
    if is_byte_image(space):
        return torch.as_tensor(rng.integers(0, 256, (count, *(space.shape or ()))).astype(space.dtype))
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
