"""`agilerl export`: the best policy of a run for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agilerl.cli.errors import user_errors
from agilerl.cli.own_code import Imports, import_code


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory: runs/<env>/<algo>-<nnnn>.")],
    onnx: Annotated[bool, typer.Option("--onnx", help="Write ONNX and compare it with the agent.")] = False,
    out: Annotated[Path | None, typer.Option(help="The file; default: RUN/best/policy.onnx.")] = None,
    imports: Imports = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Export the best policy of a run. RUN/best/policy.py loads it in plain PyTorch without an export."""
    with user_errors(debug):
        import_code(imports)
        from agilerl.errors import ConfigError

        if not onnx:
            raise ConfigError(f"agilerl export needs a format. fix: --onnx, or use {run}/best/policy.py as it is.")
        from agilerl.api import load
        from agilerl.export import export_onnx

        report = export_onnx(load(run, "cpu").best, out or run / "best" / "policy.onnx")
        typer.echo(f"onnx  {report.path}")
        typer.echo(f"check  {report}")
