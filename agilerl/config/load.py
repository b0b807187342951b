"""Manifests from YAML, presets, dictionaries and single settings, and back to YAML; readable validation errors."""

from __future__ import annotations

import re
import types
import typing
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from agilerl.algorithms import DEFAULT_ALGORITHM, DEFAULT_FOR_LANGUAGE, canonical_name, find_algorithm, shipped_in
from agilerl.algorithms.base.declared import SYNONYMS, hyperparameters
from agilerl.config.convert import convert, is_published
from agilerl.config.schema import (
    ADDED_LATER,
    WITHOUT_WAITING,
    Algorithm,
    HyperparameterRange,
    Manifest,
    Training,
    algorithm_model,
    has_replay,
    no_hyperparameter,
)
from agilerl.env_ids import is_language_id
from agilerl.errors import AgileRLError, AgileRLWarning, ConfigError, RunError, nearest
from agilerl.hostile import read_text
from agilerl.ranges import describe

SECTION_ALIASES = {"selection_strategy": "tournament_selection"}
KEY_ALIASES = {
    ("algorithm", "learning_rate"): "lr",
    ("algorithm", "model"): "model_name",
    ("environment", "env_id"): "name",
    ("training", "total_timesteps"): "max_steps",
    ("training", "population_size"): "pop_size",
    ("training", "target"): "target_score",
    ("training", "min_noise_scale"): "explore_least",
    ("training", "max_confirmation_episodes"): "confirm_most",
    ("training", "confirmation_batch"): "confirm_screen",
    ("training", "screening_episodes"): "eval_screen",
    ("training", "max_eval_fraction"): "eval_share",
}
# Keys of an environment's preset that apply to every algorithm.
BUDGET = ("max_steps", "target_score", "stop_margin", "train_max_episode_steps", "eval_steps")
LARGEST_YAML = 1_000_000  # characters
MAX_YAML_NODES = 20_000
TOP_LEVEL_ALIASES = {
    "algo": ("algorithm", "name"),
    "env_id": ("environment", "name"),
    "total_timesteps": ("training", "max_steps"),
    "learning_rate": ("algorithm", "lr"),
}
IMAGE_KEYS = ("channel_size", "kernel_size", "stride_size", "padding_size", "cnn_config", "num_blocks", "block_type")
# Names used by other libraries, and everyday words, for our keys.
MEANT: dict[str, tuple[str, ...]] = {
    **{word: names[:1] for word, names in SYNONYMS.items()},
    "step": ("max_steps",),
    "steps": ("max_steps",),
    "total_steps": ("max_steps",),
    "timesteps": ("max_steps",),
    "budget": ("max_steps",),
    "frames": ("max_steps",),
    "population": ("pop_size",),
    "members": ("pop_size",),
    "learning_starts": ("learning_delay",),
    "buffer_size": ("max_size",),
    "memory_size": ("max_size",),
    "n_envs": ("num_envs",),
    "net_arch": ("hidden_size",),
    "target": ("target_score",),
    "epsilon": ("eps_start", "eps_end"),
    "exploration_fraction": ("eps_decay",),
    "max_episode_steps": ("train_max_episode_steps", "eval_steps"),
}
MIN_SIMILARITY = 0.7  # of names of settings: "beta" and "extra" have 0.67
_OF_TOURNAMENTS = ("mutation.probabilities", "tournament_selection.tournament_size", "tournament_selection.elitism")
RANGES = ("rl_hp_selection", "restart_ranges")  # sections whose keys are hyperparameters
NULLABLE = ("network.encoder_config",)  # sections that can be set to null as a whole
_FREE = (
    "mutation.rl_hp_selection.",
    "evolution.restart_ranges.",
    "environment.kwargs.",
    "network.encoder.",
    "algorithm.lora_config.",
)  # keys below these are free


def explain(errors: Iterable[Any], source: str, algorithm: str, before: Mapping[str, Any] | None = None) -> str:
    """Validation errors of a manifest as pydantic lists them, each on a line that starts with its source.

    Args:
        before: the settings before the change, whose values the fix names; None: the fix names defaults.
    """
    problems = dict.fromkeys(problem_of(e["type"], e["loc"], e, algorithm, before or {}) for e in errors)
    return "\n".join(f"{source}: {problem}" for problem in problems)


def errors_of(data: Mapping[str, Any]) -> list[Any]:
    """The validation errors of a plain manifest, as pydantic lists them."""
    try:
        Manifest.model_validate(data)
    except ValidationError as error:
        return list(error.errors(include_url=False))
    return []


