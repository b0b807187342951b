"""The commands: train, resume, evaluate, list, and those that come later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import agilerl
from agilerl.cli.errors import INTERRUPTED, user_errors
from agilerl.cli.export import export
from agilerl.cli.later import add_later_commands
from agilerl.cli.own_code import Imports, import_code

if TYPE_CHECKING:
    from agilerl.api import Run
    from agilerl.config import Manifest

app = typer.Typer(
    name="agilerl", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory: runs/<env>/<algo>-<nnnn>.")]


def _version(show: bool) -> None:
    if show:
        typer.echo(f"agilerl {agilerl.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Evolve the hyperparameters of reinforcement learning agents while they train."""


@app.command()
def train(
    env_id: Annotated[str | None, typer.Argument(metavar="ENV_ID", help="A Gymnasium id: LunarLander-v3.")] = None,
    algo: Annotated[str | None, typer.Option(help="Algorithm; default: the preset's.")] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", "--total-timesteps", help="Environment steps of one member.")
    ] = None,
    population: Annotated[int | None, typer.Option(help="Members.")] = None,
    seed: Annotated[int | None, typer.Option(help="Default: the configuration's.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:0.")] = "auto",
    config: Annotated[Path | None, typer.Option(help="A YAML manifest; the preset fills in the rest.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting: training.pop_size=6.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the run directory is made.")] = Path("runs"),
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print only the closing lines.")] = False,
    no_evolution: Annotated[bool, typer.Option("--no-evolution", help="No selection, no mutation.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved settings; run nothing.")] = False,
    test_episodes: Annotated[int, typer.Option(min=0, help="Fresh episodes that score the best agent.")] = 100,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard files.")] = False,
    track: Annotated[bool, typer.Option("--track", help="Log to Weights & Biases.")] = False,
    allow_code: Annotated[
        bool, typer.Option("--allow-code", help="Import the module of an id like module:Name-v0; that runs its code.")
    ] = False,
    imports: Imports = None,
    debug: Debug = False,
) -> None:
    """Train a population on an environment."""
    with user_errors(debug):
        import_code(imports)
        from agilerl.api import base_manifest
        from agilerl.config import apply_sets
        from agilerl.env_ids import import_environment

        if allow_code and env_id is not None:
            env_id = import_environment(env_id)
        manifest = apply_sets(base_manifest(env_id, algo, config), settings or [])
        if allow_code and ":" in manifest.environment.name:  # from --config or --set
            manifest = apply_sets(manifest, [f"environment.name={import_environment(manifest.environment.name)}"])
        manifest = _with_options(manifest, steps, population, seed)
        if dry_run:
            _print_plan(manifest, device, evolution=not no_evolution)
            return
        from agilerl.api import run_training

        run = run_training(
            manifest,
            device=device,
            out=out,
            verbose=not quiet,
            evolution=not no_evolution,
            tensorboard=tensorboard,
            track=track,
        )
        _close(run, test_episodes)


def _with_options(manifest: Manifest, steps: int | None, population: int | None, seed: int | None) -> Manifest:
    from agilerl.config import apply_overrides

    for option, key, value in (
        ("--steps", "training.max_steps", steps),
        ("--population", "training.pop_size", population),
        ("--seed", "training.seed", seed),
    ):
        if value is not None:
            manifest = apply_overrides(manifest, {key: value}, option)
    return manifest


def _print_plan(manifest: Manifest, device: str, evolution: bool) -> None:
    from agilerl.api import resolve_device, with_known_env
    from agilerl.config import dump_yaml
    from agilerl.telemetry.text import count

    manifest = with_known_env(manifest)
    where = resolve_device(device)
    training = manifest.training
    generations = max(1, -(-training.max_steps // training.evo_steps))
    typer.echo(dump_yaml(manifest), nl=False)
    typer.echo(
        f"# {manifest.algorithm.name} on {manifest.environment.name}: {training.pop_size} members x "
        f"{count(training.max_steps)} env steps, {generations} generations, seed {training.seed}, {where}, "
        f"evolution {'on' if evolution else 'off'}, manifest {manifest.hash()}"
    )


def _close(run: Run, test_episodes: int) -> None:
    """Score the best agent on fresh episodes, print the closing lines, exit 130 or 143 after a signal."""
    from agilerl.cli.output import closing_lines, score_best

    evaluation = None if run.interrupted else score_best(run, test_episodes)
    for line in closing_lines(run, evaluation):
        typer.echo(line)
    if run.interrupted:
        raise typer.Exit(INTERRUPTED if run.signal is None else 128 + run.signal)


@app.command()
def resume(
    run: RunPath,
    steps: Annotated[int | None, typer.Option(min=1, help="A new budget of env steps per member.")] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print only the closing lines.")] = False,
    strict_replay: Annotated[
        bool, typer.Option("--strict-replay", help="Refuse where a part of the replay is damaged.")
    ] = False,
    carry_envs: Annotated[
        bool | None, typer.Option("--carry-envs/--cut-envs", help="From here on, keep episodes going; not exact.")
    ] = None,
    test_episodes: Annotated[int, typer.Option(min=0, help="Fresh episodes that score the best agent.")] = 100,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard files.")] = False,
    track: Annotated[bool, typer.Option("--track", help="Log to Weights & Biases.")] = False,
    imports: Imports = None,
    debug: Debug = False,
) -> None:
    """Continue a run exactly, from its newest checkpoint that is whole."""
    with user_errors(debug):
        import_code(imports)
        from agilerl.api import resume_training

        continued = resume_training(
            run,
            steps=steps,
            verbose=not quiet,
            strict_replay=strict_replay,
            carry_envs=carry_envs,
            tensorboard=tensorboard,
            track=track,
        )
        _close(continued, test_episodes)


@app.command()
def evaluate(
    run: RunPath,
    episodes: Annotated[int, typer.Option(min=1, help="Full episodes, greedy.")] = 100,
    seed: Annotated[int | None, typer.Option(help="Of the episodes.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with every return.")] = False,
    imports: Imports = None,
    debug: Debug = False,
) -> None:
    """Score the best agent of a run: mean, interquartile mean, 95 % bootstrap interval."""
    with user_errors(debug):
        import_code(imports)
        from agilerl.api import load
        from agilerl.cli.output import evaluation_lines

        loaded = load(run, device)
        seeded = {} if seed is None else {"seed": seed}
        evaluation = loaded.best.evaluate(episodes=episodes, **seeded)
        if as_json:
            facts = {"run": str(run), "env_id": loaded.manifest.environment.name, **seeded}
            typer.echo(json.dumps({**facts, **evaluation.as_dict()}))
            return
        for line in evaluation_lines(loaded, evaluation):
            typer.echo(line)


@app.command(name="list")
def list_command(
    what: Annotated[str, typer.Argument(metavar="[algos|envs|presets]")] = "presets",
    imports: Imports = None,
    debug: Debug = False,
) -> None:
    """What can be named: algorithms, environments, presets."""
    with user_errors(debug):
        import_code(imports)
        from agilerl.cli.output import listing

        for line in listing(what):
            typer.echo(line)


app.command()(export)
add_later_commands(app)
