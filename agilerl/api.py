"""Two calls: train a population, load what a run left."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from agilerl.config import Manifest, apply_overrides, has_preset, load_manifest, on_preset, preset_for
from agilerl.config.env_ids import resolve_env_id, takes_box_actions
from agilerl.errors import ConfigError, RunError
from agilerl.hostile import malformed
from agilerl.redaction import redact
from agilerl.telemetry import Birth, Evaluation, Sink, Sinks, TensorBoardSink, WandbSink, console_sink
from agilerl.telemetry.fanout import BaseSink
from agilerl.telemetry.record import GenerationRecord, RunPlan
from agilerl.telemetry.run_dir import RunDirectory

__all__ = ["Evaluation", "Run", "build_manifest", "load", "resolve_device", "run_training", "train"]


BOX_ALGORITHM = "SAC"  # for continuous actions where nothing names an algorithm


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
    """

    best: Any
    population: list[Any]
    history: list[list[float]]
    lineage: list[Birth]
    path: Path | None
    result: dict[str, Any]
    manifest: Manifest
    interrupted: bool = field(default=False)


def train(
    env: Any,
    algo: str | None = None,
    *,
    population: int | None = None,
    steps: int | None = None,
    seed: int | None = None,
    device: str = "auto",
    config: str | os.PathLike[str] | Mapping[str, Any] | Manifest | None = None,
    out: str | os.PathLike[str] | None = "runs",
    verbose: bool = True,
    evolution: bool = True,
    sinks: Iterable[Sink] = (),
    **overrides: Any,
) -> Run:
    """Train a population and evolve its hyperparameters.

    Args:
        env: a Gymnasium id, an environment, a vector environment, or a function that makes one.
        algo: default: that of the environment's preset; without one DQN, or SAC for Box actions.
        population: members; steps: environment steps of ONE member. Defaults: the preset's.
        seed: None takes the configuration's (0 in every preset).
        device: "auto" is CUDA where there is one.
        config: a YAML file, a mapping or a manifest; what it leaves out comes from the preset.
        out: the folder that gets `<env>/<algo>-<nnnn>/`; None writes nothing.
        verbose: False prints nothing.
        evolution: False trains the population without selection and mutation.
        sinks: more places for the records.
        overrides: manifest keys by their last name (`lr=1e-3`) or dotted (`**{"training.eval_episodes": 4}`).

    Raises:
        ConfigError, AlgorithmError, EnvError: before anything runs, with what to do.
    """
    env_id = env_name(env)
    manifest = build_manifest(
        env_id, algo, population=population, steps=steps, seed=seed, config=config, overrides=overrides, env=env
    )
    return run_training(
        manifest,
        env=None if isinstance(env, str) else env,
        device=device,
        out=out,
        verbose=verbose,
        evolution=evolution,
        sinks=sinks,
    )


def load(path: str | os.PathLike[str], device: str = "auto") -> Run:
    """A run from its directory: `.best` acts and evaluates as it did at the end of the training.

    Raises:
        RunError: no run there, no policy in it, or a damaged file.
    """
    directory = RunDirectory.open(path)
    spec, state = directory.load_best()
    manifest, facts = directory.manifest(), directory.facts()
    best = import_module("agilerl.utils.utils").agent_from_policy(spec, state, resolve_device(device))
    with malformed(directory.path):
        return Run(
            best=best,
            population=[best],
            history=directory.history(),
            lineage=directory.lineage(),
            path=directory.path,
            result=dict(facts.get("result") or {}),
            manifest=manifest,
            interrupted=facts.get("status") == "interrupted",
        )


def env_name(env: Any) -> str:
    """The id of an environment given as an id, an object or a function."""
    if isinstance(env, str):
        return env
    spec = getattr(env, "spec", None)
    name = getattr(spec, "id", None) or getattr(env, "__name__", None) or type(env).__name__
    return str(name).strip("<>")


