"""Starts ranks, as a script or as a function in copies of one process, and reads what each of them has written."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.connection import wait
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
    command = [sys.executable, str(HERE / script), *arguments]
    return [_started(command, environment(**names, **more)) for names in _names(processes)]


def in_copies(main: Callable[[Path], None], folder: Path, processes: int = 2) -> list[dict[str, Any]]:
    """Call `main(folder)` on each rank, and return what each of them has written.

    The ranks are copies of a process that has imported what they need (`tests/conftest.py`): unlike those of a
    launcher, they do not import it again.
    """
    context: Any = multiprocessing.get_context("forkserver")
    ranks = [context.Process(target=_as_rank, args=(main, folder, names)) for names in _names(processes)]
    for rank in ranks:
        rank.start()
    running = list(ranks)
    while running and wait([rank.sentinel for rank in running], timeout=SECONDS):
        running = [rank for rank in running if rank.exitcode is None]
        if any(rank.exitcode for rank in ranks):
            break
    for rank in running:  # after the failure of another one, or without end
        rank.kill()
        rank.join()
    outputs = [(folder / f"output-{number}.txt").read_text() for number in range(processes)]
    assert [rank.exitcode for rank in ranks] == [0] * processes, "\n".join(outputs)
    return written(folder, processes)


def _as_rank(main: Callable[[Path], None], folder: Path, names: dict[str, str]) -> None:
    with (folder / f"output-{names['RANK']}.txt").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ |= {"ACCELERATE_USE_CPU": "true", **names}
    main(folder)


def _names(processes: int) -> list[dict[str, str]]:
    """By what each rank finds the others."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = str(chosen.getsockname()[1])
    names = {"WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [{**names, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(processes)]


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
