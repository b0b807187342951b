"""Look-ups that need the configuration: presets, settings, and what a run has recorded."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from agilerl.algorithms import DEFAULT_ALGORITHM, DEFAULT_FOR_LANGUAGE, DEFAULT_UNTUNED, find_algorithm
from agilerl.algorithms.base.declared import hyperparameters
from agilerl.cli.listing import Entry
from agilerl.config import Manifest, preset_for, preset_names
from agilerl.config.keys import leaf_paths
from agilerl.core.texts import count, number
from agilerl.errors import AgileRLError
from agilerl.runs.directory import RunDirectory
from agilerl.runs.names import imports_of
from agilerl.runs.records import final_evaluation
from agilerl.telemetry.evaluation import interval


def presets_like(incomplete: str) -> list[str]:
    """Ids of environments with a preset that begin with a text."""
    return [name for name in preset_names() if name.startswith(incomplete)]


@cache
def is_setting(key: str) -> bool:
    """Whether `--set` accepts a key, or the last name of one, for the default algorithms."""
    usual = (DEFAULT_ALGORITHM, DEFAULT_UNTUNED, DEFAULT_FOR_LANGUAGE)
    names = {path.rpartition(".")[2] for name in usual for path in leaf_paths(name)}
    return key in names or key.partition(".")[0] in Manifest.model_fields


def hyperparameters_of(name: str) -> list[str]:
    """Declared hyperparameters of an algorithm, which is imported."""
    return list(hyperparameters(find_algorithm(name)))


def imports_in(run: Path) -> tuple[str, ...]:
    """Modules that a run was made with; none if its record cannot be read."""
    try:
        return tuple(imports_of(RunDirectory(run).facts()))
    except AgileRLError:
        return ()


def presets() -> Iterator[Entry]:
    """Environments with shipped presets."""
    names = preset_names()
    width = max(map(len, names)) + 2
    for name in names:
        preset = preset_for(name)
        training = preset.training
        budget = f"{training.pop_size} members x {count(training.max_steps)} {preset.steps}"
        text = f"{preset.algorithm.name:<12}{budget}   target {number(training.target_score)}"
        facts = {"algo": preset.algorithm.name, "population": training.pop_size, "steps": training.max_steps}
        yield Entry(name, (text,), width, {**facts, "unit": preset.steps, "target": training.target_score})


def score_text(result: dict[str, Any]) -> str:
    """The final evaluation score; else the best fitness, labelled as such."""
    test = final_evaluation(result)
    if test is not None:
        mean, low, high = interval(test["mean"], *test["ci95"])
        return f"{mean} ({low}..{high})"
    best = result.get("best_fitness")
    return f"fitness {number(best)}" if isinstance(best, int | float) else "-"
