"""The old dialect, translated in one place: nothing below this file sees an upper-case key or a `state_dim`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from agilerl.errors import AgileRLWarning, ConfigError, nearest, warn_once

# INIT_HP key -> constructor argument of the algorithms. None: read elsewhere or meaningless here, and harmless.
HYPERPARAMETERS: dict[str, str | None] = {
    "BATCH_SIZE": "batch_size",
    "LR": "lr",
    "LEARNING_RATE": "lr",
    "GAMMA": "gamma",
    "LEARN_STEP": "learn_step",
    "TAU": "tau",
    "DOUBLE": "double",
    "LR_ACTOR": "lr_actor",
    "LR_CRITIC": "lr_critic",
    "POLICY_FREQ": "policy_freq",
    "O_U_NOISE": "O_U_noise",
    "EXPL_NOISE": "expl_noise",
    "MEAN_NOISE": "mean_noise",
    "THETA": "theta",
    "DT": "dt",
    "SHARE_ENCODERS": "share_encoders",
    "BETA": "beta",
    "PRIOR_EPS": "prior_eps",
    "NUM_ATOMS": "num_atoms",
    "V_MIN": "v_min",
    "V_MAX": "v_max",
    "NOISE_STD": "noise_std",
    "N_STEP": "n_step",
    "GAE_LAMBDA": "gae_lambda",
    "ACTION_STD_INIT": "action_std_init",
    "CLIP_COEF": "clip_coef",
    "ENT_COEF": "ent_coef",
    "VF_COEF": "vf_coef",
    "MAX_GRAD_NORM": "max_grad_norm",
    "TARGET_KL": "target_kl",
    "UPDATE_EPOCHS": "update_epochs",
    "RECURRENT": "recurrent",
    "USE_ROLLOUT_BUFFER": "use_rollout_buffer",
    "BPTT_SEQUENCE_TYPE": "bptt_sequence_type",
    "MAX_SEQ_LEN": "max_seq_len",
    "PER": None,
    "POP_SIZE": None,
    "POPULATION_SIZE": None,
    "CHANNELS_LAST": None,
    "ALGO": None,
    "ENV_NAME": None,
    "NUM_ENVS": None,
    "MEMORY_SIZE": None,
    "MAX_STEPS": None,
    "EVO_STEPS": None,
    "EVAL_STEPS": None,
    "EVAL_LOOP": None,
    "LEARNING_DELAY": None,
    "TARGET_SCORE": None,
    "EPS_START": None,
    "EPS_END": None,
    "EPS_DECAY": None,
    "TOURN_SIZE": None,
    "ELITISM": None,
    "MAX_ACTION": None,
    "MIN_ACTION": None,
    "WANDB": None,
}


def _deprecated(what: str, instead: str) -> None:
    """One DeprecationWarning per process for the whole old dialect."""
    warn_once(
        "old-dialect",
        f"{what} belongs to the old interface; it keeps working. New code: {instead}.",
        DeprecationWarning,
        stacklevel=5,
    )


def constructor_arguments(init_hp: Mapping[str, Any] | None, accepted: set[str]) -> dict[str, Any]:
    """INIT_HP (upper or lower case) as constructor arguments; an unknown key warns with the nearest known one."""
    arguments: dict[str, Any] = {}
    for key, value in (init_hp or {}).items():
        upper = key.upper()
        if upper in HYPERPARAMETERS:
            name = HYPERPARAMETERS[upper]
            if name in accepted:
                arguments[name] = value
            continue
        if key.lower() in accepted:
            arguments[key.lower()] = value
            continue
        close = nearest(upper, HYPERPARAMETERS, limit=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        warnings.warn(f"INIT_HP key {key!r} is not known and changes nothing.{hint}", AgileRLWarning, stacklevel=3)
    return arguments


def spaces_from_dimensions(
    state_dim: Any, action_dim: Any, one_hot: bool | None, discrete_actions: bool, init_hp: Mapping[str, Any] | None
) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """Spaces for the old `state_dim, action_dim, one_hot`.

    A state that is one-hot encoded is Discrete(n), whether given as n or (n,); a shape is an unbounded Box.
    """
    _deprecated("create_population(state_dim=, action_dim=, one_hot=)", "pass observation_space= and action_space=")
    shape = tuple(int(n) for n in np.atleast_1d(state_dim))
    if one_hot:
        observation: gym.Space[Any] = gym.spaces.Discrete(shape[0])
    else:
        observation = gym.spaces.Box(-np.inf, np.inf, shape, np.float32)
    count = int(np.atleast_1d(action_dim)[0])
    if discrete_actions:
        return observation, gym.spaces.Discrete(count)
    low, high = (init_hp or {}).get("MIN_ACTION", -1.0), (init_hp or {}).get("MAX_ACTION", 1.0)
    return observation, gym.spaces.Box(np.float32(low), np.float32(high), (count,), np.float32)


def network_arguments(net_config: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A flat `{"arch": "mlp", "hidden_size": [...]}` as encoder and head configuration.

    The flat widths become the encoder's; latent and head take their defaults.
    """
    if net_config is None:
        return None
    if not isinstance(net_config, Mapping):
        raise ConfigError(f"net_config must be a mapping; got {net_config!r}. fix: {{'encoder_config': ...}}.")
    config = dict(net_config)
    arch = config.pop("arch", None)
    if arch is None and "hidden_size" not in config:
        return config
    if arch not in (None, "mlp", "cnn"):
        raise ConfigError(f"net_config: arch must be 'mlp' or 'cnn'; got {arch!r}.")
    _deprecated("net_config={'arch': ..., 'hidden_size': ...}", "net_config={'encoder_config': {'hidden_size': ...}}")
    top = {"encoder_config", "head_config", "latent_dim", "min_latent_dim", "max_latent_dim"}
    flat = {k: config.pop(k) for k in list(config) if k not in top}
    encoder = {**flat, **config.pop("encoder_config", {})}
    return {**config, "encoder_config": encoder} if encoder else config
