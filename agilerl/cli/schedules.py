"""`agilerl schedule` and `agilerl importance`: the winner's schedule, and the importance of its settings."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from agilerl.cli.as_json import print_json
from agilerl.cli.options import (
    AsJson,
    Debug,
    Device,
    Imports,
    Quiet,
    RunPath,
    RunPaths,
    examples,
    whole_option,
)
from agilerl.cli.seeds import seeds_in, workers_in
from agilerl.errors import ConfigError
from agilerl.importing import import_code


def register(app: typer.Typer, user_errors: Any) -> None:
    """Register the commands in `app`; `user_errors` is the context manager that handles their errors."""

    @app.command(
        epilog=examples(
            "agilerl schedule runs/CartPole-v1/dqn-0001",
            "agilerl schedule runs/CartPole-v1/dqn-0001 --out schedule.yaml",
            "agilerl schedule runs/CartPole-v1/dqn-0001 --verdict --seeds 1-5 --workers 2",
        )
    )
    def schedule(
        run: RunPath,
        out: Annotated[
            Path | None, typer.Option(metavar="FILE", help="Write the schedule, for `agilerl train --schedule`.")
        ] = None,
        verdict: Annotated[
            bool,
            typer.Option(
                "--verdict",
                help="Train new seeds with the schedule, with its final constants and with the founder's values, and "
                "print which carries the gain.",
            ),
        ] = False,
        seeds: Annotated[
            str | None,
            typer.Option(metavar="LIST", help="Of --verdict, such as 1-5; default: five that are not the run's own."),
        ] = None,
        workers: Annotated[
            str | None,
            typer.Option(metavar="N", help="Of --verdict: processes, or auto for one per core. Default: one."),
        ] = None,
        episodes: Annotated[
            int | None,
            whole_option(
                "Of --verdict: held-out episodes of each score; default: 100.", "--episodes", example="100", least=1
            ),
        ] = None,
        device: Device = "auto",
        as_json: AsJson = False,
        quiet: Quiet = False,
        imports: Imports = None,
        debug: Debug = False,
    ) -> None:
        """Show how the winner's hyperparameters and network changed.

        Each change is listed with the environment steps of one member after which it took effect.
        """
        with user_errors(debug, imports, run):
            from agilerl.report.schedule import schedule_of

            if not verdict:
                options = {"--seeds": seeds, "--workers": workers, "--episodes": episodes}
                if wrong := [name for name, value in options.items() if value is not None]:
                    raise ConfigError(f"{', '.join(wrong)} needs --verdict. fix: --verdict, or leave {wrong[0]} out.")
            winner = schedule_of(run)
            if out is not None:
                _check_target(out, winner.text(out.name))
                typer.echo(f"schedule  {winner.write(out)}", err=as_json)
            if not verdict:
                if as_json:
                    print_json("schedule", **winner.as_dict())
                else:
                    typer.echo("\n".join(winner.lines()))
                return
            _judge(run, seeds, workers, episodes, device, quiet or as_json, as_json, imports or [])

    @app.command(
        epilog=examples(
            "agilerl importance runs/CartPole-v1/dqn-0001",
            "agilerl importance runs/CartPole-v1/dqn-0001 runs/CartPole-v1/dqn-0002 --json",
        )
    )
    def importance(runs: RunPaths, as_json: AsJson = False, debug: Debug = False) -> None:
        """Show which hyperparameters and mutations mattered.

        From the lineages of one or more runs, with intervals; left out for too little data.
        """
        with user_errors(debug):
            from agilerl.report.importance import check_installed
            from agilerl.report.importance import importance as measure
            from agilerl.report.records import RunRecords
            from agilerl.runs.seed_group import with_groups

            check_installed()
            records = [RunRecords.read(path) for path in with_groups(runs)]
            for run in records:
                run.check_lineage()
            mattered = measure(records)
            if as_json:
                print_json("importance", **mattered.as_dict())
            else:
                typer.echo("\n".join(mattered.lines()))


def _check_target(out: Path, text: str) -> None:
    """Raise ConfigError for a file with another content; the command that repeats a verdict writes the same again."""
    if out.exists() and not (out.is_file() and out.read_bytes() == text.encode()):
        raise ConfigError(f"{out} is there already. fix: another --out, or remove it.")


def _judge(
    run: Path,
    seeds: str | None,
    workers: str | None,
    episodes: int | None,
    device: str,
    quiet: bool,
    as_json: bool,
    imports: list[str],
) -> None:
    """Train the missing runs of a verdict, print it, and exit with an error if a run failed."""
    from agilerl.telemetry.side_by_side import SideBySide
    from agilerl.training.seeds import LOG
    from agilerl.training.verdict import Arms, train_arms

    arms = Arms.of(run, None if seeds is None else seeds_in(seeds), 100 if episodes is None else episodes)
    table = SideBySide(not quiet, unit="run")
    prepare = partial(import_code, imports)
    result = train_arms(arms, workers_in(workers) or 1, table, prepare, device=device, imports=imports)
    if as_json:
        print_json("schedule", **result.verdict.as_dict())
    else:
        typer.echo("\n".join(result.verdict.lines()))
    for name, end in result.failed.items():
        typer.echo(f"run {name} failed: {end.error}", err=True)
        if end.traceback:
            seed, arm = name.split(" ", 1)
            typer.echo(f"its traceback is in {arms.run_path(arm, int(seed)) / LOG}", err=True)
    if result.signal is not None:
        typer.echo("the same command goes on", err=True)
        raise typer.Exit(128 + result.signal)
    if result.failed:
        raise typer.Exit(2 if all(end.is_user_error for end in result.failed.values()) else 1)
