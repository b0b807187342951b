"""A run from its manifest to its directory: started, trained, ended."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from agilerl.checkpoint import write_atomic
from agilerl.config import Manifest, apply_overrides
from agilerl.env_ids import resolve_env_id
from agilerl.errors import AgileRLWarning, ConfigError, RunError
from agilerl.redaction import redact
from agilerl.runs.directory import RunDirectory
from agilerl.runs.files import LINEAGE, lineage_is
from agilerl.runs.signals import Stopped, StopSignals
from agilerl.runs.store import RunStore
from agilerl.telemetry import Birth, Sink, Sinks, TensorBoardSink, WandbSink, console_sink
from agilerl.telemetry.fanout import BaseSink
from agilerl.telemetry.files import birth_line
from agilerl.telemetry.record import GenerationRecord, RunPlan


@dataclass(frozen=True)
class Run:
    """A finished, interrupted or loaded run.

    Attributes:
        best: the best agent (None where the run ended before it had one).
        population: all agents of the last generation; of a loaded run only the best, which is what is stored.
        history: fitness by generation, then member.
        lineage: every birth, founders first.
        path: the run directory, None if nothing was written.
        result: facts of the run: stopped, generations, env_steps_member, env_steps_population, seconds, ...
        manifest: the resolved configuration.
        interrupted: whether it was stopped before its end; `agilerl resume` goes on. signal: by which signal.
    """

    best: Any
    population: list[Any]
    history: list[list[float]]
    lineage: list[Birth]
    path: Path | None
    result: dict[str, Any]
    manifest: Manifest
    interrupted: bool = field(default=False)
    signal: int | None = field(default=None)


def with_known_env(manifest: Manifest) -> Manifest:
    """The manifest with an id that can be made; EnvError says what to install or to type."""
    name = resolve_env_id(manifest.environment.name)
    return manifest if name == manifest.environment.name else apply_overrides(manifest, {"environment.name": name})


def resolve_device(device: str) -> str:
    """A device that is there: "auto" is CUDA if it can be used, else the CPU."""
    import torch

    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise ConfigError(f"unknown device {device!r}. fix: use auto, cpu, cuda or cuda:0.") from None
    if kind == "cuda" and not torch.cuda.is_available():
        built = f"this PyTorch ({torch.__version__}) finds none"
        raise ConfigError(f"device {device!r} needs a CUDA GPU, but {built}. fix: --device cpu, or a CUDA build.")
    return device


class _Collector(BaseSink):
    """Keeps history and lineage, so that an interrupted run has them too."""

    def __init__(self) -> None:
        self.lineage: list[Birth] = []
        self.history: list[list[float]] = []

    def start(self, plan: RunPlan, founders: Sequence[Birth]) -> None:
        self.lineage += founders

    def generation(self, record: GenerationRecord) -> None:
        self.lineage += record.births
        self.history.append([m.fitness for m in record.members])


@dataclass(frozen=True)
class Setup:
    """With what a run is started."""

    manifest: Manifest
    env: Any
    device: str
    verbose: bool
    evolution: bool
    sinks: tuple[Sink, ...]
    tensorboard: bool
    track: bool
    argv: tuple[str, ...]

    def facts(self) -> dict[str, Any]:
        """What every checkpoint says about it; the configuration is text, because the order of its keys counts."""
        start = {"evolution": self.evolution, "device": self.device, "env_given": self.env is not None}
        config = {"config": json.dumps(self.manifest.as_dict()), "config_hash": self.manifest.hash()}
        return {**config, "start": {**start, "argv": list(self.argv)}}


def run_training(
    manifest: Manifest,
    *,
    env: Any = None,
    device: str = "auto",
    out: str | os.PathLike[str] | None = "runs",
    verbose: bool = True,
    evolution: bool = True,
    sinks: Iterable[Sink] = (),
    tensorboard: bool = False,
    track: bool = False,
    argv: Sequence[str] | None = None,
) -> Run:
    """Train as `manifest` says, into a new run directory under `out`, which is saved after every generation.

    Ctrl-C or SIGTERM ends training, or an evaluation, after the vector step: what was written stays, and run.json says
    "interrupted".
    Where there is a best agent already a Run comes back; else KeyboardInterrupt is raised. A second signal ends the
    process at once.
    """
    if env is None:
        manifest = with_known_env(manifest)
    arguments = tuple(sys.argv if argv is None else argv)
    setup = Setup(
        manifest, env, resolve_device(device), verbose, evolution, tuple(sinks), tensorboard, track, arguments
    )
    if out is None:
        return run_setup(setup, None, None)
    directory = RunDirectory.create(out, manifest.environment.name, manifest.algorithm.name)
    with contextlib.closing(RunStore(directory.path, facts=setup.facts())) as store:
        directory.begin(
            manifest, argv=arguments, evolution=evolution, device=setup.device, env_given=setup.env is not None
        )
        return run_setup(setup, directory, store)


def run_setup(setup: Setup, directory: RunDirectory | None, store: RunStore | None) -> Run:
    """Train with records on the console and in the directory, and note there how the run ended."""
    run_manifest = import_module("agilerl.training.build").run_manifest
    collector = _Collector()
    path = None if directory is None else str(directory.path)
    try:
        every: list[Sink] = [collector, console_sink(setup.verbose, path=path), *setup.sinks]
        every += [] if directory is None else directory.sinks()
        every += _trackers(setup, directory)
        fan_out = Sinks(every)
        with StopSignals() as signals:
            try:
                result = run_manifest(
                    setup.manifest,
                    env=setup.env,
                    seed=setup.manifest.training.seed,
                    device=setup.device,
                    sinks=[fan_out],
                    run_directory=directory,
                    evolution=setup.evolution,
                    store=store,
                    check=signals.check,
                )
            except Exception as error:
                if signals.received is None:
                    raise
                # Ctrl-C reaches the workers of an environment too, and they may be the first to go.
                raise Stopped(signals.received) from error
            finally:
                fan_out.close()
            lost = {"lost_records": dict(fan_out.lost), "failed_saves": 0 if store is None else store.failed_saves}
            return _finish(setup.manifest, directory, result, collector, signals.received, lost)
    except BaseException as error:
        _note_failure(directory, error)
        raise


def _trackers(setup: Setup, directory: RunDirectory | None) -> list[Sink]:
    found: list[Sink] = []
    if setup.tensorboard:
        found.append(TensorBoardSink((directory.path if directory else Path("runs")) / "tb"))
    if setup.track:
        found.append(WandbSink(config=setup.manifest.as_dict()))
    return found


def _finish(
    manifest: Manifest,
    directory: RunDirectory | None,
    result: Any,
    collector: _Collector,
    signum: int | None,
    lost: Mapping[str, Any],
) -> Run:
    names = (
        "generations", "env_steps_member", "env_steps_population", "evaluation_env_steps", "updates", "seconds",
        "cpu_seconds", "confirmed", "stopped", "restarts", "quarantined",
    )  # fmt: skip
    facts = {name: getattr(result, name) for name in names}
    finite = [f for generation in result.history for f in generation if math.isfinite(f)]
    facts["best_fitness"] = max(finite, default=None)
    interrupted = result.stopped == "interrupted"
    births = list(result.births) or collector.lineage
    if directory is not None:
        with tolerating(directory.path):
            if result.best is not None:
                directory.save_best(result.best.policy_spec(), result.best.policy_state())
            if not interrupted and not lineage_is(directory.path / LINEAGE, births):  # its sink was dropped
                write_atomic(directory.path / LINEAGE, "".join(map(birth_line, births)))
            directory.finish("interrupted" if interrupted else "done", result=facts, **lost)
    return Run(
        best=result.best,
        population=list(result.population),
        history=[list(generation) for generation in result.history],
        lineage=births,
        path=None if directory is None else directory.path,
        result=facts,
        manifest=manifest,
        interrupted=interrupted,
        signal=signum if interrupted else None,
    )


@contextlib.contextmanager
def tolerating(path: Path) -> Iterator[None]:
    """Inside the block a failure to write is a warning: it must not cost the training."""
    try:
        yield
    except OSError as error:
        warnings.warn(f"{path} could not be written ({error}); the training is not lost.", AgileRLWarning, stacklevel=4)


def _note_failure(directory: RunDirectory | None, error: BaseException) -> None:
    if directory is None:
        return
    status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    if status == "interrupted":
        error.add_note(f"resume  agilerl resume {directory.path}")
    try:
        directory.finish(status, error=redact(f"{type(error).__name__}: {error}"))
    except (OSError, MemoryError, RunError) as second:  # the first error is the one to show
        error.add_note(f"run.json could not be written either: {second}")
