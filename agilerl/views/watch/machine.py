"""Load of this machine and of a run's processes, from /proc; None on systems without it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agilerl.core.hostile import read_json
from agilerl.errors import AgileRLError

PROC = Path("/proc")
MEMORY_UNIT = 1024  # bytes: /proc counts in kB


@dataclass(frozen=True)
class Load:
    """Load of the machine, and of the processes of one run.

    Attributes:
        cpu: share of all cores in use since the last look, 0 to 1. cores: their number.
        memory, memory_total: bytes in use, and of the machine.
        run_cores: cores that the run's processes use. run_memory: bytes that they hold, shared pages counted each time.
        run_processes: their number.
    """

    cpu: float | None = None
    cores: int = 1
    memory: int | None = None
    memory_total: int | None = None
    run_cores: float | None = None
    run_memory: int | None = None
    run_processes: int | None = None


class Machine:
    """Measures load between two calls of `look`."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._busy, self._all = 0, 0
        self._ticks: dict[int, int] = {}

    def look(self, pid: int | None = None) -> Load:
        """Return the load since the last call; `pid`: of a run, with its descendants."""
        busy, whole = self._cpu()
        passed, self._all = whole - self._all, whole
        worked, self._busy = busy - self._busy, busy
        is_first = passed == whole
        cores = os.cpu_count() or 1
        cpu = None if is_first or passed <= 0 else min(1.0, max(0.0, worked / passed))
        memory, total = self._memory()
        if pid is None or not whole:
            self._ticks = {}  # a later look at a run would divide ticks of many looks by the time of one
            return Load(cpu, cores, memory, total)
        ticks, run_memory, count = self._processes(pid)
        spent = sum(max(0, now - self._ticks[process]) for process, now in ticks.items() if process in self._ticks)
        is_comparable = bool(self._ticks.keys() & ticks.keys()) and passed > 0
        self._ticks = ticks
        run_cores = spent / passed * cores if is_comparable else None
        return Load(cpu, cores, memory, total, run_cores, run_memory, count)

    def _cpu(self) -> tuple[int, int]:
        """(busy, all) ticks of all cores; zeros if they cannot be read."""
        try:
            line = (self._proc / "stat").read_text(encoding="ascii").partition("\n")[0]
            ticks = [int(text) for text in line.split()[1:9]]
        except (OSError, ValueError):
            return 0, 0
        return sum(ticks) - sum(ticks[3:5]), sum(ticks)

    def _memory(self) -> tuple[int | None, int | None]:
        try:
            text = (self._proc / "meminfo").read_text(encoding="ascii")
            sizes = {line.partition(":")[0]: int(line.split()[1]) * MEMORY_UNIT for line in text.splitlines()}
            return sizes["MemTotal"] - sizes["MemAvailable"], sizes["MemTotal"]
        except (OSError, ValueError, KeyError, IndexError):
            return None, None

    def _processes(self, pid: int) -> tuple[dict[int, int], int | None, int | None]:
        """Ticks of a process and its descendants, their memory, and their number."""
        parents = dict(self._every_process())
        if pid not in parents:
            return {}, None, None
        tree = {pid}
        while more := {child for child, (parent, _, _) in parents.items() if parent in tree} - tree:
            tree |= more
        ticks = {process: parents[process][1] for process in tree}
        return ticks, sum(parents[process][2] for process in tree), len(tree)

    def _every_process(self) -> Iterator[tuple[int, tuple[int, int, int]]]:
        """(pid, (parent, ticks, bytes)) of every process."""
        page = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
        for entry in self._proc.iterdir():
            if not entry.name.isdigit():
                continue
            try:
                after_name = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
                yield (
                    int(entry.name),
                    (int(after_name[1]), sum(map(int, after_name[11:13])), int(after_name[21]) * page),
                )
            except (OSError, ValueError, IndexError):  # it has ended
                continue


def process_of(run: Path) -> int | None:
    """Process id in the LOCK of a run that trains on this machine; None without one."""
    try:
        holder = read_json(run / "LOCK")
        return int(holder["pid"]) if holder["host"] == socket.gethostname() else None
    except (AgileRLError, OSError, ValueError, KeyError, TypeError):
        return None
