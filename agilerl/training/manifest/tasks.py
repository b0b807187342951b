"""The task of a manifest."""

from __future__ import annotations

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
