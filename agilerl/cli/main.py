"""The `agilerl` program: its options and its commands (`agilerl.cli.commands`)."""

from __future__ import annotations

from typing import Annotated

import typer

import agilerl
from agilerl.cli.messages import Commands
from agilerl.cli.options import examples

app = typer.Typer(
    name="agilerl",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "agilerl train CartPole-v1",
        "agilerl train Hopper-v5 --minutes 30 --seed 1",
        "agilerl evaluate runs/CartPole-v1/dqn-0001 --episodes 100",
    ),
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"agilerl {agilerl.__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Evolve the hyperparameters of reinforcement learning agents while they train."""
