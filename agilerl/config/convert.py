"""Conversion of configurations of the published library (AgileRL 2.x, both generations of names) to manifests.

The older generation has INIT_HP, MUTATION_PARAMS and NET_CONFIG. The newer one has the manifest's sections and some
extra keys. Missing keys take the published default, not that of a preset. Keys without a counterpart are reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agilerl.algorithms import available, canonical_name, find_algorithm
from agilerl.algorithms.base.declared import hyperparameters
from agilerl.config.ignored import ignored_by
from agilerl.config.schema import Encoder, Head, Network
from agilerl.errors import ConfigError, nearest

OLDER = ("INIT_HP", "MUTATION_PARAMS", "NET_CONFIG")
# Keys that a section has in the newer generation only: section -> names. Its complete files have at least two.
NEWER = {
    "algorithm": ("cudagraphs",),
    "mutation": ("rand_seed", "super_param_mut", "regrama_param_mut", "function_preserving"),
    "network": ("arch",),
    "training": ("eval_loop",),
    "selection_strategy": ("strategy",),
    "tournament_selection": ("strategy",),
    "replay_buffer": ("memory_size", "per", "standard_buffer", "n_step_buffer", "per_buffer"),
}
# INIT_HP -> (section, key) of the manifest; every other key is a hyperparameter or in `DROPPED`.
PLACES = {
    "ENV_NAME": ("environment", "name"), "NUM_ENVS": ("environment", "num_envs"), "ALGO": ("algorithm", "name"),
    "MAX_STEPS": ("training", "max_steps"), "POP_SIZE": ("training", "pop_size"),
    "POPULATION_SIZE": ("training", "pop_size"), "EVO_STEPS": ("training", "evo_steps"),
    "EVAL_STEPS": ("training", "eval_steps"), "LEARNING_DELAY": ("training", "learning_delay"),
    "EPS_START": ("training", "eps_start"), "EPS_END": ("training", "eps_end"), "EPS_DECAY": ("training", "eps_decay"),
    "TARGET_SCORE": ("training", "target_score"), "MEMORY_SIZE": ("replay_buffer", "max_size"),
    "N_STEP": ("replay_buffer", "n_step"), "PER": ("replay_buffer", "prioritized"), "ALPHA": ("replay_buffer", "alpha"),
    "TOURN_SIZE": ("tournament_selection", "tournament_size"), "ELITISM": ("tournament_selection", "elitism"),
    "LEARNING_RATE": ("algorithm", "lr"), "LAMBDA": ("algorithm", "lamb"),
}  # fmt: skip
CHANCES = ("no_mut", "arch_mut", "new_layer", "params_mut", "act_mut", "rl_hp_mut")
BUDGETS_IN_EPISODES = "budgets are environment steps here: --steps, training.evo_steps"
DROPPED = {
    "CHANNELS_LAST": "images of either order of channels are understood",
    "EPISODES": BUDGETS_IN_EPISODES,
    "EPISODE_STEPS": "training.train_max_episode_steps, training.eval_steps; an episode has 100 rounds",
    "MAX_EPISODES": BUDGETS_IN_EPISODES,
    "EVO_EPOCHS": BUDGETS_IN_EPISODES,
    "WANDB": "agilerl train --track",
    "CUDAGRAPHS": "there are none here",
    "COMPILE": "there is none here",
    "MIN_ACTION": "the environment's own bounds hold",
    "MAX_ACTION": "the environment's own bounds hold",
    "RAND_SEED": "training.seed, 0 unless it is given, is the seed of every draw, those of mutations included",
}
SAID_ONLY_IF_SET = ("WANDB", "CUDAGRAPHS", "COMPILE", "CHANNELS_LAST", "RAND_SEED")
ARCHITECTURES = {"mlp": {}, "cnn": {}, "multi_input": {}, "composed": {}, "simba": {"simba": True}}


@dataclass
class Conversion:
    """A published configuration translated to a manifest.

    Attributes:
        content: sections of a manifest, every hyperparameter of the algorithm written out.
        notes: a line for each key without a counterpart: the key and its replacement.
    """

    content: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def put(self, section: str, key: str, value: Any) -> None:
        self.content.setdefault(section, {})[key] = value

    def drop(self, key: str, why: str) -> None:
        self.notes.append(f"{key}: no counterpart here ({why})")


def is_published(data: Any) -> bool:
    """Whether a file's content is a configuration of the published library rather than a manifest."""
    if not isinstance(data, Mapping):
        return False
    if any(str(key).upper() in OLDER for key in data):
        return True
    sections = {name: data[name] for name in NEWER if isinstance(data.get(name), Mapping)}
    # One alone is a mistake in a manifest, such as eval_loop in the wrong section.
    return sum(key in NEWER[name] for name, section in sections.items() for key in section) > 1


