"""Commands that hand runs to other programs and people: optuna, push."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from agilerl.cli.options import Debug, RunPaths, examples


def register(app: typer.Typer, user_errors: Any) -> None:
    """Register the commands in `app`; `user_errors` is the context manager that handles their errors."""

    @app.command(
        name="optuna",
        epilog=examples(
            "agilerl optuna runs/CartPole-v1/dqn-0001 --out study.db",
            "agilerl optuna runs/CartPole-v1/dqn-0001 runs/CartPole-v1/ppo-0001 --out study.db --replace",
        ),
    )
    def optuna_command(
        runs: RunPaths,
        out: Annotated[
            str, typer.Option(metavar="FILE|URL", help="The SQLite file, or the URL of a database of Optuna.")
        ] = "study.db",
        replace: Annotated[bool, typer.Option("--replace", help="Replace studies of the same names.")] = False,
        debug: Debug = False,
    ) -> None:
        """Write runs as studies of Optuna.

        Members are trials, generations intermediate values; optuna-dashboard and Optuna's plots read them.
        """
        with user_errors(debug):
            from agilerl.integrations.optuna_export import export_runs, shown, states_of

            for study in export_runs(runs, out, replace):
                typer.echo(f"study  {study.name}: {len(study.trials)} trials ({states_of(study)})")
            url = shown(out) if "://" in out else f"sqlite:///{out}"
            typer.echo(f"open  optuna-dashboard {url}")
