"""Start a run from a manifest in a run directory, finish it, and resume it from a checkpoint."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import math
import os
import shlex
import uuid
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from agilerl.algorithms.base.wrapped import unwrapped
from agilerl.config import Manifest, apply_overrides, changed_settings, dump_yaml, going_on, manifest_from
from agilerl.core.env_ids import resolve_env_id
from agilerl.core.files import write_atomic
from agilerl.core.redaction import redact
from agilerl.core.texts import count
from agilerl.core.threads import available_cores
from agilerl.engine.rows.native import kernels_named
from agilerl.errors import AgileRLError, AgileRLWarning, ConfigError, RunError, warn_once
from agilerl.hpo.schemes import scheme_of
from agilerl.ranks import check_alone
from agilerl.runs.checkpoints import set_aside
from agilerl.runs.directory import (
    RunDirectory,
    has_ended_early,
    lineage_is,
    now,
    pending_settings,
    record_changes,
    running,
)
from agilerl.runs.names import CONFIG, LINEAGE, METRICS, RUN, command, imports_of, run_command
from agilerl.runs.records import RunRecords
from agilerl.runs.request import RECORDED, ResumeRequest, RunRequest
from agilerl.runs.signals import Stopped, StopSignals
from agilerl.runs.steering import Taken, refuse_left_stop
from agilerl.telemetry.evaluation import Evaluation
from agilerl.telemetry.record import Sinks
from agilerl.telemetry.tracker_names import tracker_name
from agilerl.training.deadline import Deadline
from agilerl.training.manifest import build, step_cost, time_budget
from agilerl.training.manifest.device import choose_device, resolve_device
from agilerl.training.manifest.setup import Setup
from agilerl.training.manifest.tasks import task_of
from agilerl.training.manifest.worker_settings import (
    ALONE,
    Workers,
    check_lanes,
    resumed_workers,
    spare_cores,
    workers_of,
)
from agilerl.training.manifest.workers import start_workers
from agilerl.training.policy_files import write_best
from agilerl.training.quarantine import DivergedError
from agilerl.training.result import EvolveResult
from agilerl.training.run import Run
from agilerl.training.store import RunStore
from agilerl.views.report import write_report

KEPT = "files written so far are kept."
MAX_SPEEDUP = 2.0  # how much faster than so far a resumed run may become within a budget in minutes
MAX_EXCESS = 1.1  # ratio of expected to requested minutes above which the run says that it takes longer


def with_known_env(manifest: Manifest) -> Manifest:
    """Return the manifest with a valid environment id; EnvError says what to install or to type."""
    name = resolve_env_id(manifest.environment.name)
    return manifest if name == manifest.environment.name else apply_overrides(manifest, {"environment.name": name})


def with_minutes(
    manifest: Manifest, request: RunRequest, device: str, minutes: float, check: Callable[[], None], processes: int = 1
) -> Manifest:
    """Replace a budget in minutes by one in steps, and print it.

    processes: that train shards; one is measured, and the others are taken to be as fast.
    """
    verbose = request.verbose
    if verbose and minutes > 0:
        print(f"measuring how many steps fit into {_in_minutes(f'{minutes:g}')}", flush=True)
    steps, rate, expected = time_budget.steps_in(manifest, request.env, device, minutes, check, request.trials)
    at_once = min(processes, manifest.training.shards)
    steps, rate = steps * at_once, rate * at_once
    if verbose:
        if expected > MAX_EXCESS * minutes:
            print(
                f"one generation ({count(steps)} steps of each member) and the final evaluation take longer than "
                f"{_in_minutes(f'{minutes:g}')}; both run anyway. fix: --steps for less",
                flush=True,
            )
        print(
            f"about {_in_minutes(f'{expected:.2g}')}: at most {count(steps)} steps of each member, "
            f"at {count(rate)} steps/s of all together; the final evaluation is included",
            flush=True,
        )
    manifest = time_budget.with_short_generations(manifest, rate, minutes)
    return apply_overrides(manifest, {"training.max_steps": steps}, "minutes")


def _in_minutes(value: str) -> str:
    return f"{value} {'minute' if value == '1' else 'minutes'}"


def run_training(manifest: Manifest, request: RunRequest | None = None, **options: Any) -> Run:
    """Train according to `manifest` in a new run directory, which is saved after every generation.

    Ctrl-C or SIGTERM ends training, or an evaluation, after the current vector step. Files are kept, and run.json says
    "interrupted". A Run is returned if there is a best agent already; else KeyboardInterrupt is raised. A second signal
    ends the process at once.

    Args:
        options: fields of `request`, which they replace.
    """
    request = replace(request or RunRequest(), **options)
    env_id, deadline = manifest.environment.name, deadline_of(request)
    workers = workers_of(request.workers, request.ray, request.allow_insecure_ray)
    order = () if request.arrivals is None else arrivals_of(request.arrivals, manifest)
    check_lanes(manifest, workers)
    manifest, device = resolved(manifest, request, workers)
    if request.uses_spare_cores:
        workers = replace(workers, most=spare_cores(manifest, device))
    setup = Setup(
        manifest, request, device, tracker_name(request.track or False), new_id(), workers, deadline,
        None if request.ancestors is None else request.ancestors.parent(), arrivals=order,
    )  # fmt: skip
    if request.out is None:
        return run_setup(setup, None, None)
    name = manifest.environment.name  # may differ from the requested one: a retired version, or a factory's name
    also: dict[str, Any] = {} if name == env_id or request.env is not None else {"asked_env": env_id}
    also |= {} if request.test_episodes is None else {"test_episodes": request.test_episodes}
    if request.at is None:
        renamed = f"{name}_for_{env_id}" if "asked_env" in also else name
        directory = RunDirectory.create(request.out, renamed, manifest.algorithm.name)
    else:
        directory = RunDirectory.create_at(request.at)
    if request.has_own_data:
        manifest = directory.take_data(manifest)
        setup = replace(setup, manifest=manifest, data=Path(str(manifest.training.dataset)).name)
    with contextlib.closing(RunStore(directory.path, facts=setup.facts())) as store:
        directory.begin(manifest, **setup.start(), **also)
        try:
            return run_setup(setup, directory, store)
        except AgileRLError:
            directory.discard()  # only if training had not started
            raise


def arrivals_of(run: str | os.PathLike[str], manifest: Manifest) -> tuple[int, ...]:
    """Return the shards of a run in the order in which they arrived.

    Raises:
        ConfigError: it did not train in asynchronous mode, or `manifest` does not. RunError: it is no run.
    """
    order = tuple(RunRecords.read(run).arrivals)
    if not order or manifest.evolution.mode != "async":
        what = str(run) if not order else "this run"
        raise ConfigError(
            f"the order of arrivals is that of shards in asynchronous mode, in which {what} does not train. "
            "fix: evolution.mode=async in both, or leave arrivals out."
        )
    return order


def deadline_of(request: RunRequest) -> Deadline | None:
    """Return the end of a budget in minutes; None without one."""
    if request.minutes is None:
        return None
    return Deadline.after(request.minutes, request.test_episodes or 0, request.start_time)


def new_id() -> str:
    """Return the identity of a run at a tracker."""
    return uuid.uuid4().hex[:8]


def resolved(manifest: Manifest, request: RunRequest, workers: Workers = ALONE) -> tuple[Manifest, str]:
    """Return (manifest with what follows from its environment and a budget in steps, device).

    workers: alone, slow environments may step in processes, on all cores, if the request uses spare ones.
    """
    env, minutes = request.env, request.minutes
    check_alone()
    if env is None:
        manifest = with_known_env(manifest)
    if minutes is not None:  # before steps of a slow environment are measured
        time_budget.check_minutes(manifest, minutes)
    with StopSignals() as signals:  # a signal takes effect immediately until the first check
        manifest = task_of(manifest).resolve(env)
        chosen = choose_device(request.device, manifest, env)
        if request.verbose and request.device == "auto" and resolve_device(request.device) != "cpu":  # a choice
            print(f"device: {chosen}", flush=True)
        processes = workers.count if isinstance(workers.count, int) else 1
        if request.uses_spare_cores and processes == 1:
            manifest, note = step_cost.with_lane_workers(manifest, env, available_cores(), minutes, request.trials)
            if request.verbose and note:
                print(note, flush=True)
        if minutes is not None:
            manifest = with_minutes(manifest, request, chosen.name, minutes, signals.check, processes)
    return manifest, chosen.name


def score_best(run: Run, episodes: int) -> Evaluation | None:
    """Score the best agent on fresh episodes and record the result in run.json.

    A run with a budget in minutes plays fewer of them if its time is up.
    """
    if run.best is None or episodes < 1:
        return None
    if run.best.learns_language:  # scored by the run already, on held-out prompts
        test = run.result.get("test")
        return None if test is None else Evaluation.from_returns(test["returns"], test["of"])
    episodes = episodes if run.closing_episodes is None else min(episodes, run.closing_episodes)
    if episodes == 0:
        return None
    evaluation: Evaluation = run.best.evaluate(episodes=episodes)
    if run.path is not None:
        try:
            RunDirectory(run.path).update(result={"test": evaluation.as_dict()})
        except OSError as error:  # the score can still be printed
            warn_once("score", f"the score could not be written to {run.path} ({error.strerror}).")
        report_on(run.path)
    return evaluation


def run_setup(setup: Setup, directory: RunDirectory | None, store: RunStore | None) -> Run:
    """Train with records on the console and in the directory, and record how the run ended."""
    asked = setup.request
    try:
        fan_out = Sinks(setup.sinks_of(directory))
        with StopSignals() as signals, contextlib.ExitStack() as stack:
            try:
                executor = None
                if setup.workers.count != 1 or setup.workers.most > 1:
                    made_from = setup.manifest, asked.env, setup.device, setup.manifest.training.seed, asked.imports
                    executor = start_workers(*made_from, setup.workers, fan_out.message)
                    stack.callback(executor.close)
                result = build.run_manifest(
                    replace(setup, request=replace(asked, sinks=[fan_out])), directory, store, signals.check, executor
                )
            except Exception as error:
                if signals.received is None:
                    raise
                # Ctrl-C also reaches an environment's workers, which may exit first.
                raise Stopped(signals.received) from error
            finally:
                fan_out.close()
            lost = {"lost_records": dict(fan_out.lost), "failed_saves": 0 if store is None else store.failed_saves}
            return _finish(setup, directory, result, signals.received, lost)
    except BaseException as error:
        if directory is not None:
            _note_failure(directory, error, setup, is_resumed=store is not None and store.saved is not None)
        raise


def _finish(
    setup: Setup, directory: RunDirectory | None, result: EvolveResult, signum: int | None, lost: Mapping[str, Any]
) -> Run:
    facts = result.counters()
    if result.best_fitness is None:  # no agent could be copied
        finite = [f for generation in result.history for f in generation if math.isfinite(f)]
        facts["best_fitness"] = max(finite, default=None)
    if result.stopped != "target" and result.confirmed is not None:
        facts["best_fitness"] = result.confirmed  # held-out score; the fitness is a biased maximum
    if result.test is not None:
        facts["test"] = result.test.as_dict()
    interrupted, manifest = result.stopped == "interrupted", setup.manifest
    if result.stopped == "minutes" and manifest.evolution.schedule is not None and setup.deadline is None:
        facts["stopped"] = "budget"  # of a schedule, which `stop_after` holds from the beginning
    elif result.stopped == "minutes":  # so that config.yaml repeats the run; a resumed one goes on to max_steps
        manifest = apply_overrides(manifest, {"training.stop_after": result.env_steps_member}, "minutes")
    if result.best is not None:
        result.best.set_training_mode(False)  # evaluation mode, like agents returned by `agilerl.load`
        if (evaluated_in := vars(unwrapped(result.best)).get("evaluated_in")) is not None:
            evaluated_in.processes = setup.workers.most
    births, deadline = list(result.births), setup.deadline
    if directory is not None:
        path = directory.path
        try:
            if result.best is not None:
                write_best(path, result.best)
                lost = {**lost, "best_seed": vars(unwrapped(result.best)).get("seed")}  # of its later evaluations
            if not interrupted and not lineage_is(path / LINEAGE, result.lineage()):  # its sink has failed
                write_atomic(path / LINEAGE, result.lineage())
            if manifest is not setup.manifest:
                write_atomic(path / CONFIG, dump_yaml(manifest))
                lost = {**lost, "manifest_hash": manifest.hash()}
            directory.finish("interrupted" if interrupted else "done", result=facts, time=result.time.as_dict(), **lost)
            report_on(path)
        except OSError as error:  # must not lose the training result
            text = f"{path} could not be written ({error}); the training is not lost."
            warnings.warn(text, AgileRLWarning, stacklevel=3)
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
        random_play=result.random_play,
        before=result.before,
        imports=tuple(setup.request.imports),
        env_given=setup.request.env is not None,
        failed_saves=int(lost.get("failed_saves") or 0),
        time=result.time,
        closing_episodes=None if deadline is None else deadline.episodes_left(result.time.seconds_per_episode),
    )


def report_on(path: Path) -> None:
    """Write the run's report; a failure is only a warning."""
    try:
        write_report(path)
    except Exception as error:
        reason = redact(f"{type(error).__name__}: {error}")
        warnings.warn(
            f"the report of {path} could not be written ({reason}). "
            f"fix: `{run_command('report', path)}`, after solving that.",
            AgileRLWarning,
            stacklevel=4,
        )