def convert(data: Mapping[str, Any], source: str = "config") -> Conversion:
    """Translate a configuration of the published library.

    Raises:
        ConfigError: a key unknown to both libraries, or a value of the wrong type.
        AlgorithmError, NotAvailableYetError: an unknown algorithm, or one that is not implemented yet.
    """
    older = any(str(key).upper() in OLDER for key in data)
    conversion = _of_older(data, source) if older else _of_newer(data, source)
    _drop_ignored(conversion)
    return conversion


# -- INIT_HP, MUTATION_PARAMS, NET_CONFIG ------------------------------------------------------------------------------


def _of_older(data: Mapping[str, Any], source: str) -> Conversion:
    sections = {str(key).upper(): _section(value, str(key), source) for key, value in data.items()}
    conversion, init_hp = Conversion(), _upper(sections.pop("INIT_HP", {}))
    mutation, network = _upper(sections.pop("MUTATION_PARAMS", {})), sections.pop("NET_CONFIG", {})
    for key in sections:
        conversion.drop(key, "a section of its own")
    if "ALGO" not in init_hp:
        raise ConfigError(f"{source}: INIT_HP.ALGO is missing. fix: add it, such as ALGO: DQN.")
    algo = canonical_name(str(init_hp["ALGO"]))
    declared = _with_published_defaults(conversion, algo)
    # LR sets both learning rates of an actor-critic algorithm; it comes first, so that LR_ACTOR or LR_CRITIC wins.
    for key, value in sorted(init_hp.items(), key=lambda item: item[0] != "LR"):
        _older_key(conversion, key, value, declared, source)
    _evaluation(conversion, init_hp.get("EVAL_LOOP"), source, "INIT_HP.EVAL_LOOP", "INIT_HP.NUM_ENVS")
    _mutation(conversion, mutation, declared, source)
    _network(conversion, _flat_network(network), source)
    conversion.put("algorithm", "name", algo)
    return conversion


def _older_key(conversion: Conversion, key: str, value: Any, declared: Mapping[str, str], source: str) -> None:
    if key == "EVAL_LOOP":
        return
    if key in DROPPED:
        if value not in (None, False) and key not in ("CHANNELS_LAST",):
            conversion.drop(f"INIT_HP.{key}", DROPPED[key])
    elif key in PLACES and not (key == "LEARNING_RATE" and "LR" not in declared):
        if value is not None or key in ("EVAL_STEPS", "TARGET_SCORE"):
            conversion.put(*PLACES[key], value)
        if key == "N_STEP" and "N_STEP" in declared:
            conversion.put("algorithm", declared["N_STEP"], value)
    elif key in declared:
        conversion.put("algorithm", declared[key], value)
    elif key == "LR" and "LR_ACTOR" in declared:
        for name in ("LR_ACTOR", "LR_CRITIC"):
            conversion.put("algorithm", declared[name], value)
    elif key in _all_hyperparameters():
        conversion.drop(f"INIT_HP.{key}", "of another algorithm")
    else:
        raise ConfigError(f"{source}: {_unknown(f'INIT_HP.{key}', key, {*PLACES, *DROPPED, *declared})}")


