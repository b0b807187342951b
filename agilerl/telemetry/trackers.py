"""Experiment trackers (optional packages), and a background thread for slow ones."""

from __future__ import annotations

import math
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from agilerl.errors import ConfigError, warn_once
from agilerl.redaction import Secret, redact, without_secrets
from agilerl.telemetry.record import BaseSink, Birth, GenerationRecord, RunPlan

CAPACITY = 1000
PATIENCE_S = 10.0


class Background:
    """A background thread that makes calls in order; a full queue drops and counts the newest.

    Args:
        on_error: called in that thread with the exception of a call; no further call is made.
        capacity: maximum number of queued calls. name: of the thread.

    Attributes:
        dropped: number of dropped calls.
    """

    def __init__(self, on_error: Callable[[Exception], None], capacity: int = CAPACITY, name: str = "tracker") -> None:
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(capacity)
        self._on_error = on_error
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._failed = threading.Event()
        self.dropped = 0
        self._thread.start()

    def call(self, function: Callable[[], None]) -> None:
        """Enqueue a call; returns immediately."""
        if self._failed.is_set():
            return
        try:
            self._queue.put_nowait(function)
        except queue.Full:
            self.dropped += 1

    def close(self, patience_s: float = PATIENCE_S) -> bool:
        """Wait for the queued calls, up to a time limit; returns whether all were made."""
        try:
            self._queue.put(None, timeout=patience_s)
        except queue.Full:
            return False
        self._thread.join(patience_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (function := self._queue.get()) is not None:
            if self._failed.is_set():
                continue
            try:
                function()
            except Exception as error:  # failures of a tracker must not end the training
                self._failed.set()
                self._on_error(error)


def scalars(record: GenerationRecord) -> Iterator[tuple[str, float]]:
    """(name, value) of every finite number of a generation; the population's first, then each slot's."""
    values: dict[str, float | None] = {
        "population/best_fitness": record.best.fitness,
        "population/mean_fitness": record.mean_fitness,
        "population/env_steps": record.population_env_steps,
        "population/seconds": record.seconds,
        "population/epsilon": record.epsilon,
        "population/confirmation": record.confirmation,
    }
    for member in record.members:
        values[f"fitness/slot_{member.slot}"] = member.fitness
        values[f"score/slot_{member.slot}"] = member.score
        values[f"loss/slot_{member.slot}"] = member.loss
        values |= {f"{name}/slot_{member.slot}": value for name, value in member.hyperparameters.items()}
        values |= {f"details.{name}/slot_{member.slot}": value for name, value in member.details.items()}
    return ((name, float(value)) for name, value in values.items() if value is not None and math.isfinite(value))


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
        for name, value in scalars(record):
            self._writer.add_scalar(name, value, record.env_steps)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbSink(BaseSink):
    """Weights & Biases, in a background thread: training never waits for it and continues without it.

    If it is missing or unreachable it warns once. If it is too slow, generations are dropped and counted; the run
    directory has all of them.

    Args:
        project, init: for `wandb.init`. config: stored with the run, without entries that are named like secrets.
        api_key: for the login; it appears in no file, message or representation.
        capacity: maximum number of queued generations. patience_s: seconds that `close` waits for them.

    Attributes:
        dropped: number of generations that were not sent.
    """

    def __init__(
        self,
        project: str = "agilerl",
        config: Mapping[str, Any] | None = None,
        api_key: str | None = None,
        *,
        capacity: int = CAPACITY,
        patience_s: float = PATIENCE_S,
        **init: Any,
    ) -> None:
        self._init = {"project": project, **init}
        self._config = without_secrets(dict(config or {}))
        self._api_key = None if api_key is None else Secret(api_key)
        self._capacity, self._patience_s = capacity, patience_s
        self._run: Any = None
        self._background: Background | None = None
        self.dropped = 0

    def start(self, plan: RunPlan, founders: Sequence[Birth]) -> None:
        try:
            import wandb
        except ImportError:
            self._warn('wandb is not installed. fix: pip install "agilerl[wandb]"')
            return
        except Exception as error:  # a broken installation
            self._failed(error)
            return
        named = {"name": f"{plan.env_id}-{plan.algo}-seed{plan.seed}", **self._init}
        facts = {**without_secrets(asdict(plan)), **self._config}

        def open_run() -> None:
            if self._api_key is not None:
                wandb.login(key=self._api_key.reveal())
            self._run = wandb.init(**named, config=facts)

        self._background = Background(self._failed, self._capacity, "wandb")
        self._background.call(open_run)

    def _failed(self, error: Exception) -> None:
        reason = redact(f"{type(error).__name__}: {error}", self._api_key)
        self._warn(f"wandb failed ({reason}). fix: wandb login, or wb=False.")

    def _warn(self, reason: str) -> None:
        warn_once("wandb", f"{reason} The training goes on without it.", stacklevel=6)

    def generation(self, record: GenerationRecord) -> None:
        """Enqueue the generation's scalars."""
        if self._background is not None:
            numbers = dict(scalars(record))
            self._background.call(lambda: self._run.log(numbers, step=record.env_steps))

    def close(self) -> None:
        """Finish the run; generations that cannot be sent in time are dropped."""
        background, self._background = self._background, None
        if background is None:
            return
        background.call(lambda: self._run.finish())
        done = background.close(self._patience_s)
        self.dropped = background.dropped
        if self.dropped or not done:
            self._warn(f"wandb was too slow: {self.dropped} generations were not sent, {'all' if done else 'not all'} "
                       "others were. fix: read metrics.csv, or wandb in offline mode.")  # fmt: skip
