"""What a run is asked for, beside the settings of its manifest."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What a run is asked for, from the command line and `agilerl.train` down to the training loop.

    Every option of a run that is no setting of its manifest is a field here, and read where it takes effect.

    Attributes:
        env: the environment, unless the manifest's id makes it.
        device: a device of torch; "auto" is the CPU for dense networks of at most 128 units, else CUDA if available.
        out: the folder that gets a numbered run directory; None writes nothing. at: the run directory itself, instead.
        verbose: whether to print. evolution: False trains the population without selection and mutation.
        sinks: further destinations of the records. callbacks: see `agilerl.Callback`.
        tensorboard: whether to write TensorBoard files. track: a tracker of `agilerl.telemetry.TRACKERS`; True is W&B.
        argv: the command line that is recorded; None: that of this process.
        imports: modules of the user's that the run imports, repeated in the commands that it prints.
        minutes: budget in minutes, converted to steps at the measured speed of this machine; the run records the steps.
            It ends earlier if that takes longer, and leaves time for the final evaluation.
        test_episodes: of a final evaluation that follows; None: there is none.
        start_time: of the minutes, a reading of `time.perf_counter`; None: now.
        workers: processes that take part, this one included, or "auto" for one per core.
        ray: workers on Ray: "local", "auto" or an address. allow_insecure_ray: accept a cluster that asks for no token.
        uses_spare_cores: whether other cores take part too where that changes no bit, with one worker.
        arrivals: a run whose shards arrived in an order that an asynchronous run follows.
        script: requests (`runs.steering.Taken`) of another run, which this one repeats.
        ancestors: agents that the founders are copies of (`training.manifest.adoption.Ancestors`).
        has_own_data: whether the file of `training.dataset` was written for this run, which takes it over.
    """

    env: Any = None
    device: str = "auto"
    out: str | os.PathLike[str] | None = "runs"
    at: Path | None = None
    verbose: bool = True
    evolution: bool = True
    sinks: Iterable[Any] = ()
    callbacks: Sequence[Any] = ()
    tensorboard: bool | None = None
    track: bool | str | None = None
    argv: Sequence[str] | None = None
    imports: Sequence[str] = ()
    minutes: float | None = None
    test_episodes: int | None = None
    start_time: float | None = None
    workers: int | str | None = None
    ray: str | None = None
    allow_insecure_ray: bool = False
    uses_spare_cores: bool = False
    arrivals: str | os.PathLike[str] | None = None
    script: Sequence[Any] = ()
    ancestors: Any = None
    has_own_data: bool = False


@dataclass(frozen=True, kw_only=True)
class ResumeRequest(RunRequest):
    """What a run is asked for that goes on from its checkpoint.

    None of `tensorboard`, `track`, `workers` and `ray` keeps what the run began with. Device, evolution, script and
    order of arrivals are always those of its record.

    Attributes:
        steps: a new budget of each member. settings: changes as in `--set`, of sections that may change on resume.
        carry_envs: changes `training.carry_envs` from here on.
        strict_replay: reject a damaged replay instead of continuing without the lost rows.
        restart: start again if every checkpoint is damaged; files of the run are renamed `bad-*`.
        allow_other_kernels: continue without the kernels of the run; the last bits then differ.
    """

    steps: int | None = None
    settings: Sequence[str] = ()
    carry_envs: bool | None = None
    strict_replay: bool = False
    restart: bool = False
    allow_other_kernels: bool = False
