"""Configurations of the published library (AgileRL 2.x, both generations of names) as manifests of ours.

The older ones have INIT_HP, MUTATION_PARAMS and NET_CONFIG; the newer ones our sections, with some keys of their own.
What such a file leaves out has the published default, not that of a preset of ours; what has no counterpart is named.
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
# Keys of the newer generation that only it has: section -> names.
NEWER = {
    "algorithm": ("cudagraphs",),
    "mutation": ("rand_seed", "super_param_mut", "regrama_param_mut", "function_preserving"),
    "network": ("arch",),
    "training": ("eval_loop",),
    "selection_strategy": ("strategy",),
    "tournament_selection": ("strategy",),
    "replay_buffer": ("memory_size", "per", "standard_buffer", "n_step_buffer", "per_buffer"),
}
# INIT_HP -> (section, key) of ours; every other key is a hyperparameter, or of `DROPPED`.
PLACES = {
    "ENV_NAME": ("environment", "name"), "NUM_ENVS": ("environment", "num_envs"), "ALGO": ("algorithm", "name"),
    "MAX_STEPS": ("training", "max_steps"), "POP_SIZE": ("training", "pop_size"),
    "POPULATION_SIZE": ("training", "pop_size"), "EVO_STEPS": ("training", "evo_steps"),
    "EVAL_STEPS": ("training", "eval_steps"), "LEARNING_DELAY": ("training", "learning_delay"),
    "EPS_START": ("training", "eps_start"), "EPS_END": ("training", "eps_end"), "EPS_DECAY": ("training", "eps_decay"),
    "TARGET_SCORE": ("training", "target_score"), "MEMORY_SIZE": ("replay_buffer", "max_size"),
    "N_STEP": ("replay_buffer", "n_step"), "PER": ("replay_buffer", "prioritized"), "ALPHA": ("replay_buffer", "alpha"),
    "TOURN_SIZE": ("tournament_selection", "tournament_size"), "ELITISM": ("tournament_selection", "elitism"),
    "LEARNING_RATE": ("algorithm", "lr"),
}  # fmt: skip
CHANCES = ("no_mut", "arch_mut", "new_layer", "params_mut", "act_mut", "rl_hp_mut")
BUDGETS_IN_EPISODES = "budgets are environment steps here: --steps, training.evo_steps"
DROPPED = {
    "CHANNELS_LAST": "images of either order of channels are understood",
    "EPISODES": BUDGETS_IN_EPISODES,
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
    """A published configuration in our words.

    Attributes:
        content: sections of a manifest, every hyperparameter of the algorithm written out.
        notes: a line for each key that has no counterpart: what it was, and what there is instead.
    """

    content: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def put(self, section: str, key: str, value: Any) -> None:
        self.content.setdefault(section, {})[key] = value

    def drop(self, key: str, why: str) -> None:
        self.notes.append(f"{key}: no counterpart here ({why})")


def is_published(data: Any) -> bool:
    """Whether a file's content is a configuration of the published library and not a manifest of ours."""
    if not isinstance(data, Mapping):
        return False
    if any(str(key).upper() in OLDER for key in data):
        return True
    sections = {name: data[name] for name in NEWER if isinstance(data.get(name), Mapping)}
    return any(key in sections[name] for name, keys in NEWER.items() if name in sections for key in keys)


def convert(data: Mapping[str, Any], source: str = "config") -> Conversion:
    """Translate a configuration of the published library.

    Raises:
        ConfigError: a key that neither library knows, or a value that is not of the kind that it must be.
        AlgorithmError, NotAvailableYetError: an algorithm that is unknown, or not built here yet.
    """
    older = any(str(key).upper() in OLDER for key in data)
    made = _of_older(data, source) if older else _of_newer(data, source)
    _leave_out_what_is_ignored(made)
    return made


# -- INIT_HP, MUTATION_PARAMS, NET_CONFIG ------------------------------------------------------------------------------


