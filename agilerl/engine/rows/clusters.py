"""Networks that are alike become rows of one cohort, so that they run and move in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agilerl.engine.rows.bindings import MemberBinding


@dataclass(frozen=True)
class Cluster:
    """What one cohort holds: for each of K optimisers, in turn, the N members' networks that it moves.

    Attributes:
        optimizers: [K] names. networks: [K] the names of the networks that each one moves.
        bindings: [K·N], optimiser by optimiser; the names in them are those of the first optimiser.
    """

    optimizers: tuple[str, ...]
    networks: tuple[tuple[str, ...], ...]
    bindings: tuple[MemberBinding, ...]


def clusters_of(members: Sequence[MemberBinding]) -> list[Cluster]:
    """Optimisers of members of equal signature, together with those that are like them, in order.

    Optimisers are alike if their networks have the same signature, part by part and target by target, in every member.
    """
    groups: dict[object, list[int]] = {}
    for position in range(len(members[0].optimizers)):
        own = _of_optimizer(members[0], position, position)
        groups.setdefault(own.shape(), []).append(position)
    return [_cluster(members, positions) for positions in groups.values()]


def _cluster(members: Sequence[MemberBinding], positions: list[int]) -> Cluster:
    optimizers = [members[0].optimizers[p] for p in positions]
    networks = tuple(tuple(dict.fromkeys(name.network for name in o.parts)) for o in optimizers)
    bindings = tuple(_of_optimizer(member, p, positions[0]) for p in positions for member in members)
    return Cluster(tuple(o.name for o in optimizers), networks, bindings)


def _of_optimizer(member: MemberBinding, position: int, lead: int) -> MemberBinding:
    """What one optimiser moves, under the names of the optimiser at `lead`."""
    optimizer, first = member.optimizers[position], member.optimizers[lead]
    own = {part.name: part for part in member.parts}
    parts = tuple(replace(own[name], name=known) for name, known in zip(optimizer.parts, first.parts, strict=True))
    return MemberBinding(parts, (replace(optimizer, name=first.name, parts=first.parts),))