def _mutation(conversion: Conversion, parameters: Mapping[str, Any], declared: Mapping[str, str], source: str) -> None:
    """Convert MUTATION_PARAMS: probabilities, strength, and bounds of hyperparameters as MIN_X and MAX_X."""
    valid_names = {key.upper() for key in CHANCES} | {"MUT_SD", "MUTATION_SD", "RAND_SEED", "RL_HP_SELECTION"}
    chances: dict[str, Any] = {}
    limits: dict[str, dict[str, Any]] = {}
    wanted = parameters.get("RL_HP_SELECTION")
    if wanted is not None and not isinstance(wanted, list | tuple | set | Mapping):
        raise ConfigError(
            f"{source}: MUTATION_PARAMS.RL_HP_SELECTION must be a list of names; got {wanted!r}. "
            "fix: RL_HP_SELECTION: [lr]."
        )
    for key, value in parameters.items():
        bound, _, name = key.partition("_")
        if key.lower() in CHANCES:
            chances[key.lower()] = value
        elif key in ("MUT_SD", "MUTATION_SD"):
            conversion.put("mutation", "mutation_sd", value)
        elif key in DROPPED:
            conversion.drop(f"MUTATION_PARAMS.{key}", DROPPED[key])
        elif bound in ("MIN", "MAX") and name:
            for hyperparameter in _hyperparameters_named(name, declared):
                if wanted is None or str(name).lower() in {str(one).lower() for one in wanted}:
                    limits.setdefault(hyperparameter, {})[bound.lower()] = value
            if not _hyperparameters_named(name, declared):
                conversion.drop(f"MUTATION_PARAMS.{key}", f"{name.lower()} is not a hyperparameter of the algorithm")
        elif key not in valid_names:
            raise ConfigError(f"{source}: {_unknown(f'MUTATION_PARAMS.{key}', key, valid_names)}")
    for hyperparameter, bounds in limits.items():
        if len(bounds) < 2:
            raise ConfigError(
                f"{source}: MUTATION_PARAMS has one limit of {hyperparameter}. "
                f"fix: MIN_{hyperparameter.upper()} and MAX_{hyperparameter.upper()}."
            )
    conversion.put("mutation", "probabilities", chances)
    conversion.put("mutation", "rl_hp_selection", limits)


def _hyperparameters_named(name: str, declared: Mapping[str, str]) -> list[str]:
    """Our names for a published one: LR means both learning rates of an actor-critic algorithm."""
    if name in declared:
        return [declared[name]]
    return [declared[key] for key in ("LR_ACTOR", "LR_CRITIC") if name == "LR" and key in declared]


def _flat_network(network: Mapping[str, Any]) -> dict[str, Any]:
    """Nest the encoder keys of the oldest form, {arch: mlp, hidden_size: [64, 64], mlp_activation: ReLU}."""
    if not {"hidden_size", "channel_size"} & set(network):
        return dict(network)
    top = {*Network.model_fields, "arch", "squash_output"}
    encoder = {key.removeprefix("mlp_").removeprefix("cnn_"): value for key, value in network.items() if key not in top}
    encoder.pop("output_activation", None)  # of the latent vector: its activation is the encoder's
    return {**{key: value for key, value in network.items() if key in top}, "encoder_config": encoder}


# -- the newer generation ---------------------------------------------------------------------------------------------


