"""Files of CleanRL: the `.cleanrl_model` of `torch.save`, one state dict or a tuple of them, of dense layers."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from agilerl.algorithms.imported.agents import Place, concatenated
from agilerl.algorithms.imported.dense import Dense, checked_activation, connected, layer, sequence
from agilerl.algorithms.imported.files import Layout, file_content, named_tensors, tensors_in
from agilerl.errors import RunError, ShapeError

LIBRARY = "CleanRL"
LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0  # range of the log standard deviation of its SAC
MAX_PARTS = 8


def read(path: str | os.PathLike[str], place: Place, activation: str | None = None) -> tuple[Any, list[str]]:
    """Return (agent, []): these files hold no hyperparameters.

    Args:
        activation: between hidden layers; None takes the library's: tanh for policies with a state value, ReLU for
            others.

    Raises:
        RunError: no such file, damaged, or an unknown layout. NotAvailableYetError: images or a memory.
        ConfigError: unknown activation. ShapeError, AlgorithmError: of another environment.
    """
    tree = tensors_in(file_content(path), place.source)
    parts = list(tree) if isinstance(tree, tuple | list) else [tree]
    if not 0 < len(parts) <= MAX_PARTS:
        raise RunError(f"{place.source} holds {len(parts)} parts; expected one to three. fix: name another file.")
    layouts = [Layout(named_tensors(part, place.source), place.source, LIBRARY) for part in parts]
    return _agent(layouts, place, activation), []


def _agent(layouts: Sequence[Layout], place: Place, act: str | None) -> Any:
    first = layouts[0]
    if len(layouts) == 1 and first.has("network."):
        return _of_values(first, place, checked_activation(act or "ReLU"))
    if len(layouts) == 1 and first.has("critic."):
        return _of_rollouts(first, place, checked_activation(act or "Tanh"))
    if first.has("fc_mean.") and len(layouts) == 3:
        return _soft(layouts, place, checked_activation(act or "ReLU"))
    if first.has("fc_mu.") and len(layouts) in (2, 3):
        return _deterministic(layouts, place, checked_activation(act or "ReLU"))
    raise first.unknown(f"no policy of DQN, PPO, SAC, TD3 or DDPG with its critics ({len(layouts)} parts)")


def _of_values(layout: Layout, place: Place, act: str) -> Any:
    layers = connected(layout, sequence(layout, "network.", act), "network")
    layout.finish()
    if not layers:
        raise layout.unknown("network.0.weight is missing")
    return place.values(layers, None, {})


def _of_rollouts(layout: Layout, place: Place, act: str) -> Any:
    is_box = layout.has("actor_mean.")
    names = ("actor_mean" if is_box else "actor", "critic")
    policy, value = (connected(layout, sequence(layout, f"{name}.", act), name) for name in names)
    log_std = layout.take("actor_logstd", 2) if is_box else None
    layout.finish()
    if not policy or not value:
        raise layout.unknown("actor or critic has no layers")
    if log_std is not None and log_std.shape[0] != 1:
        raise layout.unknown(f"actor_logstd has the shape {list(log_std.shape)}")
    return place.policy_gradient(policy, value, None if log_std is None else log_std[0], {})


def _hidden(layout: Layout, act: str) -> list[Dense]:
    """Return fc1, fc2, ... as they are numbered."""
    layers: list[Dense] = []
    while f"fc{len(layers) + 1}.weight" in layout and len(layers) < MAX_PARTS:
        layers.append(layer(layout, f"fc{len(layers) + 1}", act))
    return layers


def _bounds(layout: Layout, place: Place) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (scale [A], centre [A]) of the file's actions; ShapeError unless they are those of the environment."""
    stored = [layout.take(name, layout.dims(name)).flatten() for name in ("action_scale", "action_bias")]
    low, high = (np.ravel(vars(place.action_space)[name]) for name in ("low", "high"))
    wanted = [torch.as_tensor((high - low) / 2), torch.as_tensor((high + low) / 2)]
    for mine, theirs in zip(wanted, stored, strict=True):
        if mine.shape != theirs.shape or not torch.allclose(mine.float(), theirs, rtol=1e-4, atol=1e-5):
            raise ShapeError(
                f"{place.source} was trained with other bounds of actions than {place.action_space}. "
                "fix: the environment that the policy was trained in."
            )
    return stored[0], stored[1]


def _critics(layouts: Sequence[Layout], act: str, scale: torch.Tensor, centre: torch.Tensor) -> list[list[Dense]]:
    """Return the critics' layers, for actions in [-1, 1] in place of the units of the environment."""
    critics = []
    for layout in layouts:
        layers = connected(layout, _hidden(layout, act), "critic")
        layout.finish()
        if len(layers) < 2 or layers[0].inputs <= len(scale):
            raise layout.unknown("no critic of observation and action")
        weight, size = layers[0].weight.clone(), len(scale)
        bias = layers[0].bias + weight[:, -size:] @ centre
        weight[:, -size:] *= scale
        critics.append([Dense(weight, bias, act), *layers[1:]])
    return critics


def _soft(layouts: Sequence[Layout], place: Place, act: str) -> Any:
    """The squashed policy; its log standard deviation, a tanh between limits there, to first order around their middle.

    Greedy actions are those of the file.
    """
    place.check_box()
    layout = layouts[0]
    hidden, mean, raw = _hidden(layout, act), layer(layout, "fc_mean"), layer(layout, "fc_logstd")
    half, middle = (LOG_STD_MAX - LOG_STD_MIN) / 2, (LOG_STD_MAX + LOG_STD_MIN) / 2
    log_std = Dense(half * raw.weight, half * raw.bias + middle)
    policy = connected(layout, [*hidden, concatenated(mean, log_std)], "actor")
    scale, centre = _bounds(layout, place)
    layout.finish()
    critics = _critics(layouts[1:], act, scale, centre)
    return place.stochastic_actor_critic(policy, critics, critics, {})


def _deterministic(layouts: Sequence[Layout], place: Place, act: str) -> Any:
    place.check_box()
    layout = layouts[0]
    policy = connected(layout, [*_hidden(layout, act), layer(layout, "fc_mu")], "actor")
    scale, centre = _bounds(layout, place)
    layout.finish()
    critics = _critics(layouts[1:], act, scale, centre)
    return place.deterministic_actor_critic((policy, policy), critics, critics, {})


def holds(names: Mapping[str, Any] | Sequence[str]) -> bool:
    """Whether the members of a zip are those of `torch.save`."""
    return any(name.endswith("/data.pkl") or name == "data.pkl" for name in names)
