"""Conversion of configurations of the published library (AgileRL 2.x, both generations of names) to manifests.

The older generation has INIT_HP, MUTATION_PARAMS and NET_CONFIG. The newer one has the manifest's sections and some
extra keys. Missing keys take the published default, not that of a preset. Keys without a counterpart are ignored and
named in one warning; only what looks like a misspelt key is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agilerl.algorithms import available, canonical_name, find_algorithm
from agilerl.algorithms.base.declared import hyperparameters
from agilerl.config.ignored import ignored_by
from agilerl.config.keys import OLDER
from agilerl.config.schema import Encoder, Head, Manifest, Network, Probabilities
from agilerl.core.ranges import describe
from agilerl.errors import ConfigError, nearest

# INIT_HP and MUTATION_PARAMS -> (section, key) of the newer generation; every other key is a hyperparameter or unknown.
PLACES = {
    "ENV_NAME": ("environment", "name"), "NUM_ENVS": ("environment", "num_envs"), "ALGO": ("algorithm", "name"),
    "MAX_STEPS": ("training", "max_steps"), "POP_SIZE": ("training", "pop_size"),
    "POPULATION_SIZE": ("training", "pop_size"), "EVO_STEPS": ("training", "evo_steps"),
    "EVAL_STEPS": ("training", "eval_steps"), "LEARNING_DELAY": ("training", "learning_delay"),
    "EVAL_LOOP": ("training", "eval_loop"), "EPS_START": ("training", "eps_start"), "EPS_END": ("training", "eps_end"),
    "EPS_DECAY": ("training", "eps_decay"), "TARGET_SCORE": ("training", "target_score"),
    "MEMORY_SIZE": ("replay_buffer", "max_size"), "N_STEP": ("replay_buffer", "n_step"),
    "PER": ("replay_buffer", "prioritized"), "ALPHA": ("replay_buffer", "alpha"),
    "TOURN_SIZE": ("tournament_selection", "tournament_size"), "ELITISM": ("tournament_selection", "elitism"),
    "LEARNING_RATE": ("algorithm", "lr"), "LAMBDA": ("algorithm", "lamb"), "MUT_SD": ("mutation", "mutation_sd"),
}  # fmt: skip
RENAMED = {"memory_size": "max_size", "per": "prioritized"}  # keys of the newer generation
MODELS = {"pretrained_model_name_or_path": "model_name", "lora_config": "lora_config"}  # of its section `network`
CHANCES = tuple(Probabilities.model_fields)
BUDGETS_IN_EPISODES = "budgets are environment steps here: --steps, training.evo_steps"
DROPPED = {
    "CHANNELS_LAST": "images of either order of channels are understood",
    "EPISODES": BUDGETS_IN_EPISODES,
    "EPISODE_STEPS": "training.train_max_episode_steps, training.eval_steps; an episode has 100 rounds",
    "MAX_EPISODES": BUDGETS_IN_EPISODES,
    "EVO_EPOCHS": BUDGETS_IN_EPISODES,
    "WANDB": "agilerl train --track",
    "DATASET": "--dataset, or the argument of the environment",
    "DISTRIBUTED_TRAINING": "accelerate launch",
    "USE_ROLLOUT_BUFFER": "there is always one",
    "MAX_MODEL_LEN": "the environment's max_context_length",
    "MAX_CONTEXT_LENGTH": "the environment's max_context_length",
    "ADVANTAGE_GRANULARITY": "algorithm.granularity",
    "MIN_ACTION": "the environment's own bounds hold",
    "MAX_ACTION": "the environment's own bounds hold",
    "RAND_SEED": "training.seed, 0 unless it is given, is the seed of every draw, those of mutations included",
}
UNTOLD = ("CHANNELS_LAST", "USE_ROLLOUT_BUFFER")  # ignored without a word: nothing changes by them
ARCHITECTURES = ("mlp", "cnn", "multi_input", "composed", "simba", "lstm")
MISSPELT = 0.8  # share of equal letters from which an unknown key is an error


@dataclass
class Conversion:
    """A published configuration translated to a manifest.

    Attributes:
        content: sections of a manifest, every hyperparameter of the algorithm written out.
        ignored: keys without a counterpart -> what replaces them, or an empty text.
        problems: mistakes, a message with a fix for each.
        paths: `section.key` -> path in the file, where they differ.
    """

    content: dict[str, dict[str, Any]] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    paths: dict[str, str] = field(default_factory=dict)

    def put(self, section: str, key: str, value: object) -> None:
        self.content.setdefault(section, {})[key] = value

    def ignore(self, name: str, value: object, why: str = "") -> None:
        """Record a key without a counterpart, unless it is off or changes nothing."""
        path = self.paths.get(name, name)
        key = path.rpartition(".")[2].upper()
        if value is not None and value is not False and key not in UNTOLD:
            self.ignored[path] = DROPPED.get(key, why)

    def unknown(self, name: str, value: object, names: Iterable[str], why: str = "") -> None:
        """Ignore an unknown key; one that is almost a name is a problem."""
        path, key = self.paths.get(name, name), name.rpartition(".")[2]
        close = [] if key.upper() in DROPPED else nearest(key, sorted(names), 1, MISSPELT)
        if not close:
            self.ignore(name, value, why)
            return
        right = close[0].upper() if path.isupper() else close[0]
        self.problems.append(f"{path} is not a known key. Did you mean {right!r}? fix: {right}.")

    def section(self, value: object, name: str) -> dict[str, Any]:
        """Return a section's keys, none of a value that is not one."""
        if name in ("algorithm", "environment") and isinstance(value, str):
            return {"name": value}
        if value is not None and not isinstance(value, Mapping):
            self.problems.append(f"{name} must be a section of keys; got {value!r}. fix: leave it out.")
        return {str(key): part for key, part in value.items()} if isinstance(value, Mapping) else {}

    def whole(self, value: Any, name: str) -> int:
        try:
            return 1 if value is None else int(value)
        except (TypeError, ValueError, OverflowError):
            path = self.paths.get(name, name)
            fix = f"fix: {path.rpartition('.')[2]}: 1."
            self.problems.append(f"{path} must be a whole number; got {value!r}. {fix}")
            return 1

    def note(self) -> str:
        """Return one line that names the ignored keys; empty if there is none."""
        keys = [f"{path} ({why})" if why else path for path, why in self.ignored.items()]
        return f"no counterpart here: {', '.join(keys)}" if keys else ""


