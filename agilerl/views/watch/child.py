"""The live view beside a training: a child process that ends with it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from agilerl.errors import ConfigError, RunError

NEEDED = ("starlette", "uvicorn")
STARTS_S = 60.0  # imports on a busy machine take several


def check_installed() -> None:
    """Raise ConfigError without the packages of the extra."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f'the live view needs {" and ".join(missing)}. fix: pip install "agilerl[watch]".')


def _first_line(stream: IO[str]) -> str | None:
    """Return the first line of a stream, or None after `STARTS_S`; a thread reads, since Windows cannot poll pipes."""
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.append(stream.readline()), daemon=True)
    reader.start()
    reader.join(STARTS_S)
    return lines[0].strip() if lines else None


@contextlib.contextmanager
def watched(out: Path, imports: Sequence[str] = (), say: Callable[[str], None] = print) -> Iterator[None]:
    """Serve the folder of a training while the block runs; `say` is called with the line that shows the address.

    Raises:
        ConfigError: the extra is missing. RunError: the server did not start.
    """
    check_installed()
    options = [word for name in imports for word in ("--import", name)]
    command = [sys.executable, "-P", "-m", "agilerl", "watch", str(out), "--no-browser", "--parent", str(os.getpid())]
    # Its own session: Ctrl-C reaches the training alone, which then ends this process.
    child = subprocess.Popen(
        [*command, *options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert child.stdout is not None
        line = _first_line(child.stdout)
        if line is None:
            raise RunError(f"the live view did not start within {STARTS_S:g} seconds. fix: leave --watch out.")
        if not line.startswith("watch"):
            raise RunError("the live view did not start; its error is above. fix: leave --watch out.")
        say(line)
        yield
    finally:
        child.terminate()
        try:
            child.communicate(timeout=3)
        except subprocess.TimeoutExpired:
            child.kill()
            child.communicate()
