"""The commands about configurations: `agilerl config convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from agilerl.errors import ConfigError


def register(app: typer.Typer, user_errors: Any) -> None:
    """Put the commands into `app`; `user_errors` is the context manager that ends each of them."""
    group = typer.Typer(help="Translate configurations.", no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(group, name="config")

    @group.command()
    def convert(
        file: Annotated[Path, typer.Argument(metavar="FILE", help="A YAML configuration of the published library.")],
        out: Annotated[Path | None, typer.Option(help="Write there; default: print.")] = None,
        debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    ) -> None:
        """Translate a configuration of AgileRL 2.x; what has no counterpart is named on standard error."""
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
            typer.echo(f"written  {out}   agilerl train --config {out}")

    @group.callback()
    def group_help() -> None:
        """Translate configurations."""
