"""Errors and warnings. Each message has what, where, expected, got, and the fix."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any


class AgileRLError(Exception):
    """Base of all errors caused by user input; the command line prints them without a traceback."""


class ConfigError(AgileRLError, ValueError):
    """A configuration key or value is unknown or out of range."""


class AlgorithmError(AgileRLError, ValueError):
    """The algorithm is unknown or does not fit the spaces, the population or the loop."""


class UnknownAlgorithmError(AlgorithmError):
    """No algorithm of this name is registered."""


class ArgumentError(AlgorithmError, TypeError):
    """The constructor of an algorithm got arguments that it does not have."""


class EnvError(AgileRLError, ValueError):
    """The environment cannot be made or violates the Gymnasium interface."""


class ShapeError(AgileRLError, ValueError):
    """An array does not have the shape that the agent was built for."""


class ReplayError(AgileRLError, ValueError):
    """Invalid experience: it is not finite."""


class RunError(AgileRLError, ValueError):
    """A run directory is missing, damaged or does not fit the request."""


class CorruptCheckpoint(RunError):
    """The file is truncated, changed, or of another format."""


class NotAvailableYetError(AgileRLError, NotImplementedError):
    """A published argument or command that is not implemented yet."""


class RegistryError(AgileRLError, AttributeError):
    """An algorithm's registration is incomplete, or names a missing attribute."""


class MutationError(AgileRLError, ValueError):
    """A mutation cannot be applied to this object."""


class CallbackError(AgileRLError, RuntimeError):
    """A user's callback has raised."""


class AgileRLWarning(UserWarning):
    """Category of every warning of this package."""


def nearest(name: str, known: Iterable[str], limit: int = 3, similarity: float = 0.5) -> list[str]:
    """The known names closest to `name`, best first; case is ignored. `similarity`: lowest ratio of equal letters."""
    by_lower = {k.lower(): k for k in known}
    return [by_lower[m] for m in difflib.get_close_matches(name.lower(), by_lower, n=limit, cutoff=similarity)]


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """A message for an unknown name, with the nearest known name and all known names."""
    known = sorted(known)
    close = nearest(name, known, limit=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"unknown {kind} {name!r}.{hint} (known: {', '.join(known)})"


def unknown_choice(kind: str, name: str, known: Iterable[str], otherwise: str = "") -> str:
    """`unknown_name` with a fix: the nearest known name, else any of them; `otherwise`: an alternative to the names."""
    known = list(known)
    fix = [*(nearest(name, known, limit=1) or ["a known one"]), *([otherwise] if otherwise else [])]
    return f"{unknown_name(kind, name, known)} fix: {' or '.join(fix)}."


@contextmanager
def others_warn_once(show_ours: Callable[[str], None] | None = None) -> Iterator[None]:
    """Show texts of other libraries' warnings once: Python forgets which it has shown when its filters change.
    show_ours: prints the text of an `AgileRLWarning`; None shows them like others, each time."""
    show, shown = warnings.showwarning, set[str]()

    def showwarning(message: Warning | str, category: type[Warning], *rest: Any, **options: Any) -> None:
        is_ours = issubclass(category, AgileRLWarning)
        if is_ours and show_ours is not None:
            show_ours(str(message))
        elif is_ours or str(message) not in shown:
            shown.add(str(message))
            show(message, category, *rest, **options)

    warnings.showwarning = showwarning
    try:
        yield
    finally:
        warnings.showwarning = show


_warned: set[str] = set()


def warn_once(key: str, message: str, category: type[Warning] = AgileRLWarning, stacklevel: int = 3) -> None:
    """Warn once per process and cause. `key` names the cause; `stacklevel` 3 is the caller's caller."""
    if key not in _warned:
        _warned.add(key)
        warnings.warn(message, category, stacklevel=stacklevel)
