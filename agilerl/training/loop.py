"""Training loop: collect and learn, evaluate, report, select and mutate, checkpoint; generation by generation."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from agilerl.algorithms.base.adapted import adapted, counted_in
from agilerl.algorithms.base.agent import EvolvableAlgorithm
from agilerl.collect.collector import Collector, Tally, cut
from agilerl.collect.determinism import Probe, probe_determinism, warning_of
from agilerl.collect.fitness import MeanReturn, PopulationEvaluation
from agilerl.core.host import naming_shortage, return_freed_memory
from agilerl.core.options import LoopOptions
from agilerl.core.threads import fixed_threads, repeatable_convolutions, usual_threads
from agilerl.errors import AgileRLWarning
from agilerl.hpo.evolution import Evolution, Family, TournamentEvolution, add_births
from agilerl.hpo.screening import affordable, best_returns, promising, screened
from agilerl.ranks import ONE, Ranks
from agilerl.runs.request import RunRequest
from agilerl.runs.steering import Inbox, Taken
from agilerl.telemetry.callbacks import Callbacks
from agilerl.telemetry.record import Birth, GenerationRecord, MemberRecord, Sinks, Steering
from agilerl.training.best import BestAgent
from agilerl.training.deadline import Deadline, Pace, TimeIsUp
from agilerl.training.dispatch import Dispatcher
from agilerl.training.distributed import broadcast_population, check_alike, hint, share_observations
from agilerl.training.population import are_unchanged, ensemble_of, evaluation_mode, save_population, weights_of
from agilerl.training.quarantine import Quarantine
from agilerl.training.result import EvolveResult, fittest, member_records, run_plan
from agilerl.training.scheduling import Scheduler
from agilerl.training.state import SavableLoop, check_portable, is_portable
from agilerl.training.steering import Members, SteeringWheel, after_selection, before_selection, described
from agilerl.training.stop_rule import Evaluated, StopRule, recent_fitness
from agilerl.training.store import RunStore, resumed_notes
from agilerl.workers.executor import Executor, NoWorkers

# Reasons for stopping before the budget of steps is used.
EARLY_STOPS = ("target", "plateau", "minutes")


@dataclass(frozen=True, kw_only=True)
class LoopSettings:
    """What a training loop is given beside its members, their experience and its options.

    Attributes:
        seed: of every random stream. env_id: name for the plan and the records.
        request: `sinks`, `callbacks`, `script` and further options of the run that take effect in the loop.
        evolution: applied between generations; without it the population is not evolved.
        on_best: called with each new best agent.
        store: saves the run after every generation, and restores an earlier save.
        check: called between vector steps, including those of evaluations; an exception it raises ends the run.
        executor: workers that take part, closed at the end of the run.
        ranks: processes that train this population together, each with its own collector and store.
        deadline: of a budget in minutes; the run ends before it, after at least one generation.
    """

    seed: int
    env_id: str = ""
    request: RunRequest = field(default_factory=RunRequest)
    evolution: Evolution | None = None
    on_best: Callable[[Any], None] | None = None
    store: RunStore | None = None
    check: Callable[[], None] | None = None
    executor: Executor | None = None
    ranks: Ranks = ONE
    deadline: Deadline | None = None


class TrainingLoop:
    """Trains and evolves a population.

    Args:
        population: the agents; the list itself is not modified.
        collector: of experience and evaluations; closed at the end of the run.
        options: of the run.
    """

    savable: ClassVar[type[SavableLoop]] = SavableLoop
    takes_requests: ClassVar[bool] = True  # of people (`agilerl steer`)
    dispatcher: Dispatcher

    def __init__(
        self, population: Sequence[Any], collector: Collector, options: LoopOptions, settings: LoopSettings
    ) -> None:
        executor, ranks, seed, self.request = settings.executor, settings.ranks, settings.seed, settings.request
        if executor is not None and executor.is_optional and not is_portable(population):
            executor = None
        self.ranks, self.executor = ranks, executor
        self.pace = Pace(settings.deadline, ranks)
        self.evolution = TournamentEvolution() if settings.evolution is None else settings.evolution
        self.population = broadcast_population(population, self.evolution, ranks)
        self.callbacks = Callbacks(self.request.callbacks)
        self.best = BestAgent(settings.on_best, self.callbacks.best)
        self._in_full: set[int] = set()  # ids of members whose evaluation of this generation is complete
        self._evaluated_as: dict[int, Any] = {}  # id -> agent that has played in it: the member, or an ensemble
        self.evaluation = PopulationEvaluation([])  # of this generation
        self.store, self.check = settings.store, self._checking(settings.check)
        self.options, self.seed, self.env_id, self.collector = options, seed, settings.env_id, collector
        self._begun_with = 0  # generations before this process
        self.asked_steps = options.max_steps  # per member, if none is stopped early
        self.family = Family(self.population)
        self.sinks = Sinks(self.request.sinks)
        collector.ranks = ranks
        collector.open(self.population, seed, self.check, options.shards)
        self.evaluator = collector.evaluator
        self._apart = collector.why_apart(self.population) if options.ensemble else "not asked for"
        self.scheduler = Scheduler(executor or NoWorkers(), seed, self.sinks.message)
        if executor is not None or options.shards > 1:
            check_portable(self.population)
        self._share_work()
        self.notes = [*collector.notes, *self._parts(), *hint(self.population, ranks)]
        self.probe = Probe(None)
        self.quarantine = Quarantine()
        folder = None if self.store is None else self.store.folder
        self.steering = SteeringWheel(Inbox(folder, self.request.script), ranks)
        self.result = EvolveResult(self.population, None)
        self.stop_rule = StopRule(self.evaluator, self.best, self.pace, self.result, collector.steps_of_generation)
        self.saved_steps = 0  # at the last save of the agents' files by `checkpoint`

    def _checking(self, check: Callable[[], None] | None) -> Callable[[], None] | None:
        """Return `check` with that of a budget in minutes, which lets the first generation end."""
        deadline = self.pace.deadline
        if deadline is None or self.ranks.size > 1:
            return check

        def both() -> None:
            if check is not None:
                check()
            if self.result.generations > self._begun_with:
                deadline.check()

        return both

    def _share_work(self) -> None:
        """Have the work of generations and evaluations done by shards and workers."""
        self.dispatcher = Dispatcher(self.collector, self.scheduler, self.check)

    def _parts(self) -> list[str]:
        """Describe shards, an ensemble and workers, if there are several."""
        shards, executor = len(cut(len(self.population), self.options.shards)), self.executor
        notes = [f"shards: {shards}, of at most {-(-len(self.population) // shards)} members"] if shards > 1 else []
        if self.options.ensemble and len(self.population) > 1:
            without = f"no ensemble, the best by training returns is evaluated: {self._apart}"
            ignored = "; eval_members is ignored" if (self.options.eval_members or 1) > 1 else ""
            mean = f"ensemble: the mean of all policies is evaluated and returned{ignored}"
            notes.append(without if self._apart else mean)
        alive = 0 if executor is None else executor.alive
        return notes + ([f"workers: {1 + alive} processes, this one included"] if alive else [])

    # --- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> EvolveResult:
        """Train until the target is reached or a member has used its budget."""
        is_resumed = self.store is not None and self.store.restore(self.savable(self))
        founders = (
            [] if is_resumed else [Birth(a.index, None, 0, "founder", adapted(a).origin) for a in self.population]
        )
        self._begun_with = self.result.generations
        if is_resumed:
            self.notes += resumed_notes(self.options, self.result, self.population, self.store)
        else:
            self.result.env_steps_member = max(agent.steps[-1] for agent in self.population)
            self._say_spent()
        self.collector.foresee(self.population)
        self.result.unchanged = self.result.unchanged or not is_resumed
        self.result.births += founders
        self.callbacks.births(founders)
        self._started = time.perf_counter()
        self._wall = self._started - self.result.seconds
        self._cpu = time.process_time() - self.result.cpu_seconds
        self.best.announce()
        resume_command = None if self.store is None else self.store.way_on()
        processes = 1 if self.executor is None else 1 + self.executor.alive
        kernels = self.collector.kernel_threads(self.options.threads or usual_threads(processes))
        shortage = naming_shortage(self.env_id, self.result, resume_command)
        with fixed_threads(self.options.torch_threads), kernels, repeatable_convolutions(), shortage:
            try:
                self._probe(is_resumed)
                deadline, seconds = self.pace.deadline, time.perf_counter() - self._wall
                limit = None if deadline is None else seconds + deadline.left
                about = {"env_id": self.env_id, "seed": self.seed, "notes": tuple(self.notes), "time_limit": limit}
                self.sinks.start(run_plan(self.collector, self.options, self.probe, self.result, **about), founders)
                self._record_late()
                try:
                    while self._goes_on():
                        self._generation()
                except TimeIsUp:  # the generation is given up; the best agent is that of those before it
                    self.result.stopped = "minutes"
                    self.sinks.message("time was up in the middle of a generation, which is given up")
                self._record_late(is_over=True)
            except KeyboardInterrupt:
                self.result.stopped = "interrupted"
                self.callbacks.end(self.result)
                raise
            finally:
                self._count_time()
                self._report_faults()  # since the last generation
                self.scheduler.close()
                self.collector.close()
                self.sinks.close()
        averaged = self.options.fitness_window
        values = [recent_fitness(a, averaged) if a.fitness else -np.inf for a in self.population]
        self.result.best = fittest(self.population, values) if self.best.kept is None else self.best.agent
        self.result.population = self.population
        self.callbacks.end(self.result)
        return self.result

    def _say_spent(self) -> None:
        """Warn if the budget is already spent and nothing will be trained."""
        spent = max(agent.steps[-1] for agent in self.population)
        if spent < self.options.max_steps or self.result.stopped in EARLY_STOPS:
            return
        steps, unit = f"max_steps={self.options.max_steps:,}", counted_in(self.population[0])
        several = len({agent.steps[-1] for agent in self.population}) > 1
        progress = f"a member has made {spent:,} {unit}" if several else f"all members have made their {spent:,} {unit}"
        warnings.warn(
            f"{self.env_id}: nothing was trained: {progress}, which {steps} counts from the first one on. "
            f"fix: max_steps={spent + self.options.max_steps} goes on.",
            AgileRLWarning,
            stacklevel=5,
        )

    def _goes_on(self) -> bool:
        stopped_by = self.ranks.gather_plain(self.callbacks.stopped_by)[0]
        if stopped_by is not None:
            self.result.stopped = f"callback {stopped_by}"
            return False
        return self.result.stopped not in (*EARLY_STOPS, "request") and not self._is_spent()

    def _is_spent(self) -> bool:
        """Whether the budget of steps is used."""
        return any(agent.steps[-1] >= self.options.max_steps for agent in self.population)

    def generations_until(self, done: int) -> int:
        """Expected total number of generations: of the budget of steps, or of the time that is left if they are fewer.

        A resumed run may include a partial one of its earlier budget.
        """
        rounded, options = self.collector.steps_of_generation, self.options
        remaining = max(0, options.max_steps - self.result.env_steps_member)
        total = max(options.generations(rounded), done + -(-remaining // rounded(options.evo_steps)))
        in_time = self.pace.generations_in_time(time.perf_counter() - self._started, done - self._begun_with)
        return total if in_time is None else min(total, done + in_time)

    def _probe(self, is_resumed: bool) -> None:
        """Check whether an exact resume is possible, if the run is saved; a resumed run reads it from its record."""
        if self.store is not None and not is_resumed:
            budget = self.options.max_steps * len(self.population)
            self.probe = probe_determinism(self.collector.probed, self.population[0], self.seed, budget, self.check)
            if self.probe.is_deterministic is None and self.probe.difference:
                self.notes.append(f"unknown whether the environment is deterministic: {self.probe.difference}")
        message = warning_of(self.probe, self.env_id)
        if message is not None:
            warnings.warn(message, AgileRLWarning, stacklevel=4)

    def _generation(self) -> None:
        number, steps_and_time = self.result.generations, (self.result.env_steps_member, time.perf_counter())
        weights = weights_of(self.population) if self.result.unchanged else []
        tallies = self._collect(number)
        self.result.unchanged = bool(weights) and are_unchanged(weights, weights_of(self.population))
        fitness = self._evaluate(number, tallies)
        self._report_faults(self.ranks)
        self.result.history.append(fitness)
        self.result.returns.append(best_returns(self.population))
        self._keep_rows()
        self.result.generations = number + 1
        self._count(tallies)
        is_last = self._is_last_generation(*steps_and_time)
        requests = self.steering.take(number + 1)
        stops = [taken for taken in requests if taken.request.action == "stop" and not taken.refused]
        is_asked_to_stop = bool(stops)
        confirmed, stop = self.stop_rule.decide(self._evaluated(number), is_last or is_asked_to_stop)
        members = self._member_records(fitness, tallies)
        done = self._is_spent() or is_asked_to_stop
        healed = self._heal(number, fitness)
        events: dict[str, Steering] = {}
        before, survivors = self._steer(number, before_selection(requests), events, members)
        births = self._evolve(number, survivors) if not stop and (self.options.evolve_last or not done) else ()
        after, _ = self._steer(number, after_selection(requests, events), events, (), births)
        self._record_requests([events[taken.id] for taken in requests])
        if stop and self.result.stopped != "plateau":
            self.result.stopped = "target"
        elif is_asked_to_stop and self.result.stopped != "plateau":
            self.result.stopped = "request" if any(taken.ends for taken in stops) else "budget"
        births = (*before, *births, *after)
        self.quarantine.forgive(self.population, fitness, births)
        record = self._record(number, members, (*healed, *births), confirmed)
        self.sinks.generation(record)
        for agent in self.population:
            agent.steps.append(agent.steps[-1])
        check_alike(self.population, self.ranks, number)
        self._save()
        return_freed_memory()
        self.callbacks.generation(record)  # after saving, so that a failing hook does not lose the generation

    def _collect(self, number: int) -> list[Tally]:
        env_steps_before, members = self.result.env_steps_member, len(self.population)
        steps_made, check = 0.0, self.check
        with contextlib.closing(self.dispatcher.generation(self.population, number, env_steps_before)) as steps:
            while True:
                try:
                    steps_made += next(steps) / members
                except StopIteration as end:
                    tallies: list[Tally] = end.value
                    break
                self.sinks.progress(env_steps_before + int(steps_made), time.perf_counter() - self._wall)
                if check is not None:
                    check()
        for agent, tally in zip(self.population, tallies, strict=True):
            agent.steps[-1] += tally.env_steps
            agent.scores += tally.scores
        self._say_masks()
        return tallies

    def _say_masks(self) -> None:
        """Note once that using the agents requires masks of legal actions."""
        if not self.result.action_masks and adapted(self.population[0]).action_masks:
            self.result.action_masks = True
            self.sinks.message(
                "the environment gives masks of legal actions (info['action_mask']): training and evaluation apply "
                "them, and the trained agents require them"
            )

    def _evaluate(self, number: int, tallies: list[Tally]) -> list[float]:
        finite = self.quarantine.inspect(self.population, tallies)
        before = {agent.index: len(agent.fitness) for agent in self.population}
        members, member_episodes = self._affordable(tallies)
        evaluated = promising(finite, members)
        if not self._apart and len(finite) > 1:
            evaluated = [ensemble_of(evaluated[0], finite)]
        self._evaluated_as = {agent.index: agent for agent in evaluated}
        start = time.perf_counter()
        with evaluation_mode([*self.population, *evaluated]):
            evaluation = self.evaluation = self.evaluator.evaluate(evaluated, number, member_episodes)
        self._in_full = {agent.index for agent in evaluated} - evaluation.screened_out
        episodes = evaluation.episodes or len(evaluated) * self.options.eval_episodes
        self.stop_rule.episode_length = evaluation.env_steps / max(1, episodes)
        self.pace.evaluated(time.perf_counter() - start, episodes)
        self.result.time.evaluation += self.pace.evaluation
        self.collector.evaluated = evaluation.env_steps / len(self.population)
        scores = {agent.index: value for agent, value in zip(evaluated, evaluation.fitness, strict=True)}
        scores |= screened(finite, scores)
        fitness = self.quarantine.fitness(self.population, scores)
        self._in_full -= self.quarantine.reasons.keys()
        self.result.quarantined += len(self.quarantine.reasons)
        for agent, value in zip(self.population, fitness, strict=True):
            agent.fitness[before[agent.index] :] = [value]  # replaces the value appended by a custom test()
        return fitness

    def _affordable(self, tallies: Sequence[Tally]) -> tuple[int | None, int | None]:
        """Members to evaluate and their episodes within `eval_share`; None: all of them, `eval_episodes`.

        Training episodes tell how long episodes are, since a resumed run has their numbers too.
        """
        options, share = self.options, self.options.eval_share
        members = 1 if options.ensemble else options.eval_members
        if share is None or not self.collector.acts:
            return members, None
        steps = sum(tally.env_steps for tally in tallies)
        room = share * (self.result.env_steps_population + steps) - self.evaluator.env_steps
        length = steps / max(1, sum(len(tally.scores) for tally in tallies))
        most = min(len(self.population), members or len(self.population))
        return affordable(room, length, most, options.eval_episodes)

    def _evaluated(self, number: int) -> Evaluated:
        candidates = [self._evaluated_as.get(agent.index, agent) for agent in self.population]
        return Evaluated(number, candidates, self.options, self.evaluation, self._in_full)

    def _keep_rows(self) -> None:
        """Record the returns of each agent if a team's returns are not summed."""
        rows = self.evaluation.by_agent
        if rows:
            missing = [float("nan")] * len(next(iter(rows.values())))
            self.result.by_agent.append([list(rows.get(agent.index, missing)) for agent in self.population])

    def _heal(self, number: int, fitness: list[float]) -> tuple[Birth, ...]:
        """Replace diverged members by copies of the fittest one."""
        healed = self.quarantine.heal(self.population, fitness, number + 1, self.family.next_id)
        births = self.steering.inherit(self.population, self.family.add(healed, self.population))
        for birth in births:
            self.sinks.message(f"{birth.path} has diverged ({birth.after}); member {birth.id} copies {birth.parent}")
        self.result.births += births
        return births

    def _report_faults(self, ranks: Ranks = ONE) -> None:
        faults = self.collector.faults() + self.scheduler.faults()
        for rank, lines in enumerate(ranks.gather_plain(faults)):
            for line in lines:
                self.result.restarts += 1
                self.sinks.message(line if ranks.size == 1 else f"rank {rank}: {line}")

    def _is_last_generation(self, steps_before: int, start: float) -> bool:
        """Whether the run ends before its budget of steps: by `stop_after`, or because time is up.

        Args:
            steps_before: environment steps per member before this generation. start: when it began.
        """
        spent = self.result.env_steps_member
        if spent >= self.options.max_steps:
            return False
        if self.options.stop_after is not None:
            return spent >= self.options.stop_after
        if self.pace.deadline is None:
            return False
        following = min(self.options.max_steps - spent, self.options.generation_steps(spent, self.collector.evaluated))
        seconds, steps_made = time.perf_counter() - start, max(1, spent - steps_before)
        closing = self.stop_rule.closing_episodes(self.options, len(self.population))
        rounded = self.collector.steps_of_generation
        if not self.pace.is_up(seconds * rounded(following) / steps_made, closing):
            return False
        steps = self.pace.shortened(seconds, steps_made, following, closing, rounded)
        if steps == 0:
            if self.result.generations == 1:
                self.sinks.message("only one generation fits into the time budget; the final evaluation may exceed it")
            return True
        self._set_options(stop_after=spent + steps)
        return False

    def _evolve(self, number: int, members: Sequence[MemberRecord]) -> tuple[Birth, ...]:
        furthest = max(a.steps[-1] for a in self.population)
        if not self.evolution.is_on or furthest < self.options.evolve_from * self.options.max_steps:
            return ()
        rescored = self._rescore(number)
        if rescored:
            members = [replace(record, fitness=rescored.get(record.id, record.fitness)) for record in members]
        share_observations(self.population, self.ranks)
        before, previous = [agent.index for agent in self.population], self.population
        self.population, births = self.evolution.next(previous, members, number + 1)
        if self.steering.protected:
            protected = self.steering.keep_protected(previous, self.population, births, self.evolution.sets_size)
            self.population, births = protected
        births = add_births(self.evolution, self.family, births, self.population, before)
        births = self.steering.inherit(self.population, births)
        self.steering.forget_others(self.population)
        self.fit_to_population()
        self.result.births += births
        return births

    # --- requests of people ----------------------------------------------------------------------------------------

    def _record_late(self, is_over: bool = False) -> None:
        """Record requests that came after the end of the run, as refused; `is_over` as in `SteeringWheel.late`."""
        if self.takes_requests:
            recorded = {event.request for event in self.result.steering}
            self._record_requests(self.steering.late(self.result.generations, recorded, is_over))

    def _record_requests(self, events: Sequence[Steering]) -> None:
        self.result.steering += events
        for event in events:
            self.sinks.message(described(event))

    def _steer(
        self,
        number: int,
        wanted: Sequence[Taken],
        events: dict[str, Steering],
        records: Sequence[MemberRecord],
        births: Sequence[Birth] = (),
    ) -> tuple[tuple[Birth, ...], Sequence[MemberRecord]]:
        """Carry out requests; return their births, and the records of members that are left.

        events: takes the requests with their results. births: by selection, so that a request reaches the children of
            a member that has left.
        """
        if not wanted:
            return (), records
        if any(not taken.refused for taken in wanted):
            share_observations(self.population, self.ranks)
        members = Members(list(self.population), number + 1, self.family.next_id, tuple(births))

        def evaluate(agent: EvolvableAlgorithm) -> MeanReturn | None:
            start, episodes = time.perf_counter(), self.options.confirm_episodes or self.options.eval_episodes
            with contextlib.suppress(TimeIsUp):
                score = self.evaluator.confirm(agent, number, episodes)
                self.result.time.evaluation += time.perf_counter() - start
                return score
            return None

        shrinks = self.evolution.shrinks
        for event in self.steering.carry_out(wanted, members, shrinks=shrinks, evaluate=evaluate):
            events.setdefault(event.request, event)
        removed = {agent.index for agent in self.population} - {agent.index for agent in members.agents}
        remaining = (
            [record for record in records if record.id not in removed]
            if len(members.agents) < len(records)
            else records
        )
        self.population = members.agents
        born = self.family.add(list(members.born.values()), self.population)
        self.result.births += born
        if born or removed:
            self.fit_to_population()
        return born, remaining

    def _set_options(self, **changes: Any) -> None:
        """Change options of the loop and of the collector, whose options are of a kind of their own."""
        self.options = replace(self.options, **changes)
        self.collector.options = replace(self.collector.options, **changes)

    def fit_to_population(self) -> None:
        """Adapt the collector to the current members, who share the environment steps that stopped ones have left."""
        if self.evolution.shares_budget:
            founders = sum(birth.kind == "founder" and not birth.generation for birth in self.result.births)
            remaining = self.asked_steps * founders - self.result.env_steps_population
            spent = max(agent.steps[-1] for agent in self.population)
            self.evolution.budget_left(remaining)
            self._set_options(max_steps=spent + max(0, remaining) // len(self.population))
        changed = self.collector.fit(self.population)
        if changed is not None:
            self.sinks.message(changed)

    def _rescore(self, number: int) -> dict[int, float]:
        """Play more episodes with the two fittest members, to choose between them more reliably; return their fitness
        by id, of no more than `eval_share` leaves room for."""
        count, share = self.options.rescore_episodes, self.options.eval_share
        if share is not None:
            room = share * self.result.env_steps_population - self.evaluator.env_steps
            count = min(count, int(room / max(2 * self.stop_rule.episode_length, 1.0)))
        if count < 1 or len(self.population) < 2:
            return {}
        losses = [-recent_fitness(agent, self.options.fitness_window) for agent in self.population]
        top = [self.population[int(slot)] for slot in np.argsort(losses, kind="stable")[:2]]  # ties: the lower slot
        means = self.evaluator.rescore(top, number, count)
        if means is None:
            return {}
        for agent, mean in zip(top, means, strict=True):
            usual = self.options.eval_episodes if agent.index in self._in_full else 0  # 0: screened by training returns
            is_own = self._evaluated_as.get(agent.index) is agent  # not those of an ensemble in its place
            played = self.evaluation.played.get(agent.index, usual) if is_own else 0
            share = count / (count + played)
            if np.isfinite(agent.fitness[-1]):  # a diverged member stays the worst
                agent.fitness[-1] = share * mean + (1 - share) * agent.fitness[-1]
        return {agent.index: float(agent.fitness[-1]) for agent in top}

    # --- records ---------------------------------------------------------------------------------------------------

    def _member_records(self, fitness: Sequence[float], tallies: Sequence[Tally]) -> tuple[MemberRecord, ...]:
        returns = None if self.evaluator.sum_scores else self.evaluation.by_agent
        return member_records(self.population, fitness, tallies, returns, self.family)

    def _record(
        self, number: int, members: Sequence[MemberRecord], births: Sequence[Birth], confirmed: MeanReturn | None
    ) -> GenerationRecord:
        progress = {
            "generations": self.generations_until(number + 1),
            "max_env_steps": self.options.max_steps,
            "evaluation_env_steps": self.evaluator.env_steps,
            "seconds": time.perf_counter() - self._wall,
            "epsilon": self.collector.epsilon,
            "opponents": tuple(self.evaluator.opponents_of),
            "members_left": len(self.population) if len(self.population) != len(members) else None,
        }
        return self.result.record(number, members, births, confirmed, **progress)

    def _count(self, tallies: list[Tally]) -> None:
        self.result.env_steps_member = max(a.steps[-1] for a in self.population)
        self.result.env_steps_population += sum(t.env_steps for t in tallies)
        self.result.updates += sum(t.updates for t in tallies)
        self.result.evaluation_env_steps = self.evaluator.env_steps

    def _count_time(self) -> None:
        self.result.seconds = time.perf_counter() - self._wall
        self.result.cpu_seconds = time.process_time() - self._cpu + self.scheduler.cpu_seconds
        spent, training = self.result.time, self.collector.seconds
        spent.collecting, spent.learning = training.collecting, training.learning
        spent.total = time.perf_counter() - self._started
        spent.seconds_per_episode = self.pace.seconds_per_episode
        self.result.evaluation_env_steps = self.evaluator.env_steps

    def _save(self) -> None:
        """Save the agents' files requested by `checkpoint`, and the run itself."""
        every, steps = self.options.checkpoint, self.result.env_steps_member
        if every is not None:
            if steps // every > self.saved_steps // every and self.ranks.is_main:
                base = (self.options.checkpoint_path or f"{self.env_id}-EvoHPO").removesuffix(".pt")
                save_population(self.population, base, self.options.overwrite_checkpoints)
            self.saved_steps = steps
        if self.store is not None:
            self._count_time()
            self.store.save(self.savable(self))
