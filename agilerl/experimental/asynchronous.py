"""Asynchronous mode: shards are trained, evaluated and selected without waiting for each other."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from agilerl.collect.collector import Collector, GenerationPlan, Tally, cut
from agilerl.collect.fitness import PopulationEvaluation
from agilerl.core.host import return_freed_memory
from agilerl.core.options import LoopOptions
from agilerl.errors import ConfigError, RunError
from agilerl.experimental.rounds import Rounds
from agilerl.hpo.screening import best_returns
from agilerl.telemetry.record import Arrival, Birth, MemberRecord
from agilerl.training.loop import TrainingLoop
from agilerl.training.population import are_unchanged, filled, weights_of
from agilerl.training.state import SavableLoop, Trees


class SavableAsynchronousLoop(SavableLoop):
    """An `AsynchronousLoop`, with the members that train now, and their plans."""

    loop: AsynchronousLoop

    def trees(self) -> Trees:
        loop = self.loop
        population, best, rest = super().trees()
        evaluation = loop.evaluation
        plain = {
            "ended": list(loop.ended),
            "plans": [asdict(plan) for plan in loop.plans],
            "arrivals": [asdict(arrival) for arrival in loop.result.arrivals],
            "errors": dict(evaluation.errors),
            "played": dict(evaluation.played),
            "screened_out": sorted(evaluation.screened_out),
        }
        return population, best, {**rest, "asynchronous": plain}

    def population_tree(self) -> dict[str, Any]:
        """State of the members; that of shards which have not arrived since the last save is as it was."""
        loop = self.loop
        for slot, (agent, ahead) in enumerate(zip(loop.population, loop.ahead, strict=True)):
            if slot not in loop.member_trees:
                loop.member_trees[slot] = agent.run_state(), ahead.run_state()
        members, following = zip(*(loop.member_trees[slot] for slot in range(len(loop.population))), strict=True)
        return {"members": list(members), "ahead": list(following)}

    def load(self, trees: Trees, facts: Mapping[str, Any]) -> None:
        loop, (population, _, rest) = self.loop, trees
        super().load(trees, facts)
        templates = {type(agent).__name__: agent for agent in loop.population}
        loop.ahead = [filled(None, templates, state) for state in population["ahead"]]
        plain = rest["asynchronous"]
        loop.ended = [int(count) for count in plain["ended"]]
        loop.plans = [GenerationPlan(**plan) for plan in plain["plans"]]
        loop.result.arrivals = [Arrival(**arrival) for arrival in plain["arrivals"]]
        loop.evaluation = PopulationEvaluation(
            [],
            dict(plain["errors"]),
            dict(plain["played"]),
            screened_out=frozenset(plain["screened_out"]),
        )
        loop.resumed()


class AsynchronousLoop(TrainingLoop):
    """Trains shards that do not wait for each other (steady state, as in Jaderberg et al. 2017, section 3).

    A generation of this loop is the arrival of one shard: the end of its round, which is a generation of the shard and
    its evaluation. Its members are selected from the last evaluated state of all, and train again at once; the shard
    waits only if it would be more than `max_lag` rounds ahead of the slowest one. The first generation is the first
    round of all shards, as selection needs the fitness of all. The run is a function of its seed and of the order of
    arrivals.

    Args:
        max_lag: rounds between the fastest and the slowest shard. order: shards in the order in which they must arrive;
            after those, as they come. For the others, see `TrainingLoop`.

    Attributes:
        population: the members by slot, as they were evaluated last.
        ahead: by slot, the members that train now.
        ended: by shard, number of rounds that have ended. plans: of each shard's round that goes on.
        member_trees: by slot, states of both in the last checkpoint, unless the shard has arrived since then.
    """

    savable = SavableAsynchronousLoop
    takes_requests = False
    rounds: Rounds

    def __init__(
        self,
        population: Sequence[Any],
        collector: Collector,
        options: LoopOptions,
        *,
        max_lag: int,
        order: Iterable[int] = (),
        **more: Any,
    ) -> None:
        super().__init__(population, collector, options, **more)
        if not self.evaluator.plays_episodes:
            raise ConfigError(
                "evolution.mode=async evaluates each shard by episodes, and here fitness is not of episodes, or agents "
                "bring their own test() or get_action(). fix: evolution.mode=generations."
            )
        self.max_lag, self.order = max_lag, list(order)
        self.slots = cut(len(self.population), options.shards)
        self.stop_rule.shards = len(self.slots)
        self.ahead = list(self.population)
        self.ended = [0] * len(self.slots)
        self.plans = [self._plan(shard) for shard in range(len(self.slots))]
        self.member_trees: dict[int, tuple[Any, Any]] = {}
        self._steps_made = 0  # by all members, in rounds that go on too
        self._arrived_at = time.perf_counter()

    def _share_work(self) -> None:
        self.rounds = Rounds(self.collector, self.scheduler)

    def _parts(self) -> list[str]:
        executor, shards = self.executor, len(cut(len(self.population), self.options.shards))
        alive = 0 if executor is None else executor.alive
        by = f"{alive} workers train them" if alive else "they take turns in this process"
        return [f"asynchronous: {shards} shards; {by}"]

    def _is_spent(self) -> bool:
        return not any(self._has_budget(shard) for shard in range(len(self.slots)))

    def _has_budget(self, shard: int) -> bool:
        return all(self.ahead[slot].steps[-1] < self.options.max_steps for slot in self.slots[shard])

    def generations_until(self, done: int) -> int:
        shards, rounds = len(self.slots), super().generations_until(-(-done // len(self.slots)))
        return max(done, 1 + (rounds - 1) * shards)

    def resumed(self) -> None:
        """Go on from the state that has been loaded."""
        self._steps_made = self.result.env_steps_population
        del self.order[: len(self.result.arrivals)]
        if any(plan.max_steps != self.options.max_steps for plan in self.plans):  # another budget
            self.plans = [self._plan(shard) for shard in range(len(self.slots))]

    # --- rounds ----------------------------------------------------------------------------------------------------

    def _plan(self, shard: int) -> GenerationPlan:
        """Plan the next round of a shard, for its members alone."""
        agents = [self.ahead[slot] for slot in self.slots[shard]]
        self.collector.fit(self.ahead)
        env_steps_before = max(int(agent.steps[-1]) for agent in agents)
        return self.collector.plan(agents, self.ended[shard], env_steps_before)

    def _begin_rounds(self) -> None:
        """Begin the rounds of all shards that may train."""
        unfinished = [shard for shard in range(len(self.slots)) if self._has_budget(shard)]
        slowest = min((self.ended[shard] for shard in unfinished), default=0)
        busy = self.rounds.going_on()
        for shard in unfinished:
            if shard not in busy and self.ended[shard] - slowest <= self.max_lag:
                slots = self.slots[shard]
                self.rounds.begin(shard, slots, [self.ahead[slot] for slot in slots], self.plans[shard])

    def _arrive(self) -> list[tuple[int, dict[str, Any]]]:
        """Wait for the next shard, the first time for all; returns their results.

        Raises:
            RunError: the order to follow is not one of this run.
        """
        shards = range(len(self.slots))
        self._begin_rounds()
        if not self.result.generations:
            del self.order[: len(shards)]
            return [self._wait([shard]) for shard in shards]
        shard = self.order.pop(0) if self.order else None
        if shard is not None and shard not in self.rounds.going_on():
            raise RunError(
                f"the order of arrivals says that shard {shard} is next, and it does not train now: the order is of "
                "another run. fix: the order of a run with this configuration."
            )
        return [self._wait(shards if shard is None else [shard])]

    def _wait(self, shards: Sequence[int]) -> tuple[int, dict[str, Any]]:
        """Wait for the end of a round of one of these shards."""
        with contextlib.closing(self.rounds.wait(shards)) as steps:
            while True:
                try:
                    self._steps_made += next(steps)
                except StopIteration as end:
                    shard, result = end.value
                    return int(shard), result
                self.sinks.progress(self._steps_made // len(self.population), time.perf_counter() - self._wall)
                if self.check is not None:
                    self.check()

    def _generation(self) -> None:
        number = self.result.generations
        weights = weights_of(self.ahead) if self.result.unchanged else []
        arrived = self._arrive()
        slots = [slot for shard, _ in arrived for slot in self.slots[shard]]
        self.result.unchanged = bool(weights) and are_unchanged(weights, weights_of(self.ahead))
        tallies = self._tallies(arrived)
        env_steps = [int(self.population[slot].steps[-1]) for slot in slots]
        fitness = self._fitness(slots, tallies, [result["evaluation"] for _, result in arrived])
        self._report_faults()
        self.result.history.append(fitness)
        self.result.returns.append(best_returns(self.population))
        self._keep_rows()
        self.result.generations = number + 1
        self._count(tallies)
        self.pace.per_episode = max(
            result["seconds"] / max(1, result["evaluation"]["episodes"]) for _, result in arrived
        )
        self.collector.fit(self.population)  # for a confirmation
        confirmed, stop = self.stop_rule.decide(self._evaluated(number), self._is_last_arrival())
        members = self._member_records(fitness, tallies)
        healed = self._heal(number, fitness)
        for slot in slots:
            self.ahead[slot] = self.population[slot]  # a copy of the fittest member, if it had diverged
        births = () if stop else self._evolve_shards([shard for shard, _ in arrived], number, members)
        if stop and self.result.stopped != "plateau":
            self.result.stopped = "target"
        following = [self.ahead[slot] for slot in slots]
        self.quarantine.forgive([*self.population, *following], fitness, births)
        for agent, count in zip(following, env_steps, strict=True):  # a parent's shard may be ahead or behind
            agent.steps.append(count)
        for shard, _ in arrived:
            self.plans[shard] = self._plan(shard)
        if not stop and self.result.stopped != "minutes":
            self._begin_rounds()
        arrivals = tuple(Arrival(number, shard, self.ended[shard] - 1) for shard, _ in arrived)
        self.result.arrivals += arrivals
        record = replace(self._record(number, members, (*healed, *births), confirmed), arrivals=arrivals)
        self.sinks.generation(record)
        self._save()
        return_freed_memory()
        self.callbacks.generation(record)  # after saving, so that a failing hook does not lose the generation

    def _tallies(self, arrived: Sequence[tuple[int, Mapping[str, Any]]]) -> list[Tally]:
        """Take the members of the shards that have arrived; returns tallies by slot, empty ones for the others."""
        tallies = [Tally() for _ in self.population]
        for shard, result in arrived:
            self.ended[shard] += 1
            for slot, tally in zip(self.slots[shard], result["tallies"], strict=True):
                self.member_trees.pop(slot, None)
                agent = self.population[slot] = self.ahead[slot]
                agent.steps[-1] += tally.env_steps
                agent.scores += tally.scores
                tallies[slot] = tally
        self._say_masks()
        return tallies

    def _fitness(
        self, slots: Sequence[int], tallies: list[Tally], evaluations: Sequence[Mapping[str, Any]]
    ) -> list[float]:
        """Return the fitness of all members: that of the shards that have arrived, and the last one of the others."""
        self.quarantine.inspect(self.population, tallies)
        scores = {agent.index: float(agent.fitness[-1]) for agent in self.population if agent.fitness}
        for evaluation in evaluations:
            scores |= evaluation["fitness"]
        fitness = self.quarantine.fitness(self.population, scores)
        self.result.quarantined += len(self.quarantine.reasons)
        for slot in slots:
            self.population[slot].fitness.append(fitness[slot])
        env_steps = sum(evaluation["env_steps"] for evaluation in evaluations)
        self.evaluator.env_steps += env_steps
        self.collector.evaluated = env_steps / len(slots)
        self.stop_rule.episode_length = env_steps / max(1, sum(evaluation["episodes"] for evaluation in evaluations))
        self.evaluation = self._merged(evaluations)
        arrived = {self.population[slot].index for slot in slots}
        self._in_full = arrived - self.quarantine.reasons.keys() - self.evaluation.screened_out
        return fitness

    def _merged(self, evaluations: Sequence[Mapping[str, Any]]) -> PopulationEvaluation:
        """Return the last evaluations of all members; returns by agent of these evaluations only."""
        current, before = {agent.index for agent in self.population}, self.evaluation
        errors, played, dropped = dict(before.errors), dict(before.played), set(before.screened_out)
        by_agent: dict[int, list[float]] = {}
        for one in evaluations:
            errors |= one["errors"]
            played |= one["played"]
            by_agent |= one["by_agent"]
            dropped = (dropped - one["fitness"].keys()) | set(one["screened_out"])
        return PopulationEvaluation(
            [],
            {index: error for index, error in errors.items() if index in current},
            {index: count for index, count in played.items() if index in current},
            by_agent,
            frozenset(dropped & current),
        )

    def _evolve_shards(self, shards: Sequence[int], number: int, members: Sequence[MemberRecord]) -> tuple[Birth, ...]:
        """Select the next members of the shards that have arrived and have steps left."""
        births: list[Birth] = []
        for shard in shards:
            slots = self.slots[shard]
            furthest = max(int(self.ahead[slot].steps[-1]) for slot in slots)
            is_early = furthest < self.options.evolve_from * self.options.max_steps
            is_done = not self._has_budget(shard) and not self.options.evolve_last
            if not self.evolution.is_on or is_early or is_done:
                continue
            before = [self.population[slot].index for slot in slots]
            after, born = self.evolution.next_part(slots, self.population, members, number + 1)
            births += self.family.add(born, after, before)
            for slot, agent in zip(slots, after, strict=True):
                self.ahead[slot] = agent
        self.result.births += births
        return tuple(births)

    # --- the end ---------------------------------------------------------------------------------------------------

    def _is_last_arrival(self) -> bool:
        """Whether the run ends with this arrival: by `stop_after`, or because there is no time for another one."""
        now, before = time.perf_counter(), self._arrived_at
        self._arrived_at = now
        if self._is_spent():
            return False
        if self.options.stop_after is not None:
            return self.result.env_steps_member >= self.options.stop_after
        closing = self.stop_rule.closing_episodes(self.options, len(self.population))
        return self.pace.is_up(now - before, closing)
