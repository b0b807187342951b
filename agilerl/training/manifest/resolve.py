"""A manifest as it will be trained: what depends on the environment is filled in, and what cannot be is refused.

That happens before anything is written, so that a refused run leaves nothing behind, and `--dry-run` says the same.
"""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium as gym

from agilerl import foreign
from agilerl.algorithms import find_algorithm, is_team
from agilerl.algorithms.base.registry import HyperparameterConfig, RLParameter
from agilerl.config import Manifest, apply_overrides, preset_for
from agilerl.config.load import check_kind
from agilerl.config.schema import Encoder, Network
from agilerl.envs.argument import UNNAMED, inner_name, is_vector
from agilerl.envs.lanes import spaces_in
from agilerl.errors import AgileRLError, AgileRLWarning, ConfigError, NotAvailableYetError
from agilerl.host import available_bytes
from agilerl.modules.base import constructor_arguments
from agilerl.modules.cnn import usual_layers
from agilerl.networks.encoders import LSTM_DEFAULTS
from agilerl.networks.language import SMALL
from agilerl.sources import source_for
from agilerl.spaces import channels_first, is_image, is_small
from agilerl.training.manifest.language_task import adapters_on_base, is_gym, learns_language, resolve_questions
from agilerl.training.manifest.sizes import check_sizes


@dataclass(frozen=True)
class Spaces:
    """What one environment observes and does, named as environments name it; `name`: its id, else its class.

    Of an environment of several agents the two are mappings by agent; `state_space` is of its own state, where shown.
    """

    observation_space: Any
    action_space: Any
    name: str
    state_space: Any = None

    @property
    def joint(self) -> tuple[gym.Space[Any], gym.Space[Any]]:
        """Both, as one space each."""
        both = (self.observation_space, self.action_space)
        return tuple(gym.spaces.Dict(space) if isinstance(space, dict) else space for space in both)  # type: ignore[return-value]


def resolve(manifest: Manifest, env: Any = None) -> Manifest:
    """The manifest with the encoder that the observations get, and the name of the environment that a lambda makes.

    One environment is made and closed for that, and one agent; an environment that was handed over is only asked for
    its spaces.

    Raises:
        EnvError: the environment cannot be made. ConfigError, AlgorithmError: the algorithm, the networks or the
            sizes do not fit it, or this machine.
    """
    if learns_language(manifest):
        return resolve_questions(manifest, env)
    check_kind(manifest.algorithm.name, manifest.environment.name, is_gym(env))
    spaces = spaces_of(manifest, env)
    resolved = _without_noise(with_encoder(manifest, spaces.observation_space), spaces.action_space)
    with contextlib.suppress(NotAvailableYetError):  # observations that no encoder reads: the agent names them below
        check_sizes(resolved, *spaces.joint, available_bytes())
    _check_replay(resolved)
    resolved = _within_replay(resolved)
    if manifest.environment.name == UNNAMED or (is_vector(env) and manifest.environment.name == type(env).__name__):
        named = resolved.environment.model_copy(update={"name": spaces.name})
        resolved = resolved.model_copy(update={"environment": named})
    make_population(resolved.model_copy(update={"training": _alone(resolved)}), spaces, 0, "cpu")
    return resolved


def _alone(manifest: Manifest) -> Any:
    return manifest.training.model_copy(update={"pop_size": 1})


def spaces_of(manifest: Manifest, env: Any = None) -> Spaces:
    """Those of the environment that the manifest names, or of the one that was handed over."""
    kind, made = source_for(find_algorithm(manifest.algorithm.name).experience), None
    if env is None or (callable(env) and not hasattr(env, "action_space")) or isinstance(env, type):
        _check_state(manifest)
        more = {"with_state": True} if manifest.environment.with_state else {}
        make = partial(kind.make_envs, manifest.environment.name, **dict(manifest.environment.kwargs), **more)
        made = env = make() if env is None else kind.make_envs(None, make_env=env, **more)
    try:
        if not is_team(manifest.algorithm.name) and not hasattr(env, "possible_agents"):
            spaces_in(env, "single_" if hasattr(env, "single_observation_space") else "")
        space, actions = kind.spaces(env)
    finally:
        if made is not None:
            made.close()
    return Spaces(space, actions, inner_name(env), _state_space(env))


def _state_space(env: Any) -> Any:
    """The space of the state that an environment of several agents shows; None where it shows none."""
    return foreign.state_space(env)


