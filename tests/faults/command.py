"""The command in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from faulty_runs import run_in

import agilerl
from agilerl.runs.checkpoints import generations


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """`agilerl <arguments>` in `folder`."""
    environment = {**os.environ, "PYTHONPATH": str(Path(agilerl.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "agilerl", *arguments],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def wait_for_checkpoint(folder: Path, process: subprocess.Popen[str], beyond: int = 0) -> Path:
    """The run under `folder`, as soon as it has a checkpoint of a generation after `beyond`."""
    while process.poll() is None:
        path = run_in(folder / "runs") or run_in(folder)
        found = [] if path is None else generations(path / "checkpoints")
        if path is not None and found and int(found[-1].name[4:]) > beyond:
            return path
        time.sleep(0.02)
    raise AssertionError(process.communicate()[1])
