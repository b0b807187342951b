"""Several seeds of one manifest side by side, each a run of its own in the folder of the group."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agilerl.config import Manifest, apply_overrides, going_on
from agilerl.core.hostile import read_json
from agilerl.runs.directory import RunDirectory
from agilerl.runs.names import RUN, command, is_run
from agilerl.runs.records import final_evaluation
from agilerl.runs.request import ResumeRequest, RunRequest
from agilerl.runs.seed_group import SeedGroup
from agilerl.runs.signals import StopSignals
from agilerl.telemetry.record import Birth, GenerationRecord, RunPlan
from agilerl.training.manifest.device import count_gpus, device_of
from agilerl.training.manifest.launch import resume_training, run_training, score_best
from agilerl.views.report.compare import comparison, write_comparison
from agilerl.workers.processes import Ended, Processes, Send, count_of

LOG, PAGE = "console.log", "compare.html"
PROGRESS_SECONDS = 0.5
LASTING = ("steps", "carry_envs", "settings")  # changes of `settings_of`


@dataclass(frozen=True)
class SeedJob:
    """One seed to train or to go on with; sent to a process.

    Attributes:
        path: its run directory. manifest: with its seed. request: that of the group, with a device of its own.
        changes: fields of a `ResumeRequest`, if the run has begun.
    """

    path: Path
    manifest: Manifest
    request: RunRequest
    changes: Mapping[str, Any]

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do, changes aside."""
        if not is_run(self.path):
            return False
        facts = read_json(self.path / RUN)
        is_scored = final_evaluation(facts["result"]) is not None or not self.request.test_episodes
        return facts.get("status") == "done" and is_scored


class _SendingSink:
    """Sends what a table shows of a run: (name of the method, arguments)."""

    def __init__(self, send: Send) -> None:
        self._send, self._sent = send, 0.0

    def start(self, plan: RunPlan, founders: Sequence[Birth]) -> None:
        self._send(("start", plan))

    def progress(self, env_steps: int, seconds: float) -> None:
        now = time.monotonic()
        if now - self._sent >= PROGRESS_SECONDS:
            self._sent = now
            self._send(("progress", env_steps, seconds))

    def generation(self, record: GenerationRecord) -> None:
        self._send(("generation", record))

    def message(self, text: str) -> None:
        """Messages are in the run's console.log."""

    def close(self) -> None:
        """Nothing is open."""


def train_seed(job: SeedJob, send: Send) -> dict[str, Any]:
    """Train one seed, or go on with it, and score its best agent; what is printed goes to console.log.

    Returns:
        `stopped`, the reason why it ended; `mean`, of the final evaluation, None without.
    """
    job.path.mkdir(parents=True, exist_ok=True)
    sinks = [_SendingSink(send)]
    with (
        (job.path / LOG).open("a", encoding="utf-8", buffering=1) as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        request = replace(job.request, sinks=sinks, test_episodes=None)  # which the record of the group has
        if is_run(job.path):
            asked = ResumeRequest(argv=request.argv, imports=request.imports, sinks=sinks)
            run = resume_training(job.path, asked, **job.changes)
        else:
            run = run_training(job.manifest, request, at=job.path)
        send(("testing",))
        test = None if run.interrupted else score_best(run, job.request.test_episodes or 0)
    return {"stopped": run.result["stopped"], "mean": None if test is None else test.mean}


@dataclass(frozen=True)
class GroupResult:
    """How the runs of a group ended.

    Attributes:
        ends: by seed, of those that ran now. signal: that stopped them, None without.
    """

    group: SeedGroup
    ends: Mapping[int, Ended]
    signal: int | None

    @property
    def failed(self) -> dict[int, Ended]:
        """The runs that ended with an error."""
        return {} if self.signal is not None else {seed: end for seed, end in self.ends.items() if end.error}

    def command(self) -> str:
        """The command that goes on."""
        return command("resume", self.group.path, imports=tuple(self.group.settings["imports"]))


def jobs_of(group: SeedGroup, changes: Mapping[str, Any] | None = None) -> dict[int, SeedJob]:
    """What is left to do in a group, by seed; changes: see `train_group`."""
    changes = dict(changes or {})
    manifest, gpus = going_on(group.manifest(), settings_of(changes)), count_gpus()
    usual = vars(RunRequest())
    settings = {**group.settings, **{name: value for name, value in changes.items() if name in usual}}
    request = RunRequest(**{**settings, "imports": tuple(settings["imports"])}, argv=tuple(sys.argv))
    jobs = {}
    for number, seed in enumerate(group.seeds):
        asked = with_earlier(changes, group, seed)
        configuration = apply_overrides(manifest, {"training.seed": seed}, "--seeds")
        device = device_of(number, request.device, gpus)
        job = SeedJob(group.run_path(seed), configuration, replace(request, device=device), asked)
        if changes or asked or not job.is_done:
            jobs[seed] = job
    return jobs


def settings_of(changes: Mapping[str, Any]) -> list[str]:
    """Return what lasts of changes, as KEY=VALUE settings."""
    asked = {"training.max_steps": changes.get("steps"), "training.carry_envs": changes.get("carry_envs")}
    lasting = [f"{name}={json.dumps(value)}" for name, value in asked.items() if value is not None]
    return [*lasting, *(changes.get("settings") or ())]


def resumed(group: SeedGroup, changes: Mapping[str, Any]) -> None:
    """Record what lasts of changes, for runs that begin or go on later."""
    if lasting := settings_of(changes):
        replace(group, changes=(*group.changes, *lasting)).write(going_on(group.manifest(), lasting))


def with_earlier(changes: Mapping[str, Any], group: SeedGroup, seed: int) -> Mapping[str, Any]:
    """Return changes of a run, with those of an earlier resume of the group that it has not gone on with to its end."""
    run = RunDirectory(group.run_path(seed))
    if not group.changes or not is_run(run.path):
        return changes
    if run.facts().get("status") == "done" and going_on(recorded := run.manifest(), group.changes) == recorded:
        return changes
    once = {name: value for name, value in changes.items() if name not in LASTING}
    return {**once, "settings": [*group.changes, *settings_of(changes)]}  # in order, as a later budget replaces one


def train_group(
    group: SeedGroup,
    workers: int | str,
    table: Any,
    prepare: Callable[[], None] | None = None,
    changes: Mapping[str, Any] | None = None,
) -> GroupResult:
    """Train what is left in `workers` processes, "auto" for one per core; a first signal stops all resumable.

    Args:
        table: shows the runs; see `telemetry.side_by_side`. prepare: imports a user's code in every process.
        changes: fields of a `ResumeRequest`, for runs that have begun; others have those of a `RunRequest`.
    """
    jobs = jobs_of(group, changes)
    resumed(group, changes or {})
    processes = Processes[int](train_seed, count_of(workers, max(1, len(jobs))), prepare)
    with StopSignals() as signals, contextlib.closing(table):
        table.start({seed: group.run_path(seed) for seed in jobs}, processes.count)
        signals.is_running = True  # a signal is passed on to the processes
        ends = processes.run(jobs, table.message, table.ended, lambda: signals.received, table.draw)
    return GroupResult(group, ends, signals.received)


def compared(group: SeedGroup) -> list[str]:
    """Write the page that compares a group's runs; returns the lines of `agilerl compare`."""
    result = comparison(group.run_paths)
    return [*result.lines(), f"curves  {write_comparison(result, group.path / PAGE)}"]
