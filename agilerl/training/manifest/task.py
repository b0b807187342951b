"""What a manifest trains on, decided once: environments, data or questions for language models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from typing import Any

from agilerl.algorithms import find_algorithm
from agilerl.config import Manifest
from agilerl.sources import source_for
from agilerl.telemetry.evaluation import Baseline, Evaluation


class Task(ABC):
    """What a manifest trains on.

    Attributes:
        manifest: of the run. source: the class of sources that collects what the algorithm learns from.
        no_random_play: why uniformly random play is not scored; empty where it is.
    """

    no_random_play = ""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.source = source_for(find_algorithm(manifest.algorithm.name).experience, manifest.training.opponents)

    @staticmethod
    def of(manifest: Manifest) -> Task:
        """The task that a manifest names."""
        kind = "environment_task", "EnvironmentTask"
        if find_algorithm(manifest.algorithm.name).learns_language:
            kind = "language_task", "LanguageTask"
        elif manifest.training.opponents is not None:
            kind = "environment_task", "SelfPlayTask"
        elif manifest.training.fitness == "fqe":
            kind = "environment_task", "FittedTask"
        module, name = kind
        made: Task = vars(import_module(f"agilerl.training.manifest.{module}"))[name](manifest)
        return made

    @abstractmethod
    def resolve(self, env: Any) -> Manifest:
        """The manifest as it will be trained; what depends on the environment is filled in.

        Args:
            env: as it was handed over; None for the one that the manifest names.

        Raises:
            EnvError: the environment cannot be made. ConfigError, AlgorithmError: the algorithm, the networks or the
                sizes do not fit it, or this machine.
        """

    @abstractmethod
    def environments(self, env: Any, device: str) -> tuple[Any, Any]:
        """(environment to train in, environment to evaluate in)."""

    @abstractmethod
    def population(self, env: Any, seed: int, device: str) -> list[Any]:
        """The founders: equal hyperparameters, weights of their own.

        Args:
            env: what they train in, or its `Spaces`.
        """

    def score_before(self, founder: Any, env: Any) -> Evaluation | None:
        """The score of a founder before training, where random play has none; None, as by default, without one."""
        return None

    def notes_of(self, baseline: Baseline, before: Evaluation | None) -> list[str]:
        """Lines of the console about what was scored before training."""
        return [str(baseline)]

    def closing_score(self, agent: Any, env: Any) -> Evaluation | None:
        """The score of the best agent on held-out questions; None, as by default, where episodes score it later."""
        return None
