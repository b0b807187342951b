"""Calls of user-defined reward functions: a failure costs one sample, not the run."""

from __future__ import annotations

import ctypes
import math
import queue
import signal
import threading
import weakref
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import numpy as np

from agilerl.core import foreign
from agilerl.errors import EnvError

MAX_FAULTS = 4
"""Maximum number of described faults per batch."""

MAX_HANGS = 3
"""Timeouts in one batch after which the rest of the batch is not called."""

MAX_ABANDONED = 8
"""Maximum number of hanging threads that cannot be ended: each of them slows the run down."""

WINDOW = 256
"""Minimum number of samples for the check of the failure rate."""


class RewardError(EnvError):
    """The reward function fails for most samples."""


class TookTooLongError(BaseException):
    """Raised inside a call at its deadline; not an Exception, so that it is not caught by mistake."""


class Deadline:
    """Makes calls with a time limit.

    In the main thread a system timer (`SIGALRM`) interrupts the call at its deadline. If that timer is in use, in other
    threads, and on systems without it, a daemon thread makes the call; at the deadline it is told to end, abandoned and
    replaced.

    Limits: a C call that holds the GIL (a power of huge integers, some regular expressions in other libraries) is not
    interrupted until it returns. A function that uses `SIGALRM` itself works in the main thread, but then only its own
    deadline applies. An abandoned thread ends at its next Python instruction; one that blocks in C keeps blocking, and
    more than `MAX_ABANDONED` of those are an error. Side effects before the interruption remain.

    Args:
        seconds: of a call; None: no limit.
    """

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._worker: _Worker | None = None
        self._abandoned: list[threading.Thread] = []

    def __getstate__(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "_worker": None, "_abandoned": []}  # threads cannot be pickled

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return or raise like the function; `TookTooLongError` at the deadline."""
        if self.seconds is None:
            return function(*arguments)
        if _alarm_is_free():
            return _with_alarm(function, arguments, self.seconds)
        if self._worker is None or not self._worker.thread.is_alive():
            self._worker = _Worker()
            weakref.finalize(self, self._worker.jobs.put, None)
        try:
            return self._worker.call(function, arguments, self.seconds)
        except TookTooLongError:
            self._abandoned = [*(thread for thread in self._abandoned if thread.is_alive()), self._worker.thread]
            self._worker = None
            raise

    def check(self) -> None:
        """Raise RewardError if more than `MAX_ABANDONED` threads hang."""
        hanging = sum(thread.is_alive() for thread in self._abandoned)
        if hanging > MAX_ABANDONED:
            raise RewardError(
                f"{hanging} calls of a reward function or a game hang and cannot be ended. "
                "fix: give what it waits for a time limit of its own."
            )


class RewardCaller:
    """Calls a reward function sample by sample, each within its deadline (`Deadline`).

    Attributes:
        samples, failures: number of scored and of failed completions so far.
    """

    def __init__(self, function: Callable[..., Any], seconds: float, *, batched: bool) -> None:
        self.function = function
        self.seconds = seconds
        self.batched = batched
        self.samples = 0
        self.failures = 0
        self._window = [0, 0]
        self._first_fault = ""
        self._deadline = Deadline(seconds)

    def state(self) -> dict[str, Any]:
        return {
            "samples": self.samples,
            "failures": self.failures,
            "window": list(self._window),
            "first_fault": self._first_fault,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.samples, self.failures = int(state["samples"]), int(state["failures"])
        self._window = [int(count) for count in state["window"]]
        self._first_fault = str(state["first_fault"])

    def score(
        self, samples: Sequence[tuple[Any, ...]], names: Sequence[str]
    ) -> tuple[np.ndarray, np.ndarray, list[str]]:
        """Rewards [S] float64, failure mask [S] bool, and descriptions of the first faults.

        Args:
            samples: S tuples of arguments: completion, answer, question, and further ones of the function.
            names: of each sample, for the faults.

        Raises:
            RewardError: more than half of at least `WINDOW` samples failed, or too many calls hang permanently.
        """
        values, words = self._called(samples)
        self._deadline.check()
        failed = np.array([value is None for value in values], dtype=bool)
        rewards = np.array([0.0 if value is None else value for value in values], dtype=np.float64)
        faults = [f"{names[i]}: {words[i]}" for i, fails in enumerate(failed) if fails]
        self._count(len(samples), faults)
        return rewards, failed, faults[:MAX_FAULTS]

    def _called(self, samples: Sequence[tuple[Any, ...]]) -> tuple[list[float | None], list[str]]:
        if self.batched and samples:
            try:
                answers = self._list(
                    self._call(tuple(list(column) for column in zip(*samples, strict=True))), len(samples)
                )
            except (Exception, TookTooLongError):
                answers = None  # single calls below find the failing samples
            if answers is not None:
                results = [number_of(answer) for answer in answers]
                return [value for value, _ in results], [fault for _, fault in results]
        values: list[float | None] = []
        words = []
        hangs = 0
        for sample in samples:
            value, fault = None, f"not called: {MAX_HANGS} others of its batch took longer than {self.seconds:g} s"
            if hangs < MAX_HANGS:
                try:
                    value, fault = self._one(sample)
                except TookTooLongError:
                    hangs += 1
                    fault = f"took longer than {self.seconds:g} s"
                except (Exception, SystemExit) as error:
                    fault = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            values.append(value)
            words.append(fault)
        return values, words

    def _one(self, sample: tuple[Any, ...]) -> tuple[float | None, str]:
        if not self.batched:
            return number_of(self._call(sample))
        return number_of(self._list(self._call(tuple([argument] for argument in sample)), 1)[0])

    @staticmethod
    def _list(answer: object, length: int) -> list[Any]:
        rewards = answer.tolist() if hasattr(answer, "tolist") else answer
        if not isinstance(rewards, list | tuple) or len(rewards) != length:
            got = f"{len(rewards)} values" if isinstance(rewards, list | tuple) else type(rewards).__name__
            raise ValueError(f"expected a list of {length} rewards, got {got}")
        return list(rewards)

    def _call(self, arguments: tuple[Any, ...]) -> Any:
        return self._deadline.call(self.function, *arguments)

    def _count(self, samples: int, faults: list[str]) -> None:
        self.samples += samples
        self.failures += len(faults)
        if faults and not self._first_fault:
            self._first_fault = faults[0]
        self._window = [self._window[0] + samples, self._window[1] + len(faults)]
        seen, failed = self._window
        if seen >= WINDOW:
            self._window = [0, 0]
            if 2 * failed > seen:
                raise RewardError(
                    f"the reward function failed for {failed} of the last {seen} completions; the first fault: "
                    f"{self._first_fault}. fix: reward_fn(completion, answer, question) must return one finite number."
                )


def number_of(value: object) -> tuple[float | None, str]:
    """(a finite float, "") or (None, the fault)."""
    if foreign.shape(value) == () and hasattr(value, "item"):
        value = value.item()  # of numpy, of torch
    if not isinstance(value, Real):  # accepts bool, rejects text
        return None, f"gave {type(value).__name__} {value!r:.60} instead of a number"
    try:
        number = float(value)
    except OverflowError:
        return None, "gave a number that is too large"
    return (number, "") if math.isfinite(number) else (None, f"gave {number}, which is not finite")


def _alarm_is_free() -> bool:
    """Whether this is the main thread and the timer is not in use."""
    return (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, signal.SIG_IGN)
        and signal.getitimer(signal.ITIMER_REAL)[0] == 0
    )


def _with_alarm(function: Callable[..., Any], arguments: tuple[Any, ...], seconds: float) -> Any:
    armed, struck = True, False

    def over(number: int, frame: object) -> None:
        nonlocal struck
        if armed:
            struck = True
            raise TookTooLongError

    before = signal.signal(signal.SIGALRM, over)
    # Two `finally` blocks: the alarm may fire between the function's return and the first of them. It is repeated every
    # second, because a bare `except:` or a destructor may swallow it.
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
            answer = function(*arguments)
        except Exception as error:
            if struck and not isinstance(error, TookTooLongError):  # replaced by an error of a handler or destructor
                raise TookTooLongError from error
            raise
        finally:
            armed = False
        if struck:  # swallowed by an `except`
            raise TookTooLongError
        return answer
    finally:
        armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class _Worker:
    """A daemon thread that makes one call after another."""

    def __init__(self) -> None:
        self.jobs: queue.SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...]] | None] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self.wanted = threading.Event()
        self.wanted.set()
        self.thread = threading.Thread(
            target=_work, args=(self.jobs, self.answers, self.wanted), name="agilerl-reward", daemon=True
        )
        self.thread.start()

    def call(self, function: Callable[..., Any], arguments: tuple[Any, ...], seconds: float) -> Any:
        self.jobs.put((function, arguments))
        try:
            fine, answer = self.answers.get(timeout=seconds)
        except queue.Empty:
            self.wanted.clear()
            identity = ctypes.c_ulong(self.thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, ctypes.py_object(TookTooLongError))
            raise TookTooLongError from None
        if fine:
            return answer
        raise answer


def _work(jobs: Any, answers: Any, wanted: threading.Event) -> None:
    try:
        while wanted.is_set() and (job := jobs.get()) is not None:
            function, arguments = job
            try:
                answers.put((True, function(*arguments)))
            except Exception as error:
                answers.put((False, error))
            except SystemExit as error:
                answers.put((False, error))
    except TookTooLongError:
        return  # the caller has given up on it
