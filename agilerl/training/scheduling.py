"""Work items for workers and this process: assignment, speculative execution of stragglers, retries, heartbeats."""

from __future__ import annotations

import hashlib
import itertools
import pickle
import socket
import statistics
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from agilerl.core.checkpoint import encode_tree
from agilerl.errors import RunError
from agilerl.workers.executor import Executor, Reply

MAX_LOSSES = 2  # workers that one item may lose; the next loss ends the run
MAX_LOSSES_IN_A_ROW = 5  # workers lost with an item, without a result in between; the next loss ends the run
POLL_SECONDS = 0.02  # between looks at the workers while this process works itself
# Re-dispatch an item after this multiple of the median duration of its kind (speculative execution).
STRAGGLER_FACTOR = {"generation": 1.5, "episodes": 3.0, "judgement": 1.5, "round": 5.0}
MIN_STRAGGLER_SECONDS = 2.0  # minimum age of a straggler
MEASURED = 1_000  # latest durations of a kind that enter the median
HEARTBEAT_TIMEOUT_SECONDS, HEARTBEAT_TIMEOUT_FACTOR = (
    60.0,
    5.0,
)  # the larger of both; the factor is of the longest duration so far
FIRST_HEARTBEAT_TIMEOUT_SECONDS = 600.0  # before any duration is known

Steps = Generator[int, None, Any]


@dataclass
class WorkItem:
    """Deterministic unit of work: the result does not depend on the process.

    Attributes:
        kind: a key of `STRAGGLER_FACTOR`. name: for messages. size: relative to other items of its kind.
        job: worker -> what it needs to do the work. here: does it in this process; yields environment steps.
        waits: whether a worker gets the item only while this process is idle.
        done: called with a worker and its result. failed: called with a worker that has raised an exception.
        losses: workers lost so far. is_here_only: whether it failed in a worker, so that this process runs it.
    """

    kind: str
    name: str
    size: int
    job: Callable[[int], dict[str, Any]]
    here: Callable[[], Steps]
    waits: Callable[[int], bool] | None = None
    done: Callable[[int, dict[str, Any]], None] | None = None
    failed: Callable[[int], None] | None = None
    losses: int = 0
    is_here_only: bool = False


class Batch:
    """Work items that run concurrently, by number.

    Args:
        is_for_workers: whether this process runs an item only if there are no workers, or they fail.

    Attributes:
        waiting: numbers of unassigned items. ended: results in order of completion.
    """

    def __init__(self, pieces: Iterable[WorkItem] = (), is_for_workers: bool = False) -> None:
        self.is_for_workers = is_for_workers
        self.pieces: dict[int, WorkItem] = {}
        self.waiting = deque[int]()
        self.ended: dict[int, dict[str, Any]] = {}
        self._numbers = itertools.count()
        for piece in pieces:
            self.add(piece)

    def add(self, piece: WorkItem) -> int:
        """Add an item; return its number."""
        number = next(self._numbers)
        self.pieces[number] = piece
        self.waiting.append(number)
        return number

    def take(self, number: int) -> dict[str, Any]:
        """Remove a completed item; return its result."""
        del self.pieces[number]
        return self.ended.pop(number)

    def expects(self, number: int) -> bool:
        """Whether this item has no result yet."""
        return number in self.pieces and number not in self.ended


@dataclass
class Assignment:
    """A work item assigned to a worker.

    Attributes:
        started: time of the assignment. last_heartbeat: time of the worker's last message. twin: digest of the result
            that counts, and its host, if another process completed the item first.
    """

    batch: Batch
    number: int
    piece: WorkItem
    started: float
    last_heartbeat: float
    twin: tuple[str, str] | None = None

    @property
    def is_expected(self) -> bool:
        """Whether the result is still needed."""
        return self.batch.pieces.get(self.number) is self.piece and self.batch.expects(self.number)


