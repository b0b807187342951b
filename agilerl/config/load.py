"""Manifests from YAML, presets and dictionaries, and back to YAML."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from agilerl.algorithms import DEFAULT_ALGORITHM, canonical_name
from agilerl.config.compatibility import RULES
from agilerl.config.keys import KEY_ALIASES, RANGES, REMOVED, SECTION_ALIASES, TOP_LEVEL_ALIASES, is_published
from agilerl.config.presets import has_preset, preset_content
from agilerl.config.problems import errors_of_keys, explain
from agilerl.config.schema import FIRST_KEYS, Manifest, has_replay
from agilerl.config.yaml_text import LARGEST_YAML, parse_yaml
from agilerl.core import foreign
from agilerl.core.env_ids import reward_threshold
from agilerl.core.hostile import read_text
from agilerl.errors import AgileRLError, AgileRLWarning, ConfigError, RunError


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
    """`with_canonical_name`, whose error names those of the sections that do not depend on the algorithm too."""
    try:
        return with_canonical_name(plain)
    except AgileRLError as error:
        wrong = errors_of_keys(without_algorithm(plain), DEFAULT_ALGORITHM)
        lines = [f"{source}: algorithm.name: {error}"]
        lines += [explain(wrong, source, DEFAULT_ALGORITHM)] if wrong else []
        raise type(error)("\n".join(lines)) from None


def with_canonical_name(plain: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The mapping with the canonical name of its algorithm, and that name; AgileRLError: no such algorithm."""
    section = plain.get("algorithm")
    if not isinstance(section, Mapping):
        return plain, DEFAULT_ALGORITHM
    name = canonical_name(str(section.get("name", DEFAULT_ALGORITHM)))
    return {**plain, "algorithm": {**section, "name": name}}, name


