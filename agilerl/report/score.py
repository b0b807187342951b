"""Effect of mutations: tries, survival, and the change of fitness against unmutated siblings."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from agilerl.report.records import RunRecords, finite
from agilerl.telemetry.record import Birth

UNMUTATED = ("none", "elite")


@dataclass(frozen=True)
class Score:
    """One kind of mutation over a whole run.

    Attributes:
        name: of the mutation ("lr", "encoder.add_node", "no mutation").
        tries: births by it.
        judged: births that finished a generation followed by selection. survived: those of them that were selected:
            they lived on or became a parent.
        change: mean of fitness minus the mean fitness of unmutated siblings (same parent, same generation); None
            without any. compared: number of births in that mean.
    """

    name: str
    kind: str
    tries: int
    judged: int
    survived: int
    change: float | None
    compared: int


def mutation_name(birth: Birth) -> str:
    """The mutation of a birth, without values."""
    if birth.kind in UNMUTATED:
        return "no mutation"
    return birth.path if birth.kind in ("rl_hp", "architecture") and birth.path else birth.kind


def scoreboard(run: RunRecords) -> list[Score]:
    """One score per mutation, most tried first."""
    fitness = {(m.id, m.generation): m.fitness for generation in run.generations for m in generation}
    present = [{m.id for m in generation} for generation in run.generations]
    numbers = [generation[0].generation for generation in run.generations]
    after = {number: present[at + 1] for at, number in enumerate(numbers[:-1])}
    parents: dict[int, set[int | None]] = defaultdict(set)
    for birth in run.births:
        parents[birth.generation].add(birth.parent)
    groups: dict[tuple[str, str], list[Birth]] = defaultdict(list)
    unmutated: dict[tuple[int, int | None], list[int]] = defaultdict(list)
    for birth in run.births:
        if birth.kind in UNMUTATED:
            unmutated[birth.generation, birth.parent].append(birth.id)
    for birth in run.births:
        if birth.kind != "founder":
            groups[mutation_name(birth), "none" if birth.kind in UNMUTATED else birth.kind].append(birth)
    scores = []
    for (name, kind), births in groups.items():
        judged = [b for b in births if b.generation in after and (b.id, b.generation) in fitness]
        survived = [b for b in judged if b.id in after[b.generation] or b.id in parents[b.generation + 1]]
        changes = [] if kind == "none" else _changes(births, unmutated, fitness)
        mean = sum(changes) / len(changes) if changes else None
        scores.append(Score(name, kind, len(births), len(judged), len(survived), mean, len(changes)))
    return sorted(scores, key=lambda s: (-s.tries, s.name))


def _changes(
    births: list[Birth], unmutated: dict[tuple[int, int | None], list[int]], fitness: dict[tuple[int, int], float]
) -> list[float]:
    """Fitness of each birth minus that of its unmutated siblings, where both are known."""
    changes = []
    for birth in births:
        score = fitness.get((birth.id, birth.generation), math.nan)
        siblings = list(unmutated.get((birth.generation, birth.parent), ()))
        if birth.parent is not None:
            siblings.append(birth.parent)  # it counts if it survives next to its children
        others = finite(fitness.get((other, birth.generation)) for other in siblings)
        if others and math.isfinite(score):
            changes.append(score - sum(others) / len(others))
    return changes