def _note_failure(directory: RunDirectory, error: BaseException, setup: Setup, is_resumed: bool) -> None:
    status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    is_saved = any((directory.path / "checkpoints").glob("gen-*"))
    if status == "interrupted":
        error.add_note(KEPT if is_saved else "nothing was saved yet: the first generation had not ended.")
        if again := _again(directory.path, setup, is_saved):
            error.add_note(f"{'resume' if is_saved else 'begin again'}  {again}")
    elif is_saved and isinstance(error, DivergedError):
        smaller = _with_smaller_lr(directory.path, setup)
        error.add_note(f"a resume would diverge again; a new run from the agents of the last checkpoint  {smaller}")
    elif is_saved and not is_resumed:
        error.add_note(f"after solving that  {_again(directory.path, setup, is_saved)}")
    try:
        directory.finish(status, error=redact(f"{type(error).__name__}: {error}"))
        if (directory.path / METRICS).is_file():  # training has started: partial results can be inspected
            report_on(directory.path)
    except (OSError, MemoryError, RunError) as second:  # the first error is raised
        error.add_note(f"run.json could not be written either: {second}")


def _with_smaller_lr(path: Path, setup: Setup) -> str:
    """Return the command or call for a new run from the saved agents of a run, at a tenth of its learning rates."""
    values = setup.manifest.algorithm.hyperparameters
    rates = {k: f"{v / 10:.3g}" for k, v in values.items() if k.startswith("lr") and isinstance(v, float)}
    if setup.request.env is not None:
        algo = setup.manifest.algorithm.name
        arguments = ["env", repr(algo), f"agents={str(path)!r}", *(f"{name}={value}" for name, value in rates.items())]
        return f"agilerl.train({', '.join(arguments)})"
    sets = [word for name, value in rates.items() for word in ("--set", f"{name}={value}")]
    return command("continue", path, *sets, imports=setup.request.imports)


