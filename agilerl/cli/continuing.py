"""`agilerl continue`: a new run that starts from the agents of an old one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from agilerl.cli.viewing import Debug, Imports, RunPath


def register(app: typer.Typer, user_errors: Any, close: Any) -> None:
    """Put the command into `app`; `close` scores the best agent and prints the closing lines."""

    @app.command(name="continue")
    def continue_command(
        run: RunPath,
        steps: Annotated[int | None, typer.Option(min=1, help="Env steps of one member in the new run.")] = None,
        seed: Annotated[int | None, typer.Option(help="Default: the old run's.")] = None,
        device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:0.")] = "auto",
        settings: Annotated[
            list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A changed setting: target_score=250.")
        ] = None,
        out: Annotated[Path, typer.Option(help="Where the new run directory is made.")] = Path("runs"),
        quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print only the closing lines.")] = False,
        test_episodes: Annotated[int, typer.Option(min=0, help="Fresh episodes that score the best agent.")] = 100,
        imports: Imports = None,
        debug: Debug = False,
    ) -> None:
        """Begin a new run from the agents of RUN, with changed settings; RUN itself stays as it is."""
        with user_errors(debug, imports):
            from agilerl.api import continue_training

            found = continue_training(
                run, steps=steps, seed=seed, device=device, sets=settings or (), out=out, verbose=not quiet
            )
            close(found, test_episodes)
