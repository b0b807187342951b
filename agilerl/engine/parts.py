"""Parts of a member that can be stored as rows: named parts of networks, optimisers, and their signatures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

import torch

from agilerl.core import foreign
from agilerl.engine.rows.kernels import OptimizerRule
from agilerl.modules.layers import DenseStack

WHOLE = ""  # name of the only part of a single-stack network


class PartKind(Enum):
    """Kind of forward pass of a part."""

    DENSE = "dense"
    NOISY = "noisy"  # dense, with learned noise in at least one layer
    CELL = "cell"  # recurrence of a cell: one plain layer, run once per step of a sequence


class PartName(NamedTuple):
    """Name of a part of an agent's network."""

    network: str
    part: str = WHOLE


@dataclass(frozen=True, slots=True)
class Part:
    """A part that can be stored as a row."""

    stack: DenseStack

    @property
    def kind(self) -> PartKind:
        """Kind of its forward pass."""
        if self.stack.is_cell:
            return PartKind.CELL
        return PartKind.NOISY if any(layer.noisy for layer in self.stack.layers) else PartKind.DENSE


def parts_of(network: Any) -> dict[str, Part] | None:
    """Return the parts of a network by name; None if it does not consist of such parts.

    A network that is one stack (`dense_stack()`) has one part. Others implement `dense_parts()` and
    `combine(parts, *inputs)`, which computes the output from the functions of the parts, independent of their engine.
    """
    if foreign.has_methods(network, "dense_parts"):
        stacks: dict[str, DenseStack] | None = network.dense_parts()
    else:
        stack = network.dense_stack()
        stacks = None if stack is None else {WHOLE: stack}
    return None if stacks is None else {name: Part(stack) for name, stack in stacks.items()}


@dataclass(frozen=True)
class PartBinding:
    """One part of a member's evaluation network, with the same part of its target network (None without one).

    Attributes:
        encoder_source: (name, depth) of the network whose first `depth` layers compute this network's features, as
            constants; None for a network that reads observations.
    """

    name: PartName
    part: Part
    target: Part | None = None
    encoder_source: tuple[str, int] | None = None


@dataclass(frozen=True)
class OptimizerBinding:
    """One optimiser of a member: the live torch optimiser, the equivalent flat rule, and the parts it updates."""

    name: str
    parts: tuple[PartName, ...]
    rule: OptimizerRule
    optimizer: torch.optim.Optimizer


@dataclass(frozen=True)
class MemberBinding:
    """Everything of a member that is stored in rows. `parts` are in column order, contiguous for each optimiser."""

    parts: tuple[PartBinding, ...]
    optimizers: tuple[OptimizerBinding, ...]

    def signature(self) -> tuple[object, ...]:
        """Return names, depth, activations, normalisation, targets and optimisers; members with equal signatures can
        share rows."""
        names = tuple(p.name for p in self.parts)
        return names, tuple((o.name, o.parts) for o in self.optimizers), self.shape()

    def shape(self) -> tuple[object, ...]:
        """Return the signature without names."""
        shape = []
        for p in self.parts:
            layers = p.part.stack.layers
            within = tuple((layer.activation, layer.layer_norm, layer.noisy) for layer in layers)
            ends = layers[0].in_features, layers[-1].out_features
            windows = tuple((layer.window, layer.out_features) for layer in layers if layer.window is not None)
            shape.append((p.target is not None, p.encoder_source, p.part.kind, windows, *ends, *within))
        like = self.parts[0].part.stack.parameters[0][0]
        rules = tuple((len(o.parts), o.rule) for o in self.optimizers)
        return tuple(shape), rules, like.dtype, str(like.device)


# Cost of one more group in weights of one member: about 0.25 ms of an update at batch 128, see docs/decisions.md.
GROUP_WEIGHTS = 14_000


def by_size(members: Sequence[MemberBinding]) -> list[list[int]]:
    """Group members of equal signature so that the total cost is minimal: sorted positions, group by group.

    Rows are as wide as those of the widest member, so narrow members in its group cost as much; every group costs an
    additional pass. Members sorted by size are cut into the groups that minimise the sum of both.
    """
    widths = [[(x.in_features, x.out_features) for p in m.parts for x in p.part.stack.layers] for m in members]
    order = sorted(range(len(members)), key=lambda i: sum(a * b for a, b in widths[i]))  # stable
    min_costs, cut = [0.0], [0]
    for end in range(1, len(order) + 1):
        best, at, high = float("inf"), 0, [(0, 0)] * len(widths[0])
        for start in reversed(range(end)):
            high = [(max(a, c), max(b, d)) for (a, b), (c, d) in zip(high, widths[order[start]], strict=True)]
            cost = min_costs[start] + GROUP_WEIGHTS + (end - start) * sum(a * b for a, b in high)
            if cost <= best:  # ties: the largest group
                best, at = cost, start
        min_costs.append(best)
        cut.append(at)
    groups, end = [], len(order)
    while end:
        groups.append(sorted(order[cut[end] : end]))
        end = cut[end]
    return sorted(groups)


@dataclass(frozen=True)
class Cluster:
    """Content of one cohort: for each of K similar optimisers the networks of N members that it updates.

    Attributes:
        optimizers: [K] names. networks: [K] names of the networks that each optimiser updates.
        bindings: [K·N], optimiser by optimiser, with the names of the first optimiser.
    """

    optimizers: tuple[str, ...]
    networks: tuple[tuple[str, ...], ...]
    bindings: tuple[MemberBinding, ...]


def clusters_of(members: Sequence[MemberBinding]) -> list[Cluster]:
    """Cluster the optimisers of members of equal signature, in order.

    Optimisers of a cluster have networks of the same signature, part by part and target by target, in every member.
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
    """Return the binding of one optimiser's networks, under the names of the optimiser at `lead`."""
    optimizer, lead_optimizer = member.optimizers[position], member.optimizers[lead]
    parts_by_name = {part.name: part for part in member.parts}
    parts = tuple(
        replace(parts_by_name[name], name=alias)
        for name, alias in zip(optimizer.parts, lead_optimizer.parts, strict=True)
    )
    return MemberBinding(parts, (replace(optimizer, name=lead_optimizer.name, parts=lead_optimizer.parts),))