def _again(path: Path, setup: Setup, is_saved: bool) -> str:
    """Return the command or call to resume or restart a run; "" if only its script can."""
    parent, asked = None if setup.parent is None else setup.parent.get("run"), setup.request
    if not is_saved and setup.parent is not None:  # a resume would not find the founders, which are the other run's
        return "" if parent is None or asked.env is not None else command("continue", parent, imports=asked.imports)
    if asked.env is not None:
        return f"agilerl.resume({str(path)!r}, env=env)"
    return command("resume", path, imports=asked.imports)


def resume_training(path: str | os.PathLike[str], request: ResumeRequest | None = None, **options: Any) -> Run:
    """Resume a run; see `agilerl.resume`.

    Args:
        path: the run directory. options: fields of `request`, which they replace.
    """
    asked, folder = replace(request or ResumeRequest(), **options), Path(path)
    if asked.minutes is not None and asked.steps is not None:
        raise ConfigError("steps and minutes are both budgets. fix: one of the two.")
    deadline = deadline_of(asked)
    if not (folder / "checkpoints").is_dir():
        RunDirectory.open(folder)
    with contextlib.closing(
        RunStore(
            folder, strict_replay=asked.strict_replay, restart=asked.restart,
            allow_other_kernels=asked.allow_other_kernels,
        )
    ) as store:  # fmt: skip
        recorded, start = _record(folder, store)
        store.find_lost(asked.restart)
        if store.saved is not None and not asked.allow_other_kernels:  # before anything is written
            kernels_named(str(store.saved.body["run"].get("kernels", "torch")))
        _check_backend(folder, recorded)
        if bool(start["env_given"]) != (asked.env is not None):
            raise RunError(
                f"{folder} was trained in an environment that was handed over. fix: agilerl.resume(path, env=...)."
                if start["env_given"]
                else f"{folder} was trained in {recorded.environment.name}, made by its id. fix: leave env out."
            )
        directory, generation = RunDirectory(folder), 0 if store.saved is None else store.saved.number
        budget = {"training.max_steps": _budget(folder, store, recorded, asked, bool(start["evolution"]))}
        changed = {**budget, "training.carry_envs": asked.carry_envs}
        changed = {name: value for name, value in changed.items() if value is not None}
        manifest = apply_overrides(recorded, {**pending_settings(directory, generation), **changed}, "resume")
        manifest = directory.with_own_data(manifest, start)
        manifest, device = going_on(manifest, asked.settings), resolve_device(str(start["device"]))
        workers = resumed_workers(start, folder, asked.workers, asked.ray, asked.allow_insecure_ray)
        check_lanes(manifest, workers)
        if asked.uses_spare_cores and workers.count == 1 and asked.workers is None:
            workers = replace(workers, most=spare_cores(manifest, device))
        usual, options = vars(ResumeRequest()), vars(asked)
        unchanged = {name: start[name] for name in RECORDED if name in start and options[name] == usual[name]}
        script = tuple(Taken.from_dict(taken) for taken in start.get("script") or ())
        asked = replace(asked, **{
            **unchanged, "evolution": bool(start["evolution"]), "script": script,
            "imports": tuple(dict.fromkeys([*imports_of(start), *asked.imports])),
            "tensorboard": _has_tensorboard(start, asked.tensorboard),
        })  # fmt: skip
        setup = Setup(
            manifest, asked, device, _tracker(start, asked.track), str(start.get("track") or new_id()), workers,
            deadline, start.get("parent"), start.get("own_data"), tuple(start.get("arrivals") or ()),
        )  # fmt: skip
        store.facts = setup.facts()
        if store.saved is not None:
            refuse_left_stop(directory, generation)
        changes = changed_settings(recorded, manifest)
        if manifest.training.stop_after is None and has_ended_early(directory):
            changes["training.stop_after"] = None
        store.notes += _mend(directory, setup, recorded)
        record_changes(directory, changes, generation)
        return run_setup(setup, directory, store)


