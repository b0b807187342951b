"""Experiment trackers (optional packages), and a background thread for slow ones."""

from __future__ import annotations

import math
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import Any, ClassVar

from agilerl.core.redaction import Secret, redact, without_secrets
from agilerl.errors import ConfigError, warn_once
from agilerl.telemetry.record import BaseSink, Birth, GenerationRecord, RunPlan

CAPACITY = 1000
PATIENCE_S = 10.0


class Background:
    """A background thread that makes calls in order; a full queue drops and counts the newest.

    Args:
        on_error: called in that thread with the first exception of a call; the other queued calls are skipped.
        capacity: maximum number of queued calls. name: of the thread.

    Attributes:
        dropped: number of dropped calls.
    """

    def __init__(self, on_error: Callable[[Exception], None], capacity: int = CAPACITY, name: str = "tracker") -> None:
        self._queue: queue.Queue[Callable[[], None] | None] = queue.Queue(capacity)
        self._on_error = on_error
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._failed, self._abandoned = threading.Event(), threading.Event()
        self._last: Callable[[], None] | None = None
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

    def close(self, patience_s: float = PATIENCE_S, last: Callable[[], None] | None = None) -> bool:
        """Wait for the queued calls and then for `last`, up to a time limit; returns whether all were made.

        `last` is never dropped, and is also called after a failed call: it releases what the calls have opened.
        """
        deadline, self._last = time.monotonic() + patience_s, last
        try:
            self._queue.put(None, timeout=patience_s)
        except queue.Full:
            self._abandoned.set()  # the thread ends after its present call
            self.dropped += self._queue.qsize()
            return False
        self._thread.join(max(0.0, deadline - time.monotonic()))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._abandoned.is_set() and (function := self._queue.get()) is not None:
            if not self._failed.is_set():
                self._make(function)
        if self._last is not None:
            self._make(self._last)

    def _make(self, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as error:  # failures of a tracker must not end the training
            if not self._failed.is_set():
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


class Tracker(BaseSink):
    """Base of the trackers: a background thread sends; training never waits for it and continues without it.

    If the package is missing or the tracker fails, it warns once and sends nothing more; the tracker's run is ended at
    the end of the training all the same. If it is too slow, generations are dropped and counted; the run directory has
    all of them. Entries that are named like secrets are not sent, nor are values of environment variables that are.
    Subclasses implement `_open`, `_log` and `_finish`, which are called in the thread.

    Args:
        project: name under which the tracker groups runs. config: stored with the run, beside its plan.
        capacity: maximum number of queued generations. patience_s: seconds that `close` waits for them.

    Attributes:
        dropped: number of generations that were not sent.
    """

    name: ClassVar[str]  # of the package to import, and of the tracker on the command line
    fix: ClassVar[str]  # of a failure

    def __init__(
        self,
        project: str = "agilerl",
        config: Mapping[str, Any] | None = None,
        *,
        capacity: int = CAPACITY,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._project = project
        self._config = without_secrets(dict(config or {}))
        self._capacity, self._patience_s = capacity, patience_s
        self._secrets: tuple[Secret | None, ...] = ()
        self._background: Background | None = None
        self._is_open = self._has_warned = False
        self._outer: BaseException | None = None
        self.dropped = 0

    @classmethod
    def for_run(cls, config: Mapping[str, Any], id: str) -> Tracker:
        """The tracker of a run directory; the same `id` later continues the tracker's run."""
        raise NotImplementedError

    def _open(self, package: object, name: str, facts: dict[str, Any]) -> None:
        """Begin or continue the tracker's run.

        Args:
            package: the imported package. name: of the run, in displays. facts: the plan and the configuration.
        """
        raise NotImplementedError

    def _log(self, numbers: dict[str, float], env_steps: int) -> None:
        """Send the scalars of a generation; the x axis is environment steps per member."""
        raise NotImplementedError

    def _finish(self, error: BaseException | None) -> None:
        """End the tracker's run, which is open; `error` ended the training, None: it ended as planned."""
        raise NotImplementedError

    def start(self, plan: RunPlan, founders: Sequence[Birth]) -> None:
        """Import the package and begin the tracker's run in the background."""
        try:
            package = import_module(self.name)
        except ModuleNotFoundError as error:
            if error.name != self.name:  # a broken installation
                self._failed(error)
                return
            self._warn(f'{self.name} is not installed. fix: pip install "agilerl[{self.name}]"')
            return
        except Exception as error:
            self._failed(error)
            return
        name = redact(f"{plan.env_id}-{plan.algo}-seed{plan.seed}")
        facts = {**without_secrets(asdict(plan)), **self._config}

        def open_run() -> None:
            self._open(package, name, facts)
            self._is_open = True

        self._outer = sys.exc_info()[1]
        self._background = Background(self._failed, self._capacity, self.name)
        self._background.call(open_run)

    def _failed(self, error: Exception) -> None:
        text = " ".join(str(error).split())[:500]
        self._warn(f"{self.name} failed ({redact(f'{type(error).__name__}: {text}', *self._secrets)}). fix: {self.fix}")

    def _warn(self, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warn_once(f"{self.name}: {reason}", f"{reason} The training goes on without it.", stacklevel=6)

    def generation(self, record: GenerationRecord) -> None:
        """Enqueue the generation's scalars."""
        if self._background is not None:
            numbers = dict(scalars(record))
            self._background.call(lambda: self._log(numbers, record.env_steps))

    def close(self) -> None:
        """Finish the run; generations that cannot be sent in time are dropped."""
        background, self._background = self._background, None
        if background is None:
            return
        error = sys.exc_info()[1]  # the loop closes its sinks while the error that ends it is raised
        error = None if error is self._outer else error
        done = background.close(self._patience_s, lambda: self._finish(error) if self._is_open else None)
        self.dropped = background.dropped
        if not (done or self._is_open or self.dropped):
            self._warn(f"{self.name} has not answered in {self._patience_s:g} seconds: nothing was sent. "
                       f"fix: read metrics.csv; {self.fix}")  # fmt: skip
        elif self.dropped or not done:
            self._warn(f"{self.name} was too slow: {self.dropped} generations were not sent, "
                       f"{'all' if done else 'not all'} others were. fix: read metrics.csv, or {self.name} in offline "
                       "mode.")  # fmt: skip


class WandbSink(Tracker):
    """Weights & Biases; see `Tracker`.

    Args:
        project, init: for `wandb.init`. config: stored with the run, without entries that are named like secrets.
        api_key: for the login; it appears in no file, message or representation.
        capacity, patience_s: see `Tracker`.
    """

    name = "wandb"
    fix = "wandb login, or wb=False."

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
        super().__init__(project, config, capacity=capacity, patience_s=patience_s)
        self._init = init
        self._api_key = None if api_key is None else Secret(api_key)
        self._secrets = (self._api_key,)
        self._run: Any = None

    @classmethod
    def for_run(cls, config: Mapping[str, Any], id: str) -> WandbSink:
        return cls(config=config, id=id, resume="allow")

    def _open(self, package: Any, name: str, facts: dict[str, Any]) -> None:
        if self._api_key is not None:
            package.login(key=self._api_key.reveal())
        self._run = package.init(**{"project": self._project, "name": name, **self._init}, config=facts)

    def _log(self, numbers: dict[str, float], env_steps: int) -> None:
        self._run.log(numbers, step=env_steps)

    def _finish(self, error: BaseException | None) -> None:
        self._run.finish(**({} if error is None else {"exit_code": 1}))


class TrackioSink(Tracker):
    """Trackio, whose calls are those of W&B; see `Tracker`. Runs stay on this machine unless it is told otherwise.

    Args:
        project, init: for `trackio.init`, such as `space_id`. config: stored with the run.
        capacity, patience_s: see `Tracker`.
    """

    name = "trackio"
    fix = "check TRACKIO_DIR, TRACKIO_SPACE_ID and TRACKIO_SERVER_URL."

    def __init__(
        self,
        project: str = "agilerl",
        config: Mapping[str, Any] | None = None,
        *,
        capacity: int = CAPACITY,
        patience_s: float = PATIENCE_S,
        id: str = "",
        **init: Any,
    ) -> None:
        super().__init__(project, config, capacity=capacity, patience_s=patience_s)
        self._init, self._id = init, id
        self._run: Any = None

    @classmethod
    def for_run(cls, config: Mapping[str, Any], id: str) -> TrackioSink:
        return cls(config=config, id=id)

    def _open(self, package: Any, name: str, facts: dict[str, Any]) -> None:
        # A run continues by its name, which therefore holds the id. No dashboard opens in a notebook.
        asked = {"project": self._project, "name": f"{name}-{self._id}" if self._id else name, "embed": False}
        asked |= {"resume": "allow"} if self._id else {}
        asked |= {"auto_log_cpu": False, "auto_log_gpu": False}
        self._run = package.init(**{**asked, **self._init}, config=facts)

    def _log(self, numbers: dict[str, float], env_steps: int) -> None:
        self._run.log(numbers, step=env_steps)

    def _finish(self, error: BaseException | None) -> None:
        self._run.finish()
