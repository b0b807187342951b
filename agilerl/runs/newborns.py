"""Newborns without a row in metrics.csv: those that train now, and those that were replaced before they trained.

Between two generations a member may be born and replaced at once: a request changes a newborn, whose copy takes its
place, or selection replaces the copy of a diverged member. Such members are in evolution.jsonl and never trained.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from agilerl.telemetry.record import Birth, Steering


@dataclass(frozen=True)
class Newborns:
    """Members without a row in metrics.csv.

    Attributes:
        waiting: ids of those that have not finished a generation yet. replaced: ids of those that never trained.
    """

    waiting: tuple[int, ...] = ()
    replaced: frozenset[int] = frozenset()


def born_together(birth: Birth, births_by_id: Mapping[int, Birth]) -> list[Birth]:
    """Return the birth and its ancestors that were born between the same two generations, youngest first.

    None of these ancestors had trained: the weights are those of the last one's parent.
    """
    chain, ids = [birth], {birth.id}
    while (parent := chain[-1].parent) is not None:
        before = births_by_id.get(parent)
        if before is None or before.generation != birth.generation or parent in ids:
            break
        chain.append(before)
        ids.add(parent)
    return chain


def ended_by(event: Steering) -> int | None:
    """Id of the member that a request has ended; None if it has ended none.

    A member whose values were set is not among them: the birth of its copy names it.
    """
    result = event.result if isinstance(event.result, Mapping) else {}
    is_removed = event.action == "remove" and not result.get("refused")
    member = result.get("instead_of", event.member if is_removed else None)
    return member if isinstance(member, int) else None


def newborns(
    births: Iterable[Birth], generations: Container[int], last: int, ended: Container[int], is_asynchronous: bool
) -> Newborns:
    """Tell newborns that train now from those that were replaced before they trained.

    Of a generation that has ended, all without a row were replaced. Of the next one, those that a request has ended,
    and copies of diverged members: they rank last, and selection replaces as many of them as it has children.

    Args:
        births: of members without a row, in order. generations: numbers of those in metrics.csv; `last` of them, -1
            without any. ended: see `ended_by`.
        is_asynchronous: whether shards do not wait for each other. Then a member's first row comes generations after
            its birth, and no request is accepted.
    """
    births = list(births)
    if is_asynchronous:
        return Newborns(tuple(birth.id for birth in births))
    replaced = {birth.id for birth in births if birth.generation in generations or birth.id in ended}
    following = [birth for birth in births if birth.generation > last]
    changed = (birth.parent for birth in following if birth.kind == "steered" and birth.path)
    replaced |= {parent for parent in changed if parent is not None}
    children = sum(birth.kind not in ("steered", "healed", "founder") for birth in following)
    replaced |= {birth.id for birth in [birth for birth in following if birth.kind == "healed"][:children]}
    waiting = tuple(birth.id for birth in following if birth.id not in replaced)
    return Newborns(waiting, frozenset(birth.id for birth in births if birth.id in replaced))
