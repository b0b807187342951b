"""Rounds of shards: a generation and its evaluation, each a piece of work that waits for no other shard."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from functools import partial
from typing import Any

from agilerl.collect.collector import Collector, GenerationPlan
from agilerl.core.checkpoint import decode_tree, encode_tree
from agilerl.training.dispatch import shard_here, shard_job
from agilerl.training.scheduling import Batch, Scheduler, Steps, WorkItem
from agilerl.training.serving import evaluated


class Rounds:
    """Rounds that are going on, at most one of each shard.

    A round is a function of its plan, of the states of its members, and of the shard's `shard_state` and replay as the
    shard's round before has left them: who does it, and when, makes no difference to its result.

    Args:
        collector: of this process, opened. scheduler: of the workers, which do all rounds if there are any.
    """

    def __init__(self, collector: Collector, scheduler: Scheduler) -> None:
        self.collector, self.scheduler = collector, scheduler
        self._batch = Batch(is_for_workers=True)
        self._shards: dict[int, int] = {}  # number of a piece -> shard
        self._agents: dict[int, list[Any]] = {}  # shard -> its members in the round
        self._written: dict[int, Any] = {}  # what the last round of each shard wrote
        self._has: dict[tuple[int, int], int] = {}  # (worker, shard) -> rounds whose rows its replay has
        self._did: dict[tuple[int, int], int] = {}  # (worker, shard) -> the last round that it did

    def going_on(self) -> set[int]:
        """Return the shards whose round has begun, and has not been taken by `wait`."""
        return set(self._agents)

    def begin(self, shard: int, slots: list[int], agents: Sequence[Any], plan: GenerationPlan) -> None:
        """Begin a round of a shard; `plan.number` counts its rounds."""
        self._agents[shard] = list(agents)
        piece = WorkItem(
            "round",
            f"generation {plan.number} of shard {shard}",
            len(slots),
            partial(self._job, plan, shard, slots, agents),
            partial(self._here, plan, shard, slots, agents),
            done=partial(self._done, shard),
            failed=self._forget,
        )
        self._shards[self._batch.add(piece)] = shard
        self.scheduler.hand_out(self._batch)

    def wait(self, shards: Collection[int]) -> Generator[int, None, tuple[int, dict[str, Any]]]:
        """Wait for a round of one of these shards, and take it; yields environment steps of all rounds.

        Returns:
            The shard, whose members have been trained in place, and its result: "tallies", and those of `evaluated`.
        """
        while (number := next((n for n in self._batch.ended if self._shards[n] in shards), None)) is None:
            yield from self.scheduler.advance(self._batch)
        shard, result = self._shards.pop(number), self._batch.take(number)
        _load(self._agents.pop(shard), result["members"])
        self.collector.load_shard_state(shard, result["state"])
        self._written[shard] = result["written"]
        self.collector.write(shard, result["written"])
        return shard, result

    def _job(
        self, plan: GenerationPlan, shard: int, slots: list[int], agents: Sequence[Any], worker: int
    ) -> dict[str, Any]:
        memory = self._missing_rows(worker, shard, plan.number)
        return shard_job("round", self.collector, plan, shard, slots, agents, memory)

    def _missing_rows(self, worker: int, shard: int, number: int) -> dict[str, Any]:
        """Return what a worker lacks of a shard's replay: the last round's rows, if it did not write them, or all."""
        memories, key = self.collector.memories_of(shard), (worker, shard)
        has, self._has[key] = self._has.get(key, 0), number
        if not memories or has == number:
            return {}
        if has == number - 1 and shard in self._written:
            return {"written": {shard: None if self._did.get(key) == has else self._written[shard]}}
        return {"memories": {name: memory.state() for name, memory in memories.items()}}

    def _here(self, plan: GenerationPlan, shard: int, slots: list[int], agents: Sequence[Any]) -> Steps:
        """Do a round in this process; its members are as they were until the result is taken."""
        self.collector.follow(plan)
        before = [encode_tree(agent.run_state()) for agent in agents]
        try:
            result = yield from shard_here(self.collector, plan, shard, slots, agents)
            result |= evaluated(self.collector.evaluator, agents, result["tallies"], plan.number)
            result["members"] = [encode_tree(agent.run_state()) for agent in agents]
        finally:
            _load(agents, before)
        return result

    def _done(self, shard: int, worker: int, result: dict[str, Any]) -> None:
        self._did[worker, shard] = result.pop("number")

    def _forget(self, worker: int) -> None:
        """Forget the cached state of a worker."""
        for place in (self._has, self._did):
            for key in [key for key in place if key[0] == worker]:
                del place[key]


def _load(agents: Sequence[Any], states: Sequence[bytes]) -> None:
    """Restore encoded run states."""
    for agent, state in zip(agents, states, strict=True):
        agent.load_run_state(decode_tree(state, f"member {agent.index}"))