def _check_state(manifest: Manifest) -> None:
    """ConfigError where the environment is to show its state to an algorithm that does not read it."""
    name = manifest.algorithm.name
    if manifest.environment.with_state and "state_space" not in constructor_arguments(find_algorithm(name)):
        raise ConfigError(
            f"environment.with_state shows env.state() to values of all agents, which {name} does not have. "
            "fix: algo='MAPPO', or with_state=false."
        )


def with_encoder(manifest: Manifest, space: Any) -> Manifest:
    """The manifest with the encoder of `space` written out where nobody has chosen one.

    Dense layers stay in `network.encoder_config`; they read small Dicts, Tuples and images too, laid side by side
    (`spaces.is_small`). Where the observations, `simba` or `recurrent` ask for another
    encoder, its keys stand in `network.encoder`, and `encoder_config` is null: that of a preset describes vectors, and
    is no choice of the user's.

    Raises:
        ConfigError: the user has described dense layers, which do not read `space`.
    """
    manifest = _without_statistics(manifest, space)
    network = manifest.network
    if isinstance(space, dict) or network.encoder is not None or not _is_other(manifest, space):
        return manifest  # of several agents each network gets its own encoder
    if network.encoder_config not in (None, Encoder(), _preset_encoder(manifest)):
        raise ConfigError(
            f"network.encoder_config describes dense layers, but {_why(manifest, space)}. "
            "fix: network.encoder, with the keys of its encoder."
        )
    changed = network.model_copy(update={"encoder": _usual_encoder(manifest, space), "encoder_config": None})
    return manifest.model_copy(update={"network": changed})


def _without_noise(manifest: Manifest, actions: Any) -> Manifest:
    """The manifest without the general preset's range for noise that persists, where actions are not Box.

    Raises:
        ConfigError: a range of the user's own for actions that have no such noise.
    """
    ranges, algo, name = manifest.evolution.restart_ranges, manifest.algorithm.name, "noise_persistence"
    if name not in ranges or isinstance(actions, gym.spaces.Box):
        return manifest
    if ranges[name] != preset_for(manifest.environment.name, algo, general=True).evolution.restart_ranges.get(name):
        raise ConfigError(
            f"evolution.restart_ranges.{name} is of Box actions; {manifest.environment.name} has {actions}. "
            "fix: leave it out."
        )
    left = {key: dict(limits) for key, limits in ranges.items() if key != name}
    return apply_overrides(manifest, {"evolution.restart_ranges": left}, "actions")


def _without_statistics(manifest: Manifest, space: Any) -> Manifest:
    """The manifest without a preset's running statistics of observations where these are not read as vectors."""
    asked = manifest.algorithm.hyperparameters.get("normalize_observations")
    if not asked or isinstance(space, dict) or (_is_dense(space) and manifest.network.encoder is None):
        return manifest
    is_vector = not isinstance(space, gym.spaces.Dict | gym.spaces.Tuple) and not is_image(space)
    usual = preset_for(manifest.environment.name, manifest.algorithm.name).algorithm.hyperparameters
    if is_vector or not usual.get("normalize_observations"):
        return manifest  # of vectors another encoder reads them too; what the user asks for is refused by name
    return apply_overrides(manifest, {"algorithm.normalize_observations": False}, "observations")


def _is_other(manifest: Manifest, space: gym.Space[Any]) -> bool:
    """Whether the observations are read by another encoder than dense layers."""
    network, recurrent = manifest.network, bool(manifest.algorithm.hyperparameters.get("recurrent"))
    return network.simba or recurrent or _reads_texts(manifest) or not _is_dense(space)


def _is_dense(space: gym.Space[Any]) -> bool:
    """Whether dense layers read the observations by default; of a Dict or Tuple also where an agent will name a part
    that none reads."""
    if not isinstance(space, gym.spaces.Dict | gym.spaces.Tuple) and not is_image(space):
        return True
    try:
        return is_small(space)
    except NotAvailableYetError:
        return False


def _reads_texts(manifest: Manifest) -> bool:
    """Whether the network is a transformer, whose keys alone stand in `network.encoder`."""
    return bool(find_algorithm(manifest.algorithm.name).reads_texts)


def _of_texts(manifest: Manifest) -> dict[str, Any]:
    """The keys of a transformer; ConfigError where the section describes an encoder and a head."""
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


def _preset_encoder(manifest: Manifest) -> Encoder | None:
    return preset_for(manifest.environment.name, manifest.algorithm.name).network.encoder_config


