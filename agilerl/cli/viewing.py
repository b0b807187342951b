"""The commands report, compare, schedule and importance."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agilerl.cli.as_json import show
from agilerl.cli.errors import user_errors
from agilerl.cli.options import AsJson, Debug, RunPath, RunPaths, examples
from agilerl.errors import ConfigError
from agilerl.runs.records import RunRecords
from agilerl.runs.seed_group import with_groups
from agilerl.views.hub import is_address, local_run
from agilerl.views.report import write_report
from agilerl.views.report.compare import comparison, write_comparison
from agilerl.views.report.importance import check_installed
from agilerl.views.report.importance import importance as importance_of
from agilerl.views.report.page import REPORT
from agilerl.views.report.schedule import schedule_of

app = typer.Typer(rich_markup_mode=None)


@app.command(
    epilog=examples(
        "agilerl report runs/CartPole-v1/dqn-0001",
        "agilerl report runs/CartPole-v1/dqn-0001 --out report.html",
        "agilerl report runs/CartPole-v1/dqn-0001 runs/CartPole-v1/dqn-0002",
    )
)
def report(
    runs: RunPaths,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The file; default: RUN/report.html.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Write the HTML report of a run.

    The run may have ended or still train. The report is one page that needs no network.
    """
    with user_errors(debug):
        if out is not None and len(runs) > 1:
            raise ConfigError("--out names one file, for one run. fix: name one run, or leave --out out.")
        # Local copies of runs on the Hub stay as they are.
        targets = [Path(REPORT) if out is None and is_address(run) else out for run in runs]
        written = [write_report(local_run(run), target) for run, target in zip(runs, targets, strict=True)]
        show("report", as_json, [f"report  {path}" for path in written], reports=written)


@app.command(
    epilog=examples(
        "agilerl compare runs/CartPole-v1/dqn-0001 runs/CartPole-v1/ppo-0001",
        "agilerl compare runs/CartPole-v1/dqn-0001 runs/CartPole-v1/ppo-0001 --html compare.html",
        "agilerl compare runs/CartPole-v1/dqn-0001 runs/CartPole-v1/ppo-0001 --json",
    )
)
def compare(
    runs: RunPaths,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the tables and learning curves as an HTML page.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Compare runs by score, steps and time.

    Scores are those of the final evaluations, with intervals. Runs that differ by their seed, budget or target alone
    form a group.
    """
    with user_errors(debug):
        result = comparison(runs)
        page = None if html is None else write_comparison(result, html)
        show("compare", as_json, result.lines(), **result.as_dict())
        if page is not None:
            typer.echo(f"curves  {page}", err=as_json)


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
        show("schedule", as_json, winner.lines(), **winner.as_dict())


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
        show("importance", as_json, mattered.lines(), **mattered.as_dict())


def _check_target(out: Path, text: str) -> None:
    """Raise ConfigError for a file with another content."""
    if out.exists() and not (out.is_file() and out.read_bytes() == text.encode()):
        raise ConfigError(f"{out} is there already. fix: another --out, or remove it.")
