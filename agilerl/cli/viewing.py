"""The commands that show runs: record, report, compare, doctor."""

from __future__ import annotations

from typing import Any

import typer

from agilerl.errors import NotAvailableYetError

# Published commands that this version does not have yet: each says so, none is ignored.
LATER = {
    "record": ("Film the best agent.", "load the run with agilerl.load(RUN) and render its episodes."),
    "report": ("Write the run's HTML report.", "read RUN/metrics.csv and RUN/evolution.jsonl."),
    "compare": ("Compare runs in a table.", "use `agilerl evaluate RUN --json` on each of them."),
    "doctor": ("Check this machine.", "`python -m pip check` and `agilerl train CartPole-v1 --steps 2000`."),
}


def register(app: typer.Typer, user_errors: Any) -> None:
    """Put the commands into `app`; `user_errors` is the context manager that ends each of them."""
    for name, (summary, instead) in LATER.items():
        _add_later(app, user_errors, name, summary, instead)


def _add_later(app: typer.Typer, user_errors: Any, name: str, summary: str, instead: str) -> None:
    """Register a command of `LATER`; any arguments are accepted and end in the same message."""
    settings = {"allow_extra_args": True, "ignore_unknown_options": True}

    @app.command(name=name, help=f"{summary} (Not in this version yet.)", context_settings=settings)
    def command(context: typer.Context) -> None:
        with user_errors("--debug" in context.args):
            raise NotAvailableYetError(f"`agilerl {name}` is not available in this version. fix: {instead}")
