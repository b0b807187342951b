"""From the loop, its agents and their tallies to the records that the sinks get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from agilerl.sources.source import Tally
from agilerl.telemetry.record import Birth, GenerationRecord, MemberRecord, RunPlan

if TYPE_CHECKING:
    from agilerl.training.loop import TrainingLoop


def run_plan(loop: TrainingLoop) -> RunPlan:
    """What is about to run."""
    lead, options, facts = loop.population[0], loop.options, loop.source.facts()
    return RunPlan(
        algo=str(lead.algo),
        env_id=loop.env_id,
        population=len(loop.population),
        num_envs=facts["num_envs"],
        max_env_steps=options.max_steps,
        evo_steps=options.evo_steps,
        seed=loop.seed,
        device=str(getattr(lead, "device", "cpu")),
        learner=facts["learner"],
        env_backend=facts["env_backend"],
        threads=options.threads,
        target=options.target,
        notes=tuple(loop.notes),
        extra={
            **{name: value for name, value in facts.items() if name not in ("learner", "env_backend", "num_envs")},
            "deterministic": loop.probe.is_deterministic,
            "exact_resume": not options.carry_envs and loop.probe.is_deterministic is not False,
            "options": options.as_dict(),
        },
    )


def generation_record(
    loop: TrainingLoop,
    number: int,
    members: tuple[MemberRecord, ...],
    births: tuple[Birth, ...],
    confirmation: float | None,
    seconds: float,
) -> GenerationRecord:
    """One generation: its members before selection, the births after it, and how far the run is."""
    per_generation = loop.source.steps_of_generation(loop.options.evo_steps)
    return GenerationRecord(
        generation=number,
        generations=-(-loop.options.max_steps // per_generation),
        members=members,
        env_steps=loop.result.env_steps_member,
        max_env_steps=loop.options.max_steps,
        population_env_steps=loop.result.env_steps_population,
        evaluation_env_steps=loop.source.evaluation_env_steps,
        updates=loop.result.updates,
        seconds=seconds,
        epsilon=loop.source.epsilon,
        births=births,
        confirmation=confirmation,
    )


def member_records(
    population: Sequence[Any],
    fitness: Sequence[float],
    tallies: Sequence[Tally],
    parents: Mapping[int, int | None],
    labels: Mapping[int, str],
) -> tuple[MemberRecord, ...]:
    """One record a member, before selection; the fittest is marked (a NaN never is).

    Args:
        parents, labels: by member id: the parent's id, and what the birth did.
    """
    ranked = [f if f == f else -np.inf for f in fitness]
    leader = int(np.argmax(ranked))
    return tuple(
        MemberRecord(
            id=agent.index,
            slot=slot,
            parent=parents.get(agent.index),
            fitness=fitness[slot],
            score=float(np.mean(tally.scores)) if tally.scores else None,
            env_steps=agent.steps[-1],
            updates=tally.updates,
            loss=tally.loss,
            mutation=labels.get(agent.index, "founder"),
            hyperparameters=_hyperparameters(agent),
            network=_architecture(agent),
            is_best=slot == leader,
        )
        for slot, (agent, tally) in enumerate(zip(population, tallies, strict=True))
    )


def _hyperparameters(agent: Any) -> dict[str, float]:
    read = getattr(agent, "hyperparameters", None)
    if callable(read):
        return dict(read())
    return {name: getattr(agent, name) for name in ("lr", "batch_size", "learn_step") if hasattr(agent, name)}


def _architecture(agent: Any) -> str:
    policy = getattr(agent, "policy_module", None)
    describe = getattr(policy(), "describe", None) if callable(policy) else None
    return str(describe()) if callable(describe) else ""