def convert(data: Mapping[str, Any], source: str = "config") -> Conversion:
    """Translate a configuration of the published library.

    Raises:
        ConfigError: no algorithm.
        AlgorithmError, NotAvailableYetError: an unknown algorithm, or one that is not implemented yet.
    """
    conversion = Conversion()
    older = any(str(key).upper() in OLDER for key in data)
    sections = (_sections_of_older if older else _sections)(conversion, data)
    algorithm = sections.pop("algorithm", {})
    if "name" not in algorithm:
        path, key = ("INIT_HP.ALGO", "ALGO") if older else ("algorithm.name", "name")
        problems = [*conversion.problems, f"{path} is missing. fix: add it, such as {key}: DQN."]
        raise ConfigError("\n".join(f"{source}: {problem}" for problem in problems))
    declared = _with_published_defaults(conversion, canonical_name(str(algorithm.pop("name"))))
    network = sections.pop("network", {})
    model = {new: network.pop(old) for old, new in MODELS.items() if old in network}
    if isinstance(adapter := model.get("lora_config"), Mapping):
        model["lora_config"] = {"r" if key == "lora_r" else key: value for key, value in adapter.items()}
    _algorithm(conversion, algorithm | model, declared)
    _mutation(conversion, sections.pop("mutation", {}), declared)
    _evaluation(conversion, sections.get("training", {}), sections.get("environment", {}))
    selection = sections.get("tournament_selection", {})
    if selection.pop("strategy", "tournament") != "tournament":
        for key, value in sections.pop("tournament_selection").items():
            conversion.ignore(f"selection_strategy.{key}", value, "members are selected by tournament")
    for section, keys in sections.items():
        _put(conversion, section, keys)
    if "N_STEP" in declared and "n_step" in conversion.content.get("replay_buffer", {}):
        conversion.put("algorithm", declared["N_STEP"], conversion.content["replay_buffer"]["n_step"])
    _network(conversion, network)
    _drop_ignored(conversion)
    return conversion


