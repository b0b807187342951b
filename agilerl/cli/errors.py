"""Handling of the errors and warnings of all commands."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer

from agilerl.algorithms import available, shipped_in
from agilerl.cli.as_json import print_error
from agilerl.cli.commands import later
from agilerl.cli.messages import command_as_json, on_command_line
from agilerl.core import foreign
from agilerl.core.importing import import_code
from agilerl.core.redaction import redact
from agilerl.errors import AgileRLError, AlgorithmError, EnvError, UnknownAlgorithmError, others_warn_once
from agilerl.runs.names import is_run
from agilerl.runs.signals import exit_code

USER_ERROR = 2
imports_in = later("lookup", "imports_in")


@contextmanager
def user_errors(debug: bool = False, imports: Iterable[str] | None = None, run: Path | None = None) -> Iterator[None]:
    """Import the user's code; print an `AgileRLError` as one line on standard error and exit 2.

    Ctrl-C exits 130, SIGTERM 143.

    Args:
        run: the run directory of the command; errors name imports of that run that are missing.
    """
    try:
        with others_warn_once(_print_warning):
            import_code(imports)
            yield
    except AgileRLError as error:
        if debug:
            raise
        message = on_command_line(_naming_imports(error, run, list(imports or ())))
        _report(type(error).__name__, message, foreign.notes(error))
        raise typer.Exit(USER_ERROR) from None
    except BrokenPipeError:  # the reader has closed the pipe: `agilerl ... | head`
        sys.stdout = None
        raise typer.Exit(0) from None
    except OSError as error:  # a full disk, a folder without permissions: a traceback would not help
        if debug or error.errno is None:
            raise
        where = f"{error.filename}: " if error.filename else ""
        _report("RunError", f"{where}{error.strerror}. fix: make room, or check the rights there.")
        raise typer.Exit(USER_ERROR) from None
    except KeyboardInterrupt as error:
        for line in ("interrupted", *foreign.notes(error)):
            typer.echo(line, err=True)
        raise typer.Exit(exit_code(error)) from None


def _report(kind: str, message: str, notes: Iterable[str] = ()) -> None:
    """Print an error on standard error, and as JSON if the command has `--json`."""
    for line in (f"{kind}: {message}", *notes):
        typer.echo(redact(line), err=True)
    if (name := command_as_json()) is not None:
        print_error(name, kind, redact(message))


def _naming_imports(error: AgileRLError, run: Path | None, imports: Sequence[str]) -> str:
    """Add to an error the imports of its run that are missing; the fix imports them.

    Only errors of environments and algorithms may come from a missing import; others keep their fix.
    Code is never imported automatically: a run directory may come from an untrusted source.
    """
    message = str(error)
    if isinstance(error, UnknownAlgorithmError) and imports:
        message = _naming_registered(message, " and ".join(imports))
    if run is None or not isinstance(error, EnvError | AlgorithmError) or not is_run(run):
        return message
    missing = [name for name in imports_in(run) if name not in set(imports)]
    if not missing:
        return message
    options = " ".join(f"--import {shlex.quote(name)}" for name in missing)
    return f"{message.partition(' fix: ')[0]} The run was made with {options}. fix: repeat {options}."


def _naming_registered(message: str, imports: str) -> str:
    """Add to the message about an unknown algorithm what the imported code registers."""
    registered = ", ".join(name for name in available() if shipped_in(name) is None)
    what, _, fix = message.partition(" fix: ")
    where = f"--import {imports} registers {f'{registered} alone' if registered else 'no algorithm'}"
    what = re.sub(r"(unknown algorithm '[^']*')", lambda match: f"{match[1]}: {where}", what, count=1)
    return f"{what} fix: @register above its class in {imports}, or {fix}"


def _print_warning(text: str) -> None:
    print(f"warning: {on_command_line(text) if 'fix: ' in text else text}", file=sys.stderr)
