"""`agilerl train --from FILE`: founders with the policy of another library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agilerl.algorithms.imported.load import load
from agilerl.api import base_manifest, dotted
from agilerl.config import Manifest, apply_overrides, apply_sets
from agilerl.errors import ConfigError
from agilerl.training.manifest.adoption import Ancestors, check_algorithm, structure_of, with_changes


def ancestors_from(
    path: Path,
    env_id: str | None,
    algo: str | None,
    config: Path | None,
    settings: Sequence[str],
    *,
    preset: bool,
    env_kwargs: Mapping[str, Any],
) -> Ancestors:
    """The agent of a file, for the environment that the other options name.

    Raises:
        AlgorithmError: the options name another algorithm.
    """

    manifest = base_manifest(env_id, algo, config, preset=preset)
    of_environment = [text for text in settings if text.strip().startswith("environment.")]
    environment = apply_sets(manifest, of_environment).environment
    agent = load(path, environment.name, env_kwargs={**environment.kwargs, **env_kwargs}, seed=0)
    ancestors = Ancestors([agent], str(path))
    if algo is not None or config is not None:
        check_algorithm(ancestors, manifest.algorithm.name)
    return ancestors


def with_founders(ancestors: Ancestors, manifest: Manifest, settings: Sequence[str]) -> tuple[Manifest, Ancestors]:
    """(the manifest with the structure of the agents, the agents with the hyperparameters that were named)."""

    named = dotted(manifest, (text.partition("=")[0].strip() for text in settings))
    manifest = apply_overrides(manifest, structure_of(ancestors), "--from")
    return manifest, with_changes(ancestors, manifest, named)


def check_alone(path: Path | None, others: Mapping[str, Any]) -> None:
    """Raise ConfigError if `--from` stands beside an option that excludes it."""
    for option, value in others.items():
        if path is not None and value:
            raise ConfigError(f"--from and {option} do not go together. fix: leave {option} out.")