def is_rule(error: Any, algorithm: str) -> bool:
    """Whether a validation error is of a rule over several keys, which the values of a preset may satisfy."""
    return error["type"] == "value_error" and located(error["loc"], algorithm)[1] is None


def unknown_key(path: str, known: Sequence[str]) -> str:
    """A message for an unknown key. `path` is dotted; `known` are the keys of its section."""
    section, _, leaf = path.rpartition(".")
    hint = hint_for(leaf, known) or f"(known: {', '.join(known)}) fix: a known one."
    where = "" if section else " at the top level"
    return f"{path} is not a known key{where}. {hint}"


def hint_for(name: str, known: Sequence[str]) -> str:
    """The likely intended key for an unknown one, with the fix; empty if none is close.

    Synonyms come before spelling: keys of image encoders belong in `network.encoder`, and other libraries' names map
    to ours.
    """
    if name in IMAGE_KEYS:
        return f"image keys belong in network.encoder. fix: network.encoder.{name}."
    words = {word: keys for word, keys in MEANT.items() if set(keys) <= set(known)}
    matches = [name.lower()] if name.lower() in words else nearest(name, [*known, *words], 1, MIN_SIMILARITY)
    close = [key for word in matches for key in (words.get(word, (word,)) if word not in known else (word,))]
    return f"Did you mean {' or '.join(map(repr, close))}? fix: {' or '.join(close)}." if close else ""