def build_manifest(
    env_id: str | None,
    algo: str | None = None,
    *,
    population: int | None = None,
    steps: int | None = None,
    seed: int | None = None,
    config: str | os.PathLike[str] | Mapping[str, Any] | Manifest | None = None,
    overrides: Mapping[str, Any] | None = None,
    env: Any = None,
) -> Manifest:
    """The resolved configuration: preset, then `config`, then `overrides`, then the named arguments.

    `env` is the environment where it is more than an id; where nothing else names an algorithm, its actions decide.
    """
    manifest = base_manifest(env_id, algo, config, env)
    manifest = apply_overrides(manifest, overrides or {}, "train()")
    named = {"training.pop_size": population, "training.max_steps": steps, "training.seed": seed}
    return apply_overrides(manifest, {k: v for k, v in named.items() if v is not None}, "train()")


def base_manifest(env_id: str | None, algo: str | None, config: Any, env: Any = None) -> Manifest:
    """The configuration before any override, from a preset, a mapping, a file or a manifest."""
    if isinstance(config, Manifest):
        changes = {"environment.name": env_id, "algorithm.name": algo}
        return apply_overrides(config, {k: v for k, v in changes.items() if v is not None}, "train()")
    if isinstance(config, Mapping):
        return on_preset(config, "config", env_id, algo)
    if config is not None:
        return load_manifest(config, env_id, algo)
    if env_id is None:
        raise ConfigError("no environment is named. fix: agilerl train ENV_ID, or --config FILE that names one.")
    if algo is None and not has_preset(env_id) and takes_box_actions(env_id if env is None else env):
        algo = BOX_ALGORITHM
    return preset_for(env_id, algo)


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
    """Train as `manifest` says, into a new run directory under `out`.

    Ctrl-C ends the training: what was written stays, run.json says "interrupted". Where the loop could still hand
    over its population the best policy is saved and a Run comes back; else KeyboardInterrupt is raised again.
    """
    if env is None:
        manifest = with_known_env(manifest)
    device = resolve_device(device)
    run_manifest = import_module("agilerl.training.evolve").run_manifest
    directory = None if out is None else RunDirectory.create(out, manifest.environment.name, manifest.algorithm.name)
    collector = _Collector()
    path = None if directory is None else str(directory.path)
    if directory is not None:
        directory.begin(manifest, argv=sys.argv if argv is None else argv, evolution=evolution, device=device)
    try:
        every: list[Sink] = [collector, console_sink(verbose, path=path), *sinks]
        every += [] if directory is None else directory.sinks()
        every += _trackers(manifest, directory, tensorboard, track)
        fan_out = Sinks(every)
        try:
            result = run_manifest(
                manifest,
                env=env,
                seed=manifest.training.seed,
                device=device,
                sinks=[fan_out],
                run_directory=directory,
                evolution=evolution,
            )
        finally:
            fan_out.close()
        return _finish(manifest, directory, result, collector)
    except BaseException as error:
        _note_failure(directory, error)
        raise


def _trackers(manifest: Manifest, directory: RunDirectory | None, tensorboard: bool, track: bool) -> list[Sink]:
    found: list[Sink] = []
    if tensorboard:
        found.append(TensorBoardSink((directory.path if directory else Path("runs")) / "tb"))
    if track:
        found.append(WandbSink(config=manifest.as_dict()))
    return found


def _finish(manifest: Manifest, directory: RunDirectory | None, result: Any, collector: _Collector) -> Run:
    names = (
        "generations", "env_steps_member", "env_steps_population", "evaluation_env_steps", "updates", "seconds",
        "cpu_seconds", "confirmed", "stopped",
    )  # fmt: skip
    facts = {name: getattr(result, name) for name in names}
    finite = [f for generation in result.history for f in generation if math.isfinite(f)]
    facts["best_fitness"] = max(finite, default=None)
    interrupted = result.stopped == "interrupted"
    if directory is not None:
        if result.best is not None:
            directory.save_best(result.best.policy_spec(), result.best.policy_state())
        directory.finish("interrupted" if interrupted else "done", result=facts)
    return Run(
        best=result.best,
        population=list(result.population),
        history=[list(generation) for generation in result.history],
        lineage=list(result.births) or collector.lineage,
        path=None if directory is None else directory.path,
        result=facts,
        manifest=manifest,
        interrupted=interrupted,
    )


def _note_failure(directory: RunDirectory | None, error: BaseException) -> None:
    if directory is None:
        return
    status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    try:
        directory.finish(status, error=redact(f"{type(error).__name__}: {error}"))
    except (OSError, RunError) as second:  # the first error is the one to show
        error.add_note(f"run.json could not be written either: {second}")
