"""Interface between a run and the workers that do parts of it, in other processes or on other machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True)
class Reply:
    """What came from a worker.

    Attributes:
        worker: its number; a replacement gets a new one.
        kind: "done": the job is done, `payload` is its result. "progress": `steps` environment steps more.
            "raised": the job raised an exception, whose text is `error`. "lost": the worker is gone, for the reason
            `error`, and with it its job, if it had one.
        host: name of the worker's machine.
        is_user_error: of "raised": whether the exception names a fix. traceback: of the exception.
    """

    worker: int
    kind: Literal["done", "progress", "raised", "lost"]
    payload: bytes = b""
    steps: int = 0
    error: str = ""
    host: str = ""
    is_user_error: bool = False
    traceback: str = ""


class Executor(Protocol):
    """Workers that do one job each at a time. They start when the executor is made, and are replaced when lost.

    Attributes:
        is_optional: whether workers were not requested, so that a run that cannot use them continues without.
    """

    is_optional: bool

    @property
    def reports_progress(self) -> bool:
        """Whether a worker that is well sends "progress" during a job, so that silence is a fault."""

    @property
    def alive(self) -> int:
        """Number of workers that have not been lost, idle, busy or starting."""

    def idle(self) -> list[int]:
        """Numbers of the workers that are ready and have no job: a worker that is starting gets none."""

    def submit(self, worker: int, job: bytes) -> None:
        """Give an idle worker a job."""

    def poll(self, seconds: float) -> list[Reply]:
        """Return what came from workers, after `seconds` at most.

        Raises:
            ConfigError, RunError: workers cannot start.
        """

    def kill(self, worker: int, reason: str) -> None:
        """End a worker that does not answer; `poll` reports it as lost, and another one starts."""

    def close(self) -> None:
        """End all workers."""


class NoWorkers:
    """`Executor` of a run that works alone."""

    alive = 0
    reports_progress = True
    is_optional = True

    def idle(self) -> list[int]:
        return []

    def submit(self, worker: int, job: bytes) -> None:
        """Never called: no worker is idle."""

    def poll(self, seconds: float) -> list[Reply]:
        return []

    def kill(self, worker: int, reason: str) -> None:
        """Never called."""

    def close(self) -> None:
        """Nothing is open."""
