"""Commands that show things: list, report, record, compare, doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from agilerl.cli.as_json import print_json
from agilerl.cli.options import AsJson, Debug, Episodes, EpisodeSeed, Imports, RunOrAddress, RunPaths, examples
from agilerl.errors import ConfigError

LISTS = ("algos", "envs", "presets", "runs")


def lists(incomplete: str) -> list[str]:
    """Names that can be listed, for shell completion."""
    return [name for name in LISTS if name.startswith(incomplete)]


def register(app: typer.Typer, user_errors: Any) -> None:
    """Register the commands in `app`; `user_errors` is the context manager that handles their errors."""

    @app.command(
        name="list", epilog=examples("agilerl list algos", "agilerl list envs", "agilerl list runs --out runs")
    )
    def list_command(
        what: Annotated[
            str, typer.Argument(metavar="WHAT", autocompletion=lists, help="algos, envs, presets or runs.")
        ] = "presets",
        out: Annotated[Path, typer.Option(metavar="DIR", help="The folder of the runs.")] = Path("runs"),
        imports: Imports = None,
        as_json: AsJson = False,
        debug: Debug = False,
    ) -> None:
        """List algorithms, environments, presets or runs."""
        with user_errors(debug, imports):
            from agilerl.cli.listing import entries, listing

            if as_json:
                print_json("list", what=what, entries=entries(what, out))
                return
            for line in listing(what, out):
                typer.echo(line)

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
            from agilerl.views.hub import is_address, local_run
            from agilerl.views.report import write_report
            from agilerl.views.report.page import REPORT

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
            "agilerl record runs/CartPole-v1/dqn-0001",
            "agilerl record runs/CartPole-v1/dqn-0001 --episodes 3 --seed 7",
            "agilerl record runs/CartPole-v1/dqn-0001 --out film.gif",
        )
    )
    def record(
        run: RunOrAddress,
        format: Annotated[
            str | None, typer.Option(metavar="NAME", help="webp, gif or mp4; default: as the file is named, else webp.")
        ] = None,
        episodes: Episodes = 1,
        seed: EpisodeSeed = None,
        out: Annotated[
            Path | None, typer.Option(metavar="FILE", help="The file; default: RUN/best/rollout.webp.")
        ] = None,
        imports: Imports = None,
        as_json: AsJson = False,
        debug: Debug = False,
    ) -> None:
        """Film the best agent of a run; no display is needed."""
        with user_errors(debug, imports, run):
            from agilerl.api import load
            from agilerl.views.hub import is_address
            from agilerl.views.report import write_report

            loaded = load(run, "cpu")
            if out is None and is_address(run):  # local copies stay as they are
                out = Path(f"rollout.{format or 'webp'}")
            path = loaded.record(out, format=format, episodes=episodes, seed=seed)
            report = write_report(run) if out is None else None
            if as_json:
                print_json("record", film=path, bytes=path.stat().st_size, report=report)
                return
            typer.echo(f"film  {path}  ({path.stat().st_size / 1000:.0f} kB)")
            if report is not None:
                typer.echo(f"report  {report}")

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
            from agilerl.views.report.compare import comparison, write_comparison

            result = comparison(runs)
            page = None if html is None else write_comparison(result, html)
            if as_json:
                print_json("compare", **result.as_dict())
            else:
                typer.echo("\n".join(result.lines()))
            if page is not None:
                typer.echo(f"curves  {page}", err=as_json)

    @app.command(epilog=examples("agilerl doctor", "agilerl doctor --full", "agilerl doctor --env Hopper-v5"))
    def doctor(
        full: Annotated[
            bool, typer.Option("--full", help="Train on probe environments too, which takes about a minute.")
        ] = False,
        env_id: Annotated[
            str | None, typer.Option("--env", metavar="ENV_ID", help="Make and step this environment too.")
        ] = None,
        imports: Imports = None,
        as_json: AsJson = False,
        debug: Debug = False,
    ) -> None:
        """Check this machine and what is installed.

        Looks at versions, extras, threads, display, GPU and disk; exits with 1 if something is broken.
        """
        with user_errors(debug, imports):
            from agilerl.cli.doctor import examine

            findings = []
            for finding in examine(full=full, env_id=env_id):
                findings.append(finding)
                if not as_json:
                    typer.echo(str(finding))
            broken = any(finding.is_broken for finding in findings)
            if as_json:
                print_json("doctor", ok=not broken, findings=[vars(finding) for finding in findings])
            if broken:
                raise typer.Exit(1)
