"""Tasks of a manifest: environments, data, or prompts for language models."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from agilerl.algorithms import find_algorithm
from agilerl.collect import collector_for
from agilerl.config import Manifest
from agilerl.core import foreign
from agilerl.telemetry.evaluation import Baseline, Evaluation


class Task(ABC):
    """Base class of tasks: the environments, data or prompts that a manifest trains on.

    Attributes:
        manifest: of the run. collector: class of the collector for the algorithm's experience.
        no_random_play: reason why uniformly random play is not scored; empty if it is.
    """

    no_random_play = ""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        self.collector = collector_for(find_algorithm(manifest.algorithm.name).experience, manifest.training.opponents)

    @abstractmethod
    def resolve(self, env: foreign.EnvLike) -> Manifest:
        """Resolve the manifest for training: fill in settings that depend on the environment.

        Args:
            env: passed by the user; None for the one named in the manifest.

        Raises:
            EnvError: the environment cannot be created. ConfigError, AlgorithmError: the algorithm, the networks or the
                sizes do not fit it, or this machine.
        """

    @abstractmethod
    def environments(self, env: foreign.EnvLike, device: str) -> tuple[Any, Any]:
        """Return (training environment, evaluation environment)."""

    @abstractmethod
    def population(self, env: foreign.EnvLike, seed: int, device: str) -> list[Any]:
        """Create the founders: equal hyperparameters, independently initialised weights.

        Args:
            env: training environment, or its `Spaces`.
        """

    def score_before(self, founder: foreign.Agent, env: foreign.EnvLike) -> Evaluation | None:
        """Score of a founder before training, if random play is not applicable; None by default."""
        return None

    def notes_of(self, baseline: Baseline, before: Evaluation | None) -> list[str]:
        """Console lines about the scores before training."""
        return [str(baseline)]

    def final_score(self, agent: foreign.Agent, env: foreign.EnvLike) -> Evaluation | None:
        """Score of the best agent on held-out prompts; None by default, as episodes score it later."""
        return None
