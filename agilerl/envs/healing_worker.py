"""The process that steps some lanes of a self-healing environment: it writes into shared memory, or dies trying."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec

from agilerl import tree as trees
from agilerl.envs.lanes import EnvFactory, SyncLanes
from agilerl.spaces import nested

PARENT_DEATH = 1  # PR_SET_PDEATHSIG of Linux' prctl(2)


@dataclass(frozen=True)
class Job:
    """What a worker is told when it starts.

    Attributes:
        factories: of its lanes. reset_ended: as of `SyncLanes`.
        spec: of the registered environment, for a process that does not inherit the registry; None: nothing to do.
        memory: the shared arrays of all workers. first: the row where this worker's lanes begin.
    """

    factories: Sequence[EnvFactory]
    reset_ended: bool
    spec: EnvSpec | None
    memory: SharedRows
    first: int


@dataclass
class SharedRows:
    """Arrays [L, ...] that all workers write into, each its own rows; see `StepBatch` for what they hold."""

    space: Space[Any]
    count: int
    blocks: list[Any] = field(default_factory=list)  # raw shared memory, one block per array

    @classmethod
    def allocate(cls, context: Any, space: Space[Any], count: int) -> SharedRows:
        """Memory for `count` lanes whose observations are of `space`."""
        made = cls(space, count)
        for shape, dtype in made._layout():
            made.blocks.append(context.RawArray("b", max(1, int(np.prod(shape)) * dtype.itemsize)))
        return made

    def _layout(self) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
        parts = list(trees.leaves(nested(self.space))) * 2
        layout = [((self.count, *(part.shape or ())), np.dtype(part.dtype)) for part in parts]
        return [*layout, ((self.count,), np.dtype(np.float64)), ((2, self.count), np.dtype(bool))]

    def arrays(self) -> tuple[Any, Any, np.ndarray, np.ndarray]:
        """(obs, final_obs, reward [L], flags [2, L] terminated and truncated) as views of the memory."""
        found = [
            np.frombuffer(block, dtype=dtype, count=int(np.prod(shape))).reshape(shape)
            for block, (shape, dtype) in zip(self.blocks, self._layout(), strict=True)
        ]
        given = iter(found)
        obs, final_obs = (trees.map_leaves(lambda _: next(given), nested(self.space)) for _ in range(2))
        return obs, final_obs, found[-2], found[-1]


def work(connection: Connection, job: Any, to_close: Sequence[Any] = ()) -> None:
    """Serve commands until the pipe closes. Every answer is ("ok", info) or ("fault", message, traceback).

    Args:
        connection: the worker's end. job: a callable that gives the `Job`.
        to_close: ends of pipes that a forked process has inherited and must not hold open.
    """
    _detach(to_close)
    lanes: SyncLanes | None = None
    try:
        told: Job = job()
        if told.spec is not None and told.spec.id not in gymnasium.registry:
            gymnasium.registry[told.spec.id] = told.spec
        rows = slice(told.first, told.first + len(told.factories))
        views = told.memory.arrays()
        while True:
            command, *arguments = connection.recv()
            if command == "close":
                break
            try:
                if lanes is None:
                    lanes = SyncLanes(told.factories, reset_ended=told.reset_ended)
                info = (
                    _reset(lanes, views, rows, *arguments)
                    if command == "reset"
                    else _step(lanes, views, rows, *arguments)
                )
                answer: tuple[Any, ...] = ("ok", info)
            except (Exception, SystemExit) as error:
                answer = ("fault", f"{error}", traceback.format_exc())
            connection.send(answer)
    except (EOFError, OSError, KeyboardInterrupt):
        pass  # the other side has gone
    finally:
        if lanes is not None:
            with contextlib.suppress(Exception):
                lanes.close()
        connection.close()


def _reset(lanes: SyncLanes, views: Any, rows: slice, seeds: np.ndarray | None) -> dict[str, Any]:
    obs, info = lanes.reset(seeds)
    _copy(views[0], rows, obs)
    return info


def _step(lanes: SyncLanes, views: Any, rows: slice, actions: Any, active: np.ndarray | None) -> dict[str, Any]:
    batch = lanes.step(actions, active)
    _copy(views[0], rows, batch.obs)
    _copy(views[1], rows, batch.final_obs)
    views[2][rows] = batch.reward
    views[3][0, rows], views[3][1, rows] = batch.terminated, batch.truncated
    return batch.info


def _copy(into: Any, rows: slice, batch: Any) -> None:
    for shared, given in zip(trees.leaves(into), trees.leaves(batch), strict=True):
        shared[rows] = given


def _detach(to_close: Sequence[Any]) -> None:
    """Be a worker: the terminal's Ctrl-C and the run's own handlers are not for this process, nor are its pipes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in to_close:
        with contextlib.suppress(OSError):
            other.close()
    if sys.platform == "linux":  # also where the run is killed while an environment hangs
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PARENT_DEATH, signal.SIGKILL)
    torch = sys.modules.get("torch")
    if torch is not None:  # a forked pool of threads has no threads
        torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
