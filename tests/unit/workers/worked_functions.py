"""Functions that processes of the tests run: importable there by name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from agilerl.errors import ConfigError


def double(number: int, send: Any) -> int:
    send(("has", number))
    return 2 * number


def fail(what: str, send: Any) -> str:
    if what == "ours":
        error = ConfigError("no. fix: yes.")
        error.add_note("resume  it")
        raise error
    if what == "theirs":
        raise ValueError("bad")
    return what


def die_first(argument: tuple[Path, int], send: Any) -> int:
    """Die as often as asked, then return how often that was."""
    folder, times = argument
    deaths = len(list(folder.glob("death-*")))
    if deaths < times:
        (folder / f"death-{deaths}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return deaths


def wait_long(path: Path, send: Any) -> None:
    path.write_text(str(os.getpid()), encoding="utf-8")
    send("waits")
    time.sleep(60)


def prepare_marked() -> None:
    os.environ["MARKED"] = "1"


def is_marked(number: int, send: Any) -> tuple[int, str]:
    return os.getpid(), os.environ.get("MARKED", "0")


def environment(variable: str, send: Any) -> str | None:
    return os.environ.get(variable)
