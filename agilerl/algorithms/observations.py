"""Sampled observations on their way to an update: on the agent's device, laid out as its space says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from agilerl.errors import AlgorithmError, NotAvailableYetError, ShapeError
from agilerl.spaces import flat_size, is_channels_last, parts_of

FIX = "fix: store what the environment gives, and build the agent from that environment's spaces."


def check_observation_space(algo: str, space: gym.Space[Any]) -> None:
    """AlgorithmError, naming algorithm and space, for observations that no network can read."""
    kinds = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them"
    try:
        width = flat_size(space)
    except NotAvailableYetError as error:
        raise AlgorithmError(
            f"{algo} cannot read {space}: {error}. It reads {kinds}. "
            "fix: gymnasium.wrappers.TransformObservation, to one of these."
        ) from None
    if width == 0:
        raise AlgorithmError(
            f"{algo} cannot read {space}: there is nothing in it. fix: an environment that shows something."
        )


def column(name: str, given: Any, count: int, device: str | torch.device, owner: str) -> Tensor:
    """One number per transition as a tensor [B] on `device`, from [B] or [B, 1].

    Raises:
        ShapeError: another number of them, or something that is not a number.
    """
    x = as_tensor(given, device, f"{owner} got {name}", "numbers [B] or [B, 1]")
    if x.numel() != count or x.dim() not in (1, 2):
        raise ShapeError(
            f"{owner} got {name} of shape {tuple(x.shape)} for {count} observations; expected one each: ({count},). "
            "fix: agent.learn(memory.sample(agent.batch_size))."
        )
    return x.reshape(count)


def check_discrete_actions(given: Tensor, num_actions: int, owner: str) -> None:
    """ShapeError for actions that are not integers in 0..num_actions - 1; on a GPU nothing is checked."""
    x = given.detach()
    if x.device.type == "cuda" or x.numel() == 0:
        return
    low, high = x.min().item(), x.max().item()
    if low < 0 or high >= num_actions or (x.is_floating_point() and bool((x != x.floor()).any())):
        raise ShapeError(
            f"{owner} got actions from {low:g} to {high:g}; expected integers from 0 to {num_actions - 1}. "
            "fix: store what get_action returned."
        )


def sampled_observations(space: gym.Space[Any], given: Any, device: str | torch.device, owner: str) -> Any:
    """Observations of a batch as tensors [B, ...] on `device`: nested dicts of them for Dict and Tuple spaces.

    Numbers that a buffer has stored as columns [B, 1] become [B]. Images whose channels were swapped already stay so.

    Args:
        space: of one observation.
        given: arrays or tensors; a mapping, TensorDict or tuple of them for a Dict or Tuple space.
        owner: who is named in an error.

    Raises:
        ShapeError: another shape than that of the space, or something that is not a number.
    """
    parts = parts_of(space)
    if not parts:
        return _leaf(space, given, device, owner)
    rows = _children(space, given, owner)
    missing = [key for key in parts if key not in rows]
    if missing:
        raise ShapeError(f"{owner} got observations without {missing}; they have {sorted(rows)}. {FIX}")
    return {key: sampled_observations(sub, rows[key], device, f"{owner}, part {key!r},") for key, sub in parts.items()}


def module_inputs(space: gym.Space[Any], given: Any, owner: str) -> Any:
    """Observations for a module of the user's own: tensors [E, ...], nested dicts of them for Dict and Tuple spaces.

    Args:
        space: of one observation. given: one observation or a batch of them, numpy or torch. owner: named in an error.
    """
    parts = parts_of(space)
    if parts:
        rows = _children(space, given, owner)
        return {key: module_inputs(sub, rows[key], f"{owner}, part {key!r},") for key, sub in parts.items()}
    device = given.device if isinstance(given, Tensor) else "cpu"
    x = as_tensor(given, device, f"{owner} got observations", f"numbers in the shape of {space}")
    return x.unsqueeze(0) if x.dim() == len(space.shape or ()) else x


def _children(space: gym.Space[Any], given: Any, owner: str) -> dict[str, Any]:
    if isinstance(given, tuple | list) and isinstance(space, gym.spaces.Tuple):
        return {f"tuple_obs_{i}": part for i, part in enumerate(given)}
    if isinstance(given, Mapping):
        return {str(key): given[key] for key in given.keys()}  # noqa: SIM118 (a TensorDict iterates over rows)
    raise ShapeError(f"{owner} got observations of type {type(given).__name__}; expected those of {space}. {FIX}")


def as_tensor(given: Any, device: str | torch.device, what: str, expected: str) -> Tensor:
    """`given` as a tensor on `device`; ShapeError, `what` and what was `expected`, where it holds no numbers."""
    try:
        x = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):  # texts, objects, rows of unequal length
        kind = getattr(given, "dtype", type(given).__name__)
        raise ShapeError(f"{what} of type {kind}; expected {expected}. {FIX}") from None
    return x.to(device)


def _leaf(space: gym.Space[Any], given: Any, device: str | torch.device, owner: str) -> Tensor:
    x = as_tensor(given, device, f"{owner} got observations", f"numbers in the shape of {space}")
    if space.shape is None:
        return x
    shape = tuple(space.shape)
    if not shape and x.dim() == 2 and x.shape[1] == 1:
        x = x.squeeze(1)
    swapped = is_channels_last(space) and tuple(x.shape[1:]) == (shape[-1], *shape[:-1])
    if x.dim() == 0 or (tuple(x.shape[1:]) != shape and not swapped):
        raise ShapeError(
            f"{owner} got observations of shape {tuple(x.shape)}; it was built for {shape}. {FIX}"
            if shape
            else f"{owner} got observations of shape {tuple(x.shape)}; expected (B,) or (B, 1) of {space}. {FIX}"
        )
    return x