def section_fields(model: type[BaseModel], algorithm: str) -> dict[str, FieldInfo]:
    """The fields of a section; for the algorithm its hyperparameters and its name."""
    fields = dict(model.model_fields)
    if model is Algorithm:
        fields |= algorithm_model(algorithm).model_fields
    return fields


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section type of a field, nullable ones included; None for a plain value."""
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    kinds = typing.get_args(annotation) if is_union else (annotation,)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def item_of(annotation: Any) -> type[BaseModel] | None:
    """The section type of the items of a list, nullable ones included; None for anything else."""
    lists = [part for part in (annotation, *typing.get_args(annotation)) if typing.get_origin(part) is list]
    return section_of(typing.get_args(lists[0])[0]) if lists else None


def problem_of(kind: str, loc: tuple[int | str, ...], error: Any, algorithm: str, before: Mapping[str, Any]) -> str:
    """One message for a validation error of pydantic; `before`: see `explain`."""
    path, field, siblings = located(loc, algorithm)
    message = str(error.get("ctx", {}).get("error", ""))
    if kind == "extra_forbidden":
        return unknown_key(".".join(str(p) for p in loc), siblings)
    if kind == "missing" and isinstance(loc[-1], str):  # a number: an item of a list that is too short
        return _no_range(loc, algorithm) or f"{path} is missing. fix: add it."
    if is_rule(error, algorithm):
        return f"{path}: {message}" if path else message
    if kind == "model_type" or field is None:
        return (
            f"{path} must be a section of keys; got {error['input']!r}. fix: a key of it, such as {path}.{siblings[0]}."
        )
    fix = _usual_value(path, field, before)
    return f"{path} must be {describe(field.annotation, field.metadata)}; got {error['input']!r}. fix: {fix}."


def _usual_value(path: str, field: FieldInfo, before: Mapping[str, Any]) -> str:
    """A valid setting as `key=value`: the previous value, else the default, else advice to leave the key out."""
    value: Any = before
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    value = field.get_default(call_default_factory=False) if value is None else value
    value = next(iter(_literals(field.annotation)), None) if value is None or value is PydanticUndefined else value
    if value is None or isinstance(value, Mapping):
        return f"correct {path}" if field.is_required() else f"leave {path} out"
    value = list(value) if isinstance(value, tuple) else value
    return f"{path}={str(value).lower() if isinstance(value, bool) else value}".replace(" ", "")


def _literals(annotation: Any) -> tuple[Any, ...]:
    """The values of a Literal annotation, nullable ones included; empty for any other annotation."""
    if typing.get_origin(annotation) is typing.Literal:
        return typing.get_args(annotation)
    return tuple(value for part in typing.get_args(annotation) for value in _literals(part))


def _no_range(loc: tuple[int | str, ...], algorithm: str) -> str:
    """The message for a missing bound whose range names no hyperparameter of the algorithm; else empty."""
    if len(loc) < 3 or loc[1] not in RANGES:
        return ""
    names = [key for key, each in hyperparameters(find_algorithm(algorithm)).items() if each.is_number]
    path = ".".join(map(str, loc[:3]))
    return "" if loc[2] in names else no_hyperparameter(path, canonical_name(algorithm), names)


def located(
    loc: tuple[int | str, ...], algorithm: str, model: type[BaseModel] = Manifest
) -> tuple[str, FieldInfo | None, list[str]]:
    """(dotted path from `model`, the field there or None for a section, the keys of the innermost section)."""
    path: list[str] = []
    for position, part in enumerate(loc):
        fields = section_fields(model, algorithm)
        if part not in fields:
            break
        path.append(str(part))
        annotation, after = fields[str(part)].annotation, loc[position + 1 : position + 2]
        section, item = section_of(annotation), item_of(annotation)
        if section is not None:
            model = section
        elif item is not None and after and isinstance(after[0], int):
            below, field, siblings = located(loc[position + 2 :], algorithm, item)
            return f"{'.'.join(path)}[{after[0]}]{'.' if below else ''}{below}", field, siblings
        elif part in RANGES and position + 1 < len(loc):
            path.append(str(loc[position + 1]))
            rest, bounds = loc[position + 2 :], HyperparameterRange.model_fields
            if rest and rest[0] in bounds:
                return ".".join([*path, str(rest[0])]), bounds[str(rest[0])], list(bounds)
            return ".".join(path), None, list(bounds)
        else:
            return ".".join(path), fields[str(part)], list(fields)
    return ".".join(path), None, list(section_fields(model, algorithm))


def parse_yaml(text: str, source: str) -> Any:
    """Parse YAML to plain content; ConfigError names the line of an error.

    A duplicate key in one mapping is an error too: YAML would silently keep the last one. A text may have
    `LARGEST_YAML` characters, and `MAX_YAML_NODES` values with its aliases expanded.
    """
    if len(text) > LARGEST_YAML:
        raise ConfigError(
            f"{source}: has {len(text)} characters; a manifest has at most {LARGEST_YAML}. fix: shorten it."
        )
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        if _count_nodes(tree, {}) > MAX_YAML_NODES:
            raise ConfigError(f"{source}: aliases repeat more than {MAX_YAML_NODES} values. fix: write the values out.")
        repeated = _repeated_key(tree)
        content = yaml.safe_load(text)
    except RecursionError:
        raise ConfigError(
            f"{source}: is nested too deeply, or holds itself. fix: a manifest has four levels."
        ) from None
    except (ValueError, OverflowError) as error:
        if isinstance(error, ConfigError):
            raise
        reason = " ".join(str(error).split())
        raise ConfigError(f"{source}: holds a value that cannot be read ({reason}). fix: correct that value.") from None
    except yaml.YAMLError as error:
        marked_error = error if isinstance(error, yaml.MarkedYAMLError) else yaml.MarkedYAMLError()
        raise _yaml_error(source, marked_error.problem_mark, marked_error.problem or "cannot be read") from None
    if repeated is not None:
        raise _yaml_error(source, repeated.start_mark, f"the key {repeated.value!r} stands twice")
    return content


def _yaml_error(source: str, mark: Any, problem: str) -> ConfigError:
    where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return ConfigError(f"{source}:{where} is not valid YAML: {problem}. fix: correct that line.")


def _count_nodes(node: Any, counts: dict[int, int]) -> int:
    """Number of values below a node with every alias expanded; RecursionError for a node that contains itself."""
    if node is None or isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in counts:
        counts[id(node)] = -1  # being counted
        pairs = isinstance(node, yaml.MappingNode)
        children = [part for pair in node.value for part in pair] if pairs else node.value
        counts[id(node)] = 1 + sum(_count_nodes(child, counts) for child in children)
    if counts[id(node)] < 0:
        raise RecursionError
    return counts[id(node)]


def _repeated_key(node: Any) -> Any:
    """The first duplicate key node of a mapping, else None."""
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    return key
                seen.add(key.value)
            repeated = _repeated_key(value)
            if repeated is not None:
                return repeated
    elif isinstance(node, yaml.SequenceNode):
        return next((repeated for child in node.value if (repeated := _repeated_key(child)) is not None), None)
    return None


def manifest_from(
    data: Mapping[str, Any], source: str = "manifest", before: Mapping[str, Any] | None = None
) -> Manifest:
    """Validate a plain mapping; `source` prefixes every error. `before`: see `explain`."""
    plain, algorithm = _with_known_algorithm(normalise(data, source), source)
    try:
        return Manifest.model_validate(plain)
    except ValidationError as error:
        raise ConfigError(explain(error.errors(include_url=False), source, algorithm, before)) from None


def _with_known_algorithm(plain: dict[str, Any], source: str) -> tuple[dict[str, Any], str]:
    """The mapping with the canonical name of its algorithm, and that name.

    Raises:
        AgileRLError: there is no such algorithm; names the errors of the sections that do not depend on it too.
    """
    if not isinstance(plain.get("algorithm"), dict):
        return plain, DEFAULT_ALGORITHM
    try:
        name = canonical_name(str(plain["algorithm"].get("name", DEFAULT_ALGORITHM)))
    except AgileRLError as error:
        others = {name: part for name, part in plain.items() if name not in ("algorithm", "mutation")}
        wrong = [each for each in errors_of(others) if not is_rule(each, DEFAULT_ALGORITHM)]
        lines = [str(error), *([explain(wrong, source, DEFAULT_ALGORITHM)] if wrong else [])]
        raise type(error)("\n".join(lines)) from None
    return {**plain, "algorithm": {**plain["algorithm"], "name": name}}, name


def normalise(data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Replace aliases by canonical names; expand sections given as a plain name."""
    if not isinstance(data, Mapping):
        raise ConfigError(
            f"{source}: expected sections (algorithm, environment, ...); got {type(data).__name__}. "
            "fix: training: {max_steps: 100000}, say."
        )
    plain: dict[str, Any] = {}
    for key, value in data.items():
        name = SECTION_ALIASES.get(str(key), str(key))
        if name in ("algorithm", "environment") and isinstance(value, str):
            value = {"name": value}
        _put(plain, name, {} if value is None and name in Manifest.model_fields else value, str(key), source)
    for alias, (section, name) in TOP_LEVEL_ALIASES.items():
        if alias in plain and isinstance(plain.get(section, {}), Mapping):
            _put(plain.setdefault(section, {}), name, plain.pop(alias), alias, source)
    for (section, alias), name in KEY_ALIASES.items():
        if isinstance(plain.get(section), Mapping) and alias in plain[section]:
            plain[section] = dict(plain[section])
            _put(plain[section], name, plain[section].pop(alias), f"{section}.{alias}", source)
    _rename_mutable(plain, source)
    return plain


