"""The worker processes of a self-healing environment: asked, watched, and replaced when they fail."""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector.utils import CloudpickleWrapper

from agilerl.envs.healing_worker import Job, SharedRows, work
from agilerl.envs.lanes import EnvFactory
from agilerl.errors import EnvError

START_S = 60.0  # a new worker may import a simulator before it answers
CLOSE_S = 2.0


@dataclass(frozen=True)
class Fault:
    """One failure of a worker.

    Attributes:
        kind: "died", "hung" or "failed". worker: which one. lanes: its first and last lane.
        seeds: with which those lanes last began, None where they had none.
        message: what happened. traceback: the worker's, empty where it could not send one.
    """

    kind: str
    worker: int
    lanes: tuple[int, int]
    seeds: tuple[int, ...] | None
    message: str
    traceback: str = ""

    def __str__(self) -> str:
        first, last = self.lanes
        return f"worker {self.worker} (lanes {first} to {last}, seeds {self.seeds}) {self.kind}: {self.message}"


class Worker:
    """One process and the parent's end of its pipe."""

    def __init__(self, number: int, lanes: slice) -> None:
        self.number, self.lanes = number, lanes
        self.process: Any = None
        self.connection: Connection | None = None
        self.seeds: tuple[int, ...] | None = None
        self.restarts = 0

    @property
    def rows(self) -> np.ndarray:
        """Numbers of its lanes."""
        return np.arange(self.lanes.start, self.lanes.stop)

    def stop(self, patience_s: float = 0.0) -> None:
        """End the process, by force after `patience_s`; nothing of it is left."""
        if self.connection is not None:
            with contextlib.suppress(OSError):
                if patience_s:
                    self.connection.send(("close",))
            if self.process is not None and patience_s:
                self.process.join(patience_s)
            self.connection.close()
        if self.process is not None:
            if self.process.is_alive():
                self.process.kill()
            self.process.join()
            self.process.close()
        self.connection = self.process = None


