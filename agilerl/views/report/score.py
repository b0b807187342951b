"""Effect of mutations: tries, survival, and the change of fitness against unmutated siblings."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from agilerl.runs.records import Member, RunRecords
from agilerl.telemetry.record import Birth
from agilerl.views.report.text import finite

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
    """One score per mutation, most tried first. Births that never trained are left out."""
    rows: dict[int, list[Member]] = defaultdict(list)  # by id: where it trained, in order
    last_round: dict[int, int] = {}  # number of the last round by slot
    round_of: dict[int, int] = {}  # of the first row
    for number, members in enumerate(run.rounds):
        for member in members:
            rows[member.id].append(member)
            round_of.setdefault(member.id, number)
            last_round[member.slot] = number
    children: dict[int, int] = {}  # id -> generation of its last child
    for birth in run.births:
        if birth.parent is not None:
            children[birth.parent] = max(birth.generation, children.get(birth.parent, 0))

    def is_judged(id: int) -> bool:
        """Whether a selection followed; asynchronous shards have their last rounds at different times."""
        if id not in rows:
            return False
        ends = last_round[rows[id][0].slot] if run.is_asynchronous else len(run.rounds) - 1
        return round_of[id] < ends

    births = [birth for birth in run.births if birth.id not in run.newborns.replaced]
    groups: dict[tuple[str, str], list[Birth]] = defaultdict(list)
    unmutated: dict[tuple[int, int | None], list[int]] = defaultdict(list)
    for birth in births:
        if birth.kind in UNMUTATED:
            unmutated[birth.generation, birth.parent].append(birth.id)
        if birth.kind != "founder":
            groups[mutation_name(birth), "none" if birth.kind in UNMUTATED else birth.kind].append(birth)
    scores = []
    for (name, kind), tried in groups.items():
        judged = [birth for birth in tried if is_judged(birth.id)]
        survived = [b for b in judged if len(rows[b.id]) > 1 or children.get(b.id, 0) > rows[b.id][0].generation]
        changes = [] if kind == "none" else _changes(tried, unmutated, rows)
        mean = sum(changes) / len(changes) if changes else None
        scores.append(Score(name, kind, len(tried), len(judged), len(survived), mean, len(changes)))
    return sorted(scores, key=lambda s: (-s.tries, s.name))


def _changes(
    births: list[Birth], unmutated: Mapping[tuple[int, int | None], list[int]], rows: Mapping[int, list[Member]]
) -> list[float]:
    """Fitness of each birth minus that of its unmutated siblings, where both are known.

    Each is that of the first round since the birth, of a parent too that lives on next to its children.
    """

    def first(id: int, generation: int) -> float:
        return next((member.fitness for member in rows.get(id, ()) if member.generation >= generation), math.nan)

    changes = []
    for birth in births:
        score = first(birth.id, birth.generation)
        siblings = list(unmutated.get((birth.generation, birth.parent), ()))
        if birth.parent is not None and birth.parent != birth.id:
            siblings.append(birth.parent)
        others = finite(first(sibling, birth.generation) for sibling in siblings)
        if others and math.isfinite(score):
            changes.append(score - sum(others) / len(others))
    return changes