def _rename_mutable(plain: dict[str, Any], source: str) -> None:
    mutation = plain.get("mutation")
    ranges = mutation.get("rl_hp_selection") if isinstance(mutation, Mapping) else None
    if isinstance(mutation, Mapping) and isinstance(ranges, Mapping) and "learning_rate" in ranges:
        renamed = dict(ranges)
        _put(renamed, "lr", renamed.pop("learning_rate"), "mutation.rl_hp_selection.learning_rate", source)
        plain["mutation"] = {**mutation, "rl_hp_selection": renamed}


def _put(target: dict[str, Any], name: str, value: Any, given_as: str, source: str) -> None:
    if name in target:
        raise ConfigError(f"{source}: {given_as} and {name} are the same key. fix: keep one of them.")
    target[name] = value


def load_manifest(path: str | Path, env_id: str | None = None, algo: str | None = None) -> Manifest:
    """Read a YAML manifest; missing keys come from the preset of its environment.

    Args:
        path: the file.
        env_id: replaces the file's environment, or names one if the file does not.
        algo: replaces the file's algorithm.

    Raises:
        ConfigError: no such file, not YAML, or unknown keys and values, a line for each.
    """
    return on_preset(read_data(path), Path(path).name, env_id, algo)


def read_data(path: str | Path) -> Any:
    """The content of a YAML file as plain data, {} for an empty one; see `load_manifest`."""
    source = Path(path)
    if source.is_dir():
        raise ConfigError(
            f"the configuration {source} is a folder; expected a YAML file. fix: {source / 'config.yaml'}."
        )
    if not source.is_file():
        raise ConfigError(f"there is no configuration file {source}. fix: check the path given to --config.")
    try:
        text = read_text(source, 4 * LARGEST_YAML)
    except RunError as error:
        raise ConfigError(str(error)) from None
    data = parse_yaml(text, source.name)
    return {} if data is None else data


def on_preset(
    data: Mapping[str, Any], source: str = "config", env_id: str | None = None, algo: str | None = None
) -> Manifest:
    """Merge a plain mapping over the preset of its environment; arguments as in `load_manifest`.

    A configuration of the published library is translated, with a warning for each key without a counterpart; it is
    complete, so that no preset is read.
    """
    if is_published(data):
        return _from_published(data, source, env_id, algo)
    return manifest_from(merged(data, source, env_id, algo), source)


NO_ENVIRONMENT = "environment.name is missing. fix: add it, or name the environment in the call."


