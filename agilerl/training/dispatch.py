"""Shards of generations and blocks of evaluation episodes, done by workers and by this process alike."""

from __future__ import annotations

import hashlib
import itertools
import pickle
import socket
import statistics
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from agilerl.checkpoint import decode_tree, encode_tree
from agilerl.errors import RunError
from agilerl.rollouts.evaluate import EvaluationResult
from agilerl.sources.evaluator import Episodes
from agilerl.sources.source import GenerationPlan, Source, Tally, cut
from agilerl.workers.executor import Executor, Reply

MAX_LOSSES = 2  # workers that a piece of work may lose; with the next one the run ends
MAX_LOSSES_IN_A_ROW = 5  # of workers with a piece, without any result between; with the next one the run ends
POLL_SECONDS = 0.02  # between looks at the workers while this process works itself
# A piece is done twice after this many times the usual duration of its kind.
LATE = {"generation": 1.5, "episodes": 3.0, "judgement": 1.5}
LATE_SECONDS = 2.0  # a piece is not late before
SILENCE_SECONDS, SILENCE_TIMES = 60.0, 5.0  # without a sign of life; times the longest duration so far
FIRST_SILENCE_SECONDS = 600.0  # before any duration is known

Steps = Generator[int, None, Any]


@dataclass
class Piece:
    """Work that gives the same result wherever it is done.

    Attributes:
        kind: "generation", "episodes" or "judgement". name: for messages. size: relative to other pieces of its kind.
        job: worker -> what it needs to do the work. here: does it in this process; yields environment steps.
        losses: workers lost so far. is_here_only: whether it has raised an exception, which this process will raise.
    """

    kind: str
    name: str
    size: int
    job: Callable[[int], dict[str, Any]]
    here: Callable[[], Steps]
    shard: int = 0
    losses: int = 0
    is_here_only: bool = False


@dataclass
class Handed:
    """A piece that a worker has.

    Attributes:
        begun: when it was handed out. heard: last sign of life. twin: the result that counts, and its host, if the
            piece was done elsewhere meanwhile.
    """

    piece: Piece
    number: int
    begun: float
    heard: float
    twin: tuple[str, str] | None = None


@dataclass
class WorkerState:
    """What a worker is known to have.

    Attributes:
        trained: generation of the members that it has. members: their keys.
        writes: by replay (see `Dispatcher._replay_of`), generations of it that it has.
        own: shard -> number of the last generation of it that it did.
    """

    trained: int = -1
    members: set[str] = field(default_factory=set)
    writes: dict[int, int] = field(default_factory=dict)
    own: dict[int, int] = field(default_factory=dict)


