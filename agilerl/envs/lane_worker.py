"""Lanes of a worker: they follow commands, and write their results to shared memory."""

from __future__ import annotations

import contextlib
import math
import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import Space, spaces
from gymnasium.envs.registration import EnvSpec

from agilerl.core import tree as trees
from agilerl.core.safe_path import as_before, end_group_with_parent
from agilerl.core.spaces import nested
from agilerl.envs.copies import as_copy
from agilerl.envs.generators import UNSEEDED, Construction, constructing
from agilerl.envs.lanes import SyncLanes

CLOSE_S = 2.0
ARRAYS = spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary  # spaces whose actions are arrays


@dataclass(frozen=True)
class Job:
    """Arguments of a worker.

    Attributes:
        factories: of its lanes, in a `CloudpickleWrapper` unless the process inherits them.
        reset_ended: see `SyncLanes`.
        spec: of the registered environment; None if the process inherits the registry.
        memory: `SharedRows` of all workers; None to describe an environment. rows: rows of this worker's lanes.
        build: creates lanes from factories. construction: seed of their construction, see `envs.generators`.
    """

    factories: Any
    reset_ended: bool
    spec: EnvSpec | None
    memory: Any
    rows: slice
    build: Callable[..., Any] = SyncLanes
    construction: Construction = UNSEEDED


class Rows(NamedTuple):
    """Arrays of all lanes [L, ...] as views of shared memory; see `StepBatch` for their meaning.

    Attributes:
        flags: [2, L] terminated and truncated. active: [L] lanes to step. actions: None if they are not one array.
        team: rewards [L, M], flags [3, L, M] terminated, truncated and acted, and environment-defined actions [L, A],
            see `TeamStep`; empty for single agents.
    """

    obs: Any
    final_obs: Any
    reward: np.ndarray
    flags: np.ndarray
    active: np.ndarray
    actions: np.ndarray | None
    team: tuple[np.ndarray, ...]


class SharedRows:
    """Memory of `Rows`, in which each worker writes its own rows."""

    def __init__(self, context: Any, space: Space[Any], actions: Space[Any] | None, count: int, team: Any) -> None:
        self.space, self.has_actions = space, team is not None or isinstance(actions, ARRAYS)
        shapes: list[Any] = [((count, *(part.shape or ())), part.dtype) for part in trees.leaves(nested(space))] * 2
        shapes += [((count,), np.float64), ((2, count), bool), ((count,), bool)]
        if team is not None:
            agents = len(team.agents)
            shapes += [((count, team.width), np.float32), ((count, agents), np.float64)]
            shapes += [((3, count, agents), bool), ((count, team.width), np.float64)]
        elif isinstance(actions, ARRAYS):
            shapes.append(((count, *(actions.shape or ())), actions.dtype))
        self.layout = [(shape, np.dtype(dtype)) for shape, dtype in shapes]
        sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in self.layout]
        self.blocks = [context.RawArray("b", max(1, size)) for size in sizes]  # raw shared memory, one per array

    def arrays(self) -> Rows:
        views = iter(
            np.frombuffer(block, dtype=dtype, count=math.prod(shape)).reshape(shape)
            for block, (shape, dtype) in zip(self.blocks, self.layout, strict=True)
        )
        obs, final_obs = (trees.map_leaves(lambda _: next(views), nested(self.space)) for _ in range(2))
        reward, flags, active = next(views), next(views), next(views)
        actions = next(views) if self.has_actions else None
        return Rows(obs, final_obs, reward, flags, active, actions, tuple(views))


class Line:
    """One end of a pipe; None is a message without content, which takes a few microseconds."""

    def __init__(self, pipe: Connection) -> None:
        self.fileno, self.close, self._pipe = pipe.fileno, pipe.close, pipe

    def send(self, message: tuple[Any, ...] | None) -> None:
        self._pipe.send_bytes(b"" if message is None else ForkingPickler.dumps(message))

    def receive(self) -> Any:
        content = self._pipe.recv_bytes()
        return pickle.loads(content) if content else None


