"""What of a member lives in rows: the named parts of its networks, its optimisers, and which of them are alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

import torch

from agilerl import foreign
from agilerl.engine.rows.kernels import OptimizerRule
from agilerl.modules.layers import DenseStack

WHOLE = ""  # the part of a network that is one stack


class PartKind(Enum):
    """How a part runs."""

    DENSE = "dense"
    NOISY = "noisy"  # dense, with learned noise in at least one layer
    CELL = "cell"  # the recurrence of a cell: one plain layer, which runs once for every step of a sequence


class PartName(NamedTuple):
    """A part of a network of an agent."""

    network: str
    part: str = WHOLE


@dataclass(frozen=True, slots=True)
class Part:
    """A part that can live in rows."""

    stack: DenseStack

    @property
    def kind(self) -> PartKind:
        """How it runs."""
        if self.stack.is_cell:
            return PartKind.CELL
        return PartKind.NOISY if any(layer.noisy for layer in self.stack.layers) else PartKind.DENSE


def parts_of(network: Any) -> dict[str, Part] | None:
    """The parts of which a network consists, by name; None where it is anything else.

    A network that is one stack (`dense_stack()`) has one part. Any other offers `dense_parts()` and
    `combine(parts, *inputs)`: its output from the functions of its parts, the same whatever runs them.
    """
    if foreign.has_methods(network, "dense_parts"):
        stacks: dict[str, DenseStack] | None = network.dense_parts()
    else:
        stack = network.dense_stack()
        stacks = None if stack is None else {WHOLE: stack}
    return None if stacks is None else {name: Part(stack) for name, stack in stacks.items()}


@dataclass(frozen=True)
class PartBinding:
    """One part of an evaluation network of a member, with that of the target network that shadows it (None without).

    Attributes:
        encoder_source: (name, depth) of the network whose first `depth` layers give this one its features, as
            constants; None for a network that reads observations.
    """

    name: PartName
    part: Part
    target: Part | None = None
    encoder_source: tuple[str, int] | None = None


@dataclass(frozen=True)
class OptimizerBinding:
    """One optimiser of a member: the live torch optimiser, the rule that repeats it, the parts it moves."""

    name: str
    parts: tuple[PartName, ...]
    rule: OptimizerRule
    optimizer: torch.optim.Optimizer


@dataclass(frozen=True)
class MemberBinding:
    """Everything of a member that lives in rows. `parts` are in column order: each optimiser's lie side by side."""

    parts: tuple[PartBinding, ...]
    optimizers: tuple[OptimizerBinding, ...]

    def signature(self) -> tuple[object, ...]:
        """Members of equal signature can share rows: names, depth, activations, normalisation, targets, optimisers."""
        names = tuple(p.name for p in self.parts)
        return names, tuple((o.name, o.parts) for o in self.optimizers), self.shape()

    def shape(self) -> tuple[object, ...]:
        """The signature without names."""
        shape = []
        for p in self.parts:
            layers = p.part.stack.layers
            within = tuple((layer.activation, layer.layer_norm, layer.noisy) for layer in layers)
            ends = layers[0].in_features, layers[-1].out_features
            shape.append((p.target is not None, p.encoder_source, p.part.kind, *ends, *within))
        like = self.parts[0].part.stack.parameters[0][0]
        rules = tuple((len(o.parts), o.rule) for o in self.optimizers)
        return tuple(shape), rules, like.dtype, str(like.device)


# What one group more costs, as weights of one member: about 0.25 ms of an update at batch 128, see docs/decisions.md.
GROUP_WEIGHTS = 14_000


def by_size(members: Sequence[MemberBinding]) -> list[list[int]]:
    """Which members of equal signature run together so that the work is least: positions, in order, group by group.

    Rows are as wide as the widest member's, so that narrow members in its company cost as much as it does; a group of
    its own costs a pass more. Members in the order of their size are cut into groups where the sum of both is smallest.
    """
    widths = [[(x.in_features, x.out_features) for p in m.parts for x in p.part.stack.layers] for m in members]
    order = sorted(range(len(members)), key=lambda i: sum(a * b for a, b in widths[i]))  # equal ones stay in order
    least, cut = [0.0], [0]
    for end in range(1, len(order) + 1):
        best, at, high = float("inf"), 0, [(0, 0)] * len(widths[0])
        for start in reversed(range(end)):
            high = [(max(a, c), max(b, d)) for (a, b), (c, d) in zip(high, widths[order[start]], strict=True)]
            cost = least[start] + GROUP_WEIGHTS + (end - start) * sum(a * b for a, b in high)
            if cost <= best:  # of equal ones the largest group
                best, at = cost, start
        least.append(best)
        cut.append(at)
    groups, end = [], len(order)
    while end:
        groups.append(sorted(order[cut[end] : end]))
        end = cut[end]
    return sorted(groups)


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
    alike: dict[object, list[int]] = {}
    for position in range(len(members[0].optimizers)):
        alike.setdefault(_of_optimizer(members[0], position, position).shape(), []).append(position)
    clusters = []
    for positions in alike.values():
        optimizers = [members[0].optimizers[p] for p in positions]
        networks = tuple(tuple(dict.fromkeys(name.network for name in o.parts)) for o in optimizers)
        bindings = tuple(_of_optimizer(member, p, positions[0]) for p in positions for member in members)
        clusters.append(Cluster(tuple(o.name for o in optimizers), networks, bindings))
    return clusters


def _of_optimizer(member: MemberBinding, position: int, lead: int) -> MemberBinding:
    """What one optimiser moves, under the names of the optimiser at `lead`."""
    optimizer, lead_optimizer = member.optimizers[position], member.optimizers[lead]
    parts_by_name = {part.name: part for part in member.parts}
    parts = tuple(
        replace(parts_by_name[name], name=alias)
        for name, alias in zip(optimizer.parts, lead_optimizer.parts, strict=True)
    )
    return MemberBinding(parts, (replace(optimizer, name=lead_optimizer.name, parts=lead_optimizer.parts),))
