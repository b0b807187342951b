"""A run with workers in a process of its own, the processes that belong to it, and signals to them at random times."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from faulty_runs import CASES, run_in

import agilerl

LONGER = {"population": 4, "training.shards": 2, "steps": 3840, "evo_steps": 480}
TRAINED: dict[str, dict[str, Any]] = {name: {**CASES[name], **LONGER} for name in ("DQN-per-n-step", "PPO")}
ASYNC = {"evolution.mode": "async", "training.share": "shard"}
TRAINED |= {name: {**TRAINED["DQN-per-n-step"], **ASYNC} for name in ("DQN-async",)}
TOKEN = "AGILERL_TESTS_TOKEN"
LEFT_SECONDS = 30  # for processes to end after their run

SCRIPT = """
import sys
sys.path.insert(0, {here!r})
import agilerl, faulty_runs, functools, worker_runs
from pathlib import Path
from agilerl.envs.copies import as_copy
from agilerl.training.manifest import workers
if {copies}:
    workers.LocalWorkers = functools.partial(workers.LocalWorkers, as_copy=as_copy)
from agilerl.errors import AgileRLError
arguments = {{**faulty_runs.arguments(worker_runs.TRAINED[{name!r}]), "verbose": True, **{more!r}}}
{setup}
try:
    if {path!r} is None:
        agilerl.train(**arguments, out={out!r}, workers={workers})
    else:
        agilerl.resume({path!r}, workers={workers})
except AgileRLError as error:
    sys.exit(type(error).__name__ + ": " + str(error))
"""


def start(
    name: str,
    out: Path,
    workers: int,
    path: Path | None = None,
    setup: str = "",
    more: Mapping[str, Any] | None = None,
    copies: bool = False,
) -> subprocess.Popen[str]:
    """Train a case in `out`, or resume the run at `path`, in a script without `if __name__ == "__main__"`.

    Args:
        setup: lines of the script before it trains. more: further arguments.
        copies: workers are forked, which saves the seconds in which new interpreters import the package.
    """
    out.mkdir(exist_ok=True)
    file, log = out / "script.py", out / "log.txt"
    here, chosen = str(Path(__file__).parent), None if path is None else str(path)
    file.write_text(
        SCRIPT.format(here=here, name=name, more=dict(more or {}), setup=setup, out=str(out), path=chosen,
                      workers=workers, copies=copies),
        encoding="utf-8",
    )  # fmt: skip
    package = str(Path(agilerl.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": package, "OMP_NUM_THREADS": "1", TOKEN: str(out)}
    with log.open("a", encoding="utf-8") as output:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", str(file)], stdout=output, stderr=subprocess.STDOUT, text=True, cwd=out,
            env=environment,
        )  # fmt: skip


def said(out: Path) -> str:
    return (out / "log.txt").read_text(encoding="utf-8")


def finish(process: subprocess.Popen[str], out: Path, code: int = 0) -> Path:
    """Wait for the end; returns the run directory."""
    assert process.wait(timeout=1200) == code, said(out)
    path = run_in(out)
    assert path is not None
    return path


def processes_of(out: Path) -> dict[int, str]:
    """Living processes of runs in `out`: their state, as in /proc."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
            is_ours = f"{TOKEN}={out}\0".encode() in (entry / "environ").read_bytes()
        except OSError:
            continue
        if is_ours and state != "Z":
            found[int(entry.name)] = state
    return found


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Workers of a run, the oldest first, ready or not."""
    found = []
    for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8").split():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        found += [int(pid)] if any(word.endswith((b"agilerl.workers.main", b"script.py")) for word in words) else []
    return sorted(found)


def is_ready(pid: int) -> bool:
    """Whether a worker waits for its first job, or has one: it has imported everything."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
        return "libtorch_cpu" in maps and _state(pid) == "S"
    except OSError:
        return False


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


def wait_for_ready(process: subprocess.Popen[str], count: int) -> list[int]:
    """Workers that are ready, once there are `count`; none if the run ends before."""
    while process.poll() is None:
        ready = [pid for pid in workers_of(process) if is_ready(pid)]
        if len(ready) >= count:
            return ready
        time.sleep(0.05)
    return []


def wait_until_gone(out: Path) -> float:
    """Wait until no process is left; returns the seconds."""
    begun = time.monotonic()
    while left := processes_of(out):
        assert time.monotonic() - begun < LEFT_SECONDS, f"{left} are left"
        time.sleep(0.05)
    return time.monotonic() - begun


def kill_workers(process: subprocess.Popen[str], kills: int, rng: random.Random) -> int:
    """Kill workers at random times while a run goes on, `kills` of them at most; returns how many."""
    done = 0
    while done < kills and wait_for_ready(process, 1):
        time.sleep(rng.uniform(0, 2))
        for pid in rng.sample(workers := workers_of(process), min(len(workers), rng.choice([1, 1, 2]), kills - done)):
            os.kill(pid, signal.SIGKILL)
            done += 1
    return done


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))