def _of_newer(data: Mapping[str, Any], source: str) -> Conversion:
    conversion = Conversion()
    sections = {str(key): _section(value, str(key), source) for key, value in data.items()}
    algorithm = sections.pop("algorithm", {})
    if "name" not in algorithm:
        raise ConfigError(f"{source}: algorithm.name is missing. fix: add it, such as name: DQN.")
    algo = canonical_name(str(algorithm.pop("name")))
    declared = _with_published_defaults(conversion, algo)
    conversion.put("algorithm", "name", algo)
    for key, value in algorithm.items():
        if key.upper() in DROPPED:
            _note_if_set(conversion, f"algorithm.{key}", value)
        else:  # unknown keys are reported when the manifest is validated
            conversion.put("algorithm", declared.get(key.upper(), key), value)
    mutation = sections.pop("mutation", {})
    for key, value in mutation.items():
        if key == "rl_hp_selection":
            bounds = {
                hyperparameter: limits
                for name, limits in _section(value, "mutation.rl_hp_selection", source).items()
                for hyperparameter in _hyperparameters_or_name(str(name), declared)
            }
            conversion.put("mutation", key, bounds)
        elif key in NEWER["mutation"]:
            _note_if_set(conversion, f"mutation.{key}", value)
        else:
            conversion.put("mutation", key, value)
    training = sections.pop("training", {})
    _evaluation_of_newer(conversion, training, sections.get("environment", {}), source)
    for key, value in training.items():
        conversion.put("training", key, value)
    selection = sections.pop("selection_strategy", None) or sections.pop("tournament_selection", {})
    for key, value in selection.items():
        if selection.get("strategy", "tournament") != "tournament":
            conversion.drop(f"selection_strategy.{key}", "members are selected by tournament")
        elif key != "strategy":
            conversion.put("tournament_selection", key, value)
    for key, value in sections.pop("replay_buffer", {}).items():
        conversion.put("replay_buffer", {"memory_size": "max_size", "per": "prioritized"}.get(key, key), value)
    _network(conversion, sections.pop("network", {}), source)
    for name, section in sections.items():
        for key, value in section.items():
            conversion.put(name, key, value)
    return conversion


def _hyperparameters_or_name(name: str, declared: Mapping[str, str]) -> list[str]:
    return _hyperparameters_named(name.upper(), declared) or [name]


def _note_if_set(conversion: Conversion, path: str, value: Any) -> None:
    if value not in (None, False):
        conversion.drop(path, DROPPED.get(path.rpartition(".")[2].upper(), "there is no such option"))


# -- both generations -------------------------------------------------------------------------------------------------


def _with_published_defaults(conversion: Conversion, algo: str) -> dict[str, str]:
    """Fill in the published defaults; returns our hyperparameters by their upper-case names."""
    declared = hyperparameters(find_algorithm(algo))
    for name, each in declared.items():
        conversion.put("algorithm", name, each.published)
    ignored = ignored_by(find_algorithm(algo).experience.name)
    usual = {"max_steps": 1_000_000, "learning_delay": 0, "eps_start": 1.0, "eps_end": 0.1, "eps_decay": 0.995}
    conversion.content["training"] = {key: value for key, value in usual.items() if f"training.{key}" not in ignored}
    conversion.put("environment", "num_envs", 1)
    return {name.upper(): name for name in declared}


def _evaluation(conversion: Conversion, rounds: Any, source: str, rounds_key: str, num_envs_key: str) -> None:
    """Convert EVAL_LOOP: rounds of one episode in each environment; fitness is the mean of the last `rounds`.

    Args:
        rounds_key, num_envs_key: the keys of the file, for messages.
    """
    rounds = 1 if rounds is None else _whole(rounds, rounds_key, source)
    num_envs = _whole(conversion.content["environment"]["num_envs"] or 1, num_envs_key, source)
    conversion.put("training", "eval_episodes", rounds * num_envs)
    conversion.put("tournament_selection", "eval_loop", rounds)


