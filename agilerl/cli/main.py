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
from agilerl import foreign
from agilerl.cli import configuring, continuing, data, schedules, sharing, steering, training, viewing, watching
from agilerl.cli.as_json import print_error, print_json
from agilerl.cli.founders import From
from agilerl.cli.messages import Commands, command_as_json, on_command_line
from agilerl.cli.options import (
    AsJson,
    Debug,
    Device,
    Episodes,
    EpisodeSeed,
    Imports,
    Quiet,
    RunOrAddress,
    RunPath,
    Seed,
    Settings,
    TestEpisodes,
    algorithm_names,
    check_sets,
    examples,
    is_typed,
    preset_ids,
    real_option,
    steps_option,
    whole_option,
)
from agilerl.cli.seeds import (
    AllowInsecureRay,
    ArrayIndex,
    Ray,
    Seeds,
    Workers,
    check_without_ray,
    train_side_by_side,
    workers_in,
)
from agilerl.cli.tracking import NoTrack, TrackedCommand, Tracker, chosen_tracker
from agilerl.cli.training import TrainOptions
from agilerl.errors import AgileRLError, AgileRLWarning, AlgorithmError, ConfigError, EnvError, UnknownAlgorithmError
from agilerl.importing import import_code
from agilerl.redaction import redact
from agilerl.runs.names import is_run
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
def train(
    context: typer.Context,
    env_id: Annotated[
        str | None,
        typer.Argument(
            metavar="ENV_ID",
            autocompletion=preset_ids,
            help="A Gymnasium id (LunarLander-v3), a PettingZoo module (mpe2.simple_spread_v3), or a task of language "
            "models (reasoning/chain_sum, arithmetic/addition-2).",
        ),
    ] = None,
    algo: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", autocompletion=algorithm_names, help="The algorithm; default: the one of the preset."
        ),
    ] = None,
    steps: Annotated[int | None, steps_option("Environment steps of one member.", "--steps")] = None,
    total_timesteps: Annotated[
        int | None, steps_option("The same as --steps: of one member, not of all together.", "--total-timesteps")
    ] = None,
    minutes: Annotated[
        float | None,
        real_option(
            "A budget in minutes, closing test included; default: 10, for an environment without a preset.",
            "--minutes",
            metavar="N",
            example="10",
        ),
    ] = None,
    target: Annotated[
        float | None,
        real_option("Stop when held-out episodes reach this mean return.", "--target", metavar="SCORE", example="475"),
    ] = None,
    population: Annotated[int | None, whole_option("Members of the population.", "--population", example="4")] = None,
    num_envs: Annotated[
        int | None, whole_option("Environments that one member steps at once.", "--num-envs", example="8")
    ] = None,
    env_kwargs: Annotated[
        list[str] | None,
        typer.Option("--env-kwargs", metavar="KEY=VALUE", help="A keyword of the environment; may be repeated."),
    ] = None,
    seed: Seed = None,
    seeds: Seeds = None,
    workers: Workers = None,
    ray: Ray = None,
    allow_insecure_ray: AllowInsecureRay = False,
    arrivals: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="In asynchronous mode, repeat the order in which the shards of this run arrived."
        ),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Train this run again from its record, steering included: the same bits. Options that change what is "
            "trained do not go with it.",
        ),
    ] = None,
    array_index: ArrayIndex = None,
    device: Device = "auto",
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A YAML manifest; what it leaves out comes from the preset.")
    ] = None,
    schedule: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Train one agent by a schedule, which `agilerl schedule RUN --out` writes."),
    ] = None,
    settings: Settings = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="The folder that gets the run directory.")] = Path("runs"),
    quiet: Quiet = False,
    no_evolution: Annotated[bool, typer.Option("--no-evolution", help="Train without selection and mutation.")] = False,
    no_preset: Annotated[
        bool, typer.Option("--no-preset", help="Ignore presets, as for an unknown environment.")
    ] = False,
    opponents: Annotated[
        str | None, typer.Option(metavar="self", help="Self-play in a game of two, with IPPO or MAPPO.")
    ] = None,
    dataset: Annotated[
        str | None,
        typer.Option(
            metavar="DATA",
            help="Learn from data (CQN, CQL, IQL, TD3BC, BC): a file .h5, .hdf5 or .npz, minari:ID, or a run that "
            "keeps its replay.",
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="The base model of GRPO, DPO, SFT, ...: a folder or a hub id.")
    ] = None,
    from_file: From = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved settings without training.")] = False,
    test_episodes: TestEpisodes = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard files to RUN/tb.")] = False,
    track: Tracker = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve a page that follows the run; prints its address.")
    ] = False,
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help="Import the module of an id such as module:Name-v0.")
    ] = False,
    imports: Imports = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Train a population on an environment."""
    begun = time.perf_counter()
    with user_errors(debug, imports):
        if replay is not None:
            steering.check_alone(context, "replay")
        options = TrainOptions(
            env_id=env_id, algo=algo, steps=steps, total_timesteps=total_timesteps, minutes=minutes, target=target,
            population=population, num_envs=num_envs, env_kwargs=env_kwargs, seed=seed, seeds=seeds,
            workers=workers, ray=ray, allow_insecure_ray=allow_insecure_ray, arrivals=arrivals, replay=replay,
            array_index=array_index, device=device, config=config, schedule=schedule, settings=settings or (),
            out=out, quiet=quiet or as_json, no_evolution=no_evolution, no_preset=no_preset, opponents=opponents,
            dataset=dataset, model=model, from_file=from_file, dry_run=dry_run, tensorboard=tensorboard, track=track,
            test_episodes=training.closing_episodes(test_episodes, replay), watch=watch, allow_code=allow_code,
            imports=imports or (), as_json=as_json,
        )  # fmt: skip
        training.train(options, begun)


@app.command(
    cls=TrackedCommand,
    epilog=examples(
        "agilerl resume runs/CartPole-v1/dqn-0001",
        "agilerl resume runs/CartPole-v1/dqn-0001 --steps 200000",
        "agilerl resume runs/CartPole-v1/dqn-0001 --target 490",
    ),
)
def resume(
    run: RunPath,
    steps: Annotated[
        int | None,
        steps_option("A new budget of one member: environment steps, or updates of offline algorithms.", "--steps"),
    ] = None,
    minutes: Annotated[
        float | None,
        real_option("How many more minutes to train, closing test included.", "--minutes", metavar="N", example="10"),
    ] = None,
    target: Annotated[
        float | None,
        real_option("A new target score, until which the run goes on.", "--target", metavar="SCORE", example="475"),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a setting of training, mutation or tournament_selection; may be repeated.",
        ),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Begin again if no checkpoint can be read; the old files are set aside.")
    ] = False,
    allow_other_kernels: Annotated[
        bool,
        typer.Option("--allow-other-kernels", help="Go on where the kernels of the run are missing; last bits differ."),
    ] = False,
    workers: Workers = None,
    ray: Ray = None,
    allow_insecure_ray: AllowInsecureRay = False,
    quiet: Quiet = False,
    strict_replay: Annotated[
        bool, typer.Option("--strict-replay", help="Refuse to go on if a part of the replay is damaged.")
    ] = False,
    carry_envs: Annotated[
        bool | None,
        typer.Option("--carry-envs/--cut-envs", help="Keep episodes going between generations; resuming is not exact."),
    ] = None,
    test_episodes: TestEpisodes = None,
    tensorboard: Annotated[
        bool | None,
        typer.Option("--tensorboard/--no-tensorboard", help="Write TensorBoard files; default: as the run began."),
    ] = None,
    track: Tracker = None,
    no_track: NoTrack = False,
    imports: Imports = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Continue a run from where it was saved.

    The newest checkpoint that can be read is taken. Without changes, the result is that of a run that never stopped.
    """
    begun, quiet = time.perf_counter(), quiet or as_json
    with user_errors(debug, imports, run):
        from agilerl.runs.names import is_group
        from agilerl.runs.seed_group import SeedGroup

        check_sets(settings, {"--steps": steps, "--target": target}, minutes)
        tracker = chosen_tracker(track, no_track)
        changes = [*(settings or ()), *(() if target is None else (f"training.target_score={target}",))]
        processes = workers_in(workers)
        if is_group(run):
            check_without_ray(ray, f"{run} holds seeds: agilerl resume")
            if minutes is not None:
                raise ConfigError(f"{run} holds seeds, which have a budget in steps. fix: --steps, or one of its runs.")
            options: dict[str, Any] = {"steps": steps, "settings": changes or None, "restart": restart or None}
            options |= {"strict_replay": strict_replay or None, "allow_other_kernels": allow_other_kernels or None}
            options |= {"carry_envs": carry_envs, "tensorboard": tensorboard, "track": tracker}
            options |= {"test_episodes": test_episodes}
            options = {name: value for name, value in options.items() if value is not None}
            as_name = "resume" if as_json else None
            train_side_by_side(SeedGroup.open(run), processes or "auto", quiet, imports or (), options, as_name)
            return
        from agilerl.api import resume_training

        episodes = training.closing_episodes(test_episodes, run)
        more: dict[str, Any] = {"verbose": not quiet, "tensorboard": tensorboard, "track": tracker}
        more |= {"settings": changes, "restart": restart, "imports": imports or ()}
        more |= {"allow_other_kernels": allow_other_kernels, "workers": processes, "uses_spare_cores": True}
        more |= {"ray": ray, "allow_insecure_ray": allow_insecure_ray}
        more |= {"minutes": minutes, "closing_episodes": episodes, "begun": begun}
        ended = resume_training(run, steps=steps, strict_replay=strict_replay, carry_envs=carry_envs, **more)
        training.close(ended, episodes, as_json)


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
        from agilerl.hub import as_typed, local_run

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
        from agilerl.export import export_onnx, export_team

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
