"""Sampled observations on their way to an update: on the agent's device, laid out as its space says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from agilerl.errors import ShapeError
from agilerl.networks.spaces import is_channels_last, parts_of

FIX = "fix: store what the environment gives, and build the agent from that environment's spaces."


def sampled_observations(space: gym.Space[Any], given: Any, device: str | torch.device, owner: str) -> Any:
    """Observations of a batch as tensors [B, ...] on `device`: nested dicts of them for Dict and Tuple spaces.

    Numbers that a buffer has stored as columns [B, 1] become [B]. Images whose channels were swapped already stay so.

    Args:
        space: of one observation.
        given: arrays or tensors; a mapping, TensorDict or tuple of them for a Dict or Tuple space.
        owner: who is named in an error.

    Raises:
        ShapeError: another shape than that of the space, or something that is no number.
    """
    parts = parts_of(space)
    if not parts:
        return _leaf(space, given, device, owner)
    rows = _children(space, given, owner)
    missing = [key for key in parts if key not in rows]
    if missing:
        raise ShapeError(f"{owner} got observations without {missing}; they have {sorted(rows)}. {FIX}")
    return {key: sampled_observations(sub, rows[key], device, f"{owner}, part {key!r},") for key, sub in parts.items()}


def _children(space: gym.Space[Any], given: Any, owner: str) -> dict[str, Any]:
    if isinstance(given, tuple | list) and isinstance(space, gym.spaces.Tuple):
        return {f"tuple_obs_{i}": part for i, part in enumerate(given)}
    if isinstance(given, Mapping):
        return {str(key): given[key] for key in given.keys()}  # noqa: SIM118 (a TensorDict iterates over rows)
    raise ShapeError(f"{owner} got observations of type {type(given).__name__}; expected those of {space}. {FIX}")


def _leaf(space: gym.Space[Any], given: Any, device: str | torch.device, owner: str) -> Tensor:
    try:
        x = torch.as_tensor(given).to(device)
    except (TypeError, ValueError, RuntimeError):
        kind = getattr(given, "dtype", type(given).__name__)
        raise ShapeError(
            f"{owner} got observations of type {kind}; expected numbers in the shape of {space}. {FIX}"
        ) from None
    if space.shape is None:
        return x
    shape = tuple(space.shape)
    if not shape and x.dim() == 2 and x.shape[1] == 1:
        x = x.squeeze(1)
    swapped = is_channels_last(space) and tuple(x.shape[1:]) == (shape[-1], *shape[:-1])
    if x.dim() == 0 or (tuple(x.shape[1:]) != shape and not swapped):
        raise ShapeError(
            f"{owner} got observations of shape {list(x.shape)}; expected [B, {', '.join(map(str, shape))}]. {FIX}"
            if shape
            else f"{owner} got observations of shape {list(x.shape)}; expected [B] or [B, 1] of {space}. {FIX}"
        )
    return x
