"""The commands about configurations: `agilerl config convert`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from agilerl.cli.options import Debug, examples
from agilerl.errors import ConfigError


def register(app: typer.Typer, user_errors: Any) -> None:
    """Register the commands in `app`; `user_errors` is the context manager that handles their errors."""
    group = typer.Typer(help="Translate configurations.", no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(group, name="config")

    @group.command(epilog=examples("agilerl config convert dqn.yaml", "agilerl config convert dqn.yaml --out new.yaml"))
    def convert(
        file: Annotated[Path, typer.Argument(metavar="FILE", help="A YAML configuration of AgileRL 2.x.")],
        out: Annotated[
            Path | None, typer.Option(metavar="FILE", help="The file to write; default: standard output.")
        ] = None,
        debug: Debug = False,
    ) -> None:
        """Translate a configuration of AgileRL 2.x.

        Keys without a counterpart are named on standard error.
        """
        with user_errors(debug):
            from agilerl.checkpoint import write_atomic
            from agilerl.config import dump_yaml, load_manifest

            text = dump_yaml(load_manifest(file))
            if out is None:
                typer.echo(text, nl=False)
                return
            if out.exists():
                raise ConfigError(f"{out} is there already. fix: another --out, or remove it.")
            write_atomic(out, text)
            typer.echo(f"written  {out}   {shlex.join(['agilerl', 'train', '--config', str(out)])}")

    @group.callback()
    def group_help() -> None:
        """Translate configurations."""
