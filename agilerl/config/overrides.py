"""Single settings from the command line (`--set a.b=v`) and from keyword arguments (`pop_size=6`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from agilerl.config.load import KEY_ALIASES, SECTION_ALIASES, TOP_LEVEL_ALIASES, manifest_from, parse_yaml
from agilerl.config.messages import section_fields, unknown_key
from agilerl.config.schema import Manifest
from agilerl.errors import ConfigError, nearest

_FREE = ("mutation.rl_hp_selection.", "environment.kwargs.")


def apply_sets(manifest: Manifest, sets: Iterable[str]) -> Manifest:
    """Apply `section.key=value` settings in order; values are YAML (`true`, `3`, `[64, 64]`, `null`)."""
    values: dict[str, Any] = {}
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {text!r} is not KEY=VALUE. fix: write it as training.pop_size=6.")
        values[key.strip()] = parse_yaml(value, f"--set {key.strip()}")
    return apply_overrides(manifest, values, "--set")


def apply_overrides(manifest: Manifest, overrides: Mapping[str, Any], source: str = "override") -> Manifest:
    """A new manifest with some keys replaced.

    Args:
        manifest: the starting values; unchanged.
        overrides: dotted keys (`training.pop_size`), or last names that occur once (`pop_size`), to values.
        source: stands in front of every problem.

    Raises:
        ConfigError: an unknown key (the nearest one is named), an ambiguous name, or a value out of range.
    """
    if not overrides:
        return manifest
    data = manifest.as_dict()
    paths = leaf_paths(manifest)
    for name, value in overrides.items():
        path = resolve_key(name, paths, source)
        *sections, leaf = path.split(".")
        target = data
        for section in sections:
            if not isinstance(target.get(section), dict):
                target[section] = {}
            target = target[section]
        target[leaf] = value
    return manifest_from(data, source)


def leaf_paths(manifest: Manifest) -> list[str]:
    """Dotted paths of every key that can be set."""
    return _leaves(Manifest, "", manifest.algorithm.name)


def _leaves(model: type[BaseModel], prefix: str, algorithm: str) -> list[str]:
    found = []
    for name, field in section_fields(model, algorithm).items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found += _leaves(kind, f"{prefix}{name}.", algorithm)
        else:
            found.append(prefix + name)
    return found


def resolve_key(name: str, paths: list[str], source: str) -> str:
    """The full dotted path that `name` means."""
    path = _without_aliases(name)
    if path in paths or path.startswith(_FREE):
        return path
    if any(p.startswith(path + ".") for p in paths):
        raise ConfigError(f"{source}: {name} is a section. fix: set one of its keys: {', '.join(_below(path, paths))}.")
    if "." not in path:
        return _unique_leaf(path, paths, source)
    section = path.rpartition(".")[0]
    siblings = [p.removeprefix(section + ".") for p in paths if p.startswith(section + ".")]
    if siblings:
        raise ConfigError(f"{source}: {unknown_key(name, siblings)}")
    raise ConfigError(f"{source}: {name} is not a known key. {_hint(path, paths)}")


def _without_aliases(name: str) -> str:
    if name in TOP_LEVEL_ALIASES:
        return ".".join(TOP_LEVEL_ALIASES[name])
    head, dot, rest = name.partition(".")
    head = SECTION_ALIASES.get(head, head)
    return f"{head}{dot}{KEY_ALIASES.get((head, rest), rest)}"


def _unique_leaf(leaf: str, paths: list[str], source: str) -> str:
    leaf = {alias: name for (_, alias), name in KEY_ALIASES.items()}.get(leaf, leaf)
    matches = [p for p in paths if p.rpartition(".")[2] == leaf]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ConfigError(f"{source}: {leaf} is ambiguous: {', '.join(matches)}. fix: write the dotted name.")
    leaves = {p.rpartition(".")[2] for p in paths}
    raise ConfigError(f"{source}: {leaf} is not a known key. {_hint(leaf, sorted(leaves))}")


def _hint(name: str, known: list[str]) -> str:
    close = nearest(name, known, limit=1)
    return f"Did you mean {close[0]!r}?" if close else "fix: `agilerl train ENV_ID --dry-run` prints every key."


def _below(path: str, paths: list[str]) -> list[str]:
    return [p for p in paths if p.startswith(path + ".")]
