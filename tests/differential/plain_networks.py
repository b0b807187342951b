"""Networks over observations of any space, written out with torch's functions: parameters by name, in float64.

Nothing of the package computes here; names are those of a network's `state_dict`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor
from torch.nn import functional as F

Parameters = dict[str, Tensor]


def copied(network: Any) -> Parameters:
    """A network's numbers as leaves of their own."""
    return {name: value.detach().double().clone().requires_grad_() for name, value in network.named_parameters()}


def one_hot(numbers: Tensor, count: int) -> Tensor:
    return torch.eye(count, dtype=torch.float64)[numbers.long()]


def parts(space: Space[Any]) -> dict[Any, Space[Any]]:
    """Of a Dict by key, of a Tuple by place; none of another space."""
    if isinstance(space, spaces.Dict):
        return dict(space.spaces)
    return dict(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else {}


def is_image(space: Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and len(space.shape) == 3


def encoded(space: Space[Any], rows: list[Any]) -> Any:
    """Observations as networks take them: one-hot numbers, bits, images [B, C, H, W] in [0, 1]; nested as the space."""
    inside = parts(space)
    if inside:
        return {key: encoded(part, [row[key] for row in rows]) for key, part in inside.items()}
    x = torch.from_numpy(np.stack([np.asarray(row) for row in rows])).double()
    if isinstance(space, spaces.Discrete):
        return one_hot(x - int(space.start), int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        each = zip(space.nvec.tolist(), space.start.tolist(), strict=True)
        return torch.cat([one_hot(x[:, k] - start, n) for k, (n, start) in enumerate(each)], -1)
    if is_image(space):
        channels_last = space.shape[-1] < min(space.shape[:2])
        return (x.permute(0, 3, 1, 2) if channels_last else x) / 255
    return x.flatten(1)


def nothing(space: Space[Any]) -> Any:
    """What an agent that is not there shows: zeros, and the lowest of numbered choices."""
    inside = parts(space)
    if isinstance(space, spaces.Tuple):
        return tuple(nothing(part) for part in inside.values())
    if inside:
        return {key: nothing(part) for key, part in inside.items()}
    start = space.start if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) else 0
    return np.broadcast_to(np.asarray(start, space.dtype), space.shape or ())


def _layer(p: Parameters, name: str, x: Tensor) -> Tensor:
    return F.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])


def _dense(p: Parameters, name: str, x: Tensor) -> Tensor:
    """Hidden layers with ReLU, then the output layer."""
    k = 0
    while f"{name}.model.linear_{k}.weight" in p:
        x, k = _layer(p, f"{name}.model.linear_{k}", x).relu(), k + 1
    return _layer(p, f"{name}.model.linear_output", x)


def _convolutions(p: Parameters, name: str, x: Tensor) -> Tensor:
    k = 0
    while f"{name}.model.conv_{k}.weight" in p:
        x, k = F.conv2d(x, p[f"{name}.model.conv_{k}.weight"], p[f"{name}.model.conv_{k}.bias"]).relu(), k + 1
    return _layer(p, f"{name}.model.linear_output", x.flatten(1))


def encoder(p: Parameters, name: str, space: Space[Any], x: Any) -> Tensor:
    """Features [B, latent] after ReLU."""
    inside = parts(space)
    if not inside:
        is_conv = f"{name}.model.conv_0.weight" in p
        return (_convolutions(p, name, x) if is_conv else _dense(p, name, x.flatten(1))).relu()
    found, vectors = [], []
    for key, part in inside.items():
        if is_image(part) or parts(part):
            found.append(encoder(p, f"{name}.feature_net.{key}", part, x[key]))
        else:
            vectors.append(x[key])
    if vectors:
        found.append(_dense(p, f"{name}.vector_mlp", torch.cat(vectors, -1)).relu())
    return _layer(p, f"{name}.model.linear_output", torch.cat(found, -1)).relu()


def output(p: Parameters, space: Space[Any], x: Any, *beside: Tensor) -> Tensor:
    """The head's output for encoded observations, and numbers beside their features."""
    return _dense(p, "head_net", torch.cat([encoder(p, "encoder", space, x), *beside], -1))


def take(x: Any, rows: Any) -> Any:
    """Rows of encoded observations."""
    return {key: take(part, rows) for key, part in x.items()} if isinstance(x, Mapping) else x[rows]