def _whole(value: Any, path: str, source: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        fix = f"fix: {path.rpartition('.')[2]}: 1."
        raise ConfigError(f"{source}: {path} must be a whole number; got {value!r}. {fix}") from None


def _evaluation_of_newer(
    conversion: Conversion, training: dict[str, Any], environment: Mapping[str, Any], source: str
) -> None:
    if "num_envs" in environment:
        conversion.put("environment", "num_envs", environment["num_envs"])
    rounds = training.pop("eval_loop", None)
    if "eval_episodes" not in training:
        _evaluation(conversion, rounds, source, "training.eval_loop", "environment.num_envs")


def _network(conversion: Conversion, network: Mapping[str, Any], source: str) -> None:
    """Convert the network section: dense encoders go to `network.encoder_config`, others to `network.encoder`."""
    config = dict(network)
    arch = config.pop("arch", None)
    is_recurrent = bool(config.pop("recurrent", False)) or arch == "lstm"
    if is_recurrent:
        if "recurrent" not in conversion.content["algorithm"]:
            raise ConfigError(
                f"{source}: a recurrent {conversion.content['algorithm'].get('name', 'network')} is not there. "
                "fix: PPO, or an encoder_config with hidden_size."
            )
        conversion.put("algorithm", "recurrent", True)
    elif arch is not None and str(arch) not in ARCHITECTURES:
        raise ConfigError(f"{source}: {_unknown('arch', str(arch), {*ARCHITECTURES, 'lstm'})}")
    for key, value in (ARCHITECTURES.get(arch, {}) if arch else {}).items():
        conversion.put("network", key, value)
    encoder = _section(config.pop("encoder_config", None), "encoder_config", source)
    head = _section(config.pop("head_config", None), "head_config", source)
    dense = set(encoder) <= {*Encoder.model_fields, *DENSE_ONLY}
    if config.get("simba") or arch == "simba" or not dense or conversion.content["algorithm"].get("recurrent"):
        conversion.put("network", "encoder", {key: value for key, value in encoder.items() if value is not None})
    elif encoder:
        conversion.put(
            "network", "encoder_config", _dense(conversion, encoder, "encoder_config", set(Encoder.model_fields))
        )
    if head:
        conversion.put("network", "head_config", _dense(conversion, head, "head_config", set(Head.model_fields)))
    if config.get("squash_output") and "squash_output" in conversion.content["algorithm"]:
        conversion.put("algorithm", "squash_output", bool(config.pop("squash_output")))
    for key, value in config.items():
        if key in Network.model_fields:
            conversion.put("network", key, value)
        else:
            _note_if_set(conversion, f"network.{key}", value)


# Keys of dense layers that manifests do not have: their defaults describe how layers are built here.
DENSE_ONLY = ("init_layers", "output_vanish", "output_layernorm", "output_activation", "noisy", "noise_std", "rainbow")


def _dense(conversion: Conversion, layers: Mapping[str, Any], name: str, valid_names: set[str]) -> dict[str, Any]:
    config = {}
    for key, value in layers.items():
        if key in valid_names:
            if value is not None or key == "output_activation":
                config[key] = value
        elif key not in ("init_layers", "output_vanish") or value is False:
            _note_if_set(conversion, f"network.{name}.{key}", value)
    return config


def _drop_ignored(conversion: Conversion) -> None:
    """Remove the keys that the algorithm ignores: one file may serve several algorithms."""
    algo = conversion.content["algorithm"]["name"]
    for path in ignored_by(find_algorithm(algo).experience.name):
        section, _, key = path.partition(".")
        if section in conversion.content and (not key or key in conversion.content[section]):
            left = conversion.content.pop(section) if not key else {key: conversion.content[section].pop(key)}
            for name in left:
                conversion.drop(f"{section}.{name}", f"it means nothing to {algo}")
    replay = conversion.content.get("replay_buffer", {})
    if not replay.get("prioritized") and replay.pop("alpha", None) is not None:
        conversion.drop("replay_buffer.alpha", "it is of prioritized replay")


def _section(value: Any, name: str, source: str) -> dict[str, Any]:
    if value is None:
        return {}
    if name in ("algorithm", "environment") and isinstance(value, str):
        return {"name": value}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{source}: {name} must be a section of keys; got {value!r}. fix: leave it out.")
    return {str(key): each for key, each in value.items()}


def _upper(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key.upper(): value for key, value in section.items()}


def _all_hyperparameters() -> set[str]:
    """Hyperparameters of all algorithms: one INIT_HP may serve several."""
    return {name.upper() for algo in available() for name in hyperparameters(find_algorithm(algo))}


def _unknown(path: str, key: str, valid_names: Any) -> str:
    close = nearest(key, sorted(valid_names), limit=1)
    hint, fix = (f" Did you mean {close[0]!r}?", close[0]) if close else ("", "leave it out")
    return f"{path} is not a known key.{hint} fix: {fix}."
