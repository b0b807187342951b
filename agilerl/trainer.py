"""The published trainer class over `agilerl.train`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

from agilerl.algorithms import canonical_name
from agilerl.algorithms.base.agent import EvolvableAlgorithm
from agilerl.api import train
from agilerl.core import foreign
from agilerl.core.files import with_suffix
from agilerl.errors import ConfigError, NotAvailableYetError, warn_once
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.modules.base import EvolvableModule
from agilerl.telemetry.trackers import TensorBoardSink, WandbSink
from agilerl.training.run import Run


class LocalTrainer:
    """Train a population on this machine: the published class, over `agilerl.train`.

    Args:
        algorithm: a name, an agent that the members are copies of, or a section with its `name`.
        environment: anything that `agilerl.train` takes, or a section with its `name`.
        population: agents to train, instead of new ones.
        training, mutation, tournament, replay_buffer, network: sections of a manifest. A section is a mapping, a
            dataclass or a model of pydantic; missing keys come from the preset of the environment.
        device: of the networks.
        selection_strategy: the later published name of `tournament`.

    Attributes:
        run: the `agilerl.Run` of the last `train()`; None before it.

    Raises:
        ConfigError: a section of another type, both `tournament` and `selection_strategy`, or an algorithm without a
            name. AlgorithmError: an unknown algorithm.
    """

    def __init__(
        self,
        algorithm: Any,
        environment: object,
        population: Sequence[Any] | None = None,
        training: object = None,
        mutation: Mutations | None = None,
        tournament: TournamentSelection | None = None,
        replay_buffer: object = None,
        device: object = "cpu",
        *,
        selection_strategy: object = None,
        network: EvolvableModule | None = None,
    ) -> None:
        if tournament is not None and selection_strategy is not None:
            raise ConfigError("LocalTrainer got tournament and selection_strategy, which are one. fix: one of them.")
        self.run: Run | None = None
        self._device = str(device)
        self._agents = None if population is None else list(population)
        self._env: Any = environment
        sections = {"training": training, "mutation": mutation, "replay_buffer": replay_buffer, "network": network}
        sections["tournament_selection"] = tournament if selection_strategy is None else selection_strategy
        if isinstance(environment, Mapping) or _is_model(environment):
            sections["environment"], self._env = environment, None
        self._algo: Any = None
        if isinstance(algorithm, EvolvableAlgorithm):
            self._agents = [algorithm] if self._agents is None else self._agents
        elif isinstance(algorithm, str | type):
            self._algo = algorithm if isinstance(algorithm, type) else canonical_name(algorithm)
        else:
            sections["algorithm"] = algorithm
        self._config: Any = {name: section_of(name, value) for name, value in sections.items() if value is not None}
        if self._algo is None and self._agents is None and not self._config["algorithm"].get("name"):
            raise ConfigError("LocalTrainer got an algorithm without a name. fix: algorithm={'name': 'PPO', ...}.")

    @classmethod
    def from_manifest(cls, manifest: str | os.PathLike[str] | Mapping[str, Any], device: object = "cpu") -> Self:
        """Create a trainer from a manifest, of this library or of the published one: a YAML file, or a mapping.

        Raises:
            ConfigError: in `train`, for keys that are unknown or do not fit.
        """
        trainer = object.__new__(cls)
        trainer.run, trainer._device, trainer._agents = None, str(device), None
        trainer._env = trainer._algo = None
        trainer._config = manifest
        return trainer

    def train(
        self,
        *,
        verbose: bool = True,
        save_elite: bool = False,
        elite_path: str | os.PathLike[str] | None = None,
        wb: bool = False,
        wandb_api_key: str | None = None,
        wandb_kwargs: Mapping[str, Any] | None = None,
        tensorboard: bool = False,
        tensorboard_log_dir: str | os.PathLike[str] | None = None,
        checkpoint: int | None = None,
        checkpoint_path: str | os.PathLike[str] | None = None,
        accelerator: foreign.Accelerator | None = None,
        swap_channels: bool = False,
        out: str | os.PathLike[str] | None = "runs",
        **more: Any,
    ) -> tuple[list[Any], list[list[float]]]:
        """Train; return (population, fitnesses), `fitnesses[generation][member]`.

        Args:
            verbose: False prints nothing.
            save_elite: save the best agent at `elite_path`, by default `<environment>-elite_<algorithm>.pt`.
            wb, wandb_api_key, wandb_kwargs: Weights & Biases. tensorboard, tensorboard_log_dir: event files.
                Arguments without their switch (`save_elite`, `wb`, `tensorboard`) are ignored with a warning.
            checkpoint, checkpoint_path: ignored with a warning; the run directory in `out` has a checkpoint of every
                generation, from which `agilerl.resume` continues. An error with `out=None`.
            swap_channels: ignored; images of either order of channels are read.
            out: see `agilerl.train`. more: its further arguments and settings, such as `seed=1`.

        Raises:
            NotAvailableYetError: `accelerator`. ConfigError: `checkpoint` without a run directory. Others as
                `agilerl.train`.
        """
        if checkpoint is not None or checkpoint_path is not None:
            if out is None:
                raise ConfigError("train(checkpoint=) needs a run directory, but out=None. fix: out='runs'.")
            warn_once(
                "LocalTrainer.train(checkpoint=)",
                f"checkpoint and checkpoint_path are ignored: the run directory in {out} has a checkpoint of every "
                "generation. fix: agilerl.resume(path) continues it.",
            )
        if accelerator is not None:
            raise NotAvailableYetError(
                "LocalTrainer.train(accelerator=) is not available: a run of several processes is started by the "
                "training functions. fix: train_off_policy(..., accelerator=accelerator), or workers=2 here."
            )
        needs = {
            "elite_path": ("save_elite", save_elite, elite_path),
            "wandb_api_key": ("wb", wb, wandb_api_key),
            "wandb_kwargs": ("wb", wb, wandb_kwargs),
            "tensorboard_log_dir": ("tensorboard", tensorboard, tensorboard_log_dir),
        }
        for name, (switch, is_on, value) in needs.items():
            if value is not None and not is_on:
                warn_once(
                    f"LocalTrainer.train({name}=)",
                    f"{name} is ignored without {switch}=True. fix: {switch}=True, or leave {name} out.",
                )
        sinks = [*more.pop("sinks", ())]
        sinks += [WandbSink(api_key=wandb_api_key, **dict(wandb_kwargs or {}))] if wb else []
        sinks += [TensorBoardSink(tensorboard_log_dir or "tensorboard_logs")] if tensorboard else []
        more = {"device": self._device, **more}
        if self._agents is not None:
            more["agents"] = self._agents
            if len(self._agents) == 1 and isinstance(self._config, dict):  # every member is a copy of this one
                training = self._config.get("training", {})
                more.setdefault("population", training.get("pop_size", training.get("population_size")))
        self.run = run = train(
            self._env, self._algo, config=self._config or None, out=out, verbose=verbose, sinks=sinks, **more
        )
        if save_elite:
            name = f"{run.manifest.environment.name.replace('/', '-')}-elite_{run.manifest.algorithm.name}"
            run.best.save_checkpoint(with_suffix(elite_path or name))
        return run.population, run.history


def _is_model(value: object) -> bool:
    """Whether this is a model of pydantic, or an instance of a dataclass."""
    is_dataclass = dataclasses.is_dataclass(value) and not isinstance(value, type)
    return is_dataclass or foreign.has_methods(value, "model_dump")


def section_of(name: str, value: Any) -> dict[str, Any]:
    """Return a section as a mapping, without keys whose value is None.

    Raises:
        ConfigError: anything but a mapping, a dataclass or a model of pydantic.
    """
    if isinstance(value, Mapping):
        return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = dataclasses.asdict(value)
    elif _is_model(value):
        plain = value.model_dump()
    else:
        raise ConfigError(
            f"LocalTrainer: {name} is an object of {type(value).__name__}; expected a section of a manifest. "
            f"fix: a mapping, such as {name}={{...}}; objects of the library are for its training functions."
        )
    return {key: value for key, value in plain.items() if value is not None}