class Dispatcher:
    """Does the work of a source's generations and evaluations with the help of workers.

    Which worker does what, how many there are and which are lost makes no difference to the results: each piece is a
    function of what its job holds. This process works too, so that `executor` has one worker less than `workers`.

    Args:
        source: of this process, opened. executor: the workers; closed by `close`. seed: of the run, for messages.
        say: called with messages about workers. check: called while waiting for episodes; an exception it raises ends
            the run.

    Attributes:
        cpu_seconds: of the workers so far.
    """

    def __init__(
        self,
        source: Source,
        executor: Executor,
        seed: int,
        say: Callable[[str], None],
        check: Callable[[], None] | None = None,
    ) -> None:
        self.source, self.executor, self.seed, self.say, self.check = source, executor, seed, say, check
        self.cpu_seconds = 0.0
        self._plan: GenerationPlan | None = None
        self._handed: dict[int, Handed] = {}
        self._workers: dict[int, WorkerState] = {}
        self._writes, self._written = 0, list[Any]()  # generations of replay so far, and the last one
        self._longest = 0.0
        self._rates: dict[str, list[float]] = {}  # seconds per size of this call's pieces
        self._usual: dict[str, float] = {}  # their median in the last call that had such pieces
        self._here: int | None = None  # number of the piece that this process does
        self._losses_in_a_row = 0
        self._failures: set[str] = set()  # exceptions of workers that have been reported
        self._faults: list[str] = []
        self._trained: list[tuple[Any, str]] = []  # members as the last generation left them, and their keys
        self._once = itertools.count()  # keys of other agents
        self._host = socket.gethostname()
        source.divide_evaluation(self.play)
        source.divide_judgement(self.judge)

    # -- generations -------------------------------------------------------------------------------------------------

    def generation(self, population: Sequence[Any], number: int, begun: int) -> Generator[int, None, list[Tally]]:
        """See `Source.generation`."""
        source = self.source
        plan = self._plan = source.plan(population, number, begun)
        parts = cut(len(population), source.shards)
        if len(parts) == 1:
            tallies = yield from source.run_shard(plan, 0, population, parts[0])
            self._trained = [(agent, f"{number}:{slot}") for slot, agent in enumerate(population)]
            return source.combined(tallies)
        pieces = [
            Piece(
                "generation",
                f"shard {shard} of generation {number}",
                len(slots),
                partial(self._shard_job, plan, shard, slots, [population[slot] for slot in slots]),
                partial(self._shard_here, plan, shard, slots, population),
                shard,
            )
            for shard, slots in enumerate(parts)
        ]
        results = yield from self._run(pieces)
        for shard, (slots, result) in enumerate(zip(parts, results, strict=True)):
            if result.get("host") is not None:  # of a worker
                for slot, state in zip(slots, result["members"], strict=True):
                    population[slot].load_run_state(decode_tree(state, f"member {slot}"))
            source.load_shard_state(shard, result["state"])
        self._written = [result["written"] for result in results]
        self._writes += 1
        for shard, rows in enumerate(self._written):
            source.write(shard, rows)
        self._trained = [(agent, f"{number}:{slot}") for slot, agent in enumerate(population)]
        return source.combined([tally for result in results for tally in result["tallies"]])

    def _shard_job(
        self, plan: GenerationPlan, shard: int, slots: list[int], agents: list[Any], worker: int
    ) -> dict[str, Any]:
        state = self._workers[worker]
        state.trained, state.members = plan.number, {f"{plan.number}:{slot}" for slot in slots}
        return {
            "kind": "generation",
            "plan": plan,
            "shard": shard,
            "slots": slots,
            "members": [encode_tree(agent.run_state()) for agent in agents],
            "state": self.source.shard_state(shard),
            "memory": self._missing_rows(worker, shard, plan.number),
        }

    def _shard_here(self, plan: GenerationPlan, shard: int, slots: list[int], population: Sequence[Any]) -> Steps:
        agents, before = [population[slot] for slot in slots], self.source.shard_state(shard)
        try:
            tallies = yield from self.source.run_shard(plan, shard, agents, slots)
        except BaseException:
            self.source.load_shard_state(shard, before)
            raise
        result = {"state": self.source.shard_state(shard), "tallies": tallies}
        self.source.load_shard_state(shard, before)  # until all shards are done
        return {**result, "written": self.source.take_written(shard), "agents": agents}

    def _replay_of(self, shard: int) -> int:
        """Number of the replay that a shard learns from: 0 for all, unless each has its own."""
        return shard if self.source.has_own_memories else 0

    def _lacks_replay(self, worker: int, shard: int) -> bool:
        """Whether a worker needs the whole replay before it can do a shard."""
        writes = self._workers[worker].writes.get(self._replay_of(shard), -1)
        return bool(self.source.memories_of(shard)) and writes < max(0, self._writes - 1)

    def _missing_rows(self, worker: int, shard: int, number: int) -> dict[str, Any]:
        """Return the replay that a worker lacks: the last generation's writes, without its own, or everything."""
        state, memories = self._workers[worker], self.source.memories_of(shard)
        lacks_all, replay = self._lacks_replay(worker, shard), self._replay_of(shard)
        before, state.writes[replay] = state.writes.get(replay, -1), self._writes
        if not memories or before == self._writes:
            return {}
        if lacks_all:
            return {"memories": {name: memory.state() for name, memory in memories.items()}}
        writers = [shard] if self.source.has_own_memories else range(len(self._written))
        return {
            "written": {
                writer: None if state.own.get(writer) == number - 1 else self._written[writer] for writer in writers
            }
        }

    # -- evaluation --------------------------------------------------------------------------------------------------

    def play(self, learner: Any, episodes: Episodes, here: Callable[[Episodes], EvaluationResult]) -> EvaluationResult:
        """Play episodes with all members of a learner, in blocks.

        The bits of the actions of some networks depend on how many observations there are at once. Their episodes are
        cut into as many blocks as there are shards, whatever the number of workers, those of others for all hands.
        """
        for _ in self._listen([], deque(), {}, 0.0):  # which workers are ready
            pass
        shards, hands = self.source.shards, 1 + len(self.executor.idle())
        is_divisible = learner.acts_by_row and self.source.episodes_are_independent
        parts = cut(len(episodes), hands if is_divisible else shards)
        if len(parts) == 1 or self._plan is None:
            return here(episodes)
        blocks = [episodes.part(part[0], part[-1] + 1) for part in parts]
        agents = [(agent, self._key(agent)) for agent in learner.agents]
        pieces = [
            Piece(
                "episodes",
                f"episodes {block.first} to {block.first + len(block) - 1} of generation {self._plan.number}",
                len(block),
                partial(self._episodes_job, block, agents),
                partial(_played, here, block),
            )
            for block in blocks
        ]
        results = [EvaluationResult(**result["result"]) for result in self._finished(pieces)]
        return EvaluationResult(
            np.concatenate([one.returns for one in results], 1),
            np.concatenate([one.lengths for one in results], 1),
            sum(one.env_steps for one in results),
            np.concatenate([one.cut for one in results], 1),
        )

    def judge(self, agents: Sequence[Any], split: str, here: Callable[[Sequence[Any]], list[float]]) -> list[float]:
        """Score language policies on a split of prompts, in as many parts as there are shards."""
        parts = cut(len(agents), self.source.shards)
        if len(parts) == 1 or self._plan is None:
            return here(agents)
        groups = [[agents[place] for place in part] for part in parts]
        pieces = [
            Piece(
                "judgement",
                f"fitness of members {part[0]} to {part[-1]} in generation {self._plan.number}",
                len(part),
                partial(self._judgement_job, split, [(agent, self._key(agent)) for agent in group]),
                partial(_judged, here, group),
            )
            for part, group in zip(parts, groups, strict=True)
        ]
        return [value for result in self._finished(pieces) for value in result["result"]["fitness"]]

    def _finished(self, pieces: Sequence[Piece]) -> list[dict[str, Any]]:
        """Do all pieces, whose steps nobody counts; returns the results in order."""
        steps = self._run(pieces)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                results: list[dict[str, Any]] = end.value
                return results
            if self.check is not None:
                self.check()

    def _judgement_job(self, split: str, agents: list[tuple[Any, str]], worker: int) -> dict[str, Any]:
        return {**self._evaluation_job("judgement", agents, worker), "split": split}

    def _episodes_job(self, block: Episodes, agents: list[tuple[Any, str]], worker: int) -> dict[str, Any]:
        return {**self._evaluation_job("episodes", agents, worker), "episodes": block}

    def _evaluation_job(self, kind: str, agents: list[tuple[Any, str]], worker: int) -> dict[str, Any]:
        """Return a job with the states of the agents that the worker does not have."""
        assert self._plan is not None
        state = self._workers[worker]
        if state.trained != self._plan.number:
            state.trained, state.members = self._plan.number, set()
        missing = {key: encode_tree(agent.run_state()) for agent, key in agents if key not in state.members}
        state.members |= set(missing)
        members = [key for _, key in agents]
        return {"kind": kind, "plan": self._plan, "members": members, "states": missing}

    def _key(self, agent: Any) -> str:
        """Return a key that names an agent as it is now."""
        return next((key for one, key in self._trained if one is agent), f"once:{next(self._once)}")

    # -- work for workers and this process ---------------------------------------------------------------------------

    def _run(self, pieces: Sequence[Piece]) -> Generator[int, None, list[dict[str, Any]]]:
        """Do all pieces; yields environment steps, returns the results in order."""
        waiting, ended = deque(range(len(pieces))), dict[int, dict[str, Any]]()
        self._usual |= {kind: statistics.median(rates) for kind, rates in self._rates.items()}
        self._rates.clear()
        while len(ended) < len(pieces):
            self._hand_out(pieces, waiting)
            here = self._for_here(pieces, waiting, ended)
            if here is not None:
                yield from self._do_here(pieces, here, waiting, ended)
            else:
                yield from self._listen(pieces, waiting, ended, POLL_SECONDS)
                yield 0  # so that a signal is noticed
        return [ended[number] for number in range(len(pieces))]

    def _hand_out(self, pieces: Sequence[Piece], waiting: deque[int], works_here: bool = False) -> None:
        """Give idle workers the pieces that wait; this process takes the first one that is left.

        One is left for this process unless it works, since a piece that is done here need not be sent. A worker that
        lacks the whole replay waits while this process works: its rows are in the replay until it ends.
        """
        for worker in self.executor.idle():
            if not works_here and len(waiting) <= 1 and not any(pieces[n].losses for n in waiting):
                return
            self._workers.setdefault(worker, WorkerState())
            number = next((n for n in reversed(waiting) if not pieces[n].is_here_only), None)
            if number is None:
                return
            is_generation = pieces[number].kind == "generation"
            if works_here and is_generation and self._lacks_replay(worker, pieces[number].shard):
                continue
            waiting.remove(number)
            job = pickle.dumps(pieces[number].job(worker), protocol=5)
            now = time.monotonic()
            self._handed[worker] = Handed(pieces[number], number, now, now)
            self.executor.submit(worker, job)

    def _for_here(self, pieces: Sequence[Piece], waiting: deque[int], ended: dict[int, Any]) -> int | None:
        """Return the number of a piece for this process: one that waits, or a copy of one that is late."""
        if waiting:
            return waiting.popleft()
        now = time.monotonic()
        for one in self._handed.values():
            is_current = one.number < len(pieces) and pieces[one.number] is one.piece and one.number not in ended
            rates, usual = self._rates.get(one.piece.kind), self._usual.get(one.piece.kind)
            rate = statistics.median(rates) if rates else usual
            if not is_current or rate is None:
                continue
            if now - one.begun > max(LATE_SECONDS, LATE[one.piece.kind] * rate * one.piece.size):
                return one.number
        return None

    def _do_here(
        self, pieces: Sequence[Piece], number: int, waiting: deque[int], ended: dict[int, dict[str, Any]]
    ) -> Steps:
        """Do a piece in this process while listening to the workers; ends early if its result comes from one."""
        piece, begun = pieces[number], time.monotonic()
        looked, steps = begun, piece.here()
        self._here = number
        try:
            while number not in ended:
                try:
                    env_steps = next(steps)
                except StopIteration as end:
                    ended[number] = self._done_here(pieces, number, end.value)
                    self._measure(piece, time.monotonic() - begun)
                    return
                yield env_steps
                now = time.monotonic()
                if now - looked >= POLL_SECONDS:
                    looked = now
                    yield from self._listen(pieces, waiting, ended, 0.0)
                    self._hand_out(pieces, waiting, works_here=True)
        finally:
            self._here = None
            steps.close()

    def _done_here(self, pieces: Sequence[Piece], number: int, result: dict[str, Any]) -> dict[str, Any]:
        """Keep the digest of a result, if a worker that is late has the same piece."""
        for one in self._handed.values():
            if one.piece is pieces[number]:
                agents = result.get("agents", ())
                one.twin = _digest({**result, "members": [encode_tree(a.run_state()) for a in agents]}), self._host
                self.say(f"a worker is late with {one.piece.name}, which was done here; its result will be compared")
        return result

    def _listen(
        self, pieces: Sequence[Piece], waiting: deque[int], ended: dict[int, dict[str, Any]], seconds: float
    ) -> Steps:
        """Take what workers have sent; yields their environment steps."""
        for reply in self.executor.poll(seconds):
            one = self._handed.get(reply.worker)
            if reply.kind == "progress":
                if one is not None:
                    one.heard = time.monotonic()
                    if one.twin is None:
                        yield reply.steps
                continue
            self._handed.pop(reply.worker, None)
            if reply.kind in ("lost", "raised"):  # what it has is not known any more
                self._workers.pop(reply.worker, None)
            if one is None:
                if reply.kind == "lost":
                    self.say(f"a worker was lost: {reply.error}; another one starts")
                continue
            is_current = one.number < len(pieces) and pieces[one.number] is one.piece
            if reply.kind == "done":
                self._take(one, reply, ended if is_current else {})
            elif one.twin is None and is_current and one.number not in ended:
                is_done_here = one.number == self._here  # already: its members are not as they were before
                self._again(one, reply, is_done_here)
                if not is_done_here:
                    waiting.appendleft(one.number)
            elif reply.kind == "lost":
                self.say(f"a worker was lost: {reply.error}; {one.piece.name} was done elsewhere")
        self._end_silent()

    def _take(self, one: Handed, reply: Reply, ended: dict[int, dict[str, Any]]) -> None:
        """Take a worker's result, or compare it with the one that counts."""
        result = pickle.loads(reply.payload)  # of a worker, over a pipe that nobody else has
        self.cpu_seconds += result.pop("cpu_seconds")
        self._faults += result.pop("faults")
        if one.piece.kind == "generation" and reply.worker in self._workers:
            self._workers[reply.worker].own[one.piece.shard] = result.pop("number")
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
        self._measure(one.piece, time.monotonic() - one.begun)
        ended[one.number] = {**result, "host": reply.host}

    def _again(self, one: Handed, reply: Reply, is_done_here: bool) -> None:
        """Note that a piece has to be done again.

        Raises:
            RunError: it has lost too many workers.
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

    def _end_silent(self) -> None:
        """End workers that have been silent for too long with a piece."""
        limit = max(SILENCE_SECONDS, SILENCE_TIMES * self._longest) if self._longest else FIRST_SILENCE_SECONDS
        now = time.monotonic()
        for worker, one in self._handed.items():
            is_expected = self.executor.reports_progress or one.twin is not None  # else it may just need long
            if is_expected and now - one.heard > limit:
                one.heard = now
                self.executor.kill(worker, f"it gave no sign of life for {limit:.0f} s")

    def _measure(self, piece: Piece, seconds: float) -> None:
        self._longest = max(self._longest, seconds)
        self._rates.setdefault(piece.kind, []).append(seconds / piece.size)

    def faults(self) -> list[str]:
        """Return one line per environment replaced in a worker since the last call."""
        lines, self._faults = self._faults, []
        return lines

    def close(self) -> None:
        """End the workers."""
        self.executor.close()


def _played(here: Callable[[Episodes], EvaluationResult], block: Episodes) -> Steps:
    result = here(block)
    yield 0
    return {"result": asdict(result)}


def _judged(here: Callable[[Sequence[Any]], list[float]], agents: Sequence[Any]) -> Steps:
    fitness = here(agents)
    yield 0
    return {"result": {"fitness": fitness}}


def _digest(result: dict[str, Any]) -> str:
    """Return the digest of a result, whoever computed it."""
    if "result" in result:
        return hashlib.sha256(encode_tree(result["result"])).hexdigest()
    tree = {
        "members": [np.frombuffer(state, np.uint8) for state in result["members"]],
        "state": result["state"],
        "tallies": [asdict(tally) for tally in result["tallies"]],
        "written": result["written"],
    }
    return hashlib.sha256(encode_tree(tree)).hexdigest()