def _sections(conversion: Conversion, data: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the sections of a file of the newer generation."""
    sections = {str(key): conversion.section(value, str(key)) for key, value in data.items()}
    selection = sections.pop("selection_strategy", None)
    return sections if selection is None else {**sections, "tournament_selection": selection}


def _sections_of_older(conversion: Conversion, data: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return INIT_HP, MUTATION_PARAMS and NET_CONFIG as sections of the newer generation."""
    upper = {str(key).upper(): value for key, value in data.items()}
    init_hp, mutation, network = (conversion.section(upper.pop(name, None), name) for name in OLDER)
    for key, value in upper.items():
        conversion.ignore(key, value)
    wanted = mutation.pop("RL_HP_SELECTION", None)
    if wanted is not None and not isinstance(wanted, list | tuple | set | Mapping):
        conversion.problems.append(
            f"MUTATION_PARAMS.RL_HP_SELECTION must be a list of names; got {wanted!r}. fix: RL_HP_SELECTION: [lr]."
        )
        wanted = None
    chosen = None if wanted is None else {str(name).lower() for name in wanted}
    sections: dict[str, dict[str, Any]] = {"algorithm": {}, "mutation": {}, "network": _flat_network(network)}
    for origin, otherwise, keys in (("INIT_HP", "algorithm", init_hp), ("MUTATION_PARAMS", "mutation", mutation)):
        for key, value in keys.items():
            bound, _, name = key.lower().partition("_")
            section, place = PLACES.get(key.upper(), (otherwise, key.lower()))
            if otherwise == "mutation" and place in CHANCES:
                sections[section].setdefault("probabilities", {})[place] = value
                continue
            if otherwise == "mutation" and bound in ("min", "max") and name:
                if chosen is None or name in chosen:
                    limits = sections[section].setdefault("rl_hp_selection", {})
                    limits.setdefault(name, {})[bound] = value
                    conversion.paths[f"{section}.rl_hp_selection.{name}"] = f"{origin}.{key.upper()}"
                continue
            sections.setdefault(section, {})[place] = value
            conversion.paths[f"{section}.{place}"] = f"{origin}.{key.upper()}"
    for name, limits in sections["mutation"].get("rl_hp_selection", {}).items():
        if len(limits) < 2:
            bounds = f"MIN_{name.upper()} and MAX_{name.upper()}"
            conversion.problems.append(f"MUTATION_PARAMS has one limit of {name}. fix: {bounds}.")
    return sections


def _flat_network(network: Mapping[str, Any]) -> dict[str, Any]:
    """Nest the encoder keys of the oldest form, {arch: mlp, hidden_size: [64, 64], mlp_activation: ReLU}."""
    network = {"hidden_size" if key == "h_size" else key: value for key, value in network.items()}
    if not {"hidden_size", "channel_size"} & set(network):
        return network
    top = {*Network.model_fields, "arch", "squash_output"}
    encoder = {key.removeprefix("mlp_").removeprefix("cnn_"): value for key, value in network.items() if key not in top}
    encoder.pop("output_activation", None)  # of the latent vector: its activation is the encoder's
    return {**{key: value for key, value in network.items() if key in top}, "encoder_config": encoder}


def _with_published_defaults(conversion: Conversion, algo: str) -> dict[str, str]:
    """Fill in the published defaults; returns our hyperparameters by their upper-case names."""
    declared = hyperparameters(find_algorithm(algo))
    for name, each in declared.items():
        conversion.put("algorithm", name, each.published)
    conversion.put("algorithm", "name", algo)
    ignored = ignored_by(find_algorithm(algo).experience.name)
    usual = {"max_steps": 1_000_000, "learning_delay": 0, "eps_start": 1.0, "eps_end": 0.1, "eps_decay": 0.995}
    conversion.content["training"] = {key: value for key, value in usual.items() if f"training.{key}" not in ignored}
    conversion.put("environment", "num_envs", 1)
    return {name.upper(): name for name in declared}


def _algorithm(conversion: Conversion, keys: Mapping[str, Any], declared: Mapping[str, str]) -> None:
    """Put hyperparameters. LR sets both rates of an actor-critic algorithm; LR_ACTOR or LR_CRITIC wins."""
    parameters = hyperparameters(find_algorithm(conversion.content["algorithm"]["name"]))
    others = {name for algo in available() for name in hyperparameters(find_algorithm(algo))}
    for key, value in sorted(keys.items(), key=lambda item: item[0].lower() != "lr"):
        names, path = _hyperparameters_named(key, declared), f"algorithm.{key}"
        for name in names:
            if value is not None or "null" in describe(parameters[name].values):
                conversion.put("algorithm", name, value)
        if not names and key in {name.lower() for name in others}:
            conversion.ignore(path, value, "of another algorithm")
        elif not names:
            accepted = {**declared, **PLACES} if path in conversion.paths else declared
            conversion.unknown(path, value, accepted)


def _hyperparameters_named(name: str, declared: Mapping[str, str]) -> list[str]:
    """Our names for a published one: LR means both learning rates of an actor-critic algorithm."""
    if name.upper() in declared:
        return [declared[name.upper()]]
    return [declared[key] for key in ("LR_ACTOR", "LR_CRITIC") if name.upper() == "LR" and key in declared]


def _mutation(conversion: Conversion, keys: dict[str, Any], declared: Mapping[str, str]) -> None:
    """Put probabilities, strength, and the bounds of the algorithm's hyperparameters."""
    name = "mutation.rl_hp_selection"
    bounds: dict[str, Any] = {}
    for key, limits in conversion.section(keys.pop("rl_hp_selection", None), name).items():
        names = _hyperparameters_named(key, declared)
        bounds |= dict.fromkeys(names, limits)
        if not names:
            conversion.unknown(f"{name}.{key}", limits, declared.values(), "not a hyperparameter of the algorithm")
    conversion.put("mutation", "rl_hp_selection", bounds)
    conversion.put("mutation", "probabilities", keys.pop("probabilities", {}))
    _put(conversion, "mutation", keys, CHANCES)


def _put(conversion: Conversion, section: str, keys: Mapping[str, Any], others: Iterable[str] = ()) -> None:
    """Put keys of a section; `others`: further names that may be meant by an unknown one."""
    kind: Any = Manifest.model_fields[section].annotation if section in Manifest.model_fields else None
    fields = () if kind is None else kind.model_fields
    for key, value in keys.items():
        name = RENAMED.get(key, key)
        if name not in fields:
            conversion.unknown(f"{section}.{key}", value, {*fields, *others})
        elif value is not None or name in ("eval_steps", "target_score"):
            conversion.put(section, name, value)


def _evaluation(conversion: Conversion, training: dict[str, Any], environment: dict[str, Any]) -> None:
    """Convert EVAL_LOOP: rounds of one episode in each environment; fitness is the mean of the last `rounds`."""
    num_envs = conversion.whole(environment.pop("num_envs", None), "environment.num_envs")
    rounds = conversion.whole(training.pop("eval_loop", None), "training.eval_loop")
    conversion.put("environment", "num_envs", num_envs)
    if "eval_episodes" not in training:
        conversion.put("training", "eval_episodes", rounds * num_envs)
        conversion.put("tournament_selection", "eval_loop", rounds)


def _network(conversion: Conversion, network: dict[str, Any]) -> None:
    """Convert the network section: dense encoders go to `network.encoder_config`, others to `network.encoder`."""
    arch, algorithm = network.pop("arch", None), conversion.content["algorithm"]
    is_recurrent = bool(network.pop("recurrent", False)) or arch == "lstm"
    if is_recurrent and "recurrent" in algorithm:
        conversion.put("algorithm", "recurrent", True)
    elif is_recurrent:
        conversion.problems.append(
            f"a recurrent {algorithm['name']} is not there. fix: PPO, or an encoder_config with hidden_size."
        )
    elif arch is not None and str(arch) not in ARCHITECTURES:
        conversion.problems.append(
            f"network.arch={arch} is not a known architecture. fix: one of {', '.join(ARCHITECTURES)}."
        )
    if network.pop("simba", False) or arch == "simba":
        conversion.put("network", "simba", True)
    encoder = conversion.section(network.pop("encoder_config", None), "encoder_config")
    head = conversion.section(network.pop("head_config", None), "head_config")
    is_dense = set(encoder) <= {*Encoder.model_fields, *DENSE_ONLY}
    if conversion.content.get("network", {}).get("simba") or not is_dense or algorithm.get("recurrent"):
        conversion.put("network", "encoder", {key: value for key, value in encoder.items() if value is not None})
    elif encoder:
        conversion.put("network", "encoder_config", _dense(conversion, encoder, "encoder_config", Encoder))
    if head:
        conversion.put("network", "head_config", _dense(conversion, head, "head_config", Head))
    if network.get("squash_output") and "squash_output" in algorithm:
        conversion.put("algorithm", "squash_output", bool(network.pop("squash_output")))
    _put(conversion, "network", network)


# Keys of dense layers that manifests do not have: their defaults describe how layers are built here.
DENSE_ONLY = ("init_layers", "output_vanish", "output_layernorm", "output_activation", "noisy", "noise_std", "rainbow")


def _dense(conversion: Conversion, layers: Mapping[str, Any], name: str, kind: Any) -> dict[str, Any]:
    config = {}
    for key, value in layers.items():
        if key in kind.model_fields:
            if value is not None or key == "output_activation":
                config[key] = value
        elif key not in ("init_layers", "output_vanish"):
            conversion.unknown(f"network.{name}.{key}", value, set(kind.model_fields) - {"output_activation"})
        elif value is False:
            conversion.ignore(f"network.{name}.{key}", "false")
    return config


def _drop_ignored(conversion: Conversion) -> None:
    """Remove the keys that the algorithm ignores: one file may serve several algorithms."""
    algo = conversion.content["algorithm"]["name"]
    for path in ignored_by(find_algorithm(algo).experience.name):
        section, _, key = path.partition(".")
        if section in conversion.content and (not key or key in conversion.content[section]):
            left = conversion.content.pop(section) if not key else {key: conversion.content[section].pop(key)}
            for name, value in left.items():
                conversion.ignore(f"{section}.{name}", value, f"it means nothing to {algo}")
    replay = conversion.content.get("replay_buffer", {})
    if not replay.get("prioritized"):
        conversion.ignore("replay_buffer.alpha", replay.pop("alpha", None), "it is of prioritized replay")
