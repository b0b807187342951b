"""Workers that are actors of Ray."""

from __future__ import annotations

import itertools
import math
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from agilerl.errors import ConfigError, RunError, warn_once
from agilerl.native.library import library
from agilerl.workers.connection import Cluster, first_line
from agilerl.workers.executor import Reply
from agilerl.workers.local import MAX_FAILED_STARTS, Serve, serialised

PACKAGES = ("torch", "numpy", "gymnasium")  # whose version decides about bits


@dataclass
class _Actor:
    """An actor and what it was asked last.

    Attributes:
        place: see `LocalWorkers`. stage: what `answer` is about; "" while the actor is idle.
        answer, payload: references to facts and to bytes, which come together. host: name of its machine.
        process: its number there.
        is_built: whether it has done its first stages.
    """

    handle: Any
    place: int
    stage: str = ""
    answer: Any = None
    payload: Any = None
    host: str = ""
    process: int = 0
    is_built: bool = False


class ClusterWorkers:
    """`Executor` whose workers are actors of Ray, one CPU each.

    Jobs and results are plain bytes, which Ray puts into its object store without pickling. An actor is never restarted
    by Ray, as it would come back empty: another one takes its place. Ray reports the death of actors and nodes; an
    actor that hangs is not reported, and there are no signs of life (`reports_progress`).

    Args:
        make: see `LocalWorkers`. count: actors. cluster: closed by `close`.
        uses_gpu: each actor takes a GPU, or a share of one where there are fewer.

    Raises:
        ConfigError: `make` cannot be serialised, or there is no GPU.
    """

    reports_progress = False
    is_optional = False

    def __init__(self, make: Callable[[int], Serve], count: int, cluster: Cluster, uses_gpu: bool = False) -> None:
        self._cluster, self._ray = cluster, cluster.ray
        try:
            share = _share_of_gpu(cluster.total("GPU"), count) if uses_gpu else 0.0
            self._make = self._ray.put(serialised(make))
        except BaseException:
            cluster.close()
            raise
        self._class = self._ray.remote(num_cpus=1, num_gpus=share, max_restarts=0)(actor_class())
        self._numbers = itertools.count()
        self._actors: dict[int, _Actor] = {}
        self._replies: list[Reply] = []
        self._failed_starts = 0
        for place in range(count):
            self._start(place)

    @property
    def alive(self) -> int:
        return len(self._actors)

    def idle(self) -> list[int]:
        return [number for number, one in self._actors.items() if not one.stage]

    def submit(self, worker: int, job: bytes) -> None:
        self._ask(self._actors[worker], "work", job)

    def poll(self, seconds: float) -> list[Reply]:
        asked = {one.payload: number for number, one in self._actors.items() if one.stage}
        if not asked:
            if not self._replies:
                time.sleep(seconds)
        else:
            ready, _ = self._ray.wait(list(asked), num_returns=len(asked), timeout=0)
            if not ready and not self._replies and seconds > 0:
                ready, _ = self._ray.wait(list(asked), num_returns=1, timeout=seconds)
            for reference in ready:
                self._read(asked[reference])
        replies, self._replies = self._replies, []
        return replies

    def kill(self, worker: int, reason: str) -> None:
        self._lose(worker, reason)

    def close(self) -> None:
        for one in self._actors.values():
            self._ray.kill(one.handle)
        self._actors.clear()
        self._cluster.close()

    def _start(self, place: int) -> None:
        one = self._actors[next(self._numbers)] = _Actor(self._class.remote(), place)
        self._ask(one, "versions", ["agilerl", *PACKAGES])

    def _ask(self, one: _Actor, stage: str, *arguments: Any) -> None:
        """Call the method of an actor that is named as the stage."""
        one.stage = stage
        one.answer, one.payload = one.handle.do.options(num_returns=2).remote(stage, *arguments)

    def _read(self, number: int) -> None:
        """Take the answer of one actor; a lost one is replaced."""
        one, errors = self._actors[number], self._ray.exceptions
        try:
            facts, payload = self._ray.get([one.answer, one.payload])
        except errors.RayTaskError as error:
            last = str(error).strip().splitlines()[-1]
            facts, payload = {"error": last, "is_user_error": False, "traceback": str(error)}, b""
        except errors.RayError as error:
            self._lose(number, f"{type(error).__name__}: {first_line(error)}")
            return
        stage, one.stage, one.answer, one.payload = one.stage, "", None, None
        if stage == "work":
            kind: Any = "raised" if "error" in facts else "done"
            self._replies.append(Reply(number, kind, payload, host=one.host, **facts))
        elif "error" in facts:
            kind = ConfigError if facts["is_user_error"] else RunError
            raise kind(f"a worker on {one.host or 'Ray'} cannot start: {facts['error']}")
        elif stage == "versions":
            one.host, one.process = facts["host"], facts["process"]
            check_versions(facts)
            self._ask(one, "make", self._make, one.place)
        elif stage == "make":
            check_processor(one.host, facts)
            one.is_built, self._failed_starts = True, 0

    def _lose(self, number: int, reason: str) -> None:
        """Replace an actor, and ask those without a job whether they are still there: a node may be gone."""
        one = self._actors.pop(number)
        self._ray.kill(one.handle)
        where = f"process {one.process} on {one.host}: " if one.host else ""
        self._replies.append(Reply(number, "lost", error=f"{where}{reason}", host=one.host))
        self._failed_starts += not one.is_built
        if self._failed_starts >= MAX_FAILED_STARTS:
            raise RunError(
                f"{self._failed_starts} workers in a row could not start on Ray, the last one because {reason}. "
                "fix: --ray none, whose workers are processes of this machine."
            )
        for other in self._actors.values():
            if not other.stage:
                self._ask(other, "answer")
        self._start(one.place)


