"""The commands train, resume, evaluate and export, and the error handling of all commands."""

from __future__ import annotations

import re
import shlex
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import agilerl
from agilerl.cli import configuring, continuing, data, schedules, sharing, steering, training, viewing, watching
from agilerl.cli.as_json import print_error, print_json
from agilerl.cli.messages import Commands, command_as_json, on_command_line
from agilerl.cli.options import (
    AsJson,
    Debug,
    Device,
    Episodes,
    EpisodeSeed,
    Imports,
    RunOrAddress,
    RunPath,
    examples,
    is_typed,
    takes,
    whole_option,
)
from agilerl.cli.tracking import TrackedCommand
from agilerl.cli.training import ResumeOptions, TrainOptions
from agilerl.core import foreign
from agilerl.core.importing import import_code
from agilerl.core.redaction import redact
from agilerl.errors import AgileRLError, AgileRLWarning, AlgorithmError, ConfigError, EnvError, UnknownAlgorithmError
from agilerl.runs.names import is_run
from agilerl.runs.request import ResumeRequest, RunRequest
from agilerl.runs.signals import exit_code

USER_ERROR = 2
app = typer.Typer(
    name="agilerl",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "agilerl train CartPole-v1",
        "agilerl train Hopper-v5 --minutes 30 --seed 1",
        "agilerl evaluate runs/CartPole-v1/dqn-0001 --episodes 100",
    ),
)


@contextmanager
def user_errors(debug: bool = False, imports: Iterable[str] | None = None, run: Path | None = None) -> Iterator[None]:
    """Import the user's code; print an `AgileRLError` as one line on standard error and exit 2.

    Ctrl-C exits 130, SIGTERM 143.

    Args:
        run: the run directory of the command; errors name imports of that run that are missing.
    """
    show = warnings.showwarning
    warnings.showwarning = _short_warnings(show)
    try:
        import_code(imports)
        yield
    except AgileRLError as error:
        if debug:
            raise
        message = on_command_line(_naming_imports(error, run, list(imports or ())))
        for line in (f"{type(error).__name__}: {message}", *foreign.notes(error)):
            typer.echo(redact(line), err=True)
        if (name := command_as_json()) is not None:
            print_error(name, type(error).__name__, redact(message))
        raise typer.Exit(USER_ERROR) from None
    except BrokenPipeError:  # the reader has closed the pipe: `agilerl ... | head`
        sys.stdout = None
        raise typer.Exit(0) from None
    except OSError as error:  # a full disk, a folder without permissions: a traceback would not help
        if debug or error.errno is None:
            raise
        where = f"{error.filename}: " if error.filename else ""
        message = redact(f"{where}{error.strerror}. fix: make room, or check the rights there.")
        typer.echo(f"RunError: {message}", err=True)
        if (name := command_as_json()) is not None:
            print_error(name, "RunError", message)
        raise typer.Exit(USER_ERROR) from None
    except KeyboardInterrupt as error:
        for line in ("interrupted", *foreign.notes(error)):
            typer.echo(line, err=True)
        raise typer.Exit(exit_code(error)) from None
    finally:
        warnings.showwarning = show


def _naming_imports(error: AgileRLError, run: Path | None, imports: Sequence[str]) -> str:
    """Add to an error the imports of its run that are missing; the fix imports them.

    Only errors of environments and algorithms may come from a missing import; others keep their fix.
    Code is never imported automatically: a run directory may come from an untrusted source.
    """
    message = str(error)
    if isinstance(error, UnknownAlgorithmError) and imports:
        message = _naming_registered(message, " and ".join(imports))
    if run is None or not isinstance(error, EnvError | AlgorithmError) or not is_run(run):
        return message
    from agilerl.runs.commands import imports_of
    from agilerl.runs.directory import RunDirectory

    try:
        missing = [name for name in imports_of(RunDirectory(run).facts()) if name not in set(imports)]
    except AgileRLError:
        return message
    if not missing:
        return message
    options = " ".join(f"--import {shlex.quote(name)}" for name in missing)
    return f"{message.partition(' fix: ')[0]} The run was made with {options}. fix: repeat {options}."


def _naming_registered(message: str, imports: str) -> str:
    """Add to the message about an unknown algorithm what the imported code registers."""
    from agilerl.algorithms import available, shipped_in

    registered = ", ".join(name for name in available() if shipped_in(name) is None)
    what, _, fix = message.partition(" fix: ")
    where = f"--import {imports} registers {f'{registered} alone' if registered else 'no algorithm'}"
    what = re.sub(r"(unknown algorithm '[^']*')", lambda match: f"{match[1]}: {where}", what, count=1)
    return f"{what} fix: @register above its class in {imports}, or {fix}"


