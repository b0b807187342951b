"""What of a member lives in rows: the parts of its networks and its optimisers, as their owner binds them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from agilerl.engine.parts import Part, PartName
from agilerl.engine.rows.optim import OptimizerRule


@dataclass(frozen=True)
class PartBinding:
    """One part of an evaluation network of a member, with that of the target network that shadows it (None without).

    Attributes:
        reads: (name, depth) of the network whose first `depth` layers give this one its features, as constants; None
            for a network that reads observations.
    """

    name: PartName
    part: Part
    target: Part | None = None
    reads: tuple[str, int] | None = None


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
        shape = tuple(
            (
                p.target is not None,
                p.reads,
                p.part.kind,
                p.part.stack.layers[0].in_features,
                p.part.stack.layers[-1].out_features,
                *tuple((layer.activation, layer.layer_norm, layer.noisy) for layer in p.part.stack.layers),
            )
            for p in self.parts
        )
        first = self.parts[0].part.stack.parameters[0][0]
        rules = tuple((len(o.parts), o.rule) for o in self.optimizers)
        return shape, rules, first.dtype, str(first.device)
