"""Lanes in worker processes that are replaced when they die, raise, hang or return what is not an observation."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector.utils import CloudpickleWrapper

from agilerl.envs import trees
from agilerl.envs.contract import name_of
from agilerl.envs.healing_worker import Job, SharedRows, work
from agilerl.envs.lanes import EnvFactory, check_seeds
from agilerl.envs.protocol import StepBatch
from agilerl.errors import EnvError, ShapeError

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


class HealingLanes:
    """L environments in a few worker processes of several lanes each, which replaces workers that fail.

    A worker checks what its environments return (`agilerl.envs.contract`) before it writes them to shared memory. A
    worker that dies, raises, returns anything else than observations, or has no answer after `deadline_s` is killed and
    started again, its lanes with seeds derived from those they had. That step of ALL its lanes is no transition (mask
    False), the running episodes are `truncated`, `info["healed"]` [L] marks them, `faults` lists what happened.
    Episodes of other lanes are not touched, and without faults the number of workers changes nothing.

    Args:
        factories: one callable per lane, each giving a fresh Gymnasium environment of the same spaces.
        num_workers: processes; by default one per core, at most 4 and at most L.
        deadline_s: for an answer. max_restarts: of these lanes, in all; one more is an error.
        reset_ended: as of `SyncLanes`. spec: of a registered environment. name: for messages.

    Raises:
        EnvError: from `reset` and `step`, when a worker fails and `max_restarts` have been made.
    """

    backend = "healing"

    def __init__(
        self,
        factories: Sequence[EnvFactory],
        *,
        num_workers: int | None = None,
        deadline_s: float = 60.0,
        max_restarts: int = 10,
        reset_ended: bool = True,
        spec: EnvSpec | None = None,
    ) -> None:
        check_options(num_workers, deadline_s, max_restarts)
        if not factories:
            raise EnvError("lanes need at least one environment factory; got none. fix: pass a factory per lane.")
        num_lanes = len(factories)
        self.num_lanes, self.deadline_s, self.max_restarts = num_lanes, float(deadline_s), int(max_restarts)
        single = factories[0]()
        self.name = name_of(single)
        self.single_observation_space: Space[Any] = single.observation_space
        self.single_action_space: Space[Any] = single.action_space
        single.close()
        self._factories, self._reset_ended, self._spec = list(factories), reset_ended, spec
        self._memory = SharedRows.allocate(multiprocessing.get_context(), self.single_observation_space, num_lanes)
        self._obs, self._final, self._reward, self._flags = self._memory.arrays()
        self.faults: list[Fault] = []
        self._masks: np.ndarray | None = None
        self._is_reset = False
        count = min(num_lanes, num_workers or min(4, os.cpu_count() or 1))
        edges = np.linspace(0, num_lanes, count + 1).astype(int)
        self._workers = [Worker(i, slice(int(edges[i]), int(edges[i + 1]))) for i in range(count)]
        self._finalizer = weakref.finalize(self, _stop_all, self._workers)

    @property
    def restarts(self) -> int:
        """Workers that have been replaced so far."""
        return sum(worker.restarts for worker in self._workers)

    # -- what lanes do ---------------------------------------------------------------------------------------------

    def reset(self, seeds: np.ndarray | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a new episode in every lane; `seeds` [L] integers, or None to go on with each lane's generator."""
        numbers = check_seeds(seeds, self.num_lanes)
        self._masks = None
        for worker in self._workers:
            if worker.connection is None:  # workers start with the first episodes
                self._start(worker)
            if numbers is not None:
                worker.seeds = tuple(numbers[worker.lanes])
        given = {w.number: ("reset", None if numbers is None else np.array(w.seeds)) for w in self._workers}
        infos, failed = self._ask(given, max(self.deadline_s, START_S))
        for fault in failed:
            infos[fault.worker] = self._heal(fault)
        self._keep_masks(infos)
        self._is_reset = True
        return trees.copy(self._obs), self._info()

    def step(self, actions: np.ndarray, active: np.ndarray | None = None) -> StepBatch:
        """Step the lanes; see `protocol.Lanes.step`. `info["healed"]` [L] is there where a worker was replaced."""
        if not self._is_reset:
            raise EnvError("lanes must be reset before the first step. fix: call reset() first.")
        if len(actions) != self.num_lanes:
            raise ShapeError(f"actions must have one row per lane: expected {self.num_lanes}, got {len(actions)}.")
        before = trees.copy(self._obs)
        mask = np.ones(self.num_lanes, dtype=bool) if active is None else np.array(active, dtype=bool)
        asked = {
            w.number: ("step", actions[w.lanes], None if active is None else mask[w.lanes])
            for w in self._workers
            if mask[w.lanes].any()
        }
        infos, failed = self._ask(asked)
        reward, (terminated, truncated) = np.where(mask, self._reward, 0.0), self._flags & mask
        final, healed = trees.choose(mask, self._final, before), np.zeros(self.num_lanes, dtype=bool)
        final_masks = self._final_masks(infos)
        for fault in failed:
            rows = self._workers[fault.worker].rows
            infos[fault.worker] = self._heal(fault)
            healed[rows], mask_before = True, mask[rows]
            reward[rows], terminated[rows], truncated[rows], mask[rows] = 0.0, False, mask_before, False
        final = trees.choose(healed, before, final) if failed else final
        self._keep_masks(infos)
        info = {**self._info(), **final_masks, **({"healed": healed} if failed else {})}
        return StepBatch(trees.copy(self._obs), reward, terminated, truncated, final, mask, info)

    def close(self) -> None:
        """End all workers."""
        for worker in self._workers:
            worker.stop(CLOSE_S)
        self._is_reset = False

    # -- masks of legal actions --------------------------------------------------------------------------------------

    def _keep_masks(self, infos: dict[int, dict[str, Any]]) -> None:
        for number, info in infos.items():
            if "action_mask" in info:
                given = info["action_mask"]
                if self._masks is None:
                    self._masks = np.ones((self.num_lanes, given.shape[1]), dtype=bool)
                self._masks[self._workers[number].lanes] = given

    def _final_masks(self, infos: dict[int, dict[str, Any]]) -> dict[str, Any]:
        found = {n: i for n, i in infos.items() if "final_action_mask" in i}
        if not found or self._masks is None:
            return {}
        masks = self._masks.copy()
        for number, info in infos.items():
            if "action_mask" in info:
                masks[self._workers[number].lanes] = info.get("final_action_mask", info["action_mask"])
        return {"final_action_mask": masks}

    def _info(self) -> dict[str, Any]:
        return {} if self._masks is None else {"action_mask": self._masks.copy()}

    # -- processes ---------------------------------------------------------------------------------------------------

    def _start(self, worker: Worker) -> None:
        context: Any = multiprocessing.get_context(start_method())
        mine, theirs = context.Pipe()
        factories = self._factories[worker.lanes]
        job = Job(factories, self._reset_ended, self._spec, self._memory, worker.lanes.start)
        forked = context.get_start_method() == "fork"
        held = [w.connection for w in self._workers if w.connection is not None] + [mine] if forked else []
        made: Any = (lambda: job) if forked else _Pickled(job)
        worker.process = context.Process(target=work, args=(theirs, made, held), daemon=True)
        worker.connection = mine
        with _without_main():
            worker.process.start()
        theirs.close()

    def _ask(self, commands: dict[int, tuple[Any, ...]], patience_s: float | None = None) -> tuple[Any, list[Fault]]:
        """Send each worker its command and collect the answers: (info by worker, faults)."""
        infos: dict[int, dict[str, Any]] = {}
        faults: dict[int, Fault] = {}
        waiting: dict[Any, Worker] = {}
        for number, command in commands.items():
            worker = self._workers[number]
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

    def _heal(self, fault: Fault) -> dict[str, Any]:
        """Replace the worker of a fault and begin new episodes in its lanes; returns the info of their reset."""
        worker = self._workers[fault.worker]
        while True:
            self.faults.append(fault)
            worker.stop()
            if self.restarts >= self.max_restarts:
                self.close()
                raise self._gave_up(fault)
            worker.restarts += 1
            worker.seeds = self._derived(worker)
            self._start(worker)
            patience = max(self.deadline_s, START_S)
            infos, failed = self._ask({worker.number: ("reset", np.array(worker.seeds))}, patience)
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


class _Pickled:
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
def _without_main() -> Any:
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


def check_options(num_workers: int | None, deadline_s: float, max_restarts: int) -> None:
    """Raise EnvError for options that make no sense."""
    if num_workers is not None and (isinstance(num_workers, bool) or num_workers < 1):
        raise EnvError(f"num_workers must be a positive integer (processes) or None; got {num_workers!r}. fix: None.")
    if not (math.isfinite(deadline_s) and deadline_s > 0):
        raise EnvError(f"deadline_s must be above 0 (seconds for one step); got {deadline_s!r}. fix: 60.")
    if isinstance(max_restarts, bool) or max_restarts < 0:
        raise EnvError(f"max_restarts must be 0 or more; got {max_restarts!r}. fix: 10.")


def _stop_all(workers: Sequence[Worker]) -> None:
    for worker in workers:
        with contextlib.suppress(Exception):
            worker.stop()


__all__ = ["Fault", "HealingLanes", "start_method"]
