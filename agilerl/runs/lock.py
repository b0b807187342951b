"""One process per run directory: a kernel lock, and a token for file systems with unreliable locks."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agilerl.core.hostile import NO_LINK, read_json
from agilerl.errors import RunError


def is_abandoned(folder: Path) -> bool:
    """Whether the process that trained in a folder is gone, according to LOCK; False if unknown.

    The kernel lock is not tried: a run that starts at that moment would be rejected.
    """
    try:
        holder = read_json(folder / "LOCK")
        if holder["host"] != socket.gethostname():
            return False
        with contextlib.suppress(PermissionError):  # the process of another user
            os.kill(int(holder["pid"]), 0)
        stat = _stat(int(holder["pid"]))
        # another process has the number if it started at another time
        return stat is not None and (stat[STATE] == "Z" or stat[STARTED] != holder.get("started", stat[STARTED]))
    except ProcessLookupError:
        return True
    except (RunError, OSError, ValueError, KeyError, TypeError):
        return False


def status_of(folder: Path, facts: Mapping[str, Any]) -> str:
    """Status of a run in run.json; "interrupted" instead of "running" if its process is gone."""
    status = str(facts.get("status", "unknown"))
    return "interrupted" if status == "running" and is_abandoned(folder) else status


MODE = 0o644  # less the umask: other users who may read the run see whether its process is gone
STATE, STARTED = 0, 19  # places in `_stat`: "Z" is a process that ended and was not reaped; clock ticks since boot


def _stat(pid: int) -> list[str] | None:
    """Return what the kernel says of a process, from its state on (proc(5)); None on systems without /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()


_held: weakref.WeakSet[RunLock] = weakref.WeakSet()


class RunLock:
    """Holds `LOCK` in a run directory; the kernel releases it when the process ends.

    Attributes:
        token: random, new for each holder; it is in the file and in every manifest of the holder.

    Raises:
        RunError: another process trains there; its id and host are named.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self.token = folder / "LOCK", secrets.token_hex(8)
        flags = os.O_RDWR | os.O_CREAT | NO_LINK
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._descriptor: int | None = os.open(self.path, flags, MODE)
        except OSError as error:
            raise RunError(
                f"{folder} cannot be written ({error.strerror}), and a run that goes on writes there. "
                "fix: its rights, or a copy of it in another folder."
            ) from error
        if not _lock(self._descriptor):
            holder = self._read()
            os.close(self._descriptor)
            self._descriptor = None
            who = f"process {holder['pid']} on {holder['host']}" if holder else "another process"
            raise RunError(f"{folder} is in use: {who} trains there. fix: wait for it, stop it, or use another folder.")
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "token": self.token}
        if (stat := _stat(os.getpid())) is not None:
            holder["started"] = stat[STARTED]
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        os.write(self._descriptor, (json.dumps(holder) + "\n").encode())
        if not _held and hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_release_all)
        _held.add(self)

    def _read(self) -> dict[str, Any] | None:
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            return {"pid": int(content["pid"]), "host": str(content["host"]), "token": str(content["token"])}
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def check(self) -> None:
        """Check the token: on some network file systems two processes get the lock, and the later one's token remains.

        Raises:
            RunError: another process has taken the directory over.
        """
        holder = self._read()
        if holder is not None and holder["token"] != self.token:
            raise RunError(
                f"{self.path.parent} was taken over by process {holder['pid']} on {holder['host']}: this one stops "
                "before it overwrites anything. fix: one process per run directory."
            )

    def release(self) -> None:
        """Release the directory; the file remains."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *raised: object) -> None:
        self.release()


def _release_all() -> None:
    """Release all locks in a forked worker, so that a hanging worker does not keep the lock of a dead run."""
    for lock in list(_held):
        lock.release()


def _lock(descriptor: int) -> bool:
    """Take the kernel lock; False if another process holds it."""
    try:
        import fcntl
    except ImportError:  # not available on this system: only the token is used
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:  # a file system without locks: only the token is used
        return not isinstance(error, BlockingIOError)
    return True
