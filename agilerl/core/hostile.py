"""Reading of untrusted files: plain files of bounded size, and one named error for malformed content."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agilerl.errors import AgileRLError, RunError

MIB = 2**20
JSON_LIMIT = 64 * MIB
_WRONG = (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError, RecursionError, OverflowError)

# Do not follow links or block on pipes; not every system has all of the flags.
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
READ_PLAIN = os.O_RDONLY | NO_LINK | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def read_regular(path: str | os.PathLike[str], limit: int | None = None) -> bytes:
    """The content of a plain file.

    Args:
        path: symbolic links, devices and pipes are rejected without being read.
        limit: bytes; a larger file is rejected before anything is read.

    Raises:
        FileNotFoundError, IsADirectoryError: see `open`.
        RunError: not a plain file, too large, or unreadable.
    """
    source = Path(path)
    if source.is_symlink():
        raise RunError(f"{source} is a symbolic link; those are not followed. fix: name the file itself.")
    if source.is_dir():
        raise IsADirectoryError(str(source))
    try:
        descriptor = os.open(source, READ_PLAIN)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RunError(f"{source} cannot be opened ({error.strerror}). fix: check the path and its rights.") from None
    with os.fdopen(descriptor, "rb") as file:
        facts = os.fstat(file.fileno())
        if not stat.S_ISREG(facts.st_mode):
            raise RunError(f"{source} is not a plain file. fix: name a file.")
        if limit is not None and facts.st_size > limit:
            raise RunError(f"{source} has {facts.st_size} bytes; at most {limit} are read. fix: name another file.")
        return file.read(facts.st_size)  # a larger number would allocate that much memory


def read_text(path: str | os.PathLike[str], limit: int = JSON_LIMIT) -> str:
    """See `read_regular`; decoded as UTF-8."""
    try:
        return read_regular(path, limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RunError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}).") from None


def read_json(path: str | os.PathLike[str], limit: int = JSON_LIMIT) -> Any:
    """The content of a JSON file; FileNotFoundError like `open`, RunError if it is not JSON or nested too deeply."""
    text = read_text(path, limit)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        what = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RunError(f"{path} is not JSON that can be read ({what}). fix: name another run.") from None


@contextmanager
def malformed(source: str | os.PathLike[str]) -> Iterator[None]:
    """Context manager: errors caused by malformed content of a file become a `RunError` in one line."""
    try:
        yield
    except AgileRLError:
        raise
    except _WRONG as error:
        text = " ".join(str(error).split())[:200]
        raise RunError(
            f"{source} does not hold what it should ({type(error).__name__}: {text}). "
            "fix: use an older one, or train again."
        ) from error