def _usual_encoder(manifest: Manifest, space: gym.Space[Any]) -> dict[str, Any] | None:
    """The keys that say what is built; None where the encoder's own defaults say it better."""
    if manifest.network.simba:
        return None
    if _reads_texts(manifest):
        return dict(SMALL)
    if manifest.algorithm.hyperparameters.get("recurrent"):
        return dict(LSTM_DEFAULTS)
    if is_image(space):
        return usual_layers(channels_first(space).shape or ())
    return {"latent_dim": 32, "mlp_config": {"hidden_size": [64]}}


def _check_replay(manifest: Manifest) -> None:
    values, size = manifest.algorithm.hyperparameters, manifest.replay_buffer.max_size
    batch = values.get("batch_size")
    if manifest.has_replay and isinstance(batch, int) and batch > size:
        raise ConfigError(
            f"replay_buffer.max_size must be at least algorithm.batch_size ({batch} transitions), or nothing is ever "
            f"learned; got {size}. fix: replay_buffer.max_size=100000, or a smaller batch_size."
        )


def _within_replay(manifest: Manifest) -> Manifest:
    """The manifest with ranges of batches that end at the size of the memory, with a warning where that changes one."""
    size = manifest.replay_buffer.max_size
    if not manifest.has_replay:
        return manifest
    sections = {"mutation.rl_hp_selection": manifest.mutation.rl_hp_selection,
                "evolution.restart_ranges": manifest.evolution.restart_ranges}  # fmt: skip
    for path, ranges in sections.items():
        own = ranges.get("batch_size")
        if own is None or own.max <= size:
            continue
        text = (
            f"{path}.batch_size.max is {own.max:g} and the memory holds {size} transitions, so that no larger batch is "
            f"ever drawn; the range ends at {size}. fix: a larger replay_buffer.max_size."
        )
        warnings.warn(text, AgileRLWarning, stacklevel=3)
        kept = {name: dict(limits) for name, limits in ranges.items()}
        kept["batch_size"] |= {"min": min(own.min, size), "max": size}
        manifest = apply_overrides(manifest, {path: kept}, "memory")
    return manifest


def make_population(manifest: Manifest, env: Any, seed: int, device: str) -> list[Any]:
    """The founders: equal hyperparameters, weights of their own."""
    cls = find_algorithm(manifest.algorithm.name)
    if learns_language(manifest):
        return adapters_on_base(manifest, seed, device, hyperparameter_config(manifest))
    if isinstance(env, Spaces):
        space, actions = env.observation_space, env.action_space
    else:
        space, actions = source_for(cls.experience).spaces(env)
    state = env.state_space if isinstance(env, Spaces) else _state_space(env)
    if state is None and manifest.environment.with_state:
        raise ConfigError(
            f"environment.with_state: {manifest.environment.name} was handed over and shows no state. "
            "fix: make_multi_agent_vect_envs(..., with_state=True), or the function that makes it."
        )
    reads_state = state is not None and "state_space" in constructor_arguments(cls)
    try:
        founders: list[Any] = cls.population(
            manifest.training.pop_size,
            space,
            actions,
            seed=seed,
            hp_config=hyperparameter_config(manifest),
            net_config=net_config(manifest, space),
            device=device,
            **({"state_space": state} if reads_state else {}),
            **manifest.algorithm.hyperparameters,
        )
        return founders
    except AgileRLError as error:
        raise type(error)(f"{manifest.environment.name}: {error}") from None


def net_config(manifest: Manifest, space: Any) -> dict[str, Any]:
    """The network section as the networks take it: the encoder's keys are those of the encoder that `space` gets; of
    several agents, by agent.

    Raises:
        ConfigError: keys of dense layers for an encoder that has none.
    """
    if isinstance(space, dict):
        return {agent: net_config(manifest, own) for agent, own in space.items()}
    with_encoder(manifest, space)
    if _reads_texts(manifest):
        return _of_texts(manifest)
    config = manifest.network.model_dump()
    encoder, dense = config.pop("encoder"), config["encoder_config"] or Encoder().model_dump()
    config["encoder_config"] = encoder if _is_other(manifest, space) or encoder is not None else dense
    return config


def hyperparameter_config(manifest: Manifest) -> HyperparameterConfig:
    """What evolution may change, with the type of the manifest's own value."""
    values = manifest.algorithm.hyperparameters
    bounds = manifest.mutation.rl_hp_selection
    types = {name: int if isinstance(values[name], int) else float for name in bounds}
    return HyperparameterConfig(**{k: RLParameter(**dict(limits), dtype=types[k]) for k, limits in bounds.items()})
