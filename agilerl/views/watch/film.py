"""Films of the best agent on demand, recorded by `agilerl record` in a child process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agilerl.core.hostile import MIB, read_regular
from agilerl.core.redaction import redact
from agilerl.errors import AgileRLError

MAX_SECONDS = 600.0
MAX_BYTES = 256 * MIB
MAX_ERROR_BYTES = 64 * 1024  # of the recorder's error stream, from its end
IN_RUN = Path("best") / "rollout.webp"


@dataclass(frozen=True)
class Film:
    """The film of a run: `state` is none, recording, ready or failed; `version` changes with the file."""

    state: str = "none"
    text: str = ""
    version: str = ""


class Studio:
    """Records films, one child process per run at a time. Files are in a temporary folder until `close`."""

    def __init__(self, imports: Sequence[str] = (), max_seconds: float = MAX_SECONDS) -> None:
        self._imports, self._max_seconds = tuple(imports), max_seconds
        self._folder = tempfile.TemporaryDirectory(prefix="agilerl-films-")
        self._lock = threading.Lock()
        self._children: dict[Path, tuple[subprocess.Popen[bytes], Path, float]] = {}
        self._films: dict[Path, tuple[Film, Path | None]] = {}
        self._count = 0

    def command(self, run: Path, target: Path) -> list[str]:
        """The command that records the best agent of a run."""
        imports = [word for name in self._imports for word in ("--import", name)]
        return [sys.executable, "-P", "-m", "agilerl", "record", str(run), "--out", str(target), *imports]

    def record(self, run: Path) -> Film:
        """Begin a film; no-op while one is being recorded."""
        with self._lock:
            if run not in self._children:
                self._count += 1
                target = Path(self._folder.name) / f"{self._count}.webp"
                # A file, not a pipe: it is not read while the recorder runs, and a full pipe would block it.
                with open(_errors_of(target), "wb") as errors:
                    child = subprocess.Popen(
                        self.command(run, target), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
                        start_new_session=True,
                    )  # fmt: skip
                self._children[run] = child, target, time.monotonic()
        return self.film(run)

    def film(self, run: Path) -> Film:
        """Return the state of a run's film."""
        with self._lock:
            self._look(run)
            if run in self._children:
                return Film("recording", "recording an episode of the best agent")
            if run in self._films:
                return self._films[run][0]
        try:
            stamp = (run / IN_RUN).stat().st_mtime_ns
        except OSError:
            return Film()
        return Film("ready", "recorded at the end of the run", f"run-{stamp}")

    def content(self, run: Path) -> bytes | None:
        """The newest film as WebP; None without one."""
        path = self._films.get(run, (None, None))[1]
        try:
            return read_regular(path or run / IN_RUN, MAX_BYTES)
        except (AgileRLError, OSError):
            return None

    def close(self) -> None:
        """End recordings and delete their files."""
        with self._lock:
            for child, _, _ in self._children.values():
                _kill(child)
            self._children = {}
        with contextlib.suppress(OSError):
            self._folder.cleanup()

    def _look(self, run: Path) -> None:
        """Update the state of a run whose recorder has ended, or has run for too long."""
        if run not in self._children:
            return
        child, target, begun = self._children[run]
        if child.poll() is None and time.monotonic() - begun < self._max_seconds:
            return
        is_late = child.poll() is None
        if is_late:
            _kill(child)
        del self._children[run]
        earlier = self._films.get(run, (None, None))[1]
        if child.returncode == 0 and target.is_file():
            self._films[run] = Film("ready", "an episode of the best agent", target.stem), target
            obsolete = earlier
        else:
            reason = f"took more than {self._max_seconds:g} s" if is_late else _last_line(_errors_of(target))
            self._films[run] = Film("failed", redact(reason)[:500], earlier.stem if earlier else ""), earlier
            obsolete = target
        for path in (obsolete, _errors_of(target)):
            if path is not None:
                path.unlink(missing_ok=True)


def _errors_of(target: Path) -> Path:
    """Return the file of the recorder's error stream."""
    return target.with_suffix(".err")


def _last_line(errors: Path) -> str:
    """Return the last line of the recorder's error stream."""
    with open(errors, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_ERROR_BYTES))
        text = file.read().decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no film was written"


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kill a recorder with the processes that it has started, such as workers of its environment, and wait for it."""
    if sys.platform == "win32":
        child.kill()
    else:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # it leads a session
    child.wait()
