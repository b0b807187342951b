"""Lanes in worker processes that are replaced if they die, raise, hang or return invalid observations."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import select
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from multiprocessing.connection import wait
from operator import methodcaller
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector.utils import CloudpickleWrapper

from agilerl.core import foreign
from agilerl.core import tree as trees
from agilerl.core.ranges import Count, CountOrZero, Positive, check
from agilerl.core.safe_path import kill_group, without_working_folder
from agilerl.core.tree import Tree
from agilerl.envs.copies import CONNECTIONS, HELPER
from agilerl.envs.generators import CONSTRUCTION
from agilerl.envs.lane_worker import CLOSE_S, Job, Line, LocalPart, SharedRows, work
from agilerl.envs.lanes import UNMARKED, EnvFactory, LaneInfo, SyncLanes, check_seeds
from agilerl.envs.limits import time_limit
from agilerl.envs.masks import FINAL_MASK, MASK
from agilerl.envs.protocol import StepBatch, TeamStep
from agilerl.errors import EnvError, ShapeError

START_S = 60.0  # per environment of a new worker, whose first answer may wait for imports of a simulator
LOOK_S = 0.5  # polling interval for processes whose pipe a simulator's process has inherited and keeps open


@dataclass(frozen=True)
class Fault:
    """One failure of a worker.

    Attributes:
        kind: "died", "hung" or "failed". worker: its number; -1 for this process. lanes: first and last lane.
        seeds: seeds of the last reset of these lanes, or None.
        message: description. traceback: the worker's, empty if it could not send one.
    """

    kind: str
    worker: int
    lanes: tuple[int, int]
    seeds: tuple[int, ...] | None
    message: str
    traceback: str = ""

    def __str__(self) -> str:
        first, last = self.lanes
        message = self.message.partition(" fix: ")[0].rstrip(".")  # no advice: it has already been replaced
        where = f"lanes {first} to {last}, {_seeds(self.seeds)}"
        return f"{where if self.worker < 0 else f'worker {self.worker} ({where})'} {self.kind}: {message}"


def _seeds(seeds: tuple[int, ...] | None) -> str:
    """Format the first seeds; the others follow from the run's seed."""
    if not seeds:
        return "no seeds"
    shown = ", ".join(map(str, seeds[:2]))
    return f"seeds {shown}" if len(seeds) <= 2 else f"seeds {shown}, ... {len(seeds) - 2} more"


class Description(NamedTuple):
    """Properties of one lane; `team` is a `Team` for multi-agent environments."""

    name: str
    observation_space: Space[Any]
    action_space: Space[Any]
    max_episode_steps: int | None
    team: Any
    metadata: Mapping[str, Any]
    render_mode: str | None


def describe(lanes: Any) -> Description:
    """Describe an environment's lanes in this process."""
    env, spaces = lanes.envs[0], (lanes.single_observation_space, lanes.single_action_space)
    rendering = dict(foreign.metadata(env)), foreign.render_mode(env)
    return Description(lanes.name, *spaces, time_limit(env), foreign.team(lanes), *rendering)


class Worker:
    """One process and the parent's end of its pipe; or a part of this process, if it is local."""

    def __init__(self, number: int, lanes: slice, is_local: bool = False) -> None:
        self.number, self.lanes, self.is_local = number, lanes, is_local
        self.process: Any = None
        self.line: Line | LocalPart | None = None
        self.seeds: tuple[int, ...] | None = None
        self.restarts = 0
        self.has_answered = False  # all its environments exist

    def stop(self, patience_s: float = 0.0) -> None:
        """Terminate the process and its child processes, by force after `patience_s`, and release its resources."""
        if self.line is not None:
            with contextlib.suppress(OSError):
                if patience_s:
                    self.line.send(("close",))
            if self.process is not None and patience_s:
                self.process.join(patience_s)
            self.line.close()
        if self.process is not None:
            kill_group(self.process.pid)
            if self.process.is_alive():
                self.process.kill()
            self.process.join()
            self.process.close()
        self.line = self.process = None


