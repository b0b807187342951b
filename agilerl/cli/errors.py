"""How a command ends: 0 done, 2 the user's input, 130 or 143 stopped by a signal; a traceback only with --debug."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from agilerl.errors import AgileRLError, AgileRLWarning
from agilerl.redaction import redact
from agilerl.runs.signals import exit_code

USER_ERROR, INTERRUPTED = 2, 130


@contextmanager
def user_errors(debug: bool = False) -> Iterator[None]:
    """Print an `AgileRLError` as one line on standard error and exit 2; Ctrl-C exits 130, SIGTERM 143."""
    show = warnings.showwarning
    warnings.showwarning = _short_warnings(show)
    try:
        yield
    except AgileRLError as error:
        if debug:
            raise
        typer.echo(redact(f"{type(error).__name__}: {error}"), err=True)
        raise typer.Exit(USER_ERROR) from None
    except KeyboardInterrupt as error:
        for line in ("interrupted; what was written is kept.", *getattr(error, "__notes__", ())):
            typer.echo(line, err=True)
        raise typer.Exit(exit_code(error)) from None
    finally:
        warnings.showwarning = show


def _short_warnings(show: Any) -> Any:
    """Our own warnings as one line; the source line that raised them tells a user of the command nothing."""

    def showwarning(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        if issubclass(category, AgileRLWarning):
            print(f"warning: {message}", file=sys.stderr)
        else:
            show(message, category, *rest, **more)

    return showwarning
