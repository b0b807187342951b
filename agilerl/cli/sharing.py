"""Commands that hand runs to other programs and people: optuna, push."""

from __future__ import annotations

from typing import Any

import typer


def register(app: typer.Typer, user_errors: Any) -> None:
    """Register the commands in `app`; `user_errors` is the context manager that handles their errors."""
