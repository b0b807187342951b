"""From agents and tallies to the records that the sinks get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agilerl.telemetry.record import Birth, MemberRecord
from agilerl.training.source import MemberTally


def member_records(
    population: Sequence[Any],
    fitness: Sequence[float],
    tallies: Sequence[MemberTally],
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


def birth_of(agent: Any, parent: int | None, parents: dict[int, Any], generation: int) -> Birth:
    """How `agent` came to be: its parent's id and what mutation did to it."""
    record = getattr(agent, "mutation_record", None)
    fitness = parents[parent].fitness[-1] if parent in parents and parents[parent].fitness else None
    if record is None:
        return Birth(agent.index, parent, generation, "none", parent_fitness=fitness)
    return Birth(
        agent.index,
        parent,
        generation,
        record.kind,
        record.path,
        record.before,
        record.after,
        record.change,
        fitness,
    )