def _budget(folder: Path, store: RunStore, manifest: Manifest, asked: ResumeRequest, evolution: bool) -> int | None:
    """Return the new budget in steps of a member; None without one."""
    if asked.steps is not None:
        _check_steps(folder, store, manifest, asked.steps, evolution)
    if asked.minutes is None:
        return asked.steps
    time_budget.check_minutes(manifest, asked.minutes)
    return _steps_after(folder, store, asked.minutes)


def _check_backend(folder: Path, manifest: Manifest) -> None:
    """Raise RunError if the run's lanes cannot be made here; before anything is written."""
    from agilerl.envs.pool import INSTALL, is_installed

    if manifest.environment.backend == "envpool" and not is_installed():
        raise RunError(
            f"{folder} was trained with the lanes of EnvPool, which is not installed here; those of Gymnasium have "
            f"other episodes. fix: {INSTALL}."
        )


def _has_tensorboard(start: Mapping[str, Any], asked: bool | None) -> bool:
    """Whether to write TensorBoard files: as requested, else as in the original run if TensorBoard is installed."""
    if asked is not None or not start.get("tensorboard"):
        return bool(asked)
    if importlib.util.find_spec("tensorboard") is None:
        text = 'TensorBoard, which wrote this run, is not installed. fix: pip install "agilerl[tensorboard]"'
        warnings.warn(text, AgileRLWarning, stacklevel=3)
        return False
    return True


