"""Learning from transitions: conversion of sampled transitions to a batch, and the update of one agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from agilerl import foreign, tree
from agilerl.engine.learner import learn_alone
from agilerl.engine.protocol import TransitionBatch, UpdateResult
from agilerl.envs.masks import ActionMasks
from agilerl.envs.observed_masks import parted
from agilerl.envs.team import SeenByTeam
from agilerl.errors import AlgorithmError, NotAvailableYetError, ShapeError
from agilerl.spaces import check_supported, empty_part, is_channels_last, parts_of

if TYPE_CHECKING:
    from agilerl.algorithms.base.single_agent import RLAlgorithm

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


def learn(agent: RLAlgorithm, experiences: Any, n_experiences: Any, per: bool) -> Any:
    """Perform one update of an agent that learns from replay; see `RLAlgorithm.learn_from`."""
    learned = experiences
    if n_experiences is not None:
        one_step, learned = experience_fields(experiences), experience_fields(n_experiences)
        check_same_rows(agent, len(one_step["reward"]), len(learned["reward"]))
        if "discount" not in learned:
            raise ShapeError(
                f"{agent.algo}.learn got n_experiences without discount, so how many steps they span is not known. "
                "fix: sample a MultiStepReplayBuffer, or give discount = gamma**k * (1 - done) [B]."
            )
        learned |= {"weights": one_step["weights"]} if "weights" in one_step else {}
    result = agent.learn_batch(agent.make_batch(learned))
    if not per:
        return agent.report(result)
    priorities = None if result.priorities is None else result.priorities.detach().cpu().numpy()
    return agent.report(result), experience_fields(experiences).get("idxs"), priorities


def check_same_rows(agent: RLAlgorithm, count: int, later: int) -> None:
    """Raise ShapeError if n-step and one-step transitions have different rows."""
    if count != later:
        raise ShapeError(
            f"{agent.algo}.learn got {count} experiences and {later} n_experiences. "
            "fix: n_step_memory.sample_from_indices(experiences['idxs'])."
        )


def learn_batch(agent: RLAlgorithm, batch: Any, plain: bool = False) -> UpdateResult:
    """Perform one update from a prepared batch [B, ...]; `plain` forces plain torch modules. No member axis."""
    agent.remember_observations(batch.obs, batch.action)
    return learn_alone(agent, batch, plain)


def make_batch(agent: RLAlgorithm, experiences: Any) -> TransitionBatch:
    """Convert sampled transitions to tensors on the agent's device.

    Args:
        experiences: obs, action, reward, next_obs, done, and optionally `discount` [B] or [B, 1], which is
            γ^k · (1 − done) of transitions that span k steps (by default one step with the agent's γ), `weights` [B] or
            [B, 1], the importance weights of prioritised replay, and `next_mask` [B, Σn].
    """
    fields = experience_fields(experiences)
    dtype = next(iter(agent.policy_module().parameters())).dtype
    space, device, owner = agent.observation_space, agent.device, f"{agent.algo}.learn"
    for name, mask_name in (("obs", "obs_mask"), ("next_obs", "next_mask")):
        rest, mask = parted(fields[name], space)
        if mask is not None:  # the environment's mask, stored with the observations by a custom loop
            fields = {mask_name: _masks_of(agent, mask, fields["done"], owner), **fields, name: rest}
    obs, next_obs = (sampled_observations(space, fields[k], device, owner) for k in ("obs", "next_obs"))
    count = tree.count_rows(obs)
    counts = [len(leaf) for leaf in tree.leaves((obs, next_obs))]
    if set(counts) != {count}:
        raise ShapeError(
            f"{owner} got different numbers of observations in obs and next_obs (or their parts): {counts}. "
            "fix: agent.learn(memory.sample(agent.batch_size))."
        )
    reward, done = (column(k, fields[k], count, device, owner).to(dtype) for k in ("reward", "done"))
    action = as_tensor(fields["action"], device, f"{owner} got actions", "numbers")
    weight = torch.full((count,), 1 / count, dtype=dtype, device=reward.device)
    extra = {k: column(k, fields[k], count, device, owner) for k in ("weights", "discount") if k in fields}
    if "weights" in extra:
        weight = weight * extra["weights"].to(dtype)
    discount = extra["discount"].to(dtype) if "discount" in extra else None
    masks: dict[str, Any] = {}
    for name in (name for name in ("next_mask", "obs_mask") if name in fields):
        legal = agent.legal_choices(torch.as_tensor(fields[name]).numpy(force=True))  # component masks to joint masks
        masks[name] = torch.from_numpy(legal).to(agent.device).bool()
    drawn = agent.draw_noise(agent._exploration, (1, count))
    return TransitionBatch(
        obs,
        agent.prepare_action(action, count),
        reward,
        next_obs,
        done,
        weight,
        discount=discount,
        noise={name: torch.as_tensor(x[0]).to(reward.device, dtype) for name, x in drawn.items()},
        number=agent.learn_counter + 1,
        **masks,
    )


def _masks_of(agent: RLAlgorithm, mask: Any, done: Any, owner: str) -> np.ndarray:
    """Convert stored masks to [B, W] bool; at terminal states no action need be legal."""
    rows = tree.unbind(tree.map_leaves(lambda x: torch.as_tensor(x).numpy(force=True), mask))
    over = torch.as_tensor(done).numpy(force=True).astype(bool).reshape(-1)
    return ActionMasks(agent.action_space, owner, ShapeError).rows(rows, is_over=over)


def with_observations(experiences: Any, change: Any) -> dict[str, Any]:
    """Return sampled transitions by name, with `change` applied to all observations."""
    fields = experience_fields(experiences)
    return {**fields, **{name: change(fields[name]) for name in ("obs", "next_obs")}}


def present_of(obs: Any) -> Mapping[str, Any] | None:
    """Return agent -> presence mask [E] of observations by agent; None if absent."""
    return SeenByTeam.of(obs).present


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


def column(name: str, given: Any, count: int, device: str | torch.device, owner: str) -> Tensor:
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


def sampled_observations(space: gym.Space[Any], given: Any, device: str | torch.device, owner: str) -> Any:
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


def _children(space: gym.Space[Any], obs: Any, owner: str) -> dict[str, Any]:
    if isinstance(obs, tuple | list) and isinstance(space, gym.spaces.Tuple):
        return {f"tuple_obs_{i}": part for i, part in enumerate(obs)}
    if isinstance(obs, Mapping):
        return {str(key): obs[key] for key in obs.keys()}  # noqa: SIM118 (a TensorDict iterates over rows)
    raise ShapeError(f"{owner} got observations of type {type(obs).__name__}; expected those of {space}. {FIX}")


def as_tensor(given: Any, device: str | torch.device, what: str, expected: str) -> Tensor:
    """Return `given` as a tensor on `device`; ShapeError with `what` and `expected` if it is not numeric."""
    try:
        x = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError):  # strings, objects, ragged rows
        kind = foreign.dtype_name(given)
        raise ShapeError(f"{what} of type {kind}; expected {expected}. {FIX}") from None
    return x.to(device)


def _leaf(space: gym.Space[Any], obs: Any, device: str | torch.device, owner: str) -> Tensor:
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


# --- methods of actor-critic agents, which assign them by name -------------------------------------------------------
