"""Observation and action spaces: what is in them, as JSON, and as images with channels first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import Space, spaces

from agilerl.errors import ConfigError, NotAvailableYetError, unknown_name

KINDS = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple")


def space_to_json(space: Space[Any]) -> dict[str, Any]:
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


def space_from_json(data: Mapping[str, Any]) -> Space[Any]:
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


def short_form(space: Any) -> str:
    """A space in a few characters, without bounds: Box(8,), Discrete(4), Dict(image: Box(84, 84), speed: Box(1,)),
    MultiDiscrete([106] * 31)."""
    if isinstance(space, spaces.Box):
        return f"Box{space.shape}"
    parts = parts_of(space) if isinstance(space, Space) else {}
    if parts:
        inside = ", ".join(f"{name}: {short_form(part)}" for name, part in parts.items())
        return f"{type(space).__name__}({inside})"
    sizes = space.nvec.tolist() if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1 else []
    if len(sizes) > 8 and len(set(sizes)) == 1:  # a text: as many numbers as tokens
        return f"MultiDiscrete([{sizes[0]}] * {len(sizes)})"
    return " ".join(str(space).split())


def parts_of(space: Space[Any]) -> dict[str, Space[Any]]:
    """The spaces inside a Dict by key, inside a Tuple as `tuple_obs_0`, `tuple_obs_1`, ..., as replay names them."""
    if isinstance(space, spaces.Dict):
        return {str(key): sub for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {f"tuple_obs_{i}": sub for i, sub in enumerate(space.spaces)}
    return {}


def nested(space: Space[Any]) -> Any:
    """The spaces of the leaves of an observation, in a tree nested as the space is."""
    if isinstance(space, spaces.Dict):
        return {key: nested(sub) for key, sub in space.spaces.items()}
    return tuple(map(nested, space.spaces)) if isinstance(space, spaces.Tuple) else space


def flat_size(space: Space[Any]) -> int:
    """Number of encoder inputs that an observation of `space` becomes when everything in it is laid side by side."""
    check_supported(space)
    return int(spaces.flatdim(space))


def check_supported(space: Space[Any]) -> None:
    """Raise NotAvailableYetError, naming the space, unless it is made of the kinds that can be encoded."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        for sub in parts_of(space).values():
            check_supported(sub)
    elif not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        raise NotAvailableYetError(f"observations of a {type(space).__name__} space need an encoder of their own")


def differ(built: Space[Any], given: Space[Any]) -> bool:
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


def mask_width(space: Space[Any] | None) -> int:
    """Entries of an action mask of one lane: one per choice, component by component; 0 where there are none.

    Of a Dict (the actions of a team) those of all parts, in their order.
    """
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.Dict):
        return sum(map(mask_width, space.spaces.values()))
    return int(space.nvec.sum()) if isinstance(space, spaces.MultiDiscrete) else 0


# -- images ----------------------------------------------------------------------------------------------------------


def is_image(space: Space[Any]) -> bool:
    """True for a Box of three axes."""
    return isinstance(space, spaces.Box) and len(space.shape) == 3


def is_channels_last(space: Space[Any]) -> bool:
    """True for an image [H, W, C]: its last axis is shorter than both others and has at most 16 entries."""
    if not is_image(space):
        return False
    height, width, channels = space.shape or (0, 0, 0)
    return channels < min(height, width) and channels <= 16


def is_byte_image(space: Space[Any]) -> bool:
    """True for a Box of three axes or more whose values run from 0 to 255."""
    if not isinstance(space, spaces.Box) or len(space.shape) < 3:
        return False
    return bool((space.low == 0).all() and (space.high == 255).all())


def channels_first(space: Space[Any], is_turned: Callable[[Space[Any]], bool] = is_channels_last) -> Space[Any]:
    """The space with every image [H, W, C] in it as [C, H, W]; unchanged where there is none."""
    if isinstance(space, spaces.Box) and is_turned(space):
        low, high = np.moveaxis(space.low, -1, 0), np.moveaxis(space.high, -1, 0)
        return spaces.Box(low, high, dtype=space.dtype.type)
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: channels_first(sub, is_turned) for key, sub in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([channels_first(sub, is_turned) for sub in space.spaces])
    return space


def observation_space_channels_to_first(space: Space[Any]) -> Space[Any]:
    """As `channels_first`, of every Box of three axes, whichever of them is the channels."""
    return channels_first(space, is_image)


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
    turned = np.ndim(obs) >= 3 if space is None else is_image(space)
    return np.moveaxis(obs, -1, -3) if turned else obs