def _short_warnings(show: Any) -> Any:
    """Print our warnings as one line, and others once: Python forgets which it has shown when its filters change."""
    shown: set[str] = set()

    def showwarning(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        text = str(message)
        if issubclass(category, AgileRLWarning):
            print(f"warning: {on_command_line(text) if 'fix: ' in text else text}", file=sys.stderr)
        elif text not in shown:
            shown.add(text)
            show(message, category, *rest, **more)

    return showwarning


def _version(show: bool) -> None:
    if show:
        typer.echo(f"agilerl {agilerl.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Evolve the hyperparameters of reinforcement learning agents while they train."""


@app.command(
    cls=TrackedCommand,
    epilog=examples(
        "agilerl train LunarLander-v3",
        "agilerl train Hopper-v5 --algo SAC --steps 1e6 --population 4 --set lr_actor=3e-4",
        "agilerl train Trading-v0 --import myenvs.py --minutes 10",
        "agilerl train Pendulum-v1 --algo CQL --dataset data.h5",
        "agilerl train CartPole-v1 --from ppo_cartpole.zip",
    ),
)
@takes(TrainOptions, RunRequest)
def train(context: typer.Context, options: TrainOptions, request: RunRequest) -> None:
    """Train a population on an environment."""
    start_time = time.perf_counter()
    with user_errors(options.debug, options.imports):
        if options.replay is not None:
            steering.check_alone(context, "replay")
        training.train(options, request, start_time)


@app.command(
    cls=TrackedCommand,
    epilog=examples(
        "agilerl resume runs/CartPole-v1/dqn-0001",
        "agilerl resume runs/CartPole-v1/dqn-0001 --steps 200000",
        "agilerl resume runs/CartPole-v1/dqn-0001 --target 490",
    ),
)
@takes(ResumeOptions, ResumeRequest)
def resume(run: RunPath, options: ResumeOptions, request: ResumeRequest) -> None:
    """Continue a run from where it was saved.

    The newest checkpoint that can be read is taken. Without changes, the result is that of a run that never stopped.
    """
    start_time = time.perf_counter()
    with user_errors(options.debug, options.imports, run):
        training.resume(run, options, request, start_time)


@app.command(
    epilog=examples(
        "agilerl evaluate runs/CartPole-v1/dqn-0001",
        "agilerl evaluate runs/CartPole-v1/dqn-0001 --episodes 1000 --seed 7",
        "agilerl evaluate runs/CartPole-v1/dqn-0001 --json",
    )
)
def evaluate(
    context: typer.Context,
    run: RunOrAddress,
    episodes: Episodes = 100,
    seed: EpisodeSeed = None,
    device: Device = "auto",
    max_steps: Annotated[
        int | None,
        whole_option("Cut episodes after N steps; default: as in training.", "--max-steps", example="1000", least=1),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Prompts of a language policy: report (default), test or train."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with every return.")] = False,
    imports: Imports = None,
    debug: Debug = False,
) -> None:
    """Score the best agent of a run over whole episodes.

    Prints the mean, the interquartile mean and a 95 % bootstrap interval.
    """
    with user_errors(debug, imports, run):
        from agilerl.api import load
        from agilerl.cli.output import evaluation_lines, unfinished_line
        from agilerl.views.hub import as_typed, local_run

        asked, run = as_typed(run), local_run(run)
        loaded = load(run, device)
        seeded = {} if seed is None else {"seed": seed}
        if not loaded.best.learns_language and not loaded.best.environment:
            raise ConfigError(
                f"{run} was trained in an environment that a script handed over, and a command cannot make it. "
                f"fix: agilerl.load({str(run)!r}).best.evaluate(env=...) in Python, with that environment."
            )
        limited = {} if max_steps is None else {"max_steps": max_steps}
        if loaded.best.learns_language:
            _no_episodes(context)
            evaluation = loaded.best.evaluate(split)
        elif split is not None:
            raise ConfigError(
                f"--split is of language policies; {loaded.manifest.algorithm.name} plays episodes. fix: --episodes."
            )
        else:
            evaluation = loaded.best.evaluate(episodes=episodes, **seeded, **limited)
        if (unfinished := unfinished_line(run)) is not None:
            typer.echo(unfinished, err=True)
        if as_json:
            facts = {"run": asked, "env_id": loaded.manifest.environment.name, **seeded}
            print_json("evaluate", **facts, **evaluation.as_dict())
            return
        for line in evaluation_lines(loaded, evaluation):
            typer.echo(line)


def _no_episodes(context: typer.Context) -> None:
    """Raise ConfigError for episode options on a language policy."""
    for name in ("episodes", "seed", "max_steps"):
        if is_typed(context, name):
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{option} is of episodes; a language policy answers every prompt of a split, greedily. "
                "fix: --split report."
            )


@app.command(
    epilog=examples(
        "agilerl export runs/CartPole-v1/dqn-0001 --onnx",
        "agilerl export runs/CartPole-v1/dqn-0001 --onnx --out policy.onnx",
        "agilerl export runs/reasoning-chain_sum/grpo-0001 --out adapter",
    )
)
def export(
    run: RunPath,
    onnx: Annotated[
        bool,
        typer.Option("--onnx", help="Write ONNX and compare it with the agent; the default of policies with spaces."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="The file; default: RUN/best/policy.onnx. For a language policy the folder; default: RUN/adapter.",
        ),
    ] = None,
    imports: Imports = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Export the best policy of a run.

    To ONNX, or for a language policy to an adapter that PEFT reads. RUN/best/policy.py, where it is, loads a policy in
    plain PyTorch without an export.
    """
    with user_errors(debug, imports, run):
        from agilerl.cli.output import exported_adapter

        if (lines := exported_adapter(run, out, onnx)) is not None:
            if as_json:
                print_json("export", **{key: value for key, _, value in (line.partition("  ") for line in lines)})
                return
            for line in lines:
                typer.echo(line)
            return
        from agilerl.api import load
        from agilerl.views.export import export_onnx, export_team

        best, target = load(run, "cpu").best, out or run / "best" / "policy.onnx"
        is_team = hasattr(best, "grouped_agents")  # one file for each group of agents
        reports = list(export_team(best, target).values()) if is_team else [export_onnx(best, target)]
        if as_json:
            print_json("export", onnx=[vars(report) for report in reports])
            return
        for report in reports:
            typer.echo(f"onnx  {report.path}")
            typer.echo(f"check  {report}")


viewing.register(app, user_errors)
watching.register(app, user_errors)
schedules.register(app, user_errors)
configuring.register(app, user_errors)
data.register(app, user_errors)
steering.register(app, user_errors)
sharing.register(app, user_errors)
continuing.register(app, user_errors)