class Crew:
    """The workers of L lanes, each with some of them.

    Args:
        factories: one callable per lane. count: processes. memory: what they write into.
        reset_ended, spec: as of `HealingLanes`. deadline_s: for an answer. max_restarts: of all workers together.
        name: of the environment, for messages.

    Attributes:
        faults: every failure so far.
    """

    def __init__(
        self,
        factories: Sequence[EnvFactory],
        count: int,
        memory: SharedRows,
        *,
        reset_ended: bool,
        spec: EnvSpec | None,
        deadline_s: float,
        max_restarts: int,
        name: str,
    ) -> None:
        self.factories, self.rest = list(factories), (reset_ended, spec, memory)
        self.deadline_s, self.max_restarts, self.name = float(deadline_s), int(max_restarts), name
        self.faults: list[Fault] = []
        edges = np.linspace(0, len(self.factories), count + 1).astype(int)
        self.workers = [Worker(i, slice(int(edges[i]), int(edges[i + 1]))) for i in range(count)]
        self._finalizer = weakref.finalize(self, _stop_all, self.workers)

    @property
    def restarts(self) -> int:
        """Workers that have been replaced so far."""
        return sum(worker.restarts for worker in self.workers)

    def reset(self, seeds: Sequence[int] | None) -> tuple[dict[int, dict[str, Any]], list[Fault]]:
        """Begin a new episode in every lane; `seeds` [L]. (info by worker, faults)"""
        for worker in self.workers:
            if worker.connection is None:  # workers start with the first episodes
                self.start(worker)
            if seeds is not None:
                worker.seeds = tuple(seeds[worker.lanes])
        given = {w.number: ("reset", None if seeds is None else np.array(w.seeds)) for w in self.workers}
        return self.ask(given, max(self.deadline_s, START_S))

    def close(self) -> None:
        """End all workers."""
        for worker in self.workers:
            worker.stop(CLOSE_S)

    def start(self, worker: Worker) -> None:
        """Begin the worker's process."""
        context: Any = multiprocessing.get_context(start_method())
        mine, theirs = context.Pipe()
        factories = self.factories[worker.lanes]
        job = Job(factories, *self.rest, worker.lanes.start)
        forked = context.get_start_method() == "fork"
        held = [w.connection for w in self.workers if w.connection is not None] + [mine] if forked else []
        made: Any = (lambda: job) if forked else Pickled(job)
        worker.process = context.Process(target=work, args=(theirs, made, held), daemon=True)
        worker.connection = mine
        with without_main():
            worker.process.start()
        theirs.close()

    def ask(self, commands: dict[int, tuple[Any, ...]], patience_s: float | None = None) -> tuple[Any, list[Fault]]:
        """Send each worker its command and collect the answers: (info by worker, faults)."""
        infos: dict[int, dict[str, Any]] = {}
        faults: dict[int, Fault] = {}
        waiting: dict[Any, Worker] = {}
        for number, command in commands.items():
            worker = self.workers[number]
            try:
                if worker.connection is None:
                    raise EOFError
                worker.connection.send(command)
                waiting[worker.connection] = worker
            except (OSError, EOFError):
                faults[number] = self._died(worker)
        limit = time.monotonic() + (self.deadline_s if patience_s is None else patience_s)
        while waiting:
            ready: list[Any] = wait(list(waiting), timeout=max(0.0, limit - time.monotonic()))
            for connection in ready:
                worker = waiting.pop(connection)
                try:
                    kind, *rest = connection.recv()
                except (EOFError, OSError):
                    faults[worker.number] = self._died(worker)
                    continue
                if kind == "ok":
                    infos[worker.number] = rest[0]
                else:
                    faults[worker.number] = self._fault(worker, "failed", *rest)
            if not ready:
                for worker in waiting.values():
                    seconds = self.deadline_s if patience_s is None else patience_s
                    faults[worker.number] = self._fault(worker, "hung", f"no answer after {seconds:g} s")
                break
        return infos, [faults[number] for number in sorted(faults)]

    def _died(self, worker: Worker) -> Fault:
        if worker.process is not None:
            worker.process.join(CLOSE_S)
        code = None if worker.process is None else worker.process.exitcode
        return self._fault(worker, "died", f"its process ended with exit code {code}")

    def _fault(self, worker: Worker, kind: str, message: str, traceback: str = "") -> Fault:
        lanes = (worker.lanes.start, worker.lanes.stop - 1)
        return Fault(kind, worker.number, lanes, worker.seeds, message, traceback)

    def heal(self, fault: Fault) -> dict[str, Any]:
        """Replace the worker of a fault and begin new episodes in its lanes; returns the info of their reset."""
        worker = self.workers[fault.worker]
        while True:
            self.faults.append(fault)
            worker.stop()
            if self.restarts >= self.max_restarts:
                self.close()
                raise self._gave_up(fault)
            worker.restarts += 1
            worker.seeds = self._derived(worker)
            self.start(worker)
            patience = max(self.deadline_s, START_S)
            infos, failed = self.ask({worker.number: ("reset", np.array(worker.seeds))}, patience)
            if not failed:
                info: dict[str, Any] = infos[worker.number]
                return info
            fault = failed[0]

    def _derived(self, worker: Worker) -> tuple[int, ...]:
        """New seeds of a worker's lanes: each follows from the one that the lane had."""
        count = worker.lanes.stop - worker.lanes.start
        old = worker.seeds or tuple(np.random.SeedSequence().generate_state(count).tolist())
        each = (
            np.random.SeedSequence(abs(s), spawn_key=(worker.restarts,)).generate_state(1, np.uint32)[0] for s in old
        )
        return tuple(int(word >> 1) for word in each)

    def _gave_up(self, fault: Fault) -> EnvError:
        text = f"\nlast traceback of the worker:\n{fault.traceback.rstrip()}" if fault.traceback else ""
        return EnvError(
            f"{self.name}: {fault}. Its worker has been replaced {self.restarts} times, which is the limit of "
            f"max_restarts={self.max_restarts}. fix: correct the environment.{text}"
        )


class Pickled:
    """A job as it goes over the pipe to a process that does not inherit it."""

    def __init__(self, job: Job) -> None:
        self.factories: Any = CloudpickleWrapper(job.factories)  # type: ignore[arg-type]
        self.rest = (job.reset_ended, job.spec, job.memory, job.first)

    def __call__(self) -> Job:
        return Job(self.factories.fn, *self.rest)


def start_method() -> str:
    """ "fork" where it is safe and there is one; else "forkserver", else "spawn".

    A process with CUDA or with threads must not be forked: the child would inherit locks that nobody opens. Progress
    bars' monitor threads hold none for long and do not count.
    """
    methods = multiprocessing.get_all_start_methods()
    torch = sys.modules.get("torch")
    has_cuda = torch is not None and torch.cuda.is_initialized()
    others = [
        t
        for t in threading.enumerate()
        if t is not threading.main_thread() and not type(t).__module__.startswith("tqdm")
    ]
    if "fork" in methods and not has_cuda and not others and sys.platform != "darwin":
        return "fork"
    return "forkserver" if "forkserver" in methods else "spawn"


@contextlib.contextmanager
def without_main() -> Any:
    """Keep a new process from running the user's script again: what it needs comes with the job."""
    main = sys.modules["__main__"]
    kept: dict[str, Any] = {name: main.__dict__[name] for name in ("__file__", "__spec__") if name in main.__dict__}
    try:
        main.__dict__.pop("__file__", None)
        if "__spec__" in kept:
            main.__dict__["__spec__"] = None
        yield
    finally:
        main.__dict__.update(kept)


def _stop_all(workers: Sequence[Worker]) -> None:
    for worker in workers:
        with contextlib.suppress(Exception):
            worker.stop()