class Scheduler:
    """Runs batches of work items on workers and in this process, one batch at a time.

    Args:
        executor: the workers; closed by `close`. seed: of the run, for messages. say: called with messages about
            workers.

    Attributes:
        cpu_seconds: of the workers so far.
    """

    def __init__(self, executor: Executor, seed: int, say: Callable[[str], None]) -> None:
        self.executor, self.seed, self.say = executor, seed, say
        self.cpu_seconds = 0.0
        self._assignments: dict[int, Assignment] = {}
        self._longest = 0.0
        self._rates: dict[str, list[float]] = {}  # seconds per unit of size in this batch
        self._usual: dict[str, float] = {}  # their median in the last batch with that kind
        self._here: WorkItem | None = None  # item that runs in this process
        self._losses_in_a_row = 0
        self._failures: set[str] = set()  # exceptions of workers that have been reported
        self._faults: list[str] = []
        self._host = socket.gethostname()

    def hands(self) -> int:
        """Return the number of idle processes, this one included."""
        for _ in self._listen(0.0):  # which workers are ready
            pass
        return 1 + len(self.executor.idle())

    def run(self, pieces: Sequence[WorkItem]) -> Generator[int, None, list[dict[str, Any]]]:
        """Run all items; yields environment steps, returns the results in order."""
        batch = Batch(pieces)
        self._usual |= {kind: statistics.median(rates) for kind, rates in self._rates.items()}
        self._rates.clear()
        while len(batch.ended) < len(pieces):
            yield from self.advance(batch)
        return [batch.ended[number] for number in range(len(pieces))]

    def advance(self, batch: Batch) -> Steps:
        """Assign items, then run one in this process or poll the workers."""
        self.hand_out(batch)
        here = self._for_here(batch)
        if here is not None:
            yield from self._do_here(batch, here)
        else:
            yield from self._listen(POLL_SECONDS)
            yield 0  # so that a signal is noticed

    def hand_out(self, batch: Batch, works_here: bool = False) -> None:
        """Assign waiting items to idle workers.

        Keeps one for this process unless it is busy, since an item that runs here need not be sent.
        """
        pieces, waiting, is_for_workers = batch.pieces, batch.waiting, batch.is_for_workers or works_here
        for worker in self.executor.idle():
            if not is_for_workers and len(waiting) <= 1 and not any(pieces[n].losses for n in waiting):
                return
            order = waiting if batch.is_for_workers else reversed(waiting)
            number = next((n for n in order if not pieces[n].is_here_only), None)
            if number is None:
                return
            piece = pieces[number]
            if works_here and piece.waits is not None and piece.waits(worker):
                continue
            waiting.remove(number)
            job = pickle.dumps(piece.job(worker), protocol=5)
            now = time.monotonic()
            self._assignments[worker] = Assignment(batch, number, piece, now, now)
            self.executor.submit(worker, job)

    def _for_here(self, batch: Batch) -> int | None:
        """Return the number of an item for this process: a waiting one, else a straggler (speculative execution).

        In a batch for workers, stragglers run here only once all assigned items are late.
        """
        for number in batch.waiting:
            if not batch.is_for_workers or batch.pieces[number].is_here_only or not self.executor.alive:
                batch.waiting.remove(number)
                return number
        expected = [one for one in self._assignments.values() if one.batch is batch and one.is_expected]
        late = [one for one in expected if self._is_late(one)]
        return late[0].number if late and (len(late) == len(expected) or not batch.is_for_workers) else None

    def _is_late(self, one: Assignment) -> bool:
        """Whether an assignment is a straggler; False while durations of its kind are unknown."""
        rates, usual = self._rates.get(one.piece.kind), self._usual.get(one.piece.kind)
        rate = statistics.median(rates) if rates else usual
        limit = (
            None
            if rate is None
            else max(MIN_STRAGGLER_SECONDS, STRAGGLER_FACTOR[one.piece.kind] * rate * one.piece.size)
        )
        return limit is not None and time.monotonic() - one.started > limit

    def _do_here(self, batch: Batch, number: int) -> Steps:
        """Run an item in this process while polling the workers; stops early if a worker completes it."""
        piece, start = batch.pieces[number], time.monotonic()
        looked, steps = start, piece.here()
        self._here = piece
        try:
            while batch.expects(number):
                try:
                    env_steps = next(steps)
                except StopIteration as end:
                    batch.ended[number] = self._done_here(piece, end.value)
                    self._measure(piece, time.monotonic() - start)
                    return
                yield env_steps
                now = time.monotonic()
                if now - looked >= POLL_SECONDS:
                    looked = now
                    yield from self._listen(0.0)
                    self.hand_out(batch, works_here=True)
        finally:
            self._here = None
            steps.close()

    def _done_here(self, piece: WorkItem, result: dict[str, Any]) -> dict[str, Any]:
        """Record the digest of a result for comparison with a straggler that runs the same item."""
        for one in self._assignments.values():
            if one.piece is piece:
                members = [encode_tree(agent.run_state()) for agent in result.get("agents", ())]
                one.twin = _digest({"members": members, **result}), self._host
                self.say(f"a worker is late with {piece.name}, which was done here; its result will be compared")
        return result

    def _listen(self, seconds: float) -> Steps:
        """Process messages of the workers; yields their environment steps."""
        for reply in self.executor.poll(seconds):
            one = self._assignments.get(reply.worker)
            if reply.kind == "progress":
                if one is not None:
                    one.last_heartbeat = time.monotonic()
                    if one.twin is None:
                        yield reply.steps
                continue
            self._assignments.pop(reply.worker, None)
            if one is None:
                if reply.kind == "lost":
                    self.say(f"a worker was lost: {reply.error}; another one starts")
                continue
            if reply.kind == "raised" and one.piece.failed is not None:
                one.piece.failed(reply.worker)
            if reply.kind == "done":
                self._take(one, reply)
            elif one.twin is None and one.is_expected:
                is_done_here = one.piece is self._here  # already: its members are not as they were before
                self._again(one, reply, is_done_here)
                if not is_done_here:
                    one.batch.waiting.appendleft(one.number)
            elif reply.kind == "lost":
                self.say(f"a worker was lost: {reply.error}; {one.piece.name} was done elsewhere")
        self._check_heartbeats()

    def _take(self, one: Assignment, reply: Reply) -> None:
        """Store a worker's result, or compare it with the one that counts."""
        result = pickle.loads(reply.payload)  # of a worker, over a pipe that nobody else has
        self.cpu_seconds += result.pop("cpu_seconds")
        self._faults += result.pop("faults")
        if one.piece.done is not None:
            one.piece.done(reply.worker, result)
        if one.twin is not None:
            digest, host = one.twin
            if _digest(result) != digest:
                raise RunError(
                    f"{one.piece.name} gave one result on {host} and another on {reply.host}, with the same seeds "
                    f"(run seed {self.seed}). fix: workers of one kind of processor with the same versions, and an "
                    "environment that is deterministic."
                )
            return
        self._losses_in_a_row = 0
        self._measure(one.piece, time.monotonic() - one.started)
        if one.is_expected:
            one.batch.ended[one.number] = {**result, "host": reply.host}

    def _again(self, one: Assignment, reply: Reply, is_done_here: bool) -> None:
        """Record a failed attempt; the item is retried.

        Raises:
            RunError: too many workers were lost.
        """
        piece = one.piece
        if reply.kind == "raised":
            piece.is_here_only = True
            error = reply.error.splitlines()[0] if reply.error else "an exception without a message"
            if error not in self._failures:
                self._failures.add(error)
                self.say(
                    f"{piece.name} failed in a worker and is done here: {error}. This is said once. fix: workers=1, if "
                    "it fails in every worker"
                )
            return
        piece.losses += 1
        self._losses_in_a_row += 1
        if piece.losses > MAX_LOSSES or self._losses_in_a_row > MAX_LOSSES_IN_A_ROW:
            several = f"has lost {piece.losses} workers, the last one because"
            in_a_row = f"has lost a worker, the {self._losses_in_a_row}th in a row without any result, because"
            raise RunError(
                f"{piece.name} (run seed {self.seed}) {several if piece.losses > MAX_LOSSES else in_a_row} "
                f"{reply.error}. fix: less memory (fewer members or lanes), or workers=1; the run can be resumed."
            )
        self.say(f"a worker was lost: {reply.error}; {piece.name} is done {'here' if is_done_here else 'again'}")

    def _check_heartbeats(self) -> None:
        """Kill workers whose heartbeat has timed out."""
        limit = (
            max(HEARTBEAT_TIMEOUT_SECONDS, HEARTBEAT_TIMEOUT_FACTOR * self._longest)
            if self._longest
            else FIRST_HEARTBEAT_TIMEOUT_SECONDS
        )
        now = time.monotonic()
        for worker, one in self._assignments.items():
            is_expected = self.executor.reports_progress or one.twin is not None  # else it may just need long
            if is_expected and now - one.last_heartbeat > limit:
                one.last_heartbeat = now
                self.executor.kill(worker, f"it gave no sign of life for {limit:.0f} s")

    def _measure(self, piece: WorkItem, seconds: float) -> None:
        self._longest = max(self._longest, seconds)
        rates = self._rates.setdefault(piece.kind, [])
        rates.append(seconds / piece.size)
        del rates[:-MEASURED]

    def faults(self) -> list[str]:
        """Return one line per environment replaced in a worker since the last call."""
        lines, self._faults = self._faults, []
        return lines

    def close(self) -> None:
        """End the workers."""
        self.executor.close()


def _digest(result: dict[str, Any]) -> str:
    """Return the digest of a result, computed here or by a worker."""
    if "result" in result:
        return hashlib.sha256(encode_tree(result["result"])).hexdigest()
    tree = {
        "members": [np.frombuffer(state, np.uint8) for state in result["members"]],
        "state": result["state"],
        "tallies": [asdict(tally) for tally in result["tallies"]],
        "written": result["written"],
        "evaluation": result.get("evaluation", {}),
    }
    return hashlib.sha256(encode_tree(tree)).hexdigest()
