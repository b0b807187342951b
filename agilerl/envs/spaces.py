"""Spaces as data, as images with channels first, and as something an algorithm can or cannot use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from agilerl.errors import EnvError


class SpaceError(EnvError):
    """A space is of a kind that cannot be used here."""


def describe(space: Space[Any]) -> dict[str, Any]:
    """The space as a JSON-able dict; `space_from_json` gives an equal space. Infinite bounds are "inf" and "-inf".

    Raises:
        SpaceError: Gymnasium's Text, Sequence, Graph and user-defined spaces.
    """
    if isinstance(space, spaces.Box):
        bounds = {"low": _bound(space.low), "high": _bound(space.high)}
        return {"type": "Box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiDiscrete):
        entry = {"type": "MultiDiscrete", "nvec": space.nvec.tolist(), "dtype": str(space.dtype)}
        return {**entry, "start": space.start.tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else [int(n) for n in space.n]}
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "spaces": {key: describe(sub) for key, sub in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "spaces": [describe(sub) for sub in space.spaces]}
    raise _unknown(type(space).__name__)


def space_from_json(data: Mapping[str, Any]) -> Space[Any]:
    """The space that `describe` described."""
    kind = data.get("type")
    if kind == "Box":
        shape, dtype = tuple(data["shape"]), np.dtype(data["dtype"])
        low, high = (
            np.broadcast_to(np.array(_numbers(data[key]), dtype), _fit(data[key], shape)) for key in ("low", "high")
        )
        return spaces.Box(low.reshape(shape), high.reshape(shape), dtype=dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(data["n"], start=data["start"], dtype=np.dtype(data["dtype"]).type)
    if kind == "MultiDiscrete":
        dtype = np.dtype(data["dtype"])
        return spaces.MultiDiscrete(np.array(data["nvec"]), dtype=dtype.type, start=np.array(data["start"]))
    if kind == "MultiBinary":
        return spaces.MultiBinary(data["n"])
    if kind == "Dict":
        return spaces.Dict({key: space_from_json(sub) for key, sub in data["spaces"].items()})
    if kind == "Tuple":
        return spaces.Tuple(tuple(space_from_json(sub) for sub in data["spaces"]))
    raise _unknown(repr(kind))


def observation_space_channels_to_first(space: Space[Any]) -> Space[Any]:
    """Image boxes [H, W, C] as [C, H, W]; inside Dict and Tuple spaces too. Everything else is returned unchanged."""
    if isinstance(space, spaces.Box) and len(space.shape) == 3:
        low, high = np.moveaxis(space.low, -1, 0), np.moveaxis(space.high, -1, 0)
        return spaces.Box(low, high, dtype=space.dtype.type)
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: observation_space_channels_to_first(sub) for key, sub in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple(tuple(observation_space_channels_to_first(sub) for sub in space.spaces))
    return space


def swap_channels(obs: Any, space: Space[Any] | None = None) -> Any:
    """Observations [..., H, W, C] as [..., C, H, W] (views), in dicts and tuples too.

    Args:
        obs: one observation or a batch.
        space: of one observation, channels last: only its rank-3 boxes are images. Without it everything of three
            axes and more is taken for an image.
    """
    if isinstance(obs, Mapping):
        parts = space.spaces if isinstance(space, spaces.Dict) else {}
        return {key: swap_channels(part, parts.get(key)) for key, part in obs.items()}
    if isinstance(obs, tuple):
        subs = space.spaces if isinstance(space, spaces.Tuple) else [None] * len(obs)
        return tuple(swap_channels(part, sub) for part, sub in zip(obs, subs, strict=True))
    is_image = np.ndim(obs) >= 3 if space is None else isinstance(space, spaces.Box) and len(space.shape) == 3
    return np.moveaxis(obs, -1, -3) if is_image else obs


def mask_width(space: Space[Any] | None) -> int:
    """Entries of an action mask of one lane: one per choice, component by component; 0 where there are none."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    return int(space.nvec.sum()) if isinstance(space, spaces.MultiDiscrete) else 0


def _bound(values: np.ndarray) -> Any:
    flat = values.reshape(-1)
    same = flat.size > 0 and (flat == flat[0]).all()
    return _plain(flat[0]) if same else [_plain(value) for value in flat]


def _plain(value: Any) -> Any:
    return str(value) if np.isinf(value) else value.item()


def _numbers(bound: Any) -> Any:
    return (
        [_numbers(value) for value in bound]
        if isinstance(bound, list)
        else float(bound)
        if bound in ("inf", "-inf")
        else bound
    )


def _fit(bound: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (len(bound),) if isinstance(bound, list) else shape


def _unknown(name: str) -> SpaceError:
    known = "Box, Discrete, MultiDiscrete, MultiBinary, Dict, Tuple"
    return SpaceError(f"space must be one of {known}; got {name}. fix: wrap the environment to give one of them.")
