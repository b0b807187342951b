"""Starts a script in several processes that find each other, and reads what each of them has written."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SECONDS = 240


def environment(**more: str) -> dict[str, str]:
    """What processes on CPUs are started with."""
    known = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    path = os.pathsep.join([str(ROOT), str(HERE), str(HERE.parent / "unit"), known.get("PYTHONPATH", "")])
    return {**known, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **more}


def torchrun(script: str, *arguments: str, processes: int = 2, **more: str) -> subprocess.Popen[str]:
    """The processes of one start, by the launcher."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    return _started([*launcher, str(HERE / script), *arguments], environment(**more))


def by_hand(script: str, *arguments: str, processes: int = 2, **more: str) -> list[subprocess.Popen[str]]:
    """The same without a launcher: nobody ends the others when one of them fails."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = str(chosen.getsockname()[1])
    started = []
    for rank in range(processes):
        names = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes), "MASTER_PORT": port}
        env = environment(MASTER_ADDR="127.0.0.1", **names, **more)
        started.append(_started([sys.executable, str(HERE / script), *arguments], env))
    return started


def _started(command: list[str], env: dict[str, str]) -> subprocess.Popen[str]:
    """In a session of its own, so that whatever it starts can be ended with it."""
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, env=env, text=True, start_new_session=True, **both)  # type: ignore[call-overload,no-any-return]


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """(exit status, output) of a process; it is killed, and the test fails, where it does not end."""
    try:
        output = process.communicate(timeout=SECONDS)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return process.returncode, output


def written(folder: Path, processes: int = 2) -> list[dict[str, Any]]:
    """What each rank has found."""
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(processes)]
