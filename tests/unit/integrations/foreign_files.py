"""Files as other libraries write them, made by hand: the layout of their tensors and of their zip, known numbers."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor


def saved(tree: Any) -> bytes:
    file = io.BytesIO()
    torch.save(tree, file)
    return file.getvalue()


def sb3_zip(path: Path, tensors: Any, data: Mapping[str, Any] | None = None, **members: Any) -> Path:
    """A file of Stable-Baselines3: `policy.pth`, `data`, and what `members` names (the dot written __)."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps(dict(data or {})))
        archive.writestr("policy.pth", tensors if isinstance(tensors, bytes) else saved(tensors))
        archive.writestr("_stable_baselines3_version", "2.9.2")
        for name, content in members.items():
            archive.writestr(name.replace("__", "."), content if isinstance(content, bytes) else saved(content))
    return path


def drawn(seed: int, *widths: int) -> list[tuple[Tensor, Tensor]]:
    """(weight, bias) of dense layers of these widths."""
    rng = np.random.default_rng(seed)
    return [
        (
            torch.tensor(rng.normal(0, 1, (rows, columns)), dtype=torch.float32),
            torch.tensor(rng.normal(0, 0.3, rows), dtype=torch.float32),
        )
        for columns, rows in pairwise(widths)
    ]


def named(layers: Sequence[tuple[Tensor, Tensor]], *names: str) -> dict[str, Tensor]:
    """Tensors `<name>.weight` and `<name>.bias`."""
    kinds = ("weight", "bias")
    return {f"{n}.{kind}": pair[k] for n, pair in zip(names, layers, strict=True) for k, kind in enumerate(kinds)}


def sequential(layers: Sequence[tuple[Tensor, Tensor]], prefix: str) -> dict[str, Tensor]:
    """Tensors of a `torch.nn.Sequential` with an activation after every layer."""
    return named(layers, *(f"{prefix}{2 * k}" for k in range(len(layers))))


def run(layers: Sequence[tuple[Tensor, Tensor]], x: Any, act: Any) -> np.ndarray:
    """The output of dense layers, in float64: the reference."""
    x = np.asarray(x, np.float64)
    for k, (weight, bias) in enumerate(layers):
        x = x @ weight.numpy().astype(np.float64).T + bias.numpy().astype(np.float64)
        x = act(x) if k < len(layers) - 1 else x
    return x


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def dqn_tensors(seed: int = 0, *widths: int) -> dict[str, Tensor]:
    widths = widths or (4, 5, 6, 2)
    return sequential(drawn(seed, *widths), "q_net.q_net.") | sequential(
        drawn(seed + 1, *widths), "q_net_target.q_net."
    )


def sac_tensors(obs: int = 3, actions: int = 1, critics: int = 2) -> dict[str, Tensor]:
    tensors = sequential(drawn(0, obs, 8, 8), "actor.latent_pi.") | named(drawn(1, 8, actions), "actor.mu")
    tensors |= named(drawn(2, 8, actions), "actor.log_std")
    for k in range(critics):
        tensors |= sequential(drawn(3 + k, obs + actions, 8, 8, 1), f"critic.qf{k}.")
        tensors |= sequential(drawn(5 + k, obs + actions, 8, 8, 1), f"critic_target.qf{k}.")
    return tensors


def td3_tensors(obs: int = 3, actions: int = 1, critics: int = 2) -> dict[str, Tensor]:
    tensors = sequential(drawn(0, obs, 8, 8, actions), "actor.mu.") | sequential(
        drawn(1, obs, 8, 8, actions), "actor_target.mu."
    )
    for k in range(critics):
        tensors |= sequential(drawn(3 + k, obs + actions, 8, 8, 1), f"critic.qf{k}.")
        tensors |= sequential(drawn(5 + k, obs + actions, 8, 8, 1), f"critic_target.qf{k}.")
    return tensors


def ppo_tensors(obs: int = 4, outputs: int = 2, log_std: Sequence[float] | None = None) -> dict[str, Tensor]:
    tensors = sequential(drawn(0, obs, 5, 6), "mlp_extractor.policy_net.") | named(drawn(1, 6, outputs), "action_net")
    tensors |= sequential(drawn(2, obs, 7, 8), "mlp_extractor.value_net.") | named(drawn(3, 8, 1), "value_net")
    return tensors if log_std is None else {**tensors, "log_std": torch.tensor(log_std)}
