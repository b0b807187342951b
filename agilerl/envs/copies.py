"""Copies of this process that work for it."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import weakref
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import numpy as np
import torch

from agilerl.core.safe_path import end_group_with_parent, kill_group
from agilerl.envs.generators import reseed
from agilerl.native.library import library

CONNECTIONS: weakref.WeakSet[Connection] = weakref.WeakSet()  # parent's ends of all pipes; forks inherit them
HELPER = "agilerl-lanes"  # begin of the names of threads that hold no lock between two steps
P = TypeVar("P")
R = TypeVar("R")


def as_copy() -> None:
    """Make a forked process independent of its parent: signals, pipes, objects, threads and random numbers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C of the terminal
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for connection in CONNECTIONS:
        connection.close()
    multiprocessing.current_process().daemon = False  # a simulator may start child processes
    gc.freeze()  # do not finalise objects of the parent
    torch.set_num_threads(1)  # a forked thread pool has no threads
    if (kernels := library()) is not None:
        kernels.threads = None
    reseed(np.random.SeedSequence())
    os.environ["OMP_NUM_THREADS"] = "1"


def map_in_copies(function: Callable[[P], R], parts: Sequence[P]) -> list[R]:
    """Return `function(part)` of each part: of the first one from this process, of each other one from a copy of it.

    A part whose copy is lost, or raises, is done in this process.
    """
    context, copies = multiprocessing.get_context("fork"), list[Any]()
    try:
        for part in parts[1:]:
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_do, args=(theirs, function, part, os.getpid()), daemon=True)
            process.start()
            theirs.close()
            copies.append((process, mine))
        results = [function(parts[0])]
        for part, (_, mine) in zip(parts[1:], copies, strict=True):
            try:
                results.append(mine.recv())
            except (EOFError, OSError):
                results.append(function(part))
        return results
    finally:
        for process, mine in copies:
            mine.close()
            kill_group(process.pid)
            process.join()


def _do(pipe: Connection, function: Callable[[P], R], part: P, parent: int) -> None:
    as_copy()
    end_group_with_parent(parent, 0.0)
    with contextlib.suppress(Exception):  # the parent meets it too
        pipe.send(function(part))
