"""The task of a manifest, and its settings resolved for training."""

from __future__ import annotations

from typing import Any

from agilerl.algorithms import find_algorithm
from agilerl.config import Manifest
from agilerl.language.task import LanguageTask
from agilerl.training.manifest.environment_task import EnvironmentTask, FittedTask, SelfPlayTask
from agilerl.training.manifest.task import Task


def task_of(manifest: Manifest) -> Task:
    """Return the task of a manifest."""
    if find_algorithm(manifest.algorithm.name).learns_language:
        return LanguageTask(manifest)
    if manifest.training.opponents is not None:
        return SelfPlayTask(manifest)
    return FittedTask(manifest) if manifest.training.fitness == "fqe" else EnvironmentTask(manifest)


def resolve(manifest: Manifest, env: Any = None) -> Manifest:
    """Resolve a manifest for training; see `task.Task.resolve`."""
    return task_of(manifest).resolve(env)