def _of_older(data: Mapping[str, Any], source: str) -> Conversion:
    sections = {str(key).upper(): _section(value, str(key), source) for key, value in data.items()}
    made, given = Conversion(), _upper(sections.pop("INIT_HP", {}))
    mutation, network = _upper(sections.pop("MUTATION_PARAMS", {})), sections.pop("NET_CONFIG", {})
    for key in sections:
        made.drop(key, "a section of its own")
    if "ALGO" not in given:
        raise ConfigError(f"{source}: INIT_HP.ALGO is missing. fix: add it, such as ALGO: DQN.")
    algo = canonical_name(str(given["ALGO"]))
    declared = _with_published_defaults(made, algo)
    # LR of an algorithm with two learning rates first: one of them that is named counts, wherever it stands.
    for key, value in sorted(given.items(), key=lambda item: item[0] != "LR"):
        _older_key(made, key, value, declared, source)
    _evaluation(made, given.get("EVAL_LOOP"))
    _mutation(made, mutation, declared, source)
    _network(made, _flat_network(network), source)
    made.put("algorithm", "name", algo)
    return made


def _older_key(made: Conversion, key: str, value: Any, declared: Mapping[str, str], source: str) -> None:
    if key == "EVAL_LOOP":
        return
    if key in DROPPED:
        if value not in (None, False) and key not in ("CHANNELS_LAST",):
            made.drop(f"INIT_HP.{key}", DROPPED[key])
    elif key in PLACES and not (key == "LEARNING_RATE" and "LR" not in declared):
        if value is not None or key in ("EVAL_STEPS", "TARGET_SCORE"):
            made.put(*PLACES[key], value)
        if key == "N_STEP" and "N_STEP" in declared:
            made.put("algorithm", declared["N_STEP"], value)
    elif key in declared:
        made.put("algorithm", declared[key], value)
    elif key == "LR" and "LR_ACTOR" in declared:
        for name in ("LR_ACTOR", "LR_CRITIC"):
            made.put("algorithm", declared[name], value)
    elif key in _known_anywhere():
        made.drop(f"INIT_HP.{key}", "of another algorithm")
    else:
        raise ConfigError(f"{source}: {_unknown(f'INIT_HP.{key}', key, {*PLACES, *DROPPED, *declared})}")


def _mutation(made: Conversion, given: Mapping[str, Any], declared: Mapping[str, str], source: str) -> None:
    """MUTATION_PARAMS: chances, strength, and limits of hyperparameters as MIN_X and MAX_X."""
    known = {key.upper() for key in CHANCES} | {"MUT_SD", "MUTATION_SD", "RAND_SEED", "RL_HP_SELECTION"}
    chances: dict[str, Any] = {}
    limits: dict[str, dict[str, Any]] = {}
    wanted = given.get("RL_HP_SELECTION")
    for key, value in given.items():
        bound, _, name = key.partition("_")
        if key.lower() in CHANCES:
            chances[key.lower()] = value
        elif key in ("MUT_SD", "MUTATION_SD"):
            made.put("mutation", "mutation_sd", value)
        elif key in DROPPED:
            made.drop(f"MUTATION_PARAMS.{key}", DROPPED[key])
        elif bound in ("MIN", "MAX") and name:
            for own in _hyperparameters_named(name, declared):
                if wanted is None or str(name).lower() in {str(one).lower() for one in wanted}:
                    limits.setdefault(own, {})[bound.lower()] = value
            if not _hyperparameters_named(name, declared):
                made.drop(f"MUTATION_PARAMS.{key}", f"{name.lower()} is not a hyperparameter of the algorithm")
        elif key not in known:
            raise ConfigError(f"{source}: {_unknown(f'MUTATION_PARAMS.{key}', key, known)}")
    for own, bounds in limits.items():
        if len(bounds) < 2:
            raise ConfigError(
                f"{source}: MUTATION_PARAMS has one limit of {own}. fix: MIN_{own.upper()} and MAX_{own.upper()}."
            )
    made.put("mutation", "probabilities", chances)
    made.put("mutation", "rl_hp_selection", limits)


def _hyperparameters_named(name: str, declared: Mapping[str, str]) -> list[str]:
    """Ours of a published name: LR of an algorithm with two learning rates means both."""
    if name in declared:
        return [declared[name]]
    return [declared[own] for own in ("LR_ACTOR", "LR_CRITIC") if name == "LR" and own in declared]