class PendingStep(NamedTuple):
    """A step in progress in the workers.

    Attributes:
        before: [L, ...] observations before the step. mask: [L] lanes to step.
        waiting: line -> worker without an answer yet. faults: of unreachable workers.
    """

    before: Any
    mask: np.ndarray
    waiting: dict[Any, Worker]
    faults: dict[int, Fault]

    def is_ready(self, timeout_s: float) -> bool:
        """Return True if all answers arrive within this many seconds."""
        limit, missing = time.monotonic() + timeout_s, {line for line in self.waiting if isinstance(line, Line)}
        while missing:
            ready = readable(missing, limit - time.monotonic())
            if not ready:
                return False
            missing -= set(ready)
        return True


class HealingLanes:
    """L environments in a few worker processes with several lanes each; failed workers are replaced.

    A worker checks its environments' results (`lanes.Contract`) before writing them to shared memory. A worker that
    dies, raises, returns invalid observations, or exceeds `deadline_s` is killed and restarted, its lanes with seeds
    derived from their previous ones. That step of ALL its lanes is not a transition (mask False), the running episodes
    are `truncated`, `StepBatch.healed` [L] marks them (also `info["healed"]`, for users), and `faults` records the
    failure.
    Episodes of other lanes are unaffected, and without faults results do not depend on the number of workers.

    Args:
        factories: one callable per lane, each returning a fresh Gymnasium environment of the same spaces.
        num_workers: processes; by default one per core, at most 4 and at most L.
        deadline_s: maximum seconds for an answer. max_restarts: total restarts for these lanes; one more is an error.
        reset_ended: see `SyncLanes`. spec: specification of a registered environment.
        build: creates a worker's lanes: `SyncLanes`, or `TeamLanes`, which need parallel environments.
        description: of one lane; by default a worker creates an environment to determine it.
        takes_part: this process is one of `num_workers` if they are fewer than lanes: it steps the first ones while the
            others step theirs. Exceptions are faults as in workers, but a crash or a hang is one of this process.

    Attributes:
        faults: all failures so far. team: agents and their spaces; None for single agents.

    Raises:
        EnvError: from `reset` and `step`, if a worker fails after `max_restarts` restarts.
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
        build: Callable[..., Any] = SyncLanes,
        description: Description | None = None,
        takes_part: bool = False,
    ) -> None:
        check_options(num_workers, deadline_s, max_restarts)
        if not factories:
            raise EnvError("lanes need at least one environment factory; got none. fix: pass a factory per lane.")
        self.name, self.num_lanes, self.factories = "the environment", len(factories), list(factories)
        self.deadline_s, self.max_restarts = float(deadline_s), int(max_restarts)
        self.reset_ended, self.spec, self.build = reset_ended, spec, build
        self._memory: Any = None
        self._construction = CONSTRUCTION.get()
        self.faults: list[Fault] = []
        self.description = description or self._described()
        self.name, self.team, self.max_episode_steps = (
            self.description.name, self.description.team, self.description.max_episode_steps
        )  # fmt: skip
        if self.team is not None:
            self.backend = "healing_teams"
        self.single_observation_space: Space[Any] = self.description.observation_space
        self.single_action_space: Space[Any] = self.description.action_space
        spaces = self.single_observation_space, self.single_action_space
        self._memory = SharedRows(multiprocessing.get_context(), *spaces, self.num_lanes, self.team)
        self._rows = self._memory.arrays()
        self._info = LaneInfo(self.num_lanes)
        self._is_reset = False
        count = min(self.num_lanes, num_workers or min(4, os.cpu_count() or 1))
        edges = np.linspace(0, self.num_lanes, count + 1).astype(int)
        parts = [slice(int(edges[i]), int(edges[i + 1])) for i in range(count)]
        takes_part = takes_part and count < self.num_lanes
        self.workers = [Worker(i, part, takes_part and i == 0) for i, part in enumerate(parts)]
        self._finalizer = weakref.finalize(self, _stop_all, self.workers)

    def _described(self) -> Description:
        """Describe an environment created in a worker, so that this process holds none of its resources.

        On failure, create it in this process.
        """
        self.workers = [Worker(0, slice(0, 1))]
        try:
            return Description(*self.apply(describe)[0])
        except EnvError:
            with contextlib.closing(self.build(self.factories[:1])) as lanes:
                return describe(lanes)
        finally:
            _stop_all(self.workers)

    @property
    def restarts(self) -> int:
        """Number of workers replaced so far."""
        return sum(worker.restarts for worker in self.workers)

    # -- lane interface --------------------------------------------------------------------------------------------

    def reset(self, seeds: np.ndarray | None = None) -> tuple[Any, dict[str, Any]]:
        numbers = check_seeds(seeds, self.num_lanes)
        self._info.clear()
        self.start()
        for worker in self.workers:
            if numbers is not None:
                worker.seeds = tuple(numbers[worker.lanes])
        infos, failed = self._begin(self.workers, is_seeded=numbers is not None)
        for fault in failed:
            infos[fault.worker] = self._heal(fault)
        self._update_info(infos)
        self._is_reset = True
        return trees.copy(self._rows.obs), self._info.copies()

    def step(self, actions: Any, active: np.ndarray | None = None) -> StepBatch:
        """Step the lanes; see `protocol.Lanes.step`. `StepBatch.healed` [L] is set if a worker was replaced."""
        return self.finish_step(self.begin_step(actions, active))

    def begin_step(self, actions: Tree, active: np.ndarray | None = None) -> PendingStep:
        """Send the actions to the workers, which step asynchronously."""
        self._check_actions(actions)
        before = trees.copy(self._rows.obs)
        mask = np.ones(self.num_lanes, dtype=bool) if active is None else np.array(active, dtype=bool)
        return PendingStep(before, mask, *self._send_step(actions, None if active is None else mask))

    def _check_actions(self, actions: Tree) -> None:
        if not self._is_reset:
            raise EnvError("lanes must be reset before the first step. fix: call reset() first.")
        count = trees.count_rows(actions)
        if count != self.num_lanes:
            raise ShapeError(f"actions must have one row per lane: expected {self.num_lanes}, got {count}.")

    def _send_step(self, actions: Tree, mask: np.ndarray | None) -> tuple[dict[Any, Worker], dict[int, Fault]]:
        """Send actions to the workers of the lanes `mask` [L], None for all; see `_send`."""
        shared, active = self._rows.actions, self._rows.active
        is_shared = isinstance(actions, np.ndarray) and shared is not None
        is_shared = is_shared and (actions.dtype, actions.shape) == (shared.dtype, shared.shape)  # type: ignore[union-attr]
        commands: dict[int, Any] = {}
        for worker in self.workers:
            rows = worker.lanes
            if mask is not None and not mask[rows].any():
                continue
            active[rows] = True if mask is None else mask[rows]
            if is_shared:
                shared[rows] = actions[rows]  # type: ignore[index]
            commands[worker.number] = None if is_shared else ("step", trees.take(actions, rows))
        return self._send(commands)

    def finish_step(self, pending: PendingStep) -> StepBatch:
        """Wait for and return the result of a step started by `begin_step`."""
        infos, failed = self._collect(pending.waiting, pending.faults)
        return self._batch(pending.before, pending.mask, infos, failed)

    def _batch(
        self, before: np.ndarray, mask: np.ndarray, infos: dict[int, dict[str, Any]], failed: list[Fault]
    ) -> StepBatch:
        """Read a step of the lanes `mask` [L] from the shared memory, and replace the workers that failed in it.

        Args:
            before: [L, ...] observations before the step. infos: worker number -> info of the workers that answered.
        """
        rows, idle, healed = self._rows, ~mask, np.zeros(self.num_lanes, dtype=bool)
        reward, flags, final = rows.reward.copy(), rows.flags.copy(), trees.copy(rows.final_obs)
        if idle.any():
            reward[idle], flags[:, idle] = 0.0, False
            trees.put(final, idle, trees.take(before, idle))
        terminated, truncated = flags
        final_masks = self._final_masks(infos)
        for fault in failed:
            part = self.workers[fault.worker].lanes
            infos[fault.worker] = self._heal(fault)
            reward[part], terminated[part], truncated[part] = 0.0, False, mask[part]
            mask[part], healed[part] = False, True
        final = trees.choose(healed, before, final) if failed else final
        self._update_info(infos)
        info = {**self._info.copies(), **final_masks, **({"healed": healed.copy()} if failed else {})}
        team, replaced = self._team_step(mask), healed if failed else None
        return StepBatch(trees.copy(rows.obs), reward, terminated, truncated, final, mask, info, team, replaced)

    def _team_step(self, mask: np.ndarray) -> TeamStep | None:
        """Return the last step by agent, for transitions `mask` [L]; None for single agents."""
        if self.team is None:
            return None
        reward, flags, defined = self._rows.team
        rows = mask[:, None]
        (terminated, truncated, acted), defined = flags & rows, np.where(rows, defined, np.nan)
        actions = None if np.isnan(defined).all() else defined
        return TeamStep(np.where(rows, reward, 0.0), terminated, truncated, acted, actions)

    def close(self) -> None:
        for worker in self.workers:
            worker.stop(CLOSE_S)
        self._is_reset = False

    def start(self) -> None:
        """Start missing workers now instead of with the first episodes."""
        for worker in self.workers:
            if worker.line is None:
                self._start(worker)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Get attribute `name` of every environment, or call it if it is a method; lane by lane."""
        return tuple(chain.from_iterable(self.apply(methodcaller("call", name, *args, **kwargs), f"{name}()")))

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Set attribute `name` of every environment to its value in `values` [L]."""
        jobs = [methodcaller("set_attr", name, list(values[worker.lanes])) for worker in self.workers]
        self._apply(jobs, f"set_attr({name!r})")

    def apply(self, function: Callable[[Any], Any], what: str = "", workers: int | None = None) -> list[Any]:
        """Call a function with the lanes of each worker, in its process; returns the results by worker.

        Args:
            what: description of the function, for messages. workers: number of workers to use, the first ones.

        Raises:
            EnvError: it failed.
        """
        return self._apply([function] * (workers or len(self.workers)), what or "a process of an environment")

    def _apply(self, functions: Sequence[Callable[[Any], Any]], what: str) -> list[Any]:
        self.start()
        answers, failed = self._ask({i: ("apply", f) for i, f in enumerate(functions)}, self._patience_s())
        if failed:
            raise EnvError(f"{self.name}: {what} failed: {failed[0]}. fix: correct the environment.")
        return [answers[number]["result"] for number in range(len(functions))]

    def _patience_s(self) -> float:
        """Time limit of a command that may create the environments first."""
        lane_counts = [w.lanes.stop - w.lanes.start for w in self.workers if not w.has_answered]
        return max(self.deadline_s, START_S * max(lane_counts, default=1))

    # -- infos ---------------------------------------------------------------------------------------------------------

    def _update_info(self, infos: dict[int, dict[str, Any]]) -> None:
        for number, info in infos.items():
            lanes = self.workers[number].lanes
            self._info.unmark(lanes)
            for key in UNMARKED:
                if key in info:
                    self._info.write(key, lanes, info[key], info[key].shape[1])

    def _final_masks(self, infos: dict[int, dict[str, Any]]) -> dict[str, Any]:
        if MASK not in self._info or not any(FINAL_MASK in info for info in infos.values()):
            return {}
        masks = self._info[MASK].copy()
        for number, info in infos.items():
            if MASK in info:
                masks[self.workers[number].lanes] = info.get(FINAL_MASK, info[MASK])
        return {FINAL_MASK: masks}

    # -- workers: requests, monitoring, replacement ------------------------------------------------------------------

    def _start(self, worker: Worker) -> None:
        """Start the worker's process."""
        factories: Any = CloudpickleWrapper(self.factories[worker.lanes])  # type: ignore[arg-type]
        construction = self._construction._replace(first=worker.lanes.start, replacement=worker.restarts)
        job = Job(factories, self.reset_ended, self.spec, self._memory, worker.lanes, self.build, construction)
        worker.has_answered = False
        if worker.is_local:
            worker.line = LocalPart(job)
            return
        context: Any = multiprocessing.get_context(start_method())
        mine, theirs = context.Pipe()
        worker.process = context.Process(target=work, args=(theirs, job, os.getpid()), daemon=True)
        worker.line = Line(mine)
        CONNECTIONS.add(mine)
        with without_main(), without_working_folder():
            worker.process.start()
        theirs.close()

    def _begin(self, workers: Sequence[Worker], is_seeded: bool) -> tuple[dict[int, dict[str, Any]], list[Fault]]:
        """Reset the workers' lanes, with their seeds or continuing each lane's generator; see `_ask`."""
        commands = {w.number: ("reset", np.array(w.seeds) if is_seeded else None) for w in workers}
        return self._ask(commands, self._patience_s())

    def _ask(
        self, commands: dict[int, tuple[Any, ...]], patience_s: float | None = None
    ) -> tuple[dict[int, dict[str, Any]], list[Fault]]:
        """Send each worker its command and collect the answers: (info by worker, faults)."""
        return self._collect(*self._send(commands), patience_s)

    def _send(self, commands: dict[int, Any]) -> tuple[dict[Any, Worker], dict[int, Fault]]:
        """Send each worker its command, see `work`: (line -> worker that will answer, faults by worker)."""
        faults: dict[int, Fault] = {}
        waiting: dict[Any, Worker] = {}
        for number, command in commands.items():
            worker = self.workers[number]
            try:
                if worker.line is None:
                    raise EOFError
                worker.line.send(command)
                waiting[worker.line] = worker
            except (OSError, EOFError):
                faults[number] = self._died(worker)
        return waiting, faults

    def _collect(
        self, waiting: dict[Any, Worker], faults: dict[int, Fault], patience_s: float | None = None
    ) -> tuple[dict[int, dict[str, Any]], list[Fault]]:
        """Collect the answers of workers: (info by worker, faults)."""
        infos: dict[int, dict[str, Any]] = {}
        patience_s = self.deadline_s if patience_s is None else patience_s
        limit = time.monotonic() + patience_s
        try:
            while waiting:
                for line in wait_for(waiting, limit - time.monotonic()):
                    self._receive(line, waiting.pop(line), infos, faults)
                if time.monotonic() > limit:
                    for worker in waiting.values():
                        faults[worker.number] = self._fault(worker, "hung", f"no answer after {patience_s:g} s")
                    break
        except BaseException:  # such as Ctrl-C: their answers would be read as those to the next commands
            _stop_all(list(waiting.values()))
            raise
        return infos, [faults[number] for number in sorted(faults)]

    def _receive(self, line: Any, worker: Worker, infos: dict[int, dict[str, Any]], faults: dict[int, Fault]) -> None:
        """Read a worker's answer into `infos`, or its failure into `faults`."""
        try:
            if isinstance(line, Line) and not readable([line], 0.0):
                raise EOFError
            kind, *rest = line.receive() or ("ok", {})
        except (EOFError, OSError):
            faults[worker.number] = self._died(worker)
            return
        if kind == "ok":
            infos[worker.number], worker.has_answered = rest[0], True
        else:
            faults[worker.number] = self._fault(worker, "failed", *rest)

    def _died(self, worker: Worker) -> Fault:
        if worker.process is not None:
            worker.process.join(CLOSE_S)
        code = None if worker.process is None else worker.process.exitcode
        return self._fault(worker, "died", f"its process ended with exit code {code}")

    def _fault(self, worker: Worker, kind: str, message: str, traceback: str = "") -> Fault:
        lanes = (worker.lanes.start, worker.lanes.stop - 1)
        return Fault(kind, worker.number, lanes, worker.seeds, message, traceback)

    def _heal(self, fault: Fault) -> dict[str, Any]:
        """Replace the failed worker and reset its lanes; returns the info of the reset."""
        worker = self.workers[fault.worker]
        while True:
            self.faults.append(fault)
            worker.stop()
            if self.restarts >= self.max_restarts:
                for other in self.workers:
                    other.stop(CLOSE_S)
                text = f"\nseeds of its lanes: {fault.seeds}" if fault.seeds else ""
                text += f"\nlast traceback of the worker:\n{fault.traceback.rstrip()}" if fault.traceback else ""
                raise EnvError(
                    f"{self.name}: {fault}. Its worker has been replaced {self.restarts} times, which is the limit of "
                    f"max_restarts={self.max_restarts}. fix: correct the environment.{text}"
                )
            worker.restarts += 1
            worker.seeds = derived_seeds(worker.seeds, worker.restarts, worker.lanes.stop - worker.lanes.start)
            self._start(worker)
            infos, failed = self._begin([worker], is_seeded=True)
            if not failed:
                return infos[worker.number]
            fault = failed[0]


