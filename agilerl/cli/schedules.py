"""`agilerl schedule` and `agilerl importance`: the winner's schedule, and the importance of its settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agilerl.cli.as_json import print_json
from agilerl.cli.errors import user_errors
from agilerl.cli.options import AsJson, Debug, RunPath, RunPaths, examples
from agilerl.errors import ConfigError
from agilerl.runs.records import RunRecords
from agilerl.runs.seed_group import with_groups
from agilerl.views.report.importance import check_installed
from agilerl.views.report.importance import importance as importance_of
from agilerl.views.report.schedule import schedule_of

app = typer.Typer(rich_markup_mode=None)


@app.command(
    epilog=examples(
        "agilerl schedule runs/CartPole-v1/dqn-0001",
        "agilerl schedule runs/CartPole-v1/dqn-0001 --out schedule.yaml",
    )
)
def schedule(
    run: RunPath,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the schedule, for `agilerl train --schedule`.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show how the winner's hyperparameters and network changed.

    Each change is listed with the environment steps of one member after which it took effect.
    """
    with user_errors(debug):
        winner = schedule_of(run)
        if out is not None:
            _check_target(out, winner.text(out.name))
            typer.echo(f"schedule  {winner.write(out)}", err=as_json)
        if as_json:
            print_json("schedule", **winner.as_dict())
        else:
            typer.echo("\n".join(winner.lines()))


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
        check_installed()
        records = [RunRecords.read(path) for path in with_groups(runs)]
        for run in records:
            run.check_lineage()
        mattered = importance_of(records)
        if as_json:
            print_json("importance", **mattered.as_dict())
        else:
            typer.echo("\n".join(mattered.lines()))


def _check_target(out: Path, text: str) -> None:
    """Raise ConfigError for a file with another content."""
    if out.exists() and not (out.is_file() and out.read_bytes() == text.encode()):
        raise ConfigError(f"{out} is there already. fix: another --out, or remove it.")