def _flat_network(given: Mapping[str, Any]) -> dict[str, Any]:
    """The oldest form, {arch: mlp, hidden_size: [64, 64], mlp_activation: ReLU}, with an encoder's keys in it."""
    if not {"hidden_size", "channel_size"} & set(given):
        return dict(given)
    top = {*Network.model_fields, "arch", "squash_output"}
    own = {key.removeprefix("mlp_").removeprefix("cnn_"): value for key, value in given.items() if key not in top}
    own.pop("output_activation", None)  # of the latent vector: its activation is the encoder's
    return {**{key: value for key, value in given.items() if key in top}, "encoder_config": own}


# -- the newer generation ---------------------------------------------------------------------------------------------


def _of_newer(data: Mapping[str, Any], source: str) -> Conversion:
    made = Conversion()
    sections = {str(key): _section(value, str(key), source) for key, value in data.items()}
    algorithm = sections.pop("algorithm", {})
    if "name" not in algorithm:
        raise ConfigError(f"{source}: algorithm.name is missing. fix: add it, such as name: DQN.")
    algo = canonical_name(str(algorithm.pop("name")))
    declared = _with_published_defaults(made, algo)
    made.put("algorithm", "name", algo)
    for key, value in algorithm.items():
        if key.upper() in DROPPED:
            _say_if_set(made, f"algorithm.{key}", value)
        else:  # with the keys of ours: what is unknown is said where the manifest is checked
            made.put("algorithm", declared.get(key.upper(), key), value)
    mutation = sections.pop("mutation", {})
    for key, value in mutation.items():
        if key == "rl_hp_selection":
            bounds = {own: limits for name, limits in value.items() for own in _named_or_own(str(name), declared)}
            made.put("mutation", key, bounds)
        elif key in NEWER["mutation"]:
            _say_if_set(made, f"mutation.{key}", value)
        else:
            made.put("mutation", key, value)
    training = sections.pop("training", {})
    _evaluation_of_newer(made, training, sections.get("environment", {}))
    for key, value in training.items():
        made.put("training", key, value)
    selection = sections.pop("selection_strategy", None) or sections.pop("tournament_selection", {})
    for key, value in selection.items():
        if selection.get("strategy", "tournament") != "tournament":
            made.drop(f"selection_strategy.{key}", "members are selected by tournament")
        elif key != "strategy":
            made.put("tournament_selection", key, value)
    for key, value in sections.pop("replay_buffer", {}).items():
        made.put("replay_buffer", {"memory_size": "max_size", "per": "prioritized"}.get(key, key), value)
    _network(made, sections.pop("network", {}), source)
    for name, section in sections.items():
        for key, value in section.items():
            made.put(name, key, value)
    return made


def _named_or_own(name: str, declared: Mapping[str, str]) -> list[str]:
    return _hyperparameters_named(name.upper(), declared) or [name]


def _say_if_set(made: Conversion, path: str, value: Any) -> None:
    if value not in (None, False):
        made.drop(path, DROPPED.get(path.rpartition(".")[2].upper(), "there is no such option"))


# -- what both have ---------------------------------------------------------------------------------------------------


def _with_published_defaults(made: Conversion, algo: str) -> dict[str, str]:
    """Put in what a published file leaves out; returns our hyperparameters by their upper-case names."""
    own = hyperparameters(find_algorithm(algo))
    for name, each in own.items():
        made.put("algorithm", name, each.published)
    ignored = ignored_by(find_algorithm(algo).experience.name)
    usual = {"max_steps": 1_000_000, "learning_delay": 0, "eps_start": 1.0, "eps_end": 0.1, "eps_decay": 0.995}
    made.content["training"] = {key: value for key, value in usual.items() if f"training.{key}" not in ignored}
    made.put("environment", "num_envs", 1)
    return {name.upper(): name for name in own}


