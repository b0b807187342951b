"""Splits generations and evaluations into work items for workers and this process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np

from agilerl.collect.collector import Collector, GenerationPlan, Tally, cut
from agilerl.core import foreign
from agilerl.core.checkpoint import decode_tree, encode_tree
from agilerl.rollouts.episodes import Episodes, EvaluationResult
from agilerl.training.scheduling import Scheduler, Steps, WorkItem

TEMPORARY_KEY = "once:"  # prefix of keys of agents outside the population, such as copies of the best


@dataclass
class WorkerState:
    """Cached state of a worker.

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
    """Runs a collector's generations and evaluations on workers and in this process.

    Results do not depend on the number, assignment or loss of workers: each work item is a function of its job. This
    process works too, so that `executor` has one worker less than `workers`.

    Args:
        collector: of this process, opened. scheduler: of the workers. check: called while waiting for episodes; an
            exception it raises ends the run.
    """

    def __init__(self, collector: Collector, scheduler: Scheduler, check: Callable[[], None] | None = None) -> None:
        self.collector, self.scheduler, self.check = collector, scheduler, check
        self._plan: GenerationPlan | None = None
        self._workers: dict[int, WorkerState] = {}
        self._writes, self._written = 0, list[Any]()  # generations of replay so far, and the last one
        self._trained: list[tuple[Any, str]] = []  # members as the last generation left them, and their keys
        self._once = itertools.count()  # keys of other agents
        collector.evaluator.divider = self

    # -- generations -------------------------------------------------------------------------------------------------

    def generation(
        self, population: Sequence[Any], number: int, env_steps_before: int
    ) -> Generator[int, None, list[Tally]]:
        """Run one generation, shard by shard; yields the environment steps (of all members) made since the last yield.

        Args:
            number: generation, counted from 0. env_steps_before: environment steps per member before it.

        Returns:
            One tally per member.
        """
        collector = self.collector
        plan = self._plan = collector.plan(population, number, env_steps_before)
        slots, *others = cut(len(population), collector.shards)
        train = self._shards(plan, population) if others else collector.run_shard(plan, 0, population, slots)
        tallies = yield from train
        is_alone = self.scheduler.hands() == 1  # no worker asks for members, which may go when others replace them
        self._trained = [] if is_alone else [(agent, f"{number}:{slot}") for slot, agent in enumerate(population)]
        return collector.combined(tallies)

    def _shards(self, plan: GenerationPlan, population: Sequence[Any]) -> Generator[int, None, list[Tally]]:
        """Run the plan for all shards; the rows that each has written are exchanged after all of them."""
        collector, number, parts = self.collector, plan.number, cut(len(population), self.collector.shards)
        pieces = [
            WorkItem(
                "generation",
                f"shard {shard} of generation {number}",
                len(slots),
                partial(self._shard_job, plan, shard, slots, [population[slot] for slot in slots]),
                partial(shard_here, collector, plan, shard, slots, [population[slot] for slot in slots]),
                partial(self._lacks_replay, shard),
                partial(self._shard_done, shard),
                self._forget,
            )
            for shard, slots in enumerate(parts)
        ]
        results = yield from self.scheduler.run(pieces)
        for shard, (slots, result) in enumerate(zip(parts, results, strict=True)):
            if result.get("host") is not None:  # of a worker
                for slot, state in zip(slots, result["members"], strict=True):
                    population[slot].load_run_state(decode_tree(state, f"member {slot}"))
            collector.load_shard_state(shard, result["state"])
        self._written = [result["written"] for result in results]
        self._writes += 1
        for shard, rows in enumerate(self._written):
            collector.write(shard, rows)
        return [tally for result in results for tally in result["tallies"]]

    def _shard_job(
        self, plan: GenerationPlan, shard: int, slots: list[int], agents: list[Any], worker: int
    ) -> dict[str, Any]:
        state = self._state(worker)
        state.trained, state.members = plan.number, {f"{plan.number}:{slot}" for slot in slots}
        memory = self._missing_rows(worker, shard, plan.number)
        return shard_job("generation", self.collector, plan, shard, slots, agents, memory)

    def _replay_of(self, shard: int) -> int:
        """Number of the replay that a shard learns from: 0 for all, unless each has its own."""
        return shard if self.collector.has_own_memories else 0

    def _shard_done(self, shard: int, worker: int, result: dict[str, Any]) -> None:
        number = result.pop("number")
        if worker in self._workers:
            self._workers[worker].own[shard] = number

    def _forget(self, worker: int) -> None:
        """Forget the cached state of a worker."""
        self._workers.pop(worker, None)

    def _state(self, worker: int) -> WorkerState:
        return self._workers.setdefault(worker, WorkerState())

    def _lacks_replay(self, shard: int, worker: int) -> bool:
        """Whether a worker needs the whole replay before it can do a shard.

        It waits while this process does another shard, whose rows are in the replay until that ends.
        """
        writes = self._state(worker).writes.get(self._replay_of(shard), -1)
        return bool(self.collector.memories_of(shard)) and writes < max(0, self._writes - 1)

    def _missing_rows(self, worker: int, shard: int, number: int) -> dict[str, Any]:
        """Return the replay that a worker lacks: the last generation's writes, without its own, or everything."""
        state, memories = self._state(worker), self.collector.memories_of(shard)
        lacks_all, replay = self._lacks_replay(shard, worker), self._replay_of(shard)
        before, state.writes[replay] = state.writes.get(replay, -1), self._writes
        if not memories or before == self._writes:
            return {}
        if lacks_all:
            return {"memories": {name: memory.state() for name, memory in memories.items()}}
        writers = [shard] if self.collector.has_own_memories else range(len(self._written))
        return {
            "written": {
                writer: None if state.own.get(writer) == number - 1 else self._written[writer] for writer in writers
            }
        }

    # -- evaluation --------------------------------------------------------------------------------------------------

    def play(self, learner: Any, episodes: Episodes, here: Callable[[Episodes], EvaluationResult]) -> EvaluationResult:
        """Play episodes with all members of a learner, in blocks.

        Where the bits of actions depend on the batch size, episodes are split into one block per shard, independent of
        the number of workers; otherwise they are split per idle process.
        """
        is_divisible = learner.acts_by_row and self.collector.evaluator.episodes_are_independent
        parts = cut(len(episodes), self.scheduler.hands() if is_divisible else self.collector.shards)
        if len(parts) == 1 or self._plan is None:
            return here(episodes)
        blocks = [episodes.part(part[0], part[-1] + 1) for part in parts]
        agents = [(agent, self._key(agent)) for agent in learner.agents]
        pieces = [
            WorkItem(
                "episodes",
                f"episodes {block.first} to {block.first + len(block) - 1} of generation {self._plan.number}",
                len(block),
                partial(self._episodes_job, block, agents),
                partial(_played, here, block),
                failed=self._forget,
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

    def judge(self, agents: Sequence[Any], here: Callable[[Sequence[Any]], list[float]]) -> list[float]:
        """Score language policies on held-out texts, in one part per shard."""
        parts = cut(len(agents), self.collector.shards)
        if len(parts) == 1 or self._plan is None:
            return here(agents)
        groups = [[agents[place] for place in part] for part in parts]
        pieces = [
            WorkItem(
                "judgement",
                f"fitness of members {part[0]} to {part[-1]} in generation {self._plan.number}",
                len(part),
                partial(self._evaluation_job, "judgement", [(agent, self._key(agent)) for agent in group]),
                partial(_judged, here, group),
                failed=self._forget,
            )
            for part, group in zip(parts, groups, strict=True)
        ]
        return [value for result in self._finished(pieces) for value in result["result"]["fitness"]]

    def _finished(self, pieces: Sequence[WorkItem]) -> list[dict[str, Any]]:
        """Run all items without counting their steps; returns the results in order."""
        steps = self.scheduler.run(pieces)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                results: list[dict[str, Any]] = end.value
                return results
            if self.check is not None:
                self.check()

    def _episodes_job(self, block: Episodes, agents: list[tuple[Any, str]], worker: int) -> dict[str, Any]:
        return {**self._evaluation_job("episodes", agents, worker), "episodes": block}

    def _evaluation_job(self, kind: str, agents: list[tuple[Any, str]], worker: int) -> dict[str, Any]:
        """Return a job with the states of the agents that the worker does not have."""
        assert self._plan is not None
        state = self._state(worker)
        if state.trained != self._plan.number:
            state.trained, state.members = self._plan.number, set()
        missing = {key: encode_tree(agent.run_state()) for agent, key in agents if key not in state.members}
        state.members |= {
            key for key in missing if not key.startswith(TEMPORARY_KEY)
        }  # others are let go of after the job
        members = [key for _, key in agents]
        return {"kind": kind, "plan": self._plan, "members": members, "states": missing}

    def _key(self, agent: foreign.Agent) -> str:
        """Return a key that names an agent as it is now."""
        return next((key for one, key in self._trained if one is agent), f"{TEMPORARY_KEY}{next(self._once)}")


def shard_job(
    kind: str,
    collector: Collector,
    plan: GenerationPlan,
    shard: int,
    slots: Sequence[int],
    agents: Sequence[Any],
    memory: dict[str, Any],
) -> dict[str, Any]:
    """Return what a worker needs to train a shard; `memory`: the replay that it lacks."""
    return {
        "kind": kind,
        "plan": plan,
        "shard": shard,
        "slots": slots,
        "members": [encode_tree(agent.run_state()) for agent in agents],
        "state": collector.shard_state(shard),
        "memory": memory,
    }


def shard_here(
    collector: Collector, plan: GenerationPlan, shard: int, slots: list[int], agents: Sequence[Any]
) -> Steps:
    """Train a shard in this process, whose collector stays as it was until the result is taken."""
    before = collector.shard_state(shard)
    try:
        tallies = yield from collector.run_shard(plan, shard, agents, slots)
        result = {"state": collector.shard_state(shard), "tallies": tallies}
    finally:
        collector.load_shard_state(shard, before)
    return {**result, "written": collector.take_written(shard), "agents": agents}


def _played(here: Callable[[Episodes], EvaluationResult], block: Episodes) -> Steps:
    result = here(block)
    yield 0
    return {"result": asdict(result)}


def _judged(here: Callable[[Sequence[Any]], list[float]], agents: Sequence[Any]) -> Steps:
    fitness = here(agents)
    yield 0
    return {"result": {"fitness": fitness}}
