"""What a run is asked for beside the settings of its manifest, and the declaration of its options."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, get_type_hints


@dataclass(frozen=True)
class Option:
    """Declaration of a field as an option of `agilerl train` and `agilerl resume`.

    Attributes:
        text: its help. flag: how it is typed, where that is not `--` and the name of the field.
        metavar, example: of its value. least: the smallest number.
        is_keyword: whether `agilerl.train` and `agilerl.resume` take it as a keyword.
        on_resume: whether a resume has it; otherwise the run keeps that of its record.
        of_group: whether it holds for each run of `--seeds`, in whose group.json it is, and not for the processes.
        is_recorded: whether run.json and checkpoints have it if it is not the default; its value is plain.
    """

    text: str
    flag: str | None = None
    metavar: str | None = None
    example: str = ""
    least: float | None = None
    is_keyword: bool = True
    on_resume: bool = True
    of_group: bool = True
    is_recorded: bool = False


# fmt: off
@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What a run is asked for, from the command line and `agilerl.train` down to the training loop.

    Every option of a run that is no setting of its manifest is a field here, and read where it takes effect. One that
    is declared with an `Option` is also an option of the commands and a keyword of `agilerl.train`.

    Attributes:
        env: the environment, unless the manifest's id makes it. at: the run directory itself, in place of `out`.
        out: None writes nothing. verbose: whether to print. evolution: False trains without selection and mutation.
        sinks: further destinations of the records. callbacks: see `agilerl.Callback`.
        track: a tracker of `agilerl.telemetry.TRACKERS`; True is W&B.
        argv: the command line that is recorded; None: that of this process.
        imports: modules of the user's that the run imports, repeated in the commands that it prints.
        test_episodes: None: no final evaluation follows.
        start_time: of the minutes, a reading of `time.perf_counter`; None: now.
        uses_spare_cores: whether other cores take part too where that changes no bit, with one worker.
        script: requests (`runs.steering.Taken`) of another run, which this one repeats.
        ancestors: agents that the founders are copies of (`training.manifest.adoption.Ancestors`).
        trials: of the environment, by how it is made (`training.manifest.step_cost.trial`): one measurement is enough.
        has_own_data: whether the file of `training.dataset` was written for this run, which takes it over.
    """

    env: Any = None
    device: Annotated[str, Option(
        "auto, cpu, cuda or cuda:0; auto is CUDA where there is one and networks are large.", metavar="NAME",
        on_resume=False,
    )] = "auto"
    out: Annotated[str | os.PathLike[str] | None, Option(
        "The folder that gets the run directory.", metavar="DIR", on_resume=False, of_group=False,
    )] = "runs"
    at: Path | None = None
    verbose: bool = True
    evolution: bool = True
    sinks: Iterable[Any] = ()
    callbacks: Sequence[Any] = ()
    tensorboard: Annotated[bool | None, Option(
        "Write TensorBoard files to RUN/tb.", is_keyword=False, is_recorded=True,
    )] = False
    track: bool | str | None = None
    argv: Sequence[str] | None = None
    imports: Sequence[str] = ()
    minutes: Annotated[float | None, Option(
        "A budget in minutes, final evaluation included; default: 10, for an environment without a preset.",
        metavar="N", example="10", of_group=False,
    )] = None
    test_episodes: Annotated[int | None, Option(
        "Held-out episodes that score the best agent at the end (--minutes: at most); default: 100, or as RUN began.",
        metavar="N", example="100", least=0, is_keyword=False,
    )] = None
    start_time: float | None = None
    trials: dict[Any, Any] = field(default_factory=dict)
    workers: Annotated[int | str | None, Option(
        "Processes that take part, or auto for one per core. They share out the seeds (default: auto), or play the "
        "episodes of one run's evaluations and train its shards (training.shards). Default there: one process, and "
        "others that play episodes from the twentieth second on.", metavar="N", of_group=False,
    )] = None
    ray: Annotated[str | None, Option(
        "Where the workers of one run are: local starts a Ray of this machine, auto takes the running one, an address "
        "that of another machine; none (default): processes of this machine.", metavar="local|auto|HOST:PORT",
        of_group=False,
    )] = None
    allow_insecure_ray: Annotated[bool, Option(
        "Accept a Ray cluster of other machines that asks for no token.", of_group=False,
    )] = False
    uses_spare_cores: bool = False
    arrivals: Annotated[str | os.PathLike[str] | None, Option(
        "In asynchronous mode, repeat the order in which the shards of this run arrived.", metavar="RUN",
        on_resume=False, of_group=False,
    )] = None
    script: Sequence[Any] = ()
    ancestors: Any = None
    has_own_data: bool = False

    def changed(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the fields that are not the default, of these names."""
        usual = vars(RunRequest())
        return {name: vars(self)[name] for name in names if vars(self)[name] not in (None, usual[name])}


@dataclass(frozen=True, kw_only=True)
class ResumeRequest(RunRequest):
    """What a run is asked for that goes on from its checkpoint.

    None of `tensorboard`, `track`, `workers` and `ray` keeps what the run began with. Device, evolution, script and
    order of arrivals are always those of its record.
    """

    steps: Annotated[int | None, Option(
        "A new budget of one member: environment steps, or updates of offline algorithms.", metavar="N",
        example="100000",
    )] = None
    minutes: Annotated[float | None, Option(
        "How many more minutes to train, final evaluation included.", metavar="N", example="10", of_group=False,
    )] = None
    settings: Annotated[Sequence[str], Option(
        "Change a setting of training, mutation or tournament_selection; may be repeated.", flag="--set",
        metavar="KEY=VALUE", is_keyword=False,
    )] = ()
    tensorboard: Annotated[bool | None, Option(
        "Write TensorBoard files; default: as the run began.", flag="--tensorboard/--no-tensorboard", is_keyword=False,
        is_recorded=True,
    )] = None
    carry_envs: Annotated[bool | None, Option(
        "Keep episodes going between generations; resuming is not exact.", flag="--carry-envs/--cut-envs",
    )] = None
    strict_replay: Annotated[bool, Option("Refuse to go on if a part of the replay is damaged.")] = False
    restart: Annotated[bool, Option(
        "Begin again if no checkpoint can be read; the old files are set aside.",
    )] = False
    allow_other_kernels: Annotated[bool, Option(
        "Go on where the kernels of the run are missing; last bits differ.",
    )] = False
# fmt: on


def options_of(request: type[RunRequest]) -> dict[str, Option]:
    """Return the declared options of a kind of request by the names of its fields."""
    hints = get_type_hints(request, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}


RECORDED = tuple(name for name, option in options_of(RunRequest).items() if option.is_recorded)
SHARED = tuple(name for name, option in options_of(RunRequest).items() if option.of_group)
KEYWORDS = frozenset(name for name, option in options_of(RunRequest).items() if option.is_keyword)
