"""Published commands that this version does not have yet: each says so, none is ignored."""

from __future__ import annotations

import typer

from agilerl.cli.errors import user_errors
from agilerl.errors import NotAvailableYetError

LATER = {
    "record": ("Film the best agent.", "load the run with agilerl.load(RUN) and render its episodes."),
    "report": ("Write the run's HTML report.", "read RUN/metrics.csv and RUN/evolution.jsonl."),
    "compare": ("Compare runs in a table.", "use `agilerl evaluate RUN --json` on each of them."),
    "doctor": ("Check this machine.", "`python -m pip check` and `agilerl train CartPole-v1 --steps 2000`."),
}


def add_later_commands(app: typer.Typer) -> None:
    """Register every command of `LATER`; any arguments are accepted and end in the same message."""
    for name, (summary, instead) in LATER.items():
        _add(app, name, summary, instead)


def _add(app: typer.Typer, name: str, summary: str, instead: str) -> None:
    settings = {"allow_extra_args": True, "ignore_unknown_options": True}

    @app.command(name=name, help=f"{summary} (Not in this version yet.)", context_settings=settings)
    def command(context: typer.Context) -> None:
        with user_errors("--debug" in context.args):
            raise NotAvailableYetError(f"`agilerl {name}` is not available in this version. fix: {instead}")