def prepared(
    data: Mapping[str, Any], source: str, env_id: str | None = None, algo: str | None = None
) -> dict[str, Any]:
    """A plain mapping as in `normalise`, with the environment and the algorithm that it or its preset names.

    Args:
        env_id, algo: replace those of the mapping.
    """
    plain = normalise(data, source)
    for section, override in (("environment", env_id), ("algorithm", algo)):
        if override is not None and isinstance(plain.setdefault(section, {}), Mapping):
            plain[section] = {**plain[section], "name": override}
    environment, described = environment_in(plain), plain.get("algorithm", {})
    if environment and isinstance(described, Mapping) and "name" not in described and not _is_record(plain):
        is_text = is_language_id(environment)
        name = DEFAULT_FOR_LANGUAGE if is_text else preset_for(environment).algorithm.name
        plain["algorithm"] = {"name": name, **described}
    return plain


def environment_in(plain: Mapping[str, Any]) -> str | None:
    """The environment that a plain mapping names."""
    section = plain.get("environment")
    name = section.get("name") if isinstance(section, Mapping) else None
    return str(name) if name else None


def merged(
    data: Mapping[str, Any], source: str = "config", env_id: str | None = None, algo: str | None = None
) -> dict[str, Any]:
    """A plain mapping over the preset of its environment, in which rules over several keys are not yet checked.

    A complete manifest written by an earlier version is reproduced: keys added later take their defaults, not the
    values of a preset.

    Raises:
        ConfigError: problems of the keys that are in it, or no environment.
    """
    plain, algorithm = _with_known_algorithm(prepared(data, source, env_id, algo), source)
    environment = environment_in(plain)
    wrong = [error for error in errors_of(plain) if not is_rule(error, algorithm)]  # a preset may satisfy rules
    lines = [explain(wrong, source, algorithm)] if wrong else []
    lines += [] if environment else [f"{source}: {NO_ENVIRONMENT}"]
    if environment is None or lines:
        raise ConfigError("\n".join(lines))
    if _is_record(plain):
        return plain
    base = preset_for(environment, algorithm)
    asked = [f"{section}.{key}" for section, keys in plain.items() if isinstance(keys, Mapping) for key in keys]
    return _giving_way(_merge(base.as_dict(), plain), asked)


def _is_record(plain: Mapping[str, Any]) -> bool:
    """Whether it is a complete manifest, as this library writes into a run directory."""
    sections = {"format", "environment", "algorithm", "network", "mutation", "tournament_selection"}
    training = plain.get("training")
    every = set(Training.model_fields) - set(ADDED_LATER)
    return sections <= set(plain) and isinstance(training, Mapping) and every <= set(training)


