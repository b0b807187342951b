"""Parts of sampled transitions: their fields, checks, and conversion to tensors in the layout of the spaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agilerl.core import foreign, tree
from agilerl.core.spaces import check_supported, empty_part, is_channels_last, parts_of
from agilerl.engine.protocol import TransitionBatch
from agilerl.errors import AlgorithmError, NotAvailableYetError, ShapeError

FIELDS = ("obs", "action", "reward", "next_obs", "done")
OLD_FIELDS = {"state": "obs", "next_state": "next_obs"}
FIX = "fix: store what the environment gives, and build the agent from that environment's spaces."


def experience_fields(experiences: Any) -> dict[str, Any]:
    """Return sampled transitions in either format as obs, action, reward, next_obs, done and other stored fields."""
    if isinstance(experiences, Mapping) or hasattr(experiences, "keys"):
        fields = {OLD_FIELDS.get(str(k), str(k)): experiences[k] for k in experiences.keys()}  # noqa: SIM118
    elif isinstance(experiences, tuple | list) and len(experiences) >= len(FIELDS):
        fields = dict(zip(FIELDS, experiences, strict=False))
    else:
        raise ShapeError(
            f"learn got experiences of type {type(experiences).__name__}; expected a TensorDict, a mapping or a tuple "
            f"with {', '.join(FIELDS)}. fix: agent.learn(memory.sample(agent.batch_size))"
        )
    missing = [name for name in FIELDS if name not in fields]
    if missing:
        raise ShapeError(
            f"learn got experiences without {', '.join(missing)}; it has {', '.join(fields)}. "
            "fix: all five fields in every row that the memory gets."
        )
    return fields


def check_same_rows(algo: str, count: int, later: int) -> None:
    """Raise ShapeError if n-step and one-step transitions have different rows."""
    if count != later:
        fix = "n_step_memory.sample_from_indices(experiences['idxs'])"
        raise ShapeError(f"{algo}.learn got {count} experiences and {later} n_experiences. fix: {fix}.")


def with_observations(experiences: Mapping[str, Any] | Sequence[Any], change: Any) -> dict[str, Any]:
    """Return sampled transitions by name, with `change` applied to all observations."""
    fields = experience_fields(experiences)
    return {**fields, **{name: change(fields[name]) for name in ("obs", "next_obs")}}


def side_by_side(first: TransitionBatch, second: TransitionBatch) -> TransitionBatch:
    """Concatenate two batches, each with its own weights: their losses add up."""
    joined: dict[str, Any] = {
        name: tree.concatenate((value, vars(second)[name])) if vars(second)[name] is not None else None
        for name, value in vars(first).items()
        if isinstance(value, Tensor) or name in ("obs", "next_obs")  # nested for Dict and Tuple spaces
    }
    return replace(first, **joined)


# --- conversion of stored values to the agent's device and the layout of the space -----------------------------------


def check_observation_space(algo: str, space: gym.Space[Any]) -> None:
    """Raise AlgorithmError, naming algorithm and space, for unsupported observations."""
    kinds = "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of them"
    try:
        check_supported(space)
    except NotAvailableYetError as error:
        raise AlgorithmError(
            f"{algo} cannot read {space}: {error}. It reads {kinds}. "
            "fix: gymnasium.wrappers.TransformObservation, to one of these."
        ) from None
    check_not_empty(algo, "read", space)


def check_not_empty(algo: str, does: Literal["read", "act in"], space: gym.Space[Any]) -> None:
    """Raise AlgorithmError, naming algorithm and space, if the space or a part of it is empty."""
    part = empty_part(space)
    if part is None:
        return
    where, fix = f"its part {part!r}", "a wrapper that leaves this part out"
    if not part:
        shows = "shows something" if does == "read" else "takes actions"
        where, fix = "it", f"an environment that {shows}"
    raise AlgorithmError(f"{algo} cannot {does} {space}: there is nothing in {where}. fix: {fix}.")


def column(name: str, given: Tensor | np.ndarray, count: int, device: str | torch.device, owner: str) -> Tensor:
    """Return one number per transition as a tensor [B] on `device`, from [B] or [B, 1].

    Raises:
        ShapeError: wrong count, or not numeric.
    """
    x = as_tensor(given, device, f"{owner} got {name}", "numbers [B] or [B, 1]")
    if x.numel() != count or x.dim() not in (1, 2):
        raise ShapeError(
            f"{owner} got {name} of shape {tuple(x.shape)} for {count} observations; expected one each: ({count},). "
            "fix: agent.learn(memory.sample(agent.batch_size))."
        )
    return x.reshape(count)


def check_discrete_actions(given: Tensor, num_actions: int, owner: str) -> None:
    """Raise ShapeError for actions that are not integers in 0..num_actions - 1; not checked on a GPU."""
    x = given.detach()
    if x.device.type == "cuda" or x.numel() == 0:
        return
    low, high = x.min().item(), x.max().item()
    if low < 0 or high >= num_actions or (x.is_floating_point() and bool((x != x.floor()).any())):
        raise ShapeError(
            f"{owner} got actions from {low:g} to {high:g}; expected integers from 0 to {num_actions - 1}. "
            "fix: store what get_action returned."
        )


def sampled_observations(
    space: gym.Space[Any], given: Tensor | np.ndarray, device: str | torch.device, owner: str
) -> Any:
    """Convert the observations of a batch to tensors [B, ...] on `device`: nested dicts for Dict and Tuple spaces.

    Scalars that a buffer has stored as columns [B, 1] become [B]. Images are already channel-first.

    Args:
        space: space of one observation.
        given: arrays or tensors; a mapping, TensorDict or tuple of them for a Dict or Tuple space.
        owner: name used in errors.

    Raises:
        ShapeError: shape differs from the space, or not numeric.
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
    """Convert observations for a user-defined module: tensors [E, ...], nested dicts for Dict and Tuple spaces.

    Args:
        space: space of one observation. given: one observation or a batch, numpy or torch. owner: name used in errors.
    """
    parts = parts_of(space)
    if parts:
        rows = _children(space, given, owner)
        return {key: module_inputs(sub, rows[key], f"{owner}, part {key!r},") for key, sub in parts.items()}
    device = given.device if isinstance(given, Tensor) else "cpu"
    x = as_tensor(given, device, f"{owner} got observations", f"numbers in the shape of {space}")
    return x.unsqueeze(0) if x.dim() == len(space.shape or ()) else x


def _children(space: gym.Space[Any], obs: tree.Tree, owner: str) -> dict[str, Any]:
    if isinstance(obs, tuple | list) and isinstance(space, gym.spaces.Tuple):
        return {f"tuple_obs_{i}": part for i, part in enumerate(obs)}
    if isinstance(obs, Mapping):
        return {str(key): obs[key] for key in obs.keys()}  # noqa: SIM118 (a TensorDict iterates over rows)
    raise ShapeError(f"{owner} got observations of type {type(obs).__name__}; expected those of {space}. {FIX}")


def as_tensor(given: object, device: str | torch.device, what: str, expected: str) -> Tensor:
    """Return `given` as a tensor on `device`; ShapeError with `what` and `expected` if it is not numeric."""
    try:
        x = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):  # strings, objects, ragged rows
        kind = foreign.dtype_name(given)
        raise ShapeError(f"{what} of type {kind}; expected {expected}. {FIX}") from None
    return x.to(device)


def _leaf(space: gym.Space[Any], obs: tree.Tree, device: str | torch.device, owner: str) -> Tensor:
    x = as_tensor(obs, device, f"{owner} got observations", f"numbers in the shape of {space}")
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
