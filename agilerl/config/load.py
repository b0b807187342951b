"""From YAML, presets and plain dictionaries to a manifest, and back to YAML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from agilerl.algorithms import USUAL, canonical_name
from agilerl.config.messages import explain
from agilerl.config.schema import Manifest
from agilerl.errors import ConfigError, RunError
from agilerl.hostile import read_text

SECTION_ALIASES = {"selection_strategy": "tournament_selection"}
KEY_ALIASES = {
    ("algorithm", "learning_rate"): "lr",
    ("environment", "env_id"): "name",
    ("training", "total_timesteps"): "max_steps",
    ("training", "population_size"): "pop_size",
}
# What of an environment's preset holds for every algorithm.
BUDGET = ("max_steps", "target_score", "stop_margin", "train_max_episode_steps", "eval_steps")
LARGEST_YAML = 1_000_000  # characters
MOST_NODES = 20_000
TOP_LEVEL_ALIASES = {
    "algo": ("algorithm", "name"),
    "env_id": ("environment", "name"),
    "total_timesteps": ("training", "max_steps"),
    "learning_rate": ("algorithm", "lr"),
}


def parse_yaml(text: str, source: str) -> Any:
    """The plain content of a YAML text; ConfigError names the line of a mistake.

    A key that stands twice in one mapping is a mistake too: YAML would keep the last one without a word. A text may
    have `LARGEST_YAML` characters, and `MOST_NODES` values when its aliases are written out.
    """
    if len(text) > LARGEST_YAML:
        raise ConfigError(
            f"{source}: has {len(text)} characters; a manifest has at most {LARGEST_YAML}. fix: shorten it."
        )
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        if _count_nodes(tree, {}) > MOST_NODES:
            raise ConfigError(f"{source}: aliases repeat more than {MOST_NODES} values. fix: write the values out.")
        repeated = _repeated_key(tree)
        content = yaml.safe_load(text)
    except RecursionError:
        raise ConfigError(
            f"{source}: is nested too deeply, or holds itself. fix: a manifest has four levels."
        ) from None
    except (ValueError, OverflowError) as error:
        if isinstance(error, ConfigError):
            raise
        what = " ".join(str(error).split())
        raise ConfigError(f"{source}: holds a value that cannot be read ({what}). fix: correct that value.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "cannot be read"
        raise _yaml_error(source, mark, problem) from None
    if repeated is not None:
        raise _yaml_error(source, repeated.start_mark, f"the key {repeated.value!r} stands twice")
    return content


def _yaml_error(source: str, mark: Any, problem: str) -> ConfigError:
    where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return ConfigError(f"{source}:{where} is not valid YAML: {problem}. fix: correct that line.")


def _count_nodes(node: Any, known: dict[int, int]) -> int:
    """Values below a node with every alias written out; RecursionError for a node that holds itself."""
    if node is None or isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in known:
        known[id(node)] = -1  # being counted
        pairs = isinstance(node, yaml.MappingNode)
        children = [part for pair in node.value for part in pair] if pairs else node.value
        known[id(node)] = 1 + sum(_count_nodes(child, known) for child in children)
    if known[id(node)] < 0:
        raise RecursionError
    return known[id(node)]


def _repeated_key(node: Any) -> Any:
    """The first key node that repeats another one of its mapping, else None."""
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    return key
                seen.add(key.value)
            found = _repeated_key(value)
            if found is not None:
                return found
    elif isinstance(node, yaml.SequenceNode):
        return next((found for child in node.value if (found := _repeated_key(child)) is not None), None)
    return None


def manifest_from(data: Mapping[str, Any], source: str = "manifest") -> Manifest:
    """Validate a plain mapping; `source` stands in front of every problem found."""
    plain = normalise(data, source)
    if isinstance(plain.get("algorithm"), dict):
        name = plain["algorithm"].get("name", USUAL)
        plain["algorithm"] = {**plain["algorithm"], "name": canonical_name(str(name))}
    try:
        return Manifest.model_validate(plain)
    except ValidationError as error:
        raise ConfigError(explain(error, source, plain)) from None


def normalise(data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Replace aliases by our names; sections that are only a name become sections."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{source}: expected sections (algorithm, environment, ...); got {type(data).__name__}.")
    plain: dict[str, Any] = {}
    for key, value in data.items():
        name = SECTION_ALIASES.get(str(key), str(key))
        if name in ("algorithm", "environment") and isinstance(value, str):
            value = {"name": value}
        _put(plain, name, {} if value is None and name in Manifest.model_fields else value, str(key), source)
    for alias, (section, name) in TOP_LEVEL_ALIASES.items():
        if alias in plain:
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
    """Read a YAML manifest. What it leaves out comes from the preset of its environment.

    Args:
        path: the file.
        env_id: replaces the file's environment, or names it where the file does not.
        algo: replaces the file's algorithm.

    Raises:
        ConfigError: no such file, not YAML, or unknown keys and values; all of them are listed in one line.
    """
    source = Path(path)
    if not source.is_file():
        raise ConfigError(f"there is no configuration file {source}. fix: check the path given to --config.")
    try:
        text = read_text(source, 4 * LARGEST_YAML)
    except RunError as error:
        raise ConfigError(str(error)) from None
    data = parse_yaml(text, source.name)
    return on_preset({} if data is None else data, source.name, env_id, algo)


def on_preset(
    data: Mapping[str, Any], source: str = "config", env_id: str | None = None, algo: str | None = None
) -> Manifest:
    """A plain mapping over the preset of its environment; the arguments are those of `load_manifest`."""
    plain = normalise(data, source)
    for section, given in (("environment", env_id), ("algorithm", algo)):
        if given is not None and isinstance(plain.setdefault(section, {}), Mapping):
            plain[section] = {**plain[section], "name": given}
    named = {s: plain[s].get("name") for s in ("environment", "algorithm") if isinstance(plain.get(s), Mapping)}
    manifest_from(plain, source)  # problems are reported against what the user wrote
    if not named.get("environment"):
        raise ConfigError(f"{source}: environment.name is missing. fix: add it, or name the environment in the call.")
    base = preset_for(str(named["environment"]), named.get("algorithm"))
    return manifest_from(_merge(base.as_dict(), plain), source)


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` wins, section by section; a list of mutable hyperparameters and keyword arguments replace whole."""
    merged = dict(base)
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(base.get(key), dict) and key not in ("rl_hp_selection", "kwargs"):
            merged[key] = _merge(base[key], value)
        else:
            merged[key] = value
    return merged


