"""Translation of the old interface: code below this file never sees upper-case keys or `state_dim`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from agilerl.algorithms import available, find_algorithm
from agilerl.core.signatures import constructor_signature
from agilerl.errors import AgileRLWarning, ConfigError, nearest, warn_once
from agilerl.networks.encoders import mapping_of

# Keys of INIT_HP that are read elsewhere or ignored.
OF_THE_RUN = frozenset({
    "ALGO", "CHANNELS_LAST", "ELITISM", "ENV_NAME", "EPISODE_STEPS", "EPS_DECAY", "EPS_END", "EPS_START", "EVAL_LOOP",
    "EVAL_STEPS", "EVO_STEPS", "LEARNING_DELAY", "MAX_ACTION", "MAX_STEPS", "MEMORY_SIZE", "MIN_ACTION", "NUM_ENVS",
    "PER", "POPULATION_SIZE", "POP_SIZE", "TARGET_SCORE", "TOURN_SIZE", "WANDB",
})  # fmt: skip
OTHER_NAMES = {"LEARNING_RATE": "LR", "LAMBDA": "LAMB"}


def _deprecated(what: str, instead: str) -> None:
    """Issue one DeprecationWarning per process for the whole old interface."""
    text = f"{what} belongs to the old interface; it keeps working. New code: {instead}."
    warn_once("old-dialect", text, DeprecationWarning, stacklevel=6)


def constructor_arguments(init_hp: Mapping[str, Any] | None, accepted: set[str]) -> dict[str, Any]:
    """Convert INIT_HP (upper or lower case) to constructor arguments; unknown keys warn with the nearest known one."""
    by_key = {name.upper(): name for name in accepted}
    arguments: dict[str, Any] = {}
    for key, value in (init_hp or {}).items():
        upper = OTHER_NAMES.get(key.upper(), key.upper())
        if upper in OF_THE_RUN:
            continue
        if upper in by_key:
            arguments[by_key[upper]] = value
            continue
        algorithms = (constructor_signature(find_algorithm(name)).parameters for name in available())
        valid_keys = {*OF_THE_RUN, *OTHER_NAMES, *by_key, *(name.upper() for each in algorithms for name in each)}
        if upper in valid_keys:
            continue  # of another algorithm: one INIT_HP may serve several
        close = nearest(upper, valid_keys, limit=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        warnings.warn(f"INIT_HP key {key!r} is not known and changes nothing.{hint}", AgileRLWarning, stacklevel=4)
    return arguments


def spaces_from_dimensions(
    state_dim: Any, action_dim: Any, one_hot: bool | None, discrete_actions: bool, init_hp: Mapping[str, Any] | None
) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """Spaces for the old `state_dim, action_dim, one_hot`.

    A one-hot state is Discrete(n), passed as n or (n,); a shape is an unbounded Box.
    """
    _deprecated("create_population(state_dim=, action_dim=, one_hot=)", "pass observation_space= and action_space=")
    shape = tuple(int(n) for n in np.atleast_1d(state_dim))
    observation = gym.spaces.Discrete(shape[0]) if one_hot else gym.spaces.Box(-np.inf, np.inf, shape, np.float32)
    count = int(np.atleast_1d(action_dim)[0])
    if discrete_actions:
        return observation, gym.spaces.Discrete(count)
    low, high = (init_hp or {}).get("MIN_ACTION", -1.0), (init_hp or {}).get("MAX_ACTION", 1.0)
    return observation, gym.spaces.Box(np.float32(low), np.float32(high), (count,), np.float32)


def network_arguments(net_config: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Convert a flat `{"arch": "mlp", "hidden_size": [...]}` to an encoder and head configuration.

    The flat widths become the encoder's; latent and head take their defaults.
    """
    if net_config is None:
        return None
    config = mapping_of(net_config)
    arch = config.pop("arch", None)
    if arch is None and "hidden_size" not in config:
        return config
    if arch not in (None, "mlp", "cnn"):
        raise ConfigError(f"net_config: arch must be 'mlp' or 'cnn'; got {arch!r}. fix: 'mlp'.")
    _deprecated("net_config={'arch': ..., 'hidden_size': ...}", "net_config={'encoder_config': {'hidden_size': ...}}")
    top = {"encoder_config", "head_config", "latent_dim", "min_latent_dim", "max_latent_dim"}
    flat = {k: config.pop(k) for k in list(config) if k not in top}
    encoder = {**flat, **config.pop("encoder_config", {})}
    return {**config, "encoder_config": encoder} if encoder else config
