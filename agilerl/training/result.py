"""Result of a run, and the records passed to sinks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from agilerl.algorithms.base.adapted import adapted, counted_in
from agilerl.core import foreign
from agilerl.hpo.evolution import Births
from agilerl.hpo.tournament import nan_as_worst
from agilerl.sources.fitness import MeanReturn
from agilerl.sources.source import Tally
from agilerl.telemetry.evaluation import Baseline, Evaluation
from agilerl.telemetry.files import lineage_text
from agilerl.telemetry.record import Arrival, Birth, GenerationRecord, MemberRecord, RunPlan, Steering
from agilerl.telemetry.time_spent import TimeSpent
from agilerl.training.best import BestAgent

if TYPE_CHECKING:
    from agilerl.training.loop import TrainingLoop

Members = tuple[MemberRecord, ...]


@dataclass
class EvolveResult:
    """Result of a run.

    Attributes:
        population: the agents after the last generation (after evolution, if applied).
        best: an independent copy of the best agent: the one with the best held-out score, else see `BestAgent`.
        best_member, best_generation, best_fitness: its id, generation, and fitness at that time.
        history: `history[generation][member]` fitness.
        returns: per generation, the highest median of a member's last training episodes (`screening.best_returns`).
        births: every birth, founders first. arrivals: in asynchronous mode, the ends of shards' generations in order.
        steering: every request that was taken over.
        env_steps_member, env_steps_population: training steps of the furthest member, and of all members.
        evaluation_env_steps: steps of all evaluations, including confirmations.
        confirmed: held-out mean of `best`, None without a confirmation.
        confirmations, confirmation_episodes: number of confirmations, and of the held-out episodes they played.
        stopped: "target", "plateau", "budget" (of steps), "minutes" (time was up), "request" (`agilerl steer`),
            "interrupted", or "callback <name of the hook>".
        restarts: number of replaced workers of self-healing environments, including those of evaluations.
        action_masks: whether the environment gives masks of legal actions, which the agents then require.
        by_agent: `by_agent[generation][member]` returns of a team's agents, if they are not summed; NaN for members
            that were not evaluated.
        unchanged: whether no weight of any member has changed in any generation, i.e. nothing was learned.
        quarantined: number of members that diverged and were excluded from selection.
        test: for a language policy, the best agent's score on the held-out report split.
        before: for a language policy, the score of the first founder on that split before training.
        random_play: score of uniformly random play; None if not measured.
        time: where the time went.
    """

    population: list[Any]
    best: Any
    history: list[list[float]] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)
    births: list[Birth] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)
    steering: list[Steering] = field(default_factory=list)
    generations: int = 0
    env_steps_member: int = 0
    env_steps_population: int = 0
    evaluation_env_steps: int = 0
    updates: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    best_member: int | None = None
    best_generation: int | None = None
    best_fitness: float | None = None
    confirmed: float | None = None
    confirmations: int = 0
    confirmation_episodes: int = 0
    stopped: str = "budget"
    restarts: int = 0
    quarantined: int = 0
    unchanged: bool = False
    action_masks: bool = False
    by_agent: list[list[list[float]]] = field(default_factory=list)
    test: Evaluation | None = None
    before: Evaluation | None = None
    random_play: Baseline | None = None
    time: TimeSpent = field(default_factory=TimeSpent)

    def counters(self) -> dict[str, Any]:
        """All plain numbers and strings, from `generations` on."""
        skip = {
            "population", "best", "history", "returns", "births", "arrivals", "steering", "by_agent", "test", "before",
            "random_play", "time", *(name for name in ("action_masks", "unchanged") if not vars(self)[name]),
        }  # fmt: skip
        return {f.name: vars(self)[f.name] for f in fields(self) if f.name not in skip}

    def lineage(self) -> str:
        """Return the content of evolution.jsonl."""
        return lineage_text(self.births, self.arrivals, self.steering)

    def note(self, best: BestAgent) -> None:
        """Record the best agent."""
        self.best, self.confirmed = best.agent, best.confirmed
        if best.kept is not None:
            self.best_member, self.best_generation = best.agent.index, best.kept.generation
            self.best_fitness = float(best.kept.fitness) if math.isfinite(best.kept.fitness) else None


def fittest(population: Sequence[Any], fitness: Sequence[float]) -> Any:
    """Return the fittest member, the first of ties; None if there is none."""
    return population[int(np.argmax(nan_as_worst(fitness)))] if population else None


def run_plan(loop: TrainingLoop) -> RunPlan:
    """Build the plan of the run."""
    lead, options, facts = adapted(loop.population[0]), loop.options, dict(loop.source.facts())
    named = {name: facts.pop(name) for name in ("learner", "env_backend", "num_envs")}
    is_repeatable = loop.source.is_repeatable and loop.probe.is_deterministic is not False
    optional: dict[str, Any] = {
        "deterministic": loop.probe.is_deterministic,
        "exact_resume": is_repeatable and not options.carry_envs,
    }
    if loop.result.random_play is not None:
        optional["random_play"] = loop.result.random_play.as_dict()
    if loop.result.before is not None:
        optional["before"] = loop.result.before.as_dict()
    return RunPlan(
        algo=str(lead.algo),
        env_id=loop.env_id,
        population=len(loop.population),
        max_env_steps=options.max_steps,
        evo_steps=options.evo_steps,
        seed=loop.seed,
        device=str(lead.device),
        **named,
        threads=options.threads,
        target=options.target,
        notes=tuple(loop.notes),
        extra={**facts, **optional, "options": options.as_dict()},
        steps=counted_in(lead),
        time_limit=loop.time_limit,
    )


def generation_record(
    loop: TrainingLoop, number: int, members: Members, births: Births, confirmed: MeanReturn | None, seconds: float
) -> GenerationRecord:
    """Build the record of one generation: members before selection, births after it, and progress."""
    return GenerationRecord(
        generation=number,
        generations=loop.generations_until(number + 1),
        members=members,
        env_steps=loop.result.env_steps_member,
        max_env_steps=loop.options.max_steps,
        population_env_steps=loop.result.env_steps_population,
        evaluation_env_steps=loop.evaluator.env_steps,
        updates=loop.result.updates,
        seconds=seconds,
        epsilon=loop.source.epsilon,
        births=births,
        steering=tuple(event for event in loop.result.steering if event.generation == number + 1),
        confirmation=None if confirmed is None else confirmed.mean,
        confirmation_episodes=None if confirmed is None else confirmed.episodes or None,
        opponents=tuple(loop.evaluator.opponents_of),
        members_left=len(loop.population) if len(loop.population) != len(members) else None,
    )


def member_records(loop: TrainingLoop, fitness: Sequence[float], tallies: Sequence[Tally]) -> Members:
    """Build one record per member, before selection; the fittest is marked (never a NaN)."""
    leader = int(np.argmax(nan_as_worst(fitness)))
    return tuple(
        MemberRecord(
            id=agent.index,
            slot=slot,
            parent=loop.family.parents.get(agent.index),
            fitness=fitness[slot],
            agents=_by_agent(loop, agent),
            agent_scores=_scores_by_agent(loop, agent, tally),
            score=float(np.mean(tally.scores)) if tally.scores else None,
            env_steps=agent.steps[-1],
            updates=tally.updates,
            loss=tally.loss,
            mutation=loop.family.labels.get(agent.index, "founder"),
            hyperparameters=_hyperparameters(agent),
            network=_architecture(agent),
            is_best=slot == leader,
            details={**tally.details, **({} if loop.resets is None else loop.resets.details_of(agent))},
        )
        for slot, (agent, tally) in enumerate(zip(loop.population, tallies, strict=True))
    )


def _by_agent(loop: TrainingLoop, agent: Any) -> dict[str, float]:
    """Returns of a team's agents by their ids, if they are not summed."""
    row = loop.evaluation.by_agent.get(agent.index)
    return {} if row is None else dict(zip(agent.agent_ids, row, strict=True))


def _scores_by_agent(loop: TrainingLoop, agent: Any, tally: Tally) -> dict[str, float]:
    """Mean training returns of a team's agents in this generation, if they are not summed."""
    if loop.evaluator.sum_scores or not tally.by_agent:
        return {}
    return dict(zip(agent.agent_ids, np.mean(tally.by_agent, axis=0).tolist(), strict=True))


def _hyperparameters(agent: Any) -> dict[str, float]:
    read = foreign.method(agent, "hyperparameters")
    return dict(foreign.attributes(agent, ("lr", "batch_size", "learn_step")) if read is None else read())


def _architecture(agent: Any) -> str:
    policy = foreign.method(agent, "policy_module")
    describe = None if policy is None else foreign.method(policy(), "describe")
    return "" if describe is None else str(describe())