def preset_names() -> list[str]:
    """The environment ids that have a preset of their own."""
    return sorted({name for name, _ in _preset_files() if name != "default"})


def _preset_files() -> dict[tuple[str, str | None], Any]:
    """(environment id, algorithm or None for the one that an environment gets unasked) -> file.

    `<id>.yaml` is the preset of an environment, `<id>.<algorithm>.yaml` that of another algorithm there; the slash of
    an id is written `__`.
    """
    found: dict[tuple[str, str | None], Any] = {}
    for file in (resources.files("agilerl") / "presets").iterdir():
        if file.name.endswith(".yaml"):
            stem, _, algorithm = file.name.removesuffix(".yaml").partition(".")
            found[(stem.replace("__", "/"), algorithm or None)] = file
    return found


def preset_for(env_id: str, algo: str | None = None) -> Manifest:
    """The starting values for an environment: its preset, that of its newest version, or the general one.

    Args:
        env_id: a Gymnasium id; `environment.name` of the result is this id, whichever preset was taken.
        algo: an algorithm; where the environment has no preset for it, the general one of that algorithm is taken,
            with the budget and the target of the environment.
    """
    name, files = _preset_name(env_id), _preset_files()
    wanted = None if algo is None else canonical_name(str(algo))
    label = f"{name}.{wanted}" if (name, wanted) in files and wanted is not None else name
    data = _preset_content(files, (name, wanted if label != name else None))
    if wanted is not None and wanted != canonical_name(data["algorithm"]["name"]):
        general = _preset_content(files, ("default", wanted)) if ("default", wanted) in files else {}
        training = {**general.get("training", {}), **{k: data["training"][k] for k in BUDGET if k in data["training"]}}
        data = {"algorithm": {"name": wanted}, "environment": data.get("environment", {}), **general}
        data["training"] = training
    data["environment"] = {**data.get("environment", {}), "name": env_id}
    return manifest_from(data, f"preset {label}")


def has_preset(env_id: str) -> bool:
    """Whether an environment, or another version of it, has a preset of its own."""
    return _preset_name(env_id) != "default"


def _preset_content(files: Mapping[tuple[str, str | None], Any], key: tuple[str, str | None]) -> dict[str, Any]:
    data: dict[str, Any] = parse_yaml(files[key].read_text(encoding="utf-8"), f"preset {key[0]}")
    return data


def _preset_name(env_id: str) -> str:
    names = preset_names()
    if env_id in names:
        return env_id
    base = re.sub(r"-v\d+$", "", env_id)
    versions = [n for n in names if re.sub(r"-v\d+$", "", n) == base]
    return max(versions, key=lambda n: int(n.rsplit("-v", 1)[-1])) if versions else "default"


def dump_yaml(manifest: Manifest) -> str:
    """The whole manifest as YAML; reading it gives an equal manifest."""
    text: str = yaml.safe_dump(manifest.as_dict(), sort_keys=False, default_flow_style=None, width=120)
    return text
