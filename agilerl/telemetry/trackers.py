"""Experiment trackers, both optional packages."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from agilerl.errors import ConfigError, warn_once
from agilerl.telemetry.fanout import BaseSink
from agilerl.telemetry.record import Birth, GenerationRecord, RunPlan


def scalars(record: GenerationRecord) -> Iterator[tuple[str, float]]:
    """(name, value) of every finite number of a generation; the population's first, then each slot's."""
    fitness = [m.fitness for m in record.members if math.isfinite(m.fitness)]
    found: dict[str, float | None] = {
        "population/best_fitness": record.best.fitness,
        "population/mean_fitness": sum(fitness) / len(fitness) if fitness else None,
        "population/env_steps": record.population_env_steps,
        "population/seconds": record.seconds,
        "population/epsilon": record.epsilon,
        "population/confirmation": record.confirmation,
    }
    for member in record.members:
        found[f"fitness/slot_{member.slot}"] = member.fitness
        found[f"score/slot_{member.slot}"] = member.score
        found[f"loss/slot_{member.slot}"] = member.loss
        found |= {f"{name}/slot_{member.slot}": value for name, value in member.hyperparameters.items()}
    return ((name, float(value)) for name, value in found.items() if value is not None and math.isfinite(value))


class TensorBoardSink(BaseSink):
    """Event files for TensorBoard; the x axis is environment steps per member.

    Raises:
        ConfigError: TensorBoard is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ConfigError('TensorBoard is not installed. fix: pip install "agilerl[tensorboard]"') from None
        self._writer: Any = SummaryWriter(str(folder))

    def generation(self, record: GenerationRecord) -> None:
        """Write the generation's numbers and flush."""
        for name, value in scalars(record):
            self._writer.add_scalar(name, value, record.env_steps)
        self._writer.flush()

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()


class WandbSink(BaseSink):
    """Weights & Biases. Where it is missing or cannot be reached it warns once, and the training goes on."""

    def __init__(
        self, project: str = "agilerl", config: Mapping[str, Any] | None = None, api_key: str | None = None, **init: Any
    ) -> None:
        """`config` is stored with the run; `api_key` logs in first; `init` goes to `wandb.init`."""
        self._init = {"project": project, **init}
        self._config, self._api_key = dict(config or {}), api_key
        self._run: Any = None

    def start(self, plan: RunPlan, founders: Sequence[Birth]) -> None:
        """Open the run."""
        try:
            import wandb

            if self._api_key is not None:
                wandb.login(key=self._api_key)
            named = {"name": f"{plan.env_id}-{plan.algo}-seed{plan.seed}", **self._init}
            self._run = wandb.init(**named, config={**asdict(plan), **self._config})
        except ImportError:
            self._warn('wandb is not installed. fix: pip install "agilerl[wandb]"')
        except Exception as error:  # no network, no key, a server's refusal
            self._warn(f"wandb could not start ({type(error).__name__}: {error}). fix: wandb login, or wb=False.")

    def _warn(self, reason: str) -> None:
        warn_once("wandb", f"{reason} The training goes on without it.", stacklevel=6)

    def generation(self, record: GenerationRecord) -> None:
        """Send the generation's numbers."""
        if self._run is not None:
            self._run.log(dict(scalars(record)), step=record.env_steps)

    def close(self) -> None:
        """Finish the run."""
        if self._run is not None:
            self._run.finish()
            self._run = None