def _tracker(start: Mapping[str, Any], asked: bool | str | None) -> str:
    """The tracker of a resumed run: as requested, else as in the original run; True is that one, or the default."""
    recorded = str(start.get("tracker") or tracker_name(bool(start.get("track"))))
    return tracker_name((recorded or asked or False) if asked in (None, True) else asked)


def _check_steps(folder: Path, store: RunStore, manifest: Manifest, steps: int, evolution: bool) -> None:
    """Raise ConfigError if a new budget is below the steps already trained."""
    counters = {} if store.saved is None else dict(store.saved.body.get("counters") or {})
    members, unit = manifest.training.pop_size, manifest.steps
    is_shared = evolution and scheme_of(manifest.evolution.scheme).ends_members
    done = int(counters.get("env_steps_population" if is_shared else "env_steps_member") or 0)
    if steps * (members if is_shared else 1) < done:
        least = -(-done // members) if is_shared else done
        of = f"{done:,} {unit} of all members together" if is_shared else f"{done:,} {unit} of each member"
        raise ConfigError(
            f"{folder} has trained {of}, more than the {steps:,}{f' x {members} members' if is_shared else ''} "
            f"asked for. fix: steps={2 * least}."
        )


def _steps_after(folder: Path, store: RunStore, minutes: float) -> int:
    """Return an upper bound of the steps of a member after so many more minutes, at the speed of the run so far."""
    counters = {} if store.saved is None else dict(store.saved.body.get("counters") or {})
    done, seconds = int(counters.get("env_steps_member") or 0), float(counters.get("seconds") or 0.0)
    if not done or seconds <= 0:
        raise ConfigError(f"{folder} has saved no generation, so its speed is unknown. fix: resume it with steps.")
    return done + math.ceil(MAX_SPEEDUP * 60 * minutes * done / seconds)


def _record(folder: Path, store: RunStore) -> tuple[Manifest, Mapping[str, Any]]:
    """Return (configuration, start settings) of a run, from its checkpoint or else from its files."""
    if store.saved is not None:
        body = store.saved.body
        if "start" not in body:
            origin = "a script that calls train_off_policy(resume=...)"
            raise RunError(f"{folder} was written by {origin}. fix: run that script again.")
        return manifest_from(json.loads(body["config"]), str(store.saved.path)), body["start"]
    directory = RunDirectory.open(folder)
    manifest, facts = directory.manifest(), directory.facts()
    if manifest.hash() != facts.get("manifest_hash"):
        raise RunError(f"{folder} has no checkpoint, and its config.yaml has changed. fix: train again.")
    if facts.get("parent") is not None:
        parent = facts["parent"].get("run")
        again = command("continue", parent or "RUN", imports=imports_of(facts))
        if parent is not None and Path(parent).is_file():  # the policy of another library
            again = f"`agilerl train {manifest.environment.name} --from {shlex.quote(parent)}`"
        raise RunError(f"{folder} began with the agents of {parent} and has no checkpoint. fix: {again}")
    start = {name: facts.get(name, False) for name in ("evolution", "device", "env_given")}
    names = ("imports", "argv", "track", "own_data", "workers", "ray", "arrivals", "script", "tracker", *RECORDED)
    start |= {name: facts[name] for name in names if name in facts}
    return manifest, start


def _mend(directory: RunDirectory, setup: Setup, recorded: Manifest) -> list[str]:
    """Restore config.yaml and run.json from the checkpoint; return notes about damaged files."""
    notes, manifest = [], setup.manifest
    try:
        config_hash = directory.manifest().hash()
    except (ConfigError, OSError, ValueError):
        config_hash = ""
    if (path := directory.path / CONFIG).is_dir():  # a folder cannot be replaced by a file
        notes.append(f"config.yaml was a folder; it is {set_aside(path).name} now.")
    if config_hash != manifest.hash():
        try:  # an earlier resume may have changed both without saving a checkpoint
            recorded_hash = directory.facts().get("manifest_hash")
        except RunError:
            recorded_hash = None
        if not config_hash or config_hash not in (recorded.hash(), recorded_hash):
            notes.append("config.yaml was damaged or missing; it was written anew from the checkpoint.")
        write_atomic(directory.path / CONFIG, dump_yaml(manifest))
    try:
        directory.facts()
    except RunError:
        path = directory.path / RUN
        aside = f"; the old one is {set_aside(path).name}" if path.exists() else ""
        notes.append(f"run.json was damaged or missing; it was written anew{aside}.")
        directory.begin(manifest, **setup.start())
    directory.update(**running(manifest), resumed=now())
    return notes
