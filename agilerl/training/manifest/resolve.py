"""Resolve a manifest: fill in settings that depend on the environment, and reject invalid ones.

This happens before any file is written, so that a rejected run leaves no files, and `--dry-run` reports the same
errors.
"""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium as gym

from agilerl.algorithms import find_algorithm
from agilerl.algorithms.base.registry import HyperparameterConfig, RLParameter
from agilerl.config import Manifest, apply_overrides, has_few_steps, preset_for
from agilerl.config.schema import Encoder, Network
from agilerl.core.spaces import channels_first, is_image, is_small, short_form
from agilerl.errors import AgileRLWarning, ConfigError, NotAvailableYetError
from agilerl.modules.cnn import usual_layers
from agilerl.networks.encoders import LSTM_DEFAULTS, volume_encoder
from agilerl.networks.language import SMALL


def with_encoder(manifest: Manifest, space: Any) -> Manifest:
    """Write out the default encoder for `space`, unless the user has chosen one.

    Dense layers stay in `network.encoder_config`; they also read small Dicts, Tuples and images, concatenated
    (`spaces.is_small`). If the observations, `simba` or `recurrent` need another encoder, its keys are written to
    `network.encoder` and `encoder_config` is null: a preset's `encoder_config` is for vectors, and not chosen by the
    user.

    Raises:
        ConfigError: the user has configured dense layers, which do not read `space`.
    """
    manifest = _without_statistics(manifest, space)
    network = manifest.network
    if network.encoder is None and isinstance(space, gym.spaces.Box) and len(space.shape) > 3:
        encoder = f"encoder={volume_encoder(space.shape)}, or " if len(space.shape) == 4 else ""
        raise ConfigError(
            f"no encoder reads {short_form(space)} by default. fix: {encoder}an environment in "
            "gymnasium.wrappers.FlattenObservation."
        )
    if isinstance(space, dict) or network.encoder is not None or not _is_other(manifest, space):
        return manifest  # multi-agent: each network gets its own encoder
    if network.encoder_config not in (None, Encoder(), *_preset_encoders(manifest)):
        raise ConfigError(
            f"network.encoder_config describes dense layers, but {_why(manifest, space)}. "
            "fix: network.encoder, with the keys of its encoder."
        )
    changed = network.model_copy(update={"encoder": _usual_encoder(manifest, space), "encoder_config": None})
    return manifest.model_copy(update={"network": changed})


def without_noise(manifest: Manifest, actions: object) -> Manifest:
    """Drop the general preset's range of noise persistence unless actions are Box.

    Raises:
        ConfigError: a range set by the user for actions without such noise.
    """
    ranges, algo, name = manifest.evolution.restart_ranges, manifest.algorithm.name, "noise_persistence"
    if name not in ranges or isinstance(actions, gym.spaces.Box):
        return manifest
    if ranges[name] != preset_for(manifest.environment.name, algo, general=True).evolution.restart_ranges.get(name):
        raise ConfigError(f"evolution.restart_ranges.{name} is of Box actions; got {actions}. fix: leave it out.")
    others = {key: dict(limits) for key, limits in ranges.items() if key != name}
    return apply_overrides(manifest, {"evolution.restart_ranges": others}, "actions")


def _without_statistics(manifest: Manifest, space: Any) -> Manifest:
    """Drop a preset's running observation statistics if the observations are not read as vectors."""
    asked = manifest.algorithm.hyperparameters.get("normalize_observations")
    if not asked or isinstance(space, dict) or (is_dense(space) and manifest.network.encoder is None):
        return manifest
    axes = 2 if "block_type" in (manifest.network.encoder or {}) else 3  # fewest that convolutions read
    is_vector = not isinstance(space, gym.spaces.Dict | gym.spaces.Tuple) and len(space.shape or ()) < axes
    usual = preset_for(manifest.environment.name, manifest.algorithm.name).algorithm.hyperparameters
    if is_vector or not usual.get("normalize_observations"):
        return manifest  # other encoders of vectors read them too; explicit requests are rejected by name
    return apply_overrides(manifest, {"algorithm.normalize_observations": False}, "observations")


def _is_other(manifest: Manifest, space: gym.Space[Any]) -> bool:
    """Whether the observations need an encoder other than dense layers."""
    network, recurrent = manifest.network, bool(manifest.algorithm.hyperparameters.get("recurrent"))
    return network.simba or recurrent or _reads_texts(manifest) or not is_dense(space)


