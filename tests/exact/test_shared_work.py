"""Bookkeeping of shared work by hand: rows that a worker lacks, late pieces, silent workers, fitness by member."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agilerl.collect.collector import GenerationPlan, Tally
from agilerl.collect.fitness import PopulationEvaluation
from agilerl.experimental.rounds import Rounds
from agilerl.rollouts.episodes import Episodes, EvaluationResult
from agilerl.training import serving
from agilerl.training.dispatch import Dispatcher, WorkerState
from agilerl.training.scheduling import Assignment, Batch, Scheduler, WorkItem
from agilerl.training.serving import evaluated

PLAN = GenerationPlan(5, 100, 10, 4, 1000, "fused")


class Memory:
    """A replay that says what it is."""

    def __init__(self, name: str) -> None:
        self.name = name

    def state(self) -> str:
        return f"all of {self.name}"


def source(has_own: bool = False, memories: bool = True) -> Any:
    """A source of three shards with one replay, or one of each."""
    return SimpleNamespace(
        shards=3, has_own_memories=has_own,
        memories_of=lambda shard: {"memory": Memory(f"shard {shard}")} if memories else {},
        evaluator=SimpleNamespace(episodes_are_independent=True, env_steps=40),
    )  # fmt: skip


def dispatcher(writes: int, workers: dict[int, WorkerState], **options: bool) -> Dispatcher:
    """One that has begun generation 5 after `writes` of replay."""
    work = Dispatcher(source(**options), Scheduler(SimpleNamespace(), 0, print))  # type: ignore[arg-type]
    work._workers, work._writes = workers, writes
    work._written, work._plan = ["of 0", "of 1", "of 2"], PLAN
    return work


@pytest.mark.parametrize(
    ("own", "lacks"),
    [
        ({}, {0: "of 0", 1: "of 1", 2: "of 2"}),
        ({1: 4}, {0: "of 0", 1: None, 2: "of 2"}),  # did shard 1 in the last generation: these rows it has
        ({1: 3, 2: 4}, {0: "of 0", 1: "of 1", 2: None}),  # those of the one before are another matter
    ],
)
def test_a_worker_gets_the_rows_of_the_last_generation_that_it_did_not_write(
    own: dict[int, int], lacks: dict[int, str | None]
) -> None:
    work = dispatcher(2, {7: WorkerState(writes={0: 1}, own=own)})
    assert work._missing_rows(7, 1, 5) == {"written": lacks}
    assert work._missing_rows(7, 2, 5) == {}, "of one replay for all shards once"
    assert work._workers[7].writes == {0: 2}


def test_a_worker_that_is_behind_gets_the_whole_replay() -> None:
    work = dispatcher(3, {7: WorkerState(writes={0: 1}, own={0: 4})})
    assert work._lacks_replay(1, 7)
    assert work._missing_rows(7, 1, 5) == {"memories": {"memory": "all of shard 1"}}
    assert not work._lacks_replay(1, 7)
    assert work._missing_rows(8, 1, 5) == {"memories": {"memory": "all of shard 1"}}, "a new one"
    assert dispatcher(3, {}, memories=False)._missing_rows(7, 1, 5) == {}
    first = dispatcher(0, {})
    assert first._missing_rows(7, 0, 0) == {"memories": {"memory": "all of shard 0"}}
    assert first._missing_rows(7, 1, 0) == {}, "one replay for all shards"


def test_of_replays_of_their_own_a_worker_gets_that_of_its_shard() -> None:
    work = dispatcher(2, {7: WorkerState(writes={1: 1, 2: 0}, own={1: 4, 2: 3})}, has_own=True)
    assert work._missing_rows(7, 1, 5) == {"written": {1: None}}
    assert work._missing_rows(7, 2, 5) == {"memories": {"memory": "all of shard 2"}}
    work._workers[7] = WorkerState(writes={1: 1}, own={1: 3})
    assert work._missing_rows(7, 1, 5) == {"written": {1: "of 1"}}


def test_a_worker_has_the_rows_of_a_round_that_it_did_last() -> None:
    work = Rounds(source(has_own=True), Scheduler(SimpleNamespace(), 0, print))  # type: ignore[arg-type]
    work._written = {1: "round 3 of shard 1"}
    work._has, work._did = {(7, 1): 3, (8, 1): 3, (9, 1): 2}, {(7, 1): 3, (8, 1): 2}
    assert work._missing_rows(7, 1, 4) == {"written": {1: None}}
    assert work._missing_rows(8, 1, 4) == {"written": {1: "round 3 of shard 1"}}, "its last round was another one"
    assert work._missing_rows(9, 1, 4) == {"memories": {"memory": "all of shard 1"}}
    assert work._missing_rows(9, 1, 4) == {}
    work._forget(7)
    assert work._missing_rows(7, 1, 5) == {"memories": {"memory": "all of shard 1"}}
    assert (8, 1) in work._has


def test_fitness_is_that_of_the_members_that_have_not_diverged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second has a fault, the third weights that are not finite; steps of the evaluation count once."""
    agents = [
        SimpleNamespace(index=index, set_training_mode=lambda mode: None, training=True) for index in (3, 4, 6, 8)
    ]
    monkeypatch.setattr(serving, "is_finite", lambda agent: agent.index != 6)
    tallies = [Tally(), Tally(fault="its loss is not finite"), Tally(), Tally()]
    judge = source().evaluator

    def evaluate(sound: Any, number: int) -> PopulationEvaluation:
        judge.env_steps += 99
        assert ([agent.index for agent in sound], number) == ([3, 8], 5)
        return PopulationEvaluation([1.5, 2.5], {3: 0.1, 8: 0.2}, {3: 4, 8: 4}, screened_out=frozenset({8}))

    judge.evaluate = evaluate
    plain = evaluated(judge, agents, tallies, 5)["evaluation"]
    assert (plain["fitness"], plain["errors"], plain["screened_out"]) == ({3: 1.5, 8: 2.5}, {3: 0.1, 8: 0.2}, [8])
    assert judge.env_steps == 40
    nobody = evaluated(judge, agents[1:3], tallies[1:3], 5)["evaluation"]
    assert nobody["fitness"] == {}