def _evaluation(made: Conversion, rounds: Any) -> None:
    """An evaluation has rounds of one episode in each environment; fitness is the mean of the last `rounds`."""
    rounds = 1 if rounds is None else int(rounds)
    made.put("training", "eval_episodes", rounds * int(made.content["environment"]["num_envs"] or 1))
    made.put("tournament_selection", "eval_loop", rounds)


def _evaluation_of_newer(made: Conversion, training: dict[str, Any], environment: Mapping[str, Any]) -> None:
    if "num_envs" in environment:
        made.put("environment", "num_envs", environment["num_envs"])
    rounds = training.pop("eval_loop", None)
    if "eval_episodes" not in training:
        _evaluation(made, rounds)


def _network(made: Conversion, given: Mapping[str, Any], source: str) -> None:
    """The network's section: dense encoders have keys of their own here, others are `network.encoder`."""
    config = dict(given)
    arch = config.pop("arch", None)
    is_recurrent = bool(config.pop("recurrent", False)) or arch == "lstm"
    if is_recurrent:
        if "recurrent" not in made.content["algorithm"]:
            raise ConfigError(
                f"{source}: a recurrent {made.content['algorithm'].get('name', 'network')} is not there. fix: PPO, or "
                "an encoder_config with hidden_size."
            )
        made.put("algorithm", "recurrent", True)
    elif arch is not None and arch not in ARCHITECTURES:
        raise ConfigError(f"{source}: {_unknown('arch', str(arch), {*ARCHITECTURES, 'lstm'})}")
    for key, value in (ARCHITECTURES.get(arch, {}) if arch else {}).items():
        made.put("network", key, value)
    encoder = _section(config.pop("encoder_config", None), "encoder_config", source)
    head = _section(config.pop("head_config", None), "head_config", source)
    dense = set(encoder) <= {*Encoder.model_fields, *DENSE_ONLY}
    if config.get("simba") or arch == "simba" or not dense or made.content["algorithm"].get("recurrent"):
        made.put("network", "encoder", {key: value for key, value in encoder.items() if value is not None})
    elif encoder:
        made.put("network", "encoder_config", _dense(made, encoder, "encoder_config", set(Encoder.model_fields)))
    if head:
        made.put("network", "head_config", _dense(made, head, "head_config", set(Head.model_fields)))
    if config.get("squash_output") and "squash_output" in made.content["algorithm"]:
        made.put("algorithm", "squash_output", bool(config.pop("squash_output")))
    for key, value in config.items():
        if key in Network.model_fields:
            made.put("network", key, value)
        else:
            _say_if_set(made, f"network.{key}", value)


# Keys of dense layers that manifests do not have: what they say by default is how layers are made here.
DENSE_ONLY = ("init_layers", "output_vanish", "output_layernorm", "output_activation", "noisy", "noise_std", "rainbow")


def _dense(made: Conversion, given: Mapping[str, Any], name: str, known: set[str]) -> dict[str, Any]:
    own = {}
    for key, value in given.items():
        if key in known:
            if value is not None or key == "output_activation":
                own[key] = value
        elif key not in ("init_layers", "output_vanish") or value is False:
            _say_if_set(made, f"network.{name}.{key}", value)
    return own


def _leave_out_what_is_ignored(made: Conversion) -> None:
    """Keys that mean nothing to the algorithm: one file may serve several."""
    algo = made.content["algorithm"]["name"]
    for path in ignored_by(find_algorithm(algo).experience.name):
        section, _, key = path.partition(".")
        if section in made.content and (not key or key in made.content[section]):
            left = made.content.pop(section) if not key else {key: made.content[section].pop(key)}
            for name in left:
                made.drop(f"{section}.{name}", f"it means nothing to {algo}")


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


def _known_anywhere() -> set[str]:
    """Hyperparameters of all algorithms: one INIT_HP may serve several."""
    return {name.upper() for algo in available() for name in hyperparameters(find_algorithm(algo))}


def _unknown(path: str, key: str, known: Any) -> str:
    close = nearest(key, sorted(known), limit=1)
    hint, fix = (f" Did you mean {close[0]!r}?", close[0]) if close else ("", "leave it out")
    return f"{path} is not a known key.{hint} fix: {fix}."
