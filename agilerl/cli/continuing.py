"""`agilerl continue`: a new run that starts from the agents of an old one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from agilerl.cli.options import (
    AsJson,
    Debug,
    Device,
    Imports,
    Quiet,
    RunPath,
    Seed,
    Settings,
    TestEpisodes,
    check_sets,
    examples,
    steps_option,
)
from agilerl.cli.training import close, closing_episodes


def register(app: typer.Typer, user_errors: Any) -> None:
    """Register the command in `app`; `user_errors` is the context manager that handles its errors."""

    @app.command(
        name="continue",
        epilog=examples(
            "agilerl continue runs/CartPole-v1/dqn-0001 --set target_score=490",
            "agilerl continue runs/CartPole-v1/dqn-0001 --steps 1e5 --seed 1",
            "agilerl continue runs/CartPole-v1/dqn-0001 --set lr=1e-4 --out finetuned",
        ),
    )
    def continue_command(
        run: RunPath,
        steps: Annotated[int | None, steps_option("Environment steps of one member in the new run.", "--steps")] = None,
        seed: Seed = None,
        device: Device = "auto",
        settings: Settings = None,
        out: Annotated[
            Path | None,
            typer.Option(metavar="DIR", help="The folder that gets the new run; default: the one of the old run."),
        ] = None,
        quiet: Quiet = False,
        test_episodes: TestEpisodes = None,
        imports: Imports = None,
        as_json: AsJson = False,
        debug: Debug = False,
    ) -> None:
        """Begin a new run from the agents of an old one.

        Settings may change; the old run stays as it is.
        """
        with user_errors(debug, imports, run):
            from agilerl.api import continue_training
            from agilerl.runs.directory import RunDirectory, folder_beside

            check_sets(settings, {"--steps": steps, "--seed": seed})
            if out is None:
                out = folder_beside(run, str(RunDirectory.open(run).facts().get("env_id")))
            is_loud, episodes = not (quiet or as_json), closing_episodes(test_episodes, run)
            new_run = continue_training(
                run, steps=steps, seed=seed, device=device, sets=settings or (), out=out, verbose=is_loud,
                imports=imports or (), test_episodes=episodes,
            )  # fmt: skip
            close(new_run, episodes, as_json)
