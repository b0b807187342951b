"""The base of every algorithm: registration, cloning, saving, and the live attributes that evolution mutates."""

from __future__ import annotations

from typing import Any

import torch

from agilerl.algorithms.core.persistence import Persistent
from agilerl.algorithms.core.registry import (
    HyperparameterConfig,
)
from agilerl.errors import ConfigError
from agilerl.hpo.genome import Genome
from agilerl.tree import map_leaves


def check_device(device: str | torch.device) -> str | torch.device:
    """The device as given.

    Raises:
        ConfigError: it is a CUDA device and there is none.
    """
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"device={str(device)!r} needs CUDA, and this PyTorch finds no CUDA device. fix: device='cpu'."
        )
    return device


class EvolvableAlgorithm(Persistent):
    """An agent that can be cloned, mutated, saved and trained alone or in a population.

    A subclass sets its hyperparameters, `EvolvableModule` networks and `OptimizerWrapper`s as attributes in
    `__init__` and registers its networks with `register_network_group`; one group has `policy=True`.

    Args:
        index: unique id within the population.
        hp_config: mutable hyperparameters; the agent keeps its own copy. Each name must be a numeric attribute.
        device: where networks and batches live.
        accelerator: one process works; `NotAvailableYetError` otherwise, at training.
        torch_compiler: kept as an attribute; compilation is not used.
        name: algorithm name, the class name by default.

    Attributes:
        steps: environment steps so far, one entry a generation (the last one grows).
        scores: returns of finished training episodes. fitness: one entry per `test`.
        mut: what the last evolution did to this agent, None before the first.
    """

    def __init__(
        self,
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        torch_compiler: str | None = None,
        name: str | None = None,
    ) -> None:
        self.registry.hp_config = hp_config.copy() if hp_config is not None else HyperparameterConfig()
        self.index = index
        self.algo = name or type(self).__name__
        self.device = check_device(device)
        self.accelerator = accelerator
        self.torch_compiler = torch_compiler
        self.mut: str | None = None
        self.steps: list[int] = [0]
        self.scores: list[float] = []
        self.fitness: list[float] = []
        self.training = True
        self._observations: Any = None

    # --- what evolution and training read ---------------------------------------------------------------------

    def update_hyperparameters(self) -> dict[str, float]:
        """The numbers that an update reads as tensors; overridden by algorithms with an `update`."""
        return {config.lr: float(getattr(self, config.lr)) for config in self.registry.optimizers}

    def hyperparameters(self) -> dict[str, float]:
        """What the records show: learning rates, update hyperparameters and everything in `hp_config`."""
        names = [*self.update_hyperparameters(), *self.registry.hp_config.names()]
        return {name: getattr(self, name) for name in dict.fromkeys(names)}

    @property
    def genome(self) -> Genome:
        """Architectures and hyperparameters, read from the live attributes."""
        specs = {str(g.eval_network): getattr(self, g.eval_network).spec() for g in self.registry.groups}
        return Genome.of(specs, self.hyperparameters())

    def probe_observations(self, count: int = 256) -> Any:
        """Up to `count` observations that were seen lately, or None: what mutations measure their effect on.

        Returns:
            A tensor [B, ...]; nested dicts of them for Dict and Tuple spaces.
        """
        return None if self._observations is None else map_leaves(lambda x: x[:count], self._observations)

    def remember_observations(self, observations: Any) -> None:
        """Keep observations [B, ...] (nested for Dict and Tuple spaces) for `probe_observations`."""
        self._observations = map_leaves(lambda x: x.detach(), observations)

    def set_training_mode(self, training: bool) -> None:
        """Switch exploration and the networks' train/eval mode."""
        self.training = training
        for network in self.evolvable_attributes(networks_only=True).values():
            network.train(training)

    def get_action(self, obs: Any, *args: Any, **kwargs: Any) -> Any:
        """Actions for observations; a subclass implements it."""
        raise NotImplementedError(f"{type(self).__name__} must implement get_action(obs, ...) -> actions")

    def learn(self, experiences: Any) -> Any:
        """One update; a subclass implements it."""
        raise NotImplementedError(f"{type(self).__name__} must implement learn(experiences) -> loss")

    def test(self, env: Any, swap_channels: bool = False, max_steps: int | None = None, loop: int = 1) -> float:
        """Mean return of evaluation episodes; a subclass implements it."""
        raise NotImplementedError(f"{type(self).__name__} must implement test(env, max_steps=, loop=) -> float")

    def clean_up(self) -> None:
        """Release what the agent holds outside of its attributes: nothing here."""

    def wrap_models(self) -> None:
        """Nothing to wrap in one process."""

    def unwrap_models(self) -> None:
        """AttributeError without an accelerator."""
        if self.accelerator is None:
            raise AttributeError("No accelerator has been set")