def _share_of_gpu(gpus: int, count: int) -> float:
    """Return the part of a GPU that each actor takes, so that all of them fit."""
    if gpus == 0:
        raise ConfigError("the Ray cluster has no GPU. fix: device='cpu'.")
    return 1 / math.ceil(count / gpus)


def actor_class() -> type:
    """Return the class of the actors; local, so that Ray sends it by value: the package may be missing there."""

    class Worker:
        def do(self, stage: str, *arguments: Any) -> tuple[Mapping[str, Any], bytes]:
            """Do one stage of `ClusterWorkers`; returns facts, and the result of a job."""
            if stage == "versions":
                return self.versions(*arguments), b""
            if stage == "answer":
                return {}, b""
            import pickle
            import traceback

            from agilerl.workers.cluster import processor
            from agilerl.workers.main import described

            try:
                if stage == "make":
                    make, place = arguments
                    self.work = pickle.loads(make)(place)  # of the run, over the connections of its cluster
                    return processor(), b""
                return {}, self.work(arguments[0], lambda steps: None)
            except Exception as error:
                return {**described(error), "traceback": traceback.format_exc()}, b""

        def versions(self, names: list[str]) -> dict[str, Any]:
            """Return the machine's name and versions, "" for a package that is missing."""
            import os
            import platform
            import socket
            from importlib import import_module, metadata

            versions = {"Python": platform.python_version()}
            for name in names:
                try:
                    versions[name] = import_module(name).__version__ if name == "agilerl" else metadata.version(name)
                except ImportError:
                    versions[name] = ""
            return {"host": socket.gethostname(), "process": os.getpid(), "versions": versions}

    return Worker


def check_versions(facts: Mapping[str, Any]) -> None:
    """Compare the versions of a worker with those here.

    Raises:
        ConfigError: they differ, or a package is missing there.
    """
    import agilerl

    here = {"agilerl": agilerl.__version__, **{name: metadata.version(name) for name in PACKAGES}}
    versions, host = facts["versions"], facts["host"]
    if not versions["agilerl"]:
        raise ConfigError(
            f"a worker of the Ray cluster, on {host}, lacks the package agilerl. fix: `pip install "
            f"agilerl=={here['agilerl']}` on all nodes, or an image of theirs that has it."
        )
    others = [f"{name} {versions[name] or 'none'} (here {here[name]})" for name in here if versions[name] != here[name]]
    if versions["Python"].split(".")[:2] != platform.python_version().split(".")[:2]:
        others.append(f"Python {versions['Python']} (here {platform.python_version()})")
    if others:
        raise ConfigError(
            f"a worker of the Ray cluster, on {host}, has {', '.join(others)}, and results would depend on which "
            "worker does what. fix: the same versions on all nodes."
        )


def processor() -> dict[str, Any]:
    """Return what decides about the last bits: whether the kernels in C are there, and torch's vectors."""
    import torch

    return {"kernels": library() is not None, "vectors": torch.backends.cpu.get_cpu_capability()}


def check_processor(host: str, other: Mapping[str, Any]) -> None:
    """Compare a worker's machine with this one; another kind of processor is a warning.

    Raises:
        ConfigError: the kernels in C are on one side alone.
    """
    here = processor()
    if other["kernels"] != here["kernels"]:
        lacks, has = ("this machine", host) if other["kernels"] else (host, "this machine")
        raise ConfigError(
            f"{lacks} lacks the kernels in C that {has} has, whose last bits differ from torch's. fix: a C compiler "
            "when agilerl is installed on every node, or AGILERL_NATIVE=0 on all of them."
        )
    if other["vectors"] != here["vectors"]:
        warn_once(
            f"vectors:{host}",
            f"torch uses {other['vectors']} on {host} and {here['vectors']} here: last bits can depend on which worker "
            "does what. fix: nodes of one kind of processor.",
        )
