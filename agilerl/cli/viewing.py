"""The commands report and compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agilerl.cli.as_json import print_json
from agilerl.cli.errors import user_errors
from agilerl.cli.options import AsJson, Debug, RunPaths, examples
from agilerl.errors import ConfigError
from agilerl.views.hub import is_address, local_run
from agilerl.views.report import write_report
from agilerl.views.report.compare import comparison, write_comparison
from agilerl.views.report.page import REPORT

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
        if as_json:
            print_json("report", reports=written)
            return
        for path in written:
            typer.echo(f"report  {path}")


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

    Scores are those of the closing tests, with intervals. Runs that differ by their seed, budget or target alone
    form a group.
    """
    with user_errors(debug):
        result = comparison(runs)
        page = None if html is None else write_comparison(result, html)
        if as_json:
            print_json("compare", **result.as_dict())
        else:
            typer.echo("\n".join(result.lines()))
        if page is not None:
            typer.echo(f"curves  {page}", err=as_json)