class Part:
    """Lanes of one worker, which its first command creates."""

    faults: tuple[type[BaseException], ...] = Exception, SystemExit  # that are answers

    def __init__(self, job: Job) -> None:
        self._job = job
        self._lanes: Any = None
        self.rows: Any = None if job.memory is None else job.memory.arrays()

    def answer(self, command: str, *arguments: Any) -> tuple[Any, ...]:
        """Follow a command: ("ok", info), or ("fault", message, traceback) if it raises."""
        job = self._job
        try:
            if self._lanes is None:
                with constructing(job.construction):
                    self._lanes = job.build(job.factories.fn, reset_ended=job.reset_ended)
            if command == "apply":
                return "ok", {"result": arguments[0](self._lanes)}
            return "ok", self._reset(*arguments) if command == "reset" else self._step(*arguments)
        except self.faults as error:
            return "fault", f"{error}", traceback.format_exc()

    def _reset(self, seeds: np.ndarray | None) -> dict[str, Any]:
        obs, info = self._lanes.reset(seeds)
        _copy(self.rows.obs, self._job.rows, obs)
        return dict(info)

    def _step(self, actions: Any = None) -> dict[str, Any]:
        """Step with these actions; None for those in the shared memory."""
        shared, rows = self.rows, self._job.rows
        active = shared.active[rows].copy()
        actions = shared.actions[rows].copy() if actions is None else actions  # an environment may store them
        batch = self._lanes.step(actions, None if active.all() else active)
        _copy(shared.obs, rows, batch.obs)
        _copy(shared.final_obs, rows, batch.final_obs)
        shared.reward[rows], shared.flags[:, rows] = batch.reward, (batch.terminated, batch.truncated)
        if shared.team:
            team, (reward, flags, defined) = batch.team, shared.team
            reward[rows], flags[:, rows] = team.reward, (team.terminated, team.truncated, team.acted)
            defined[rows] = np.nan if team.defined is None else team.defined
        return dict(batch.info)

    def close(self) -> None:
        if self._lanes is not None:
            with contextlib.suppress(Exception):
                self._lanes.close()


class LocalPart(Part):
    """Lanes of this process, in place of the line to a worker: a command is followed when its answer is read."""

    faults = (Exception,)  # a SystemExit of an environment is an EnvError here, that of a signal ends the run

    def send(self, command: tuple[Any, ...] | None) -> None:
        self._command = command

    def receive(self) -> Any:
        return self.answer(*(self._command or ("step",)))


def work(pipe: Connection, job: Job, parent: int) -> None:
    """Answer commands until the pipe closes; None for a step with the actions in the shared memory.

    Args:
        pipe: the worker's end. job: arguments of the worker. parent: process at the other end.
    """
    _detach(parent)
    part, line = Part(job), Line(pipe)
    try:
        if job.spec is not None and job.spec.id not in gymnasium.registry:
            gymnasium.registry[job.spec.id] = job.spec
        while True:
            command = line.receive() or ("step",)
            if command[0] == "close":
                break
            answer = part.answer(*command)
            try:
                line.send(None if answer == ("ok", {}) else answer)
            except (TypeError, AttributeError, pickle.PicklingError) as error:  # of a result of "apply"
                line.send(("fault", f"{error}", traceback.format_exc()))
    except (EOFError, OSError, KeyboardInterrupt):
        pass  # the other side has closed
    finally:
        part.close()
        line.close()


def _copy(into: Any, rows: slice, batch: Any) -> None:
    for shared, values in zip(trees.leaves(into), trees.leaves(batch), strict=True):
        shared[rows] = values


def _detach(parent: int) -> None:
    """Detach from the parent: keep copied objects alive, and exit only when the parent's end closes."""
    as_before()
    end_group_with_parent(parent, CLOSE_S)
    as_copy()