def _from_published(data: Mapping[str, Any], source: str, env_id: str | None, algo: str | None) -> Manifest:
    conversion = convert(data, source)
    algorithm = conversion.content["algorithm"]["name"]
    if algo is not None and canonical_name(algo) != algorithm:
        raise ConfigError(f"{source}: is a configuration of {algorithm}, not of {algo}. fix: leave --algo out.")
    if env_id is not None:
        conversion.put("environment", "name", env_id)
    if "name" not in conversion.content["environment"]:
        raise ConfigError(f"{source}: INIT_HP.ENV_NAME is missing. fix: add it, or name the environment in the call.")
    for note in conversion.notes:
        warnings.warn(f"{source}: {note}.", AgileRLWarning, stacklevel=4)
    return manifest_from(conversion.content, source)


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge section by section, `over` wins; mutable hyperparameters, keyword arguments and adapters replace whole."""
    whole = (*RANGES, "kwargs", "lora_config")
    both = {k for k, v in over.items() if isinstance(v, Mapping) and isinstance(base.get(k), dict) and k not in whole}
    return {**base, **{k: _merge(base[k], v) if k in both else v for k, v in over.items()}}


GENERAL, FEW_STEPS = "default", "few_steps"  # names of the presets of no environment


def preset_names() -> list[str]:
    """The environment ids with a preset."""
    return sorted({name for name, _ in _preset_files() if name not in (GENERAL, FEW_STEPS)})


def _preset_files() -> dict[tuple[str, str | None], Any]:
    """(environment id, algorithm or None for the environment's default) -> file.

    `<id>.yaml` is the preset of an environment, `<id>.<algorithm>.yaml` that of another algorithm there; the slash of
    an id, or the dot of a module, is written `__`.
    """
    files: dict[tuple[str, str | None], Any] = {}
    for file in (resources.files("agilerl") / "presets").iterdir():
        if file.name.endswith(".yaml"):
            stem, _, algorithm = file.name.removesuffix(".yaml").partition(".")
            of_module = re.search(r"_v\d+$", stem)  # a multi-agent environment is named by its module
            files[(stem.replace("__", "." if of_module else "/"), algorithm or None)] = file
    return files


def _model_of_presets(algo: str) -> str:
    """The algorithm whose presets apply to `algo`: itself, or the shipped one that a custom class derives from.

    Presets name every hyperparameter of their algorithm, so that a class which does not take all of them has none.
    """
    cls = find_algorithm(algo)
    for base in cls.__mro__:
        if shipped_in(base.__name__) == base.__module__:
            return str(base.__name__) if set(hyperparameters(base)) <= set(hyperparameters(cls)) else algo
    return algo


def preset_for(env_id: str, algo: str | None = None, *, general: bool = False, few_steps: bool = False) -> Manifest:
    """The starting values for an environment: its preset, that of its newest version, or the general one.

    Args:
        env_id: a Gymnasium id; `environment.name` of the result is this id, whichever preset is used.
        algo: an algorithm; if the environment has no preset for it, the general preset of that algorithm is used, with
            the environment's budget and target. A custom class has the presets of the algorithm it derives from, if
            it takes its hyperparameters.
        general: ignore the environment's preset.
        few_steps: the general one for budgets of few environment steps; `algo` has to be one of `has_few_steps`.
    """
    name, files = GENERAL if general else FEW_STEPS if few_steps else _preset_name(env_id), _preset_files()
    if algo is None and name == GENERAL and is_language_id(env_id):
        algo = DEFAULT_FOR_LANGUAGE
    wanted = None if algo is None else canonical_name(str(algo))
    if name != GENERAL and wanted is not None and not is_language_id(env_id):
        check_kind(wanted, env_id)
    model = None if wanted is None else _model_of_presets(wanted)
    label = f"{name}.{model}" if (name, model) in files and model is not None else name

    def content(key: tuple[str, str | None]) -> dict[str, Any]:
        return dict(parse_yaml(files[key].read_text(encoding="utf-8"), f"preset {key[0]}"))

    data = content((name, model if label != name else None))
    if model is not None and model != canonical_name(data["algorithm"]["name"]):
        usual = content((GENERAL, model)) if (GENERAL, model) in files else {}
        budget = {} if general else {k: data["training"][k] for k in BUDGET if k in data["training"]}
        training = {**usual.get("training", {}), **budget}
        algorithm = usual.get("algorithm", {})
        data = {"environment": data.get("environment", {}), **usual, "algorithm": algorithm}
        data["training"] = training
    if wanted is not None:
        data["algorithm"] = {**data["algorithm"], "name": wanted}
    data["environment"] = {**data.get("environment", {}), "name": env_id}
    return manifest_from(data, f"preset {label}")


def check_kind(algo: str, env_id: str, is_of_language: bool = False) -> None:
    """Raise ConfigError for a language algorithm in an RL environment, or an RL algorithm in a language environment.

    is_of_language: whether it is a language environment, if its name does not tell.
    """
    learns_language = bool(find_algorithm(algo).learns_language)
    asks = is_of_language or is_language_id(env_id)
    if learns_language and not asks:
        raise ConfigError(
            f"{algo} trains language models, and {env_id} has observations and actions. fix: an id such as "
            "reasoning/chain_sum or arithmetic/addition-2, or another algorithm."
        )
    if asks and not learns_language:
        raise ConfigError(
            f"{env_id} asks questions of language models; {algo} has spaces of observations and actions. "
            "fix: algo='GRPO' with model='path/to/model'."
        )


def has_preset(env_id: str) -> bool:
    """Whether an environment, or another version of it, has a preset."""
    return _preset_name(env_id) != GENERAL


def has_few_steps(algo: str) -> bool:
    """Whether there is a general preset of an algorithm for budgets of few environment steps."""
    return (FEW_STEPS, canonical_name(algo)) in _preset_files()


def _preset_name(env_id: str) -> str:
    names = preset_names()
    if env_id in names:
        return env_id
    base = re.sub(r"[-_]v\d+$", "", env_id)
    versions = [n for n in names if re.sub(r"[-_]v\d+$", "", n) == base]
    return max(versions, key=lambda n: int(n.rpartition("v")[2])) if versions else GENERAL


def dump_yaml(manifest: Manifest) -> str:
    """The complete manifest as YAML; reading it gives an equal manifest."""
    text: str = yaml.safe_dump(manifest.as_dict(), sort_keys=False, default_flow_style=None, width=120)
    return text


def apply_sets(manifest: Manifest, sets: Iterable[str]) -> Manifest:
    """Apply `section.key=value` settings in order; values are YAML (`true`, `3`, `[64, 64]`, `null`)."""
    values: dict[str, Any] = {}
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {text!r} is not KEY=VALUE. fix: --set training.pop_size=6.")
        values[key.strip()] = parse_yaml(value, f"--set {key.strip()}")
    return apply_overrides(manifest, values, "--set")


def algorithm_in(sets: Iterable[str]) -> str | None:
    """Return the value of `algorithm.name` in settings of the form KEY=VALUE; None if it is not set."""
    parts = [text.partition("=") for text in sets]
    values = [value.strip() for key, _, value in parts if key.strip() == "algorithm.name"]
    return values[-1] if values else None


# Sections that a resumed run may change; the others describe existing agents and experience.
GOING_ON = ("training", "mutation", "tournament_selection")
FIXED = ("training.pop_size", "training.seed", "training.shards", "training.share")


def going_on(manifest: Manifest, sets: Iterable[str]) -> Manifest:
    """`apply_sets` for a resumed run; ConfigError for settings that its agents or its experience depend on."""
    sets = list(sets)
    name = algorithm_in(sets)
    if name is not None and canonical_name(name) != manifest.algorithm.name:
        raise ConfigError(
            f"resume --set cannot change algorithm.name: the run trains {manifest.algorithm.name}; got {name}. "
            f"fix: leave it out, or a new run: `agilerl train {manifest.environment.name} --algo {name}`."
        )
    changed = apply_sets(manifest, sets)
    before, after = manifest.as_dict(), changed.as_dict()
    settled = [name for name in after if name not in GOING_ON and after[name] != before[name]]
    settled += [key for key in FIXED if _value(after, key) != _value(before, key)]
    if settled:
        raise ConfigError(
            f"resume --set cannot change {', '.join(settled)}: the run's agents and experience were made with it. "
            f"fix: a key of {', '.join(GOING_ON)}, or a new run."
        )
    return changed


def _value(data: Mapping[str, Any], key: str) -> Any:
    section, _, name = key.partition(".")
    return data[section][name]


def apply_overrides(manifest: Manifest, overrides: Mapping[str, Any], source: str = "override") -> Manifest:
    """A new manifest with some keys replaced.

    Args:
        manifest: the starting values; unchanged.
        overrides: dotted keys (`training.pop_size`), or unique last names (`pop_size`), to values.
        source: prefix of every error.

    Raises:
        ConfigError: an unknown key (the nearest one is named), an ambiguous name, or a value out of range.
    """
    if not overrides:
        return manifest
    data = manifest.as_dict()
    paths, asked = leaf_paths(manifest.algorithm.name), []
    for name, value in overrides.items():
        path = resolve_key(name, paths, source, manifest.algorithm.name)
        asked.append(path)
        *sections, leaf = path.split(".")
        target = data
        for section in sections:
            if not isinstance(target.get(section), dict):
                target[section] = {}
            target = target[section]
        target[leaf] = _plain(value)
    if "training.max_steps" in asked and "training.stop_after" not in asked:  # a new budget of steps
        data["training"]["stop_after"] = None
    try:
        return manifest_from(_giving_way(data, asked), source, manifest.as_dict())
    except ConfigError:
        before, after = manifest.algorithm.name, canonical_name(str(data["algorithm"].get("name")))
        if "algorithm.name" not in asked or after == before:
            raise
        raise ConfigError(
            f"{source}: algorithm.name={after} does not fit the other settings, which are those of {before}. "
            f"fix: algo={after!r}, which has settings of its own."
        ) from None


def _plain(value: Any) -> Any:
    """Return typed network configurations as plain mappings, other values unchanged."""
    if value is None or isinstance(value, str | int | float | list | tuple | Mapping):
        return value
    from agilerl.modules.configs import NetConfig  # lazy: it imports torch

    return dict(value) if isinstance(value, NetConfig) else value


def _giving_way(data: dict[str, Any], asked: Iterable[str]) -> dict[str, Any]:
    """Let requested settings replace the conflicting ones of a preset.

    Settings of tournaments or mutations replace its scheme, a requested scheme its mutation probabilities, equal
    founders its widths, and asynchronous mode what compares all members of one generation.
    """
    paths = list(asked)
    if "evolution.mode" in paths and data["evolution"]["mode"] == "async":
        with_replay = has_replay(str(data["algorithm"]["name"]))
        for path, value in WITHOUT_WAITING.items():
            section, _, name = path.partition(".")
            if path not in paths and (with_replay or path != "training.share"):
                data = {**data, section: {**data[section], name: value}}
    if "evolution.founders" in paths and "evolution.widths" not in paths and data["evolution"]["founders"] == "equal":
        data = {**data, "evolution": {**data["evolution"], "widths": None}}
    if "evolution.scheme" not in paths:
        if any(path.startswith(_OF_TOURNAMENTS) for path in paths):
            return {**data, "evolution": {**data.get("evolution", {}), "scheme": "tournament"}}
    elif data["evolution"]["scheme"] != "tournament" and not any(p.startswith("mutation.prob") for p in paths):
        mutation = {key: value for key, value in data.get("mutation", {}).items() if key != "probabilities"}
        return {**data, "mutation": mutation}
    return data


def leaf_paths(algorithm: str, model: type[BaseModel] = Manifest, prefix: str = "") -> list[str]:
    """Dotted paths of all keys of an algorithm."""
    paths = []
    for name, field in section_fields(model, algorithm).items():
        section = section_of(field.annotation)
        if section is not None:
            paths += leaf_paths(algorithm, section, f"{prefix}{name}.")
        else:
            paths.append(prefix + name)
    return paths


def resolve_key(name: str, paths: list[str], source: str, algorithm: str) -> str:
    """Resolve `name` to its full dotted path; `paths`: those of the algorithm."""
    path = _without_aliases(name)
    if path in paths or path in NULLABLE or path.startswith(_FREE):
        return path
    below = [p for p in paths if p.startswith(path + ".")]
    if below:
        raise ConfigError(f"{source}: {name} is a section. fix: set one of its keys: {', '.join(below)}.")
    if name == "net_config":
        raise ConfigError(
            f"{source}: net_config is an argument of algorithm classes. fix: its parts, such as latent_dim=64, "
            "encoder={'hidden_size': [64]} and head={'hidden_size': [64]}."
        )
    if "." not in path:
        return _unique_leaf(path, paths, source, algorithm)
    section = path.rpartition(".")[0]
    siblings = [p.removeprefix(section + ".") for p in paths if p.startswith(section + ".")]
    if section == "algorithm" and not hint_for(path.rpartition(".")[2], siblings):
        raise ConfigError(f"{source}: {_undeclared(name, algorithm)}")
    if siblings:
        raise ConfigError(f"{source}: {unknown_key(name, siblings)}")
    hint = _hint(path, paths) or "fix: `agilerl train ENV_ID --dry-run` prints every key."
    raise ConfigError(f"{source}: {name} is not a known key. {hint}")


def _undeclared(name: str, algorithm: str) -> str:
    """The message for a key that is near no other one: what the algorithm takes, and how a custom one declares more."""
    accepted = ", ".join(hyperparameters(find_algorithm(algorithm))) or "no hyperparameters"
    more = "`agilerl train ENV_ID --dry-run` prints every key"
    if shipped_in(algorithm) is None:
        leaf = name.rpartition(".")[2]
        more = f"declare it in the constructor of {algorithm}: {leaf}: Annotated[float, hp()] = 0.1"
    return f"{name} is not a known key; {algorithm} takes {accepted}. fix: one of these, or {more}."


def _without_aliases(name: str) -> str:
    if name in TOP_LEVEL_ALIASES:
        return ".".join(TOP_LEVEL_ALIASES[name])
    head, dot, rest = name.partition(".")
    head = SECTION_ALIASES.get(head, head)
    return f"{head}{dot}{KEY_ALIASES.get((head, rest), rest)}"


def _unique_leaf(leaf: str, paths: list[str], source: str, algorithm: str) -> str:
    leaf = {alias: name for (_, alias), name in KEY_ALIASES.items()}.get(leaf, leaf)
    matches = [p for p in paths if p.rpartition(".")[2] == leaf]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ConfigError(f"{source}: {leaf} is ambiguous: {', '.join(matches)}. fix: write the dotted name.")
    leaves = {p.rpartition(".")[2] for p in paths}
    leaves |= {alias for (_, alias), name in KEY_ALIASES.items() if name in leaves}
    hint = _hint(leaf, sorted(leaves))
    if not hint:
        raise ConfigError(f"{source}: {_undeclared(leaf, algorithm)}")
    raise ConfigError(f"{source}: {leaf} is not a known key. {hint}")


def _hint(name: str, valid_names: list[str]) -> str:
    if name.rpartition(".")[2] in ("model_name", "lora_config"):
        return "fix: it is of language algorithms, such as algo='GRPO'."
    return hint_for(name, valid_names)