def test_blocks_of_an_evaluation_are_joined_in_order() -> None:
    """Seven episodes of two members in blocks of 3, 2 and 2, one of them here."""
    work = dispatcher(1, {})
    work.scheduler.hands = lambda: 3  # type: ignore[method-assign]
    returns = np.arange(14.0).reshape(2, 7)
    cut = returns % 3 == 0

    def here(block: Episodes) -> EvaluationResult:
        rows = block.numbers
        return EvaluationResult(returns[:, rows], (returns[:, rows] + 1).astype(int), 10 + block.first, cut[:, rows])

    def run(pieces: Any) -> Iterator[int]:
        assert [piece.size for piece in pieces] == [3, 2, 2]
        results = []
        for piece in reversed(pieces):  # whoever is first
            steps = piece.here()
            try:
                while True:
                    next(steps)
            except StopIteration as end:
                results.append(end.value)
        yield 0
        return results[::-1]

    work.scheduler.run = run  # type: ignore[assignment,method-assign]
    learner = SimpleNamespace(acts_by_row=True, agents=[SimpleNamespace(), SimpleNamespace()])
    result = work.play(learner, Episodes.of(np.arange(7)), here)
    assert np.array_equal(result.returns, returns)
    assert np.array_equal(result.lengths, returns + 1)
    assert np.array_equal(result.cut, cut)
    assert result.env_steps == 10 + 13 + 15


class Workers:
    """An executor of which nothing comes; it notes who is ended."""

    reports_progress, alive = True, 2

    def __init__(self) -> None:
        self.ended: list[tuple[int, str]] = []

    def idle(self) -> list[int]:
        return []

    def poll(self, seconds: float) -> list[Any]:
        return []

    def kill(self, worker: int, reason: str) -> None:
        self.ended.append((worker, reason))


def piece(kind: str, size: int) -> WorkItem:
    return WorkItem(kind, f"a {kind} of {size}", size, lambda worker: {}, lambda: iter(()))  # type: ignore[arg-type,return-value]


def scheduler(*pieces: WorkItem, begun: float, heard: float) -> tuple[Scheduler, Batch, Workers]:
    """One that has handed out these pieces as many seconds ago, and has heard of them since."""
    workers = Workers()
    work, batch, now = Scheduler(workers, 0, print), Batch(pieces), time.monotonic()  # type: ignore[arg-type]
    for number, one in enumerate(pieces):
        batch.waiting.remove(number)
        work._assignments[number] = Assignment(batch, number, one, now - begun, now - heard)
    return work, batch, workers


def test_a_piece_is_late_by_its_size_and_kind() -> None:
    """Of a generation 1.5 times 4 s a member, of episodes 3 times: 12 and 18 s for two members' and 24 s for four's."""
    for seconds, late in ((11.0, []), (13.0, [0]), (25.0, [0, 2]), (19.0, [0])):
        generation, large, episodes = piece("generation", 2), piece("generation", 4), piece("episodes", 2)
        work, batch, _ = scheduler(generation, episodes, large, begun=seconds, heard=0.0)
        work._rates = {"generation": [4.0, 1.0, 9.0], "episodes": [9.0, 8.0, 7.0]}
        # Episodes: 3 · 8 · 2 = 48 s.
        assert [n for n, one in work._assignments.items() if work._is_late(one)] == late, seconds
        assert work._for_here(batch) == (late[0] if late else None)
    work, _, _ = scheduler(piece("round", 1), begun=1e6, heard=0.0)
    assert not work._is_late(work._assignments[0]), "nothing is known of its kind"
    work._usual = {"round": 4.0}
    assert work._is_late(work._assignments[0])


def test_silence_is_counted_from_the_last_sign_of_life() -> None:
    """Five times the longest piece, a minute at least; ten minutes before one has ended."""
    for longest, heard, is_ended in ((1.0, 59.0, False), (1.0, 61.0, True), (20.0, 99.0, False), (20.0, 101.0, True),
                                     (0.0, 599.0, False), (0.0, 601.0, True)):  # fmt: skip
        work, _, workers = scheduler(piece("round", 1), begun=9999.0, heard=heard)
        work._longest = longest
        work._check_heartbeats()
        assert [worker for worker, _ in workers.ended] == [0] * is_ended, (longest, heard)
        work._check_heartbeats()
        assert len(workers.ended) == is_ended, "once"


def test_workers_that_report_nothing_are_ended_only_for_a_piece_that_was_done_elsewhere() -> None:
    work, _, workers = scheduler(piece("round", 1), begun=9999.0, heard=9999.0)
    workers.reports_progress = False  # type: ignore[misc]
    work._check_heartbeats()
    assert workers.ended == []
    work._assignments[0].twin = ("digest", "here")
    work._check_heartbeats()
    assert len(workers.ended) == 1
