"""Processes that runs start, as copies of one that has imported the package: three seconds less for each of them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection
from typing import Any

import torch

from agilerl.workers import main, processes
from agilerl.workers.executor import connection_of
from agilerl.workers.local import LocalWorkers, _Worker
from agilerl.workers.processes import Processes


class Copy:
    """The part of `subprocess.Popen` that workers need."""

    def __init__(self, process: Any) -> None:
        self._process, self.pid = process, process.pid

    def poll(self) -> int | None:
        return self._process.exitcode  # type: ignore[no-any-return]

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        return self._process.exitcode  # type: ignore[no-any-return]


def start_worker(workers: LocalWorkers, place: int) -> _Worker:
    """`LocalWorkers._process` without a new interpreter."""
    context: Any = multiprocessing.get_context("forkserver")
    with contextlib.ExitStack() as stack:
        ours, theirs = (stack.enter_context(end) for end in socket.socketpair())
        output = stack.enter_context(tempfile.TemporaryFile("a+b"))
        descriptors = [stack.enter_context(Connection(os.dup(file.fileno()))) for file in (theirs, output)]
        variables = {**os.environ, **workers._variables}
        process = context.Process(target=_serve, args=(*descriptors, place, os.getcwd(), variables))
        process.start()
        theirs.close()
        for descriptor in descriptors:
            descriptor.close()
        stack.pop_all()
    return _Worker(Copy(process), connection_of(ours), output)  # type: ignore[arg-type]


def start_spawned(of: Processes[Any]) -> processes._Process[Any]:
    """`Processes._start` without a new interpreter."""
    context: Any = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=_spawned, args=(theirs, of.function, of.prepare, os.getcwd(), dict(os.environ)))
    process.start()
    theirs.close()
    return processes._Process(process, ours)


def _spawned(pipe: Connection, function: Any, prepare: Any, folder: str, variables: dict[str, str]) -> None:
    _set_up(folder, variables)
    processes._serve(pipe, function, prepare, os.getppid())  # the server ends with the test process


def _set_up(folder: str, variables: dict[str, str]) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    torch.set_num_threads(int(variables.get("OMP_NUM_THREADS", "1")))


def _serve(pipe: Connection, output: Connection, place: int, folder: str, variables: dict[str, str]) -> None:
    with open(os.devnull, "r+b") as nothing:
        for number, file in enumerate((nothing, nothing, output)):
            os.dup2(file.fileno(), number)
    _set_up(folder, variables)
    sys.argv = ["worker", str(pipe.fileno()), str(os.getppid()), str(place)]
    main.main()
