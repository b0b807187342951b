"""Estimate whether a manifest fits into this machine's memory, before any of it is allocated."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from agilerl.config import Manifest
from agilerl.config.schema import Encoder
from agilerl.core.spaces import flat_size, nested
from agilerl.core.tree import leaves
from agilerl.errors import ConfigError

# Lower bounds, so that no feasible run is rejected: Python objects of one environment, and of one agent.
LANE_BYTES, AGENT_BYTES = 2_000, 20_000
WEIGHT_BYTES = 4 * 4 * 2  # float32; weight, gradient and two moments; for at least a policy and a second network
GIB = 2**30


def check_sizes(
    manifest: Manifest, space: gym.Space[Any], actions: gym.Space[Any], available: int | None
) -> dict[str, int]:
    """Return lower bounds of the bytes of lanes, networks and memory, by the keys that determine them.

    Raises:
        ConfigError: one of them exceeds the `available` bytes (None: unknown, no check).
    """
    bounds = estimate(manifest, space, actions)
    for keys, size in bounds.items():
        if available is not None and size > available:
            raise ConfigError(
                f"{keys} would take at least {size / GIB:,.0f} GiB of memory; {available / GIB:,.0f} GiB are free "
                "here. fix: smaller numbers."
            )
    return bounds


def estimate(manifest: Manifest, space: gym.Space[Any], actions: gym.Space[Any]) -> dict[str, int]:
    """Lower bounds in bytes, by manifest key."""
    training, lanes = manifest.training, manifest.environment.num_envs
    members, row = training.pop_size, observation_bytes(space)
    copies = members if training.lockstep else 1
    acting = lanes * copies * (LANE_BYTES + row)
    together = max(training.eval_episodes * members, training.confirm_episodes)
    weights = sum(_weights(manifest, space, actions))
    bounds = {
        f"environment.num_envs={lanes} x training.pop_size={members}": acting,
        f"training.eval_episodes={training.eval_episodes}, confirm_episodes={training.confirm_episodes}": together
        * (LANE_BYTES + row),
        f"training.pop_size={members} x network": members * (AGENT_BYTES + WEIGHT_BYTES * weights),
    }
    if manifest.has_replay:
        rows = min(manifest.replay_buffer.max_size, training.max_steps * members)
        bounds[f"replay_buffer.max_size={manifest.replay_buffer.max_size}"] = rows * (row + 8)
    return bounds


def observation_bytes(space: gym.Space[Any]) -> int:
    """Bytes of one stored observation."""
    return sum(
        math.prod(leaf.shape or ()) * np.dtype(leaf.dtype or np.int64).itemsize for leaf in leaves(nested(space))
    )


def _weights(manifest: Manifest, space: gym.Space[Any], actions: gym.Space[Any]) -> Iterator[int]:
    """Yield the weights of the dense and convolutional layers in the manifest."""
    network = manifest.network
    is_image = isinstance(space, gym.spaces.Box) and len(space.shape) == 3
    inputs = 1 if is_image else flat_size(space)
    dense = [] if network.encoder is not None else (network.encoder_config or Encoder()).hidden_size
    outputs = flat_size(actions) if isinstance(actions, gym.spaces.Box | gym.spaces.Discrete) else 1
    for sizes in (
        [inputs, *dense, network.latent_dim],
        [network.latent_dim, *network.head_config.hidden_size, outputs],
    ):
        yield sum(a * b for a, b in itertools.pairwise(sizes))
    for sizes in _lists(network.encoder):
        yield sum(a * b for a, b in itertools.pairwise(sizes))


def _lists(config: object) -> Iterator[list[int]]:
    """Yield every list of layer sizes in an encoder's keys; non-numeric values are rejected when it is built."""
    for key, value in config.items() if isinstance(config, Mapping) else ():
        sizes = value if isinstance(value, list | tuple) else [value]
        if key in ("hidden_size", "channel_size", "hidden_state_size"):
            whole = [n for n in sizes if isinstance(n, int) and n > 0]
            yield [*whole, *whole] if len(whole) == 1 else whole  # a single width is a square layer: LSTM, SimBa
        else:
            yield from _lists(value)