def derived_seeds(seeds: tuple[int, ...] | None, restarts: int, count: int) -> tuple[int, ...]:
    """Derive new seeds of `count` lanes from their previous ones."""
    old = seeds or tuple(np.random.SeedSequence().generate_state(count).tolist())
    sequences = [np.random.SeedSequence(abs(seed), spawn_key=(restarts,)) for seed in old]
    return tuple(int(sequence.generate_state(1, np.uint32)[0] >> 1) for sequence in sequences)


def wait_for(waiting: dict[Any, Worker], seconds: float) -> list[Any]:
    """Return lines of workers that have answered or died, after some of these seconds; this process's part is first."""
    if local := [line for line in waiting if isinstance(line, LocalPart)]:
        return local
    return readable(waiting, min(LOOK_S, seconds)) or [
        line for line, worker in waiting.items() if not worker.process.is_alive()
    ]


def readable(lines: Iterable[Any], seconds: float) -> list[Any]:
    """Return the lines whose pipe can be read, after at most these seconds."""
    by_file = {line.fileno(): line for line in lines}
    if not hasattr(select, "poll"):
        return wait(list(by_file.values()), max(0.0, seconds))
    files = select.poll()  # a tenth of the time of `wait`
    for file in by_file:
        files.register(file, select.POLLIN)
    return [by_file[file] for file, _ in files.poll(max(0.0, 1000 * seconds))]


