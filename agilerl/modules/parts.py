"""What a Dict or Tuple space is made of."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces


def parts_of(space: spaces.Space[Any]) -> dict[str, spaces.Space[Any]]:
    """The spaces inside a Dict by key, inside a Tuple as `tuple_obs_0`, `tuple_obs_1`, ..., as replay names them."""
    if isinstance(space, spaces.Dict):
        return {str(key): sub for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return {f"tuple_obs_{i}": sub for i, sub in enumerate(space.spaces)}
    return {}


def is_image(space: spaces.Space[Any]) -> bool:
    """True for a Box of three axes."""
    return isinstance(space, spaces.Box) and len(space.shape) == 3
