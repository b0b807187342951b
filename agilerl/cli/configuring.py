"""The commands about configurations: `agilerl config convert`, `agilerl config check`, `agilerl config schema`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from agilerl.cli.as_json import show
from agilerl.cli.errors import user_errors
from agilerl.cli.options import AsJson, Debug, Imports, examples
from agilerl.config import dump_yaml, load_manifest
from agilerl.config.check import problems_of
from agilerl.config.json_schema import manifest_schema
from agilerl.core.files import write_atomic
from agilerl.errors import ConfigError

app = typer.Typer(rich_markup_mode=None)


group = typer.Typer(help="Translate, check and describe configurations.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(group, name="config")


@group.command(epilog=examples("agilerl config convert dqn.yaml", "agilerl config convert dqn.yaml --out new.yaml"))
def convert(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A YAML configuration of AgileRL 2.x.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file to write; default: standard output.")
    ] = None,
    imports: Imports = None,
    debug: Debug = False,
) -> None:
    """Translate a configuration of AgileRL 2.x.

    Keys without a counterpart are named on standard error.
    """
    with user_errors(debug, imports):
        text = dump_yaml(load_manifest(file))
        if out is None:
            typer.echo(text, nl=False)
            return
        if out.exists():
            raise ConfigError(f"{out} is there already. fix: another --out, or remove it.")
        write_atomic(out, text)
        words = [word for name in imports or () for word in ("--import", str(name))]
        typer.echo(f"written  {out}   {shlex.join(['agilerl', 'train', '--config', str(out), *words])}")


@group.command(epilog=examples("agilerl config check run.yaml", "agilerl config check run.yaml --json"))
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A YAML or JSON manifest.")],
    env_id: Annotated[
        str | None, typer.Option("--env", metavar="ENV_ID", help="The environment, if the file names none.")
    ] = None,
    imports: Imports = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Check a configuration and name every problem.

    Exits with 0 if a run would accept it, else with 2. The environment is not made.
    """
    with user_errors(debug, imports):
        problems = problems_of(file, env_id)
        plain, lines = [problem.as_dict() for problem in problems], list(map(str, problems)) or [f"ok  {file}"]
        show("config check", as_json, lines, file=file, ok=not problems, problems=plain)
        if problems:
            raise typer.Exit(2)


@group.command(epilog=examples("agilerl config schema", "agilerl config schema --out manifest.schema.json"))
def schema(
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The file to write; default: standard output.")
    ] = None,
    imports: Imports = None,
    debug: Debug = False,
) -> None:
    """Print the JSON schema of a manifest: keys, ranges, units, defaults and meanings (draft 2020-12)."""
    with user_errors(debug, imports):
        text = json.dumps(manifest_schema(), indent=1) + "\n"
        if out is None:
            typer.echo(text, nl=False)
            return
        write_atomic(out, text)
        typer.echo(f"written  {out}")


@group.callback()
def group_help() -> None:
    """Translate, check and describe configurations."""