def without_algorithm(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The sections whose keys do not depend on the algorithm."""
    return {name: part for name, part in plain.items() if name not in ("algorithm", "mutation")}


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
        if name in ("algorithm", "environment"):
            if isinstance(value, str):
                value = {"name": value}
            elif isinstance(value, Mapping) and value.get("name", "") is None:  # as if it were left out
                value = {key: part for key, part in value.items() if key != "name"}
        _put(plain, name, {} if value is None and name in Manifest.model_fields else value, str(key), source)
    for alias, (section, name) in TOP_LEVEL_ALIASES.items():
        if alias in plain and isinstance(plain.get(section, {}), Mapping):
            value = plain.pop(alias)
            if value is not None or name != "name":
                _put(plain.setdefault(section, {}), name, value, alias, source, section)
    for section, usual in REMOVED.items():
        if isinstance(plain.get(section), Mapping):
            plain[section] = {k: v for k, v in plain[section].items() if k not in usual or v != usual[k]}
    for (section, alias), name in KEY_ALIASES.items():
        if isinstance(plain.get(section), Mapping) and alias in plain[section]:
            plain[section] = dict(plain[section])
            _put(plain[section], name, plain[section].pop(alias), f"{section}.{alias}", source, section)
    _rename_mutable(plain, source)
    return plain


def _rename_mutable(plain: dict[str, Any], source: str) -> None:
    mutation = plain.get("mutation")
    ranges = mutation.get("rl_hp_selection") if isinstance(mutation, Mapping) else None
    if isinstance(mutation, Mapping) and isinstance(ranges, Mapping) and "learning_rate" in ranges:
        renamed = dict(ranges)
        section = "mutation.rl_hp_selection"
        _put(renamed, "lr", renamed.pop("learning_rate"), f"{section}.learning_rate", source, section)
        plain["mutation"] = {**mutation, "rl_hp_selection": renamed}


def _put(target: dict[str, Any], name: str, value: object, given_as: str, source: str, section: str = "") -> None:
    if name in target:
        whole = f"{section}.{name}" if section else name
        raise ConfigError(f"{source}: {given_as} and {whole} are the same key. fix: keep one of them.")
    target[name] = value


def names_algorithm(data: Mapping[str, Any], source: str) -> bool:
    """Whether a plain mapping, or one of the published library, says what learns."""
    if is_published(data):
        return True
    plain = normalise(data, source)
    described = plain.get("algorithm", {})
    return not isinstance(described, Mapping) or "name" in described or _is_record(plain)


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
        raise ConfigError(f"{source} is a folder; expected a YAML file. fix: {source / 'config.yaml'}.")
    if not source.is_file():
        raise ConfigError(f"there is no configuration file {source}. fix: check the path.")
    try:
        text = read_text(source, 4 * LARGEST_YAML)
    except RunError as error:
        raise ConfigError(str(error)) from None
    data = parse_yaml(text, source.name)
    return {} if data is None else data


def on_preset(
    data: Mapping[str, Any],
    source: str = "config",
    env_id: str | None = None,
    algo: str | None = None,
    env: foreign.Env | None = None,
) -> Manifest:
    """Merge a plain mapping over the preset of its environment; other arguments as in `load_manifest`.

    Without a preset the target, unless the mapping has one, is the reward threshold of the environment's registration:
    of `env`, if it is handed over, else of its id.
    A configuration of the published library is translated, with a warning for each key without a counterpart; it is
    complete, so that no preset is read.
    """
    if is_published(data):
        return _from_published(data, source, env_id, algo)
    plain = prepared(data, source, env_id, algo)
    try:
        whole, environment = merged(plain, source), environment_in(plain)
        is_settled = "target_score" in plain.get("training", {}) or has_preset(environment or "") or _is_record(plain)
        if not is_settled:
            target = reward_threshold(environment if env is None else env)
            whole["training"] = {**whole["training"], "target_score": target}
        return manifest_from(whole, source)
    except ConfigError as error:
        if algo is not None or names_algorithm(data, source):
            raise
        usual = plain["algorithm"]["name"] if environment_in(plain) else ""
        if not usual or usual not in str(error).replace(source, ""):
            raise
        chosen = f"{source}: names no algorithm, so {usual} learns. fix: algorithm: DQN, say."
        raise ConfigError(f"{error}\n{chosen}") from None


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
        plain["algorithm"] = {"name": preset_for(environment).algorithm.name, **described}
    return plain


def environment_in(plain: Mapping[str, Any]) -> str | None:
    """The environment that a plain mapping names."""
    section = plain.get("environment")
    name = section.get("name") if isinstance(section, Mapping) else None
    return str(name) if name else None


def lacks_environment(plain: Mapping[str, Any]) -> bool:
    """Whether a plain mapping leaves out what is trained in; a section of another type is a problem of its own."""
    return environment_in(plain) is None and isinstance(plain.get("environment", {}), Mapping)


def merged(plain: dict[str, Any], source: str) -> dict[str, Any]:
    """A mapping of `prepared` over the preset of its environment; rules over several keys are not yet checked.

    A complete manifest written by an earlier version is reproduced: keys added later take their defaults, not the
    values of a preset.

    Raises:
        ConfigError: problems of the keys that are in it, or no environment.
    """
    plain, algorithm = _with_known_algorithm(plain, source)
    environment = environment_in(plain)
    wrong = errors_of_keys(plain, algorithm)
    lines = [explain(wrong, source, algorithm)] if wrong else []
    lines += [f"{source}: {NO_ENVIRONMENT}"] if lacks_environment(plain) else []
    if environment is None or lines:
        raise ConfigError("\n".join(lines))
    if _is_record(plain):
        return plain
    base = preset_for(environment, algorithm)
    asked = [f"{section}.{key}" for section, keys in plain.items() if isinstance(keys, Mapping) for key in keys]
    return giving_way(_merge(base.as_dict(), plain), asked)


def _is_record(plain: Mapping[str, Any]) -> bool:
    """Whether it is a complete manifest, as this library writes into a run directory."""
    sections = {"format", "environment", "algorithm", "network", "mutation", "tournament_selection"}
    training = plain.get("training")
    return sections <= set(plain) and isinstance(training, Mapping) and FIRST_KEYS["training"] <= set(training)


def _from_published(data: Mapping[str, Any], source: str, env_id: str | None, algo: str | None) -> Manifest:
    from agilerl.config.convert import convert

    conversion = convert(data, source)
    algorithm = conversion.content["algorithm"]["name"]
    if algo is not None and canonical_name(algo) != algorithm:
        raise ConfigError(f"{source}: is a configuration of {algorithm}, not of {algo}. fix: leave --algo out.")
    if env_id is not None:
        conversion.put("environment", "name", env_id)
    problems = [f"{source}: {problem}" for problem in conversion.problems]
    if "name" not in conversion.content["environment"]:
        where = "INIT_HP.ENV_NAME" if conversion.paths else "environment.name"
        problems.append(f"{source}: {where} is missing. fix: add it, or name the environment in the call.")
    try:
        manifest = manifest_from(conversion.content, source)
    except ConfigError as error:
        raise ConfigError("\n".join([*problems, str(error)])) from None
    if problems:
        raise ConfigError("\n".join(problems))
    if conversion.ignored:
        warnings.warn(f"{source}: {conversion.note()}.", AgileRLWarning, stacklevel=4)
    return manifest


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge section by section, `over` wins; mutable hyperparameters, keyword arguments and adapters replace whole."""
    whole = (*RANGES, "kwargs", "lora_config")
    both = {k for k, v in over.items() if isinstance(v, Mapping) and isinstance(base.get(k), dict) and k not in whole}
    return {**base, **{k: _merge(base[k], v) if k in both else v for k, v in over.items()}}


def preset_for(env_id: str, algo: str | None = None, *, general: bool = False, few_steps: bool = False) -> Manifest:
    """The starting values for an environment: its preset, that of its newest version, or the general one.

    Args:
        env_id: a Gymnasium id; `environment.name` of the result is this id, whichever preset is used.
        algo: an algorithm; None: the environment's preset names it, or `usual_algorithm`. If the environment has no
            preset for it, the general preset of that algorithm is used, with the environment's budget and target. A
            custom class has the presets of the algorithm it derives from, if it takes its hyperparameters.
        general: ignore the environment's preset.
        few_steps: the general one for budgets of few environment steps; `algo` has to be one of `has_few_steps`.
    """
    return manifest_from(*preset_content(env_id, algo, general=general, few_steps=few_steps))


def dump_yaml(manifest: Manifest) -> str:
    """The complete manifest as YAML; reading it gives an equal manifest."""
    text: str = yaml.safe_dump(manifest.as_dict(), sort_keys=False, default_flow_style=None, width=120)
    return text


SETTINGS = ("training", "mutation", "tournament_selection", "evolution")  # with rows that yield


def giving_way(data: dict[str, Any], asked: Iterable[str]) -> dict[str, Any]:
    """Let requested settings replace the conflicting ones of a preset, by the rows that say so (`Rule.yields`)."""
    paths, default = list(asked), Manifest().as_dict()
    usual = {f"{section}.{key}": value for section in SETTINGS for key, value in default[section].items()}
    facts = {f"{section}.{key}": value for section in SETTINGS for key, value in data[section].items()}
    if not has_replay(str(data["algorithm"]["name"])):
        del facts["training.share"]
    for rule in RULES:
        if not rule.yields or not facts.keys() >= {*rule.settings, *rule.needs}:
            continue
        names = [key for key in rule.settings if rule.applies(key, facts[key], usual)]
        broken = [key for key, values in rule.needs.items() if not values.accepts(facts[key])]
        chosen = [key for key in (*names, *broken) if any(path.startswith(key) for path in paths)]
        is_asked = any(key in names for key in chosen)
        changes = {key: rule.needs[key].example if is_asked else usual[key] for key in (broken if is_asked else names)}
        for key in changes.keys() & {*rule.yields} - {*chosen} if names and broken and chosen else ():
            section, _, name = key.partition(".")
            data = {**data, section: {**data[section], name: changes[key]}}
    return data
