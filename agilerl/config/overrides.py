"""Changes of a manifest by key and value: of a call, of `--set`, of a resumed run."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from agilerl.algorithms import canonical_name
from agilerl.config.keys import leaf_paths, resolve_key, without_aliases
from agilerl.config.load import giving_way, manifest_from
from agilerl.config.schema import Manifest, value_at
from agilerl.config.yaml_text import parse_yaml
from agilerl.errors import ConfigError


class Setting(NamedTuple):
    """A setting as the user wrote it.

    Attributes:
        key: dotted, or its last name. value: None if it was left out. text: names it in errors.
    """

    key: str
    value: Any
    text: str


def read_sets(sets: Iterable[str]) -> list[Setting]:
    """Parse `section.key=value` settings; values are YAML (`true`, `3`, `[64, 64]`, `null`)."""
    settings = []
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {text!r} is not KEY=VALUE. fix: --set training.pop_size=6.")
        settings.append(Setting(key.strip(), parse_yaml(value, f"--set {key.strip()}"), f"--set {text}"))
    return settings


def apply_sets(manifest: Manifest, sets: Iterable[str]) -> Manifest:
    """Apply settings of `read_sets` in order."""
    return apply_overrides(manifest, {setting.key: setting.value for setting in read_sets(sets)}, "--set")


def is_key(name: str, path: str) -> bool:
    """Whether a key as users write it, dotted or its last name, an alias or not, is the one at a dotted path."""
    return without_aliases(name if "." in name else f"{path.rpartition('.')[0]}.{name}") == path


def check_agreement(arguments: Iterable[Setting], settings: Sequence[Setting]) -> None:
    """Raise ConfigError where an argument, by its dotted key, or a setting gives a key another value than a setting."""
    asked = [argument for argument in arguments if argument.value is not None]
    for first, second in (*itertools.product(asked, settings), *itertools.combinations(settings, 2)):
        is_same = first.key == second.key or is_key(second.key, first.key)
        if is_same and not _is_equal(second, first):
            raise ConfigError(f"{first.text} and {second.text} contradict each other. fix: one of the two.")


def _is_equal(setting: Setting, argument: Setting) -> bool:
    if isinstance(setting.value, str) and isinstance(argument.value, int | float):  # YAML reads 1e3 as a text
        with suppress(ValueError):
            return float(setting.value) == argument.value
    return bool(setting.value == argument.value)


def algorithm_in(sets: Iterable[str]) -> str | None:
    """Return the value of `algorithm.name` in settings of the form KEY=VALUE; None if it is not set to a text."""
    return text_in(sets, "algorithm.name")


def text_in(sets: Iterable[str], key: str) -> str | None:
    """Return the last value of a dotted key in settings of the form KEY=VALUE; None if it is not set to a text."""
    texts = [text for name, _, text in (part.partition("=") for part in sets) if without_aliases(name.strip()) == key]
    value = parse_yaml(texts[-1], f"--set {key}") if texts else None
    return value if isinstance(value, str) else None


# Sections that a resumed run may change; the others describe existing agents and experience.
GOING_ON = ("training", "mutation", "tournament_selection")
FIXED = (
    "training.pop_size", "training.seed", "training.shards", "training.share", "training.opponents",
    "mutation.rl_hp_selection",
)  # fmt: skip


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
    settled += [key for key in FIXED if value_at(changed, key) != value_at(manifest, key)]
    if settled:
        raise ConfigError(
            f"resume --set cannot change {', '.join(settled)}: the run's agents and experience were made with it. "
            f"fix: a key of {', '.join(GOING_ON)}, or a new run."
        )
    return changed


def changed_settings(before: Manifest, after: Manifest) -> dict[str, Any]:
    """Return the settings that a resumed run may change and that differ, by dotted key."""
    keys = [f"{section}.{name}" for section in GOING_ON for name in vars(vars(after)[section])]
    data = after.as_dict()
    changed = (key.split(".") for key in keys if value_at(before, key) != value_at(after, key))
    return {f"{section}.{name}": data[section][name] for section, name in changed}


def apply_overrides(manifest: Manifest, overrides: Mapping[str, Any], source: str = "override") -> Manifest:
    """A new manifest with some keys replaced.

    Args:
        manifest: the starting values; unchanged.
        overrides: dotted keys (`training.pop_size`), or unique last names (`pop_size`), to values.
        source: prefix of every error.

    Raises:
        ConfigError: an unknown key (the nearest one is named), an ambiguous name, two values of one key, or a value out
            of range.
    """
    if not overrides:
        return manifest
    data = manifest.as_dict()
    asked = _resolved(overrides, source, manifest.algorithm.name)
    unnamed = [path for path, value in zip(asked, overrides.values(), strict=True) if path in NAMES and value is None]
    if unnamed:
        raise ConfigError(f"{source}: {unnamed[0]} must be a name; got None. fix: leave {unnamed[0]} out.")
    last = dict(zip(asked, overrides.items(), strict=True))
    for path, (name, value) in zip(asked, overrides.items(), strict=True):
        if name != last[path][0] and value != last[path][1]:
            raise ConfigError(f"{source}: {name} and {last[path][0]} are both {path}. fix: one of the two.")
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
        return manifest_from(giving_way(data, asked), source, manifest.as_dict())
    except ConfigError:
        before, after = manifest.algorithm.name, canonical_name(str(data["algorithm"].get("name")))
        if "algorithm.name" not in asked or after == before:
            raise
        raise ConfigError(
            f"{source}: algorithm.name={after} does not fit the other settings, which are those of {before}. "
            f"fix: algo={after!r}, which has settings of its own."
        ) from None


NAMES = ("algorithm.name", "environment.name")


def _resolved(names: Iterable[str], source: str, algorithm: str) -> list[str]:
    """Full dotted paths; ConfigError names every wrong one, a line for each."""
    paths, asked, problems = leaf_paths(algorithm), [], []
    for name in names:
        try:
            asked.append(resolve_key(name, paths, source, algorithm))
        except ConfigError as error:
            problems.append(str(error))
    if problems:
        raise ConfigError("\n".join(problems))
    return asked


def _plain(value: object) -> Any:
    """Return typed network configurations as plain mappings, other values unchanged."""
    if value is None or isinstance(value, str | int | float | list | tuple | Mapping):
        return value
    from agilerl.modules.configs import NetConfig  # lazy: it imports torch

    return dict(value) if isinstance(value, NetConfig) else value


def within_widths(manifest: Manifest, low: int, high: int) -> Manifest:
    """Clip dense layers and the latent vector to `low` to `high` units; mutation bounds are widened to fit."""
    network = manifest.network

    def dense(part: Any) -> Any:
        units = [min(max(each, low), high) for each in part.hidden_size]
        bounds = {"min_mlp_nodes": min(part.min_mlp_nodes, *units), "max_mlp_nodes": max(part.max_mlp_nodes, *units)}
        return part.model_copy(update={"hidden_size": units, **bounds})

    latent = min(max(network.latent_dim, low), high)
    changes = {
        "latent_dim": latent,
        "min_latent_dim": min(network.min_latent_dim, latent),
        "max_latent_dim": max(network.max_latent_dim, latent),
        "encoder_config": None if network.encoder_config is None else dense(network.encoder_config),
        "head_config": dense(network.head_config),
    }
    return manifest.model_copy(update={"network": network.model_copy(update=changes)})
