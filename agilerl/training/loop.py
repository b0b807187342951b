"""The training loop: collect and learn, evaluate, report, select and mutate, checkpoint; generation by generation."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from agilerl.envs.step import Lanes, as_lanes
from agilerl.envs.swapped import ChannelsFirstLanes
from agilerl.learners.fused import Learner, choose_learner
from agilerl.telemetry.record import Birth, GenerationRecord, MemberRecord, RunPlan, Sink
from agilerl.threads import one_thread
from agilerl.training.evaluation import Evaluator
from agilerl.training.options import LoopOptions
from agilerl.training.population import has_update, save_population, set_training_mode
from agilerl.training.records import birth_of, member_records
from agilerl.training.result import EvolveResult
from agilerl.training.source import MemberTally, Segment, Source


class TrainingLoop:
    """Trains a population and evolves it.

    Args:
        population: the agents; evolved in place of the list's elements, the list itself is not changed.
        env: environment to train in: what `make_vect_envs` built, any vector environment, or a single one.
        source: where experience comes from.
        options: what to do. seed: run seed of every random stream.
        tournament, mutation: both or neither; without them the population trains unevolved.
        sinks: where records go.
        eval_env: environment to evaluate in; `env` by default.
        env_id: name for the plan and the records.
        on_best: called with the best agent whenever there is a better one.
    """

    def __init__(
        self,
        population: Sequence[Any],
        env: Any,
        source: Source,
        options: LoopOptions,
        *,
        seed: int,
        tournament: Any = None,
        mutation: Any = None,
        sinks: Sequence[Sink] = (),
        eval_env: Any = None,
        env_id: str = "",
        on_best: Callable[[Any], None] | None = None,
    ) -> None:
        self.population = list(population)
        self.on_best = on_best
        self.env, self.options, self.seed = env, options, seed
        self.source = source
        self.tournament, self.mutation, self.sinks = tournament, mutation, list(sinks)
        self.env_id = env_id
        self.num_envs = max(1, int(getattr(env, "num_envs", 1)))
        self.notes: list[str] = []
        self.learner_kind, reason = self._choose_learner()
        self.notes.append(f"learner: {self.learner_kind} ({reason})")
        self.lockstep = self._choose_lockstep()
        self.lanes = self._make_lanes()
        self.evaluator = Evaluator(eval_env if eval_env is not None else env, options, seed)
        self.result = EvolveResult(self.population, None)
        self._parents: dict[int, int | None] = {a.index: None for a in self.population}
        self._labels: dict[int, str] = {}
        self._saved_steps = 0

    # --- choices that depend on the population and the environment alone -----------------------------------------

    def _choose_learner(self) -> tuple[str, str]:
        own_loops = [a for a in self.population if not has_update(a)]
        if alone := getattr(self.source, "one_at_a_time", ""):
            return "agents", str(alone)
        if own_loops:
            return "agents", f"agent {own_loops[0].index} brings its own learn()"
        self._learner_class, reason = choose_learner(self.population, self.options.learner)
        return self._learner_class.name, reason

    def _choose_lockstep(self) -> bool:
        if not self.options.lockstep:
            return False
        if self.learner_kind == "agents":
            alone = getattr(self.source, "one_at_a_time", "") or "an algorithm brings its own learn()"
            self.notes.append(f"one member trains at a time: {alone}")
            return False
        if not callable(getattr(self.env, "replicate", None)):
            self.notes.append("one member trains at a time: only environments of make_vect_envs can be replicated")
            return False
        return True

    def _make_lanes(self) -> Lanes:
        lanes: Lanes = self.env.replicate(len(self.population)) if self.lockstep else as_lanes(self.env)
        return ChannelsFirstLanes(lanes) if self.options.swap_channels else lanes

    def plan(self) -> RunPlan:
        """What is about to run."""
        lead = self.population[0]
        return RunPlan(
            algo=str(lead.algo),
            env_id=self.env_id,
            population=len(self.population),
            num_envs=self.num_envs,
            max_env_steps=self.options.max_steps,
            evo_steps=self.options.evo_steps,
            seed=self.seed,
            device=str(getattr(lead, "device", "cpu")),
            learner=self.learner_kind,
            env_backend=self.lanes.backend,
            threads=1,
            target=self.options.target,
            notes=tuple(self.notes),
            extra={"lockstep": self.lockstep, "options": self.options.as_dict()},
        )

    # --- the loop --------------------------------------------------------------------------------------------------

    def run(self) -> EvolveResult:
        """Train until the target is reached or a member has used its budget."""
        founders = [Birth(a.index, None, 0, "founder") for a in self.population]
        self.result.births += founders
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        plan = self.plan()
        with one_thread():
            try:
                for sink in self.sinks:
                    sink.start(plan, founders)
                while all(a.steps[-1] < self.options.max_steps for a in self.population):
                    if self._generation():
                        self.result.stopped = "target"
                        break
                self._choose_best()
            finally:
                self._count_time()
                for sink in self.sinks:
                    sink.close()
        self.result.population = self.population
        return self.result

    def _generation(self) -> bool:
        """One generation; True where the run stops."""
        number = self.result.generations
        tallies = self._collect(number)
        fitness = self._evaluate(number)
        self.result.history.append(fitness)
        self.result.generations = number + 1
        self._count(tallies)
        confirmation = self._try_to_stop(number, fitness)
        stop = confirmation is not None and confirmation[1]
        members = member_records(self.population, fitness, tallies, self._parents, self._labels)
        done = any(a.steps[-1] >= self.options.max_steps for a in self.population)
        births = self._evolve(number) if not stop and (self.options.evolve_last or not done) else ()
        self._report(number, members, births, confirmation[0] if confirmation else None)
        for agent in self.population:
            agent.steps.append(agent.steps[-1])
        self._checkpoint()
        return stop

    def _collect(self, number: int) -> list[MemberTally]:
        slots = list(range(len(self.population)))
        groups = [slots] if self.lockstep else [[slot] for slot in slots]
        progress, tallies = self._progress(len(slots)), []
        for group in groups:
            segment = Segment(
                agents=[self.population[slot] for slot in group],
                slots=group,
                lanes=self.lanes,
                run_seed=self.seed,
                number=number,
                begun=self.result.env_steps_member,
                vector_steps=max(1, self.options.evo_steps // self.num_envs),
                progress=progress,
            )
            if self.learner_kind == "agents":
                tallies.append(self.source.train_alone(segment))
                continue
            with self._adopted(segment.agents) as learner:
                tallies += self.source.train(segment, learner)
        self.source.end_generation()
        for agent, tally in zip(self.population, tallies, strict=True):
            agent.steps[-1] += tally.env_steps
            agent.scores += tally.scores
        return tallies

    @contextlib.contextmanager
    def _adopted(self, agents: list[Any]) -> Iterator[Learner]:
        """A learner that holds the agents' tensors in rows until the block ends, also by an error."""
        learner = self._learner_class(agents)
        try:
            yield learner
        finally:
            learner.release()

    def _progress(self, members: int) -> Callable[[int], None]:
        """Counts environment steps of all members and passes them on per member."""
        seen = [0.0]
        begun = self.result.env_steps_member

        def advance(env_steps: int) -> None:
            seen[0] += env_steps / members
            for sink in self.sinks:
                sink.progress(begun + int(seen[0]), time.perf_counter() - self._wall)

        return advance

    def _evaluate(self, number: int) -> list[float]:
        for agent in self.population:
            set_training_mode(agent, False)
        if self.learner_kind == "agents":
            fitness = [self.evaluator.one(agent) for agent in self.population]
        else:
            with self._adopted(self.population) as learner:
                fitness = self.evaluator.population(learner, number)
            for agent, value in zip(self.population, fitness, strict=True):
                agent.fitness.append(value)
        for agent in self.population:
            set_training_mode(agent, True)
        return fitness

    def _window(self, agent: Any) -> float:
        return float(np.mean(agent.fitness[-self.options.fitness_window :]))

    def _try_to_stop(self, number: int, fitness: list[float]) -> tuple[float | None, bool] | None:
        """(mean of the confirmation, stop?) where the target was reached, else None; keeps the best agent so far."""
        values = [self._window(a) for a in self.population]
        ranked = [v if v == v else -np.inf for v in values]
        leader = int(np.argmax(ranked))
        target = self.options.target
        reached = target is not None and ranked[leader] >= target
        if not reached:
            self._keep(self.population[leader], ranked[leader], None)
            return None
        if not self.options.confirm_episodes or self.learner_kind == "agents":
            self._keep(self.population[leader], ranked[leader], None)
            return None, True
        with self._adopted([self.population[leader]]) as learner:
            confirmed = self.evaluator.confirm(learner, number)
        self._keep(self.population[leader], ranked[leader], confirmed)
        assert target is not None
        return confirmed, confirmed >= target + self.options.stop_margin

    _best_fitness = -np.inf

    def _keep(self, agent: Any, fitness: float, confirmed: float | None) -> None:
        """Keep an independent copy of the best so far: a confirmation beats fitness, a better one beats a worse one."""
        known = self.result.confirmed
        if confirmed is not None:
            better = known is None or confirmed > known
        else:
            better = known is None and (self.result.best is None or fitness > self._best_fitness)
        if better and callable(getattr(agent, "clone", None)):
            self.result.best, self.result.confirmed = agent.clone(), confirmed
            self._best_fitness = fitness
            if self.on_best is not None:
                self.on_best(self.result.best)

    def _choose_best(self) -> None:
        """Where no copy could be kept (agents without `clone`), the fittest member stands; else the first."""
        if self.result.best is None and self.population:
            values = [self._window(a) if a.fitness else -np.inf for a in self.population]
            self.result.best = self.population[int(np.argmax([v if v == v else -np.inf for v in values]))]

    def _evolve(self, number: int) -> tuple[Birth, ...]:
        if self.tournament is None or self.mutation is None:
            return ()
        furthest = max(a.steps[-1] for a in self.population)
        if furthest < self.options.evolve_from * self.options.max_steps:
            return ()
        self._rescore(number)
        parents = {a.index: a for a in self.population}
        _, chosen = self.tournament.select(self.population)
        origin = getattr(self.tournament, "parents", [])
        self.population = self.mutation.mutation(chosen)
        births = []
        for slot, agent in enumerate(self.population):
            parent = origin[slot] if slot < len(origin) else None
            if agent.index in parents and str(agent.mut) == "None":
                continue  # the elite lives on; nothing was born
            births.append(birth_of(agent, parent, parents, number + 1))
            self._parents[agent.index] = parent
            self._labels[agent.index] = str(agent.mut)
        if self.lockstep and len(self.population) * self.num_envs != self.lanes.num_lanes:
            self.lanes = self._make_lanes()
        if self.learner_kind != "agents":
            self._revise_learner()
        self.result.births += births
        return tuple(births)

    def _revise_learner(self) -> None:
        """A mutation may have made a network that does not stack; the rule decides anew and the log says so."""
        chosen, reason = choose_learner(self.population, self.options.learner)
        if chosen is not self._learner_class:
            self._learner_class, self.learner_kind = chosen, chosen.name
            for sink in self.sinks:
                sink.message(f"learner: {chosen.name} ({reason})")

    def _rescore(self, number: int) -> None:
        """Give the two fittest more episodes, so that the choice between them rests on more than a few."""
        count = self.options.rescore_episodes
        if not count or self.learner_kind == "agents" or len(self.population) < 2:
            return
        order = np.argsort([-self._window(a) for a in self.population], kind="stable")[:2]
        top = [self.population[int(i)] for i in order]
        with self._adopted(top) as learner:
            means = self.evaluator.rescore(learner, number, count)
        share = count / (count + self.options.eval_episodes)
        for agent, mean in zip(top, means, strict=True):
            agent.fitness[-1] = share * mean + (1 - share) * agent.fitness[-1]

    # --- records ---------------------------------------------------------------------------------------------------

    def _count(self, tallies: list[MemberTally]) -> None:
        self.result.env_steps_member = max(a.steps[-1] for a in self.population)
        self.result.env_steps_population += sum(t.env_steps for t in tallies)
        self.result.updates += sum(t.updates for t in tallies)
        self.result.evaluation_env_steps = self.evaluator.env_steps

    def _count_time(self) -> None:
        self.result.seconds = time.perf_counter() - self._wall
        self.result.cpu_seconds = time.process_time() - self._cpu
        self.result.evaluation_env_steps = self.evaluator.env_steps

    def _report(
        self, number: int, members: tuple[MemberRecord, ...], births: tuple[Birth, ...], confirmation: float | None
    ) -> None:
        per_generation = max(1, self.options.evo_steps // self.num_envs) * self.num_envs
        record = GenerationRecord(
            generation=number,
            generations=-(-self.options.max_steps // per_generation),
            members=members,
            env_steps=self.result.env_steps_member,
            max_env_steps=self.options.max_steps,
            population_env_steps=self.result.env_steps_population,
            evaluation_env_steps=self.evaluator.env_steps,
            updates=self.result.updates,
            seconds=time.perf_counter() - self._wall,
            epsilon=self.source.epsilon,
            births=births,
            confirmation=confirmation,
        )
        for sink in self.sinks:
            sink.generation(record)

    def _checkpoint(self) -> None:
        every = self.options.checkpoint
        if every is None:
            return
        steps = self.result.env_steps_member
        if steps // every > self._saved_steps // every:
            base = (self.options.checkpoint_path or f"{self.env_id}-EvoHPO").removesuffix(".pt")
            save_population(self.population, base, self.options.overwrite_checkpoints)
        self._saved_steps = steps
