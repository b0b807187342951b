"""`--json`: one object on one line of standard output, the same shape for every command.

`command` names the command; a failed one has `error` with type, message and fix, and the exit code of the text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import typer

from agilerl.telemetry.files import jsonable


def print_json(command: str, **facts: Any) -> None:
    """Print facts as one line of JSON; numbers that are not finite are null."""
    typer.echo(json.dumps({"command": command, **jsonable(facts)}, allow_nan=False))


def show(command: str, is_json: bool, lines: Iterable[str], **facts: Any) -> None:
    """Print facts as JSON, or else lines."""
    if is_json:
        print_json(command, **facts)
    for line in () if is_json else lines:
        typer.echo(line)


def print_error(command: str, kind: str, message: str) -> None:
    """Print an error as JSON, beside its text on standard error."""
    parts = [line.partition("fix: ") for line in message.splitlines()]
    what = "\n".join(part.strip() for part, _, _ in parts)
    fixes = "\n".join(fix.strip() for _, _, fix in parts if fix)
    print_json(command, error={"type": kind, "message": what, "fix": fixes})
