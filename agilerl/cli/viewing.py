"""The commands that show things: list, report, record, compare, doctor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from agilerl.errors import ConfigError

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import", metavar="FILE|MODULE", help="Run this code of yours first: it registers algorithms, environments."
    ),
]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory: runs/<env>/<algo>-<nnnn>.")]
RunPaths = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def register(app: typer.Typer, user_errors: Any) -> None:
    """Put the commands into `app`; `user_errors` is the context manager that ends each of them."""

    @app.command(name="list")
    def list_command(
        what: Annotated[str, typer.Argument(metavar="[algos|envs|presets|runs]")] = "presets",
        out: Annotated[Path, typer.Option(help="Where the runs are (`list runs`).")] = Path("runs"),
        imports: Imports = None,
        debug: Debug = False,
    ) -> None:
        """What can be named: algorithms, environments, presets; the runs that there are."""
        with user_errors(debug, imports):
            from agilerl.cli.listing import listing

            for line in listing(what, out):
                typer.echo(line)

    @app.command()
    def report(
        runs: RunPaths,
        out: Annotated[Path | None, typer.Option(help="The file; default: RUN/report.html.")] = None,
        debug: Debug = False,
    ) -> None:
        """Write a run, finished or still going, as one HTML page that needs no network."""
        with user_errors(debug):
            from agilerl.report import write_report

            if out is not None and len(runs) > 1:
                raise ConfigError("--out names one file, for one run. fix: name one run, or leave --out out.")
            for run in runs:
                typer.echo(f"report  {write_report(run, out)}")

    @app.command()
    def record(
        run: RunPath,
        format: Annotated[str | None, typer.Option(help="webp, gif or mp4; default: by --out, else webp.")] = None,
        episodes: Annotated[int, typer.Option(min=1, help="Full episodes, greedy.")] = 1,
        seed: Annotated[int | None, typer.Option(help="Of the episodes.")] = None,
        out: Annotated[Path | None, typer.Option(help="The file; default: RUN/best/rollout.webp.")] = None,
        imports: Imports = None,
        debug: Debug = False,
    ) -> None:
        """Film the best agent of a run; no display is needed."""
        with user_errors(debug, imports):
            from agilerl.api import load
            from agilerl.report import write_report

            loaded = load(run, "cpu")
            path = loaded.record(out, format=format, episodes=episodes, seed=seed)
            typer.echo(f"film  {path}  ({path.stat().st_size / 1000:.0f} kB)")
            if out is None:
                typer.echo(f"report  {write_report(run)}")

    @app.command()
    def compare(
        runs: RunPaths,
        html: Annotated[Path | None, typer.Option(help="Write the curves of the groups there.")] = None,
        as_json: AsJson = False,
        debug: Debug = False,
    ) -> None:
        """Compare runs: closing tests with intervals, steps, seconds; runs that differ by their seed are a group."""
        with user_errors(debug):
            from agilerl.report.compare import comparison, write_comparison

            found = comparison(runs)
            typer.echo(json.dumps(found.as_dict()) if as_json else "\n".join(found.lines()))
            if html is not None:
                typer.echo(f"curves  {write_comparison(found, html)}", err=as_json)

    @app.command()
    def doctor(
        full: Annotated[bool, typer.Option("--full", help="Train on probe environments too, under a minute.")] = False,
        env_id: Annotated[str | None, typer.Option("--env", metavar="ID", help="Make and step this one.")] = None,
        imports: Imports = None,
        debug: Debug = False,
    ) -> None:
        """Check this machine: versions, extras, threads, display, GPU, disk; exit 1 where something is broken."""
        with user_errors(debug, imports):
            from agilerl.cli.doctor import examine

            broken = False
            for finding in examine(full=full, env_id=env_id):
                typer.echo(str(finding))
                broken = broken or finding.is_broken
            if broken:
                raise typer.Exit(1)