def is_dense(space: gym.Space[Any]) -> bool:
    """Whether dense layers read the observations by default; for a Dict or Tuple also if the agent will reject a part
    that no encoder reads."""
    if not isinstance(space, gym.spaces.Dict | gym.spaces.Tuple) and not is_image(space):
        return True
    try:
        return is_small(space)
    except NotAvailableYetError:
        return False


def _reads_texts(manifest: Manifest) -> bool:
    """Whether the network is a transformer, which is only configured by `network.encoder`."""
    return bool(find_algorithm(manifest.algorithm.name).reads_texts)


def _of_texts(manifest: Manifest) -> dict[str, Any]:
    """Return the keys of a transformer; ConfigError if the section describes an encoder and a head."""
    usual, rest = Network(), {"encoder", "encoder_config"}
    changed = [k for k in Network.model_fields if k not in rest and vars(manifest.network)[k] != vars(usual)[k]]
    if changed:
        raise ConfigError(
            f"network.{changed[0]} is of an encoder with a head; {manifest.algorithm.name} has a transformer. "
            "fix: network.encoder: {n_layer: 2, n_embd: 64}."
        )
    return dict(manifest.network.encoder or {})


def _why(manifest: Manifest, space: gym.Space[Any]) -> str:
    if manifest.network.simba:
        return "simba=true takes residual blocks"
    if _reads_texts(manifest):
        return "texts are read by a transformer"
    is_recurrent = manifest.algorithm.hyperparameters.get("recurrent")
    return "recurrent=true takes an LSTM" if is_recurrent else f"{space} is not read by them"


def _preset_encoders(manifest: Manifest) -> list[Encoder | None]:
    """Return the dense layers of the presets that may apply: they were not chosen by the user."""
    name, algo = manifest.environment.name, manifest.algorithm.name
    presets = [preset_for(name, algo), *([preset_for(name, algo, few_steps=True)] if has_few_steps(algo) else [])]
    return [preset.network.encoder_config for preset in presets]


def _usual_encoder(manifest: Manifest, space: gym.Space[Any]) -> dict[str, Any] | None:
    """Return the default encoder's keys; None to use the encoder's own defaults."""
    if manifest.network.simba:
        return None
    if _reads_texts(manifest):
        return dict(SMALL)
    if manifest.algorithm.hyperparameters.get("recurrent"):
        return dict(LSTM_DEFAULTS)
    if is_image(space):
        return usual_layers(channels_first(space).shape or ())
    return {"latent_dim": 32, "mlp_config": {"hidden_size": [64]}}


def within_replay(manifest: Manifest) -> Manifest:
    """Limit batch-size ranges to the size of the replay memory, with a warning if one changes."""
    size = manifest.replay_buffer.max_size
    if not manifest.has_replay:
        return manifest
    sections = {"mutation.rl_hp_selection": manifest.mutation.rl_hp_selection,
                "evolution.restart_ranges": manifest.evolution.restart_ranges}  # fmt: skip
    for path, ranges in sections.items():
        bounds = ranges.get("batch_size")
        if bounds is None or bounds.max <= size:
            continue
        text = (
            f"{path}.batch_size.max is {bounds.max:g} and the memory holds {size} transitions, so no larger batch can "
            f"be drawn; the range ends at {size}. fix: a larger replay_buffer.max_size."
        )
        warnings.warn(text, AgileRLWarning, stacklevel=3)
        limited = {name: dict(limits) for name, limits in ranges.items()}
        limited["batch_size"] |= {"min": min(bounds.min, size), "max": size}
        manifest = apply_overrides(manifest, {path: limited}, "memory")
    return manifest


def net_config(manifest: Manifest, space: Any) -> dict[str, Any]:
    """Return the network section as network arguments, with the keys of the encoder for `space`; by agent for teams.

    Raises:
        ConfigError: keys of dense layers for an encoder without dense layers.
    """
    if isinstance(space, dict):
        return {agent: net_config(manifest, agent_space) for agent, agent_space in space.items()}
    with_encoder(manifest, space)
    if _reads_texts(manifest):
        return _of_texts(manifest)
    config = manifest.network.model_dump()
    encoder, dense = config.pop("encoder"), config["encoder_config"] or Encoder().model_dump()
    config["encoder_config"] = encoder if _is_other(manifest, space) or encoder is not None else dense
    return config


def hyperparameter_config(manifest: Manifest) -> HyperparameterConfig:
    """Build the mutable hyperparameters, with the types of the manifest's values."""
    values = manifest.algorithm.hyperparameters
    bounds = manifest.mutation.rl_hp_selection
    types = {name: int if isinstance(values[name], int) else float for name in bounds}
    return HyperparameterConfig(**{k: RLParameter(**dict(limits), dtype=types[k]) for k, limits in bounds.items()})