def check_options(num_workers: int | None, deadline_s: float, max_restarts: int) -> None:
    """Raise EnvError for invalid options."""
    check("num_workers", num_workers, Count | None, None, EnvError, unit="processes")
    check("deadline_s", deadline_s, Positive, 60, EnvError, unit="seconds for one step")
    check("max_restarts", max_restarts, CountOrZero, 10, EnvError)


def start_method() -> str:
    """Return "fork" if it is safe and available; else "forkserver", else "spawn".

    A process with CUDA or with threads must not be forked: the child would inherit locks that are never released.
    Monitor threads of progress bars are exempt, because they hold locks only briefly. Threads of the kernels do not
    count either, nor those of lanes: they hold no lock between two calls.
    """
    methods = multiprocessing.get_all_start_methods()
    has_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    threads = [t for t in threading.enumerate() if t is not threading.main_thread()]
    others = [t for t in threads if not type(t).__module__.startswith("tqdm") and not t.name.startswith(HELPER)]
    if "fork" in methods and not has_cuda and not others and sys.platform != "darwin":
        return "fork"
    return "forkserver" if "forkserver" in methods else "spawn"


@contextlib.contextmanager
def without_main() -> Any:
    """Keep a new process from importing the user's main script: everything it needs is in the job."""
    main = sys.modules["__main__"]
    saved: dict[str, Any] = {name: main.__dict__[name] for name in ("__file__", "__spec__") if name in main.__dict__}
    try:
        main.__dict__.pop("__file__", None)
        if "__spec__" in saved:
            main.__dict__["__spec__"] = None
        yield
    finally:
        main.__dict__.update(saved)


def _stop_all(workers: Sequence[Worker]) -> None:
    for worker in workers:
        with contextlib.suppress(Exception):
            worker.stop()
