"""Result of a run, and the records passed to sinks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from agilerl.algorithms.base.adapted import adapted, counted_in
from agilerl.collect.collector import Collector, Tally
from agilerl.collect.determinism import Probe
from agilerl.collect.fitness import MeanReturn
from agilerl.core import foreign
from agilerl.core.options import LoopOptions
from agilerl.hpo.evolution import Family
from agilerl.hpo.tournament import nan_as_worst
from agilerl.telemetry.evaluation import Baseline, Evaluation
from agilerl.telemetry.files import lineage_text
from agilerl.telemetry.record import Arrival, Birth, GenerationRecord, MemberRecord, RunPlan, Steering
from agilerl.telemetry.time_spent import TimeSpent
from agilerl.training.best import BestAgent

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

    def record(
        self,
        number: int,
        members: Sequence[MemberRecord],
        births: Sequence[Birth],
        confirmed: MeanReturn | None,
        **progress: Any,
    ) -> GenerationRecord:
        """Record of one generation: members before selection, births after it, and `progress` of the run."""
        return GenerationRecord(
            generation=number,
            members=tuple(members),
            env_steps=self.env_steps_member,
            population_env_steps=self.env_steps_population,
            updates=self.updates,
            births=tuple(births),
            steering=tuple(event for event in self.steering if event.generation == number + 1),
            confirmation=None if confirmed is None else confirmed.mean,
            confirmation_episodes=None if confirmed is None else confirmed.episodes or None,
            **progress,
        )


def fittest(population: Sequence[Any], fitness: Sequence[float]) -> Any:
    """Return the fittest member, the first of ties; None if there is none."""
    return population[int(np.argmax(nan_as_worst(fitness)))] if population else None


def run_plan(collector: Collector, options: LoopOptions, probe: Probe, result: EvolveResult, **about: Any) -> RunPlan:
    """Build the plan of the run; `about`: its `env_id`, `seed`, `notes` and `time_limit`."""
    lead, facts = adapted(result.population[0]), dict(collector.facts())
    named = {name: facts.pop(name) for name in ("learner", "env_backend", "num_envs")}
    is_repeatable = collector.is_repeatable and probe.is_deterministic is not False
    optional: dict[str, Any] = {
        "deterministic": probe.is_deterministic,
        "exact_resume": is_repeatable and not options.carry_envs,
    }
    if result.random_play is not None:
        optional["random_play"] = result.random_play.as_dict()
    if result.before is not None:
        optional["before"] = result.before.as_dict()
    return RunPlan(
        algo=", ".join(dict.fromkeys(str(adapted(agent).algo) for agent in result.population)),
        population=len(result.population),
        max_env_steps=options.max_steps,
        evo_steps=options.evo_steps,
        device=str(lead.device),
        threads=options.torch_threads,
        target=options.target,
        extra={**facts, **optional, "options": options.as_dict()},
        steps=counted_in(lead),
        **named,
        **about,
    )


def member_records(
    population: Sequence[Any],
    fitness: Sequence[float],
    tallies: Sequence[Tally],
    returns: Mapping[int, Sequence[float]] | None,
    family: Family,
) -> Members:
    """Build one record per member, before selection; the fittest is marked (never a NaN).

    Args:
        returns: member id -> evaluated returns of a team's agents; None if they are summed.
    """
    leader, rows = int(np.argmax(nan_as_worst(fitness))), returns or {}
    is_mixed = len({adapted(agent).algo for agent in population}) > 1
    return tuple(
        MemberRecord(
            id=agent.index,
            slot=slot,
            parent=family.parents.get(agent.index),
            fitness=fitness[slot],
            agents={} if agent.index not in rows else dict(zip(agent.agent_ids, rows[agent.index], strict=True)),
            agent_scores={} if returns is None else _agent_scores(agent, tally),
            score=float(np.mean(tally.scores)) if tally.scores else None,
            env_steps=agent.steps[-1],
            updates=tally.updates,
            loss=tally.loss,
            mutation=family.labels.get(agent.index, "founder"),
            hyperparameters=_hyperparameters(agent),
            network=f"{agent.algo} {_architecture(agent)}" if is_mixed else _architecture(agent),
            is_best=slot == leader,
            details=dict(tally.details),
        )
        for slot, (agent, tally) in enumerate(zip(population, tallies, strict=True))
    )


def _agent_scores(agent: Any, tally: Tally) -> dict[str, float]:
    """Mean training returns of a team's agents in this generation."""
    mean = np.mean(tally.by_agent, axis=0).tolist() if tally.by_agent else []
    return dict(zip(agent.agent_ids, mean, strict=True)) if mean else {}


def _hyperparameters(agent: foreign.Agent) -> dict[str, float]:
    read = foreign.method(agent, "hyperparameters")
    return dict(foreign.attributes(agent, ("lr", "batch_size", "learn_step")) if read is None else read())


def _architecture(agent: foreign.Agent) -> str:
    policy = foreign.method(agent, "policy_module")
    describe = None if policy is None else foreign.method(policy(), "describe")
    return "" if describe is None else str(describe())
