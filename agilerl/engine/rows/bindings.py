"""What of a member lives in rows: its networks and its optimisers, as their owner binds them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from agilerl.engine.rows.optim import OptimizerRule
from agilerl.modules.spec import DenseStack


@dataclass(frozen=True)
class NetworkBinding:
    """One evaluation network of a member, with the target network that shadows it (None without).

    Attributes:
        reads: (name, depth) of the network whose first `depth` layers give this one its features, as constants; None
            for a network that reads observations.
    """

    name: str
    stack: DenseStack
    target: DenseStack | None = None
    reads: tuple[str, int] | None = None


@dataclass(frozen=True)
class OptimizerBinding:
    """One optimiser of a member: the live torch optimiser, the rule that repeats it, the networks it moves."""

    name: str
    networks: tuple[str, ...]
    rule: OptimizerRule
    optimizer: torch.optim.Optimizer


@dataclass(frozen=True)
class MemberBinding:
    """Everything of a member that lives in rows. `networks` are in column order: each optimiser's lie side by side."""

    networks: tuple[NetworkBinding, ...]
    optimizers: tuple[OptimizerBinding, ...]

    def signature(self) -> tuple[object, ...]:
        """Members of equal signature can share rows: names, depth, activations, normalisation, targets, optimisers."""
        names = tuple(n.name for n in self.networks)
        return names, tuple((o.name, o.networks) for o in self.optimizers), self.shape()

    def shape(self) -> tuple[object, ...]:
        """The signature without names."""
        shape = tuple(
            (
                n.target is not None,
                n.reads,
                n.stack.layers[0].in_features,
                n.stack.layers[-1].out_features,
                *tuple((layer.activation, layer.layer_norm, layer.noisy) for layer in n.stack.layers),
            )
            for n in self.networks
        )
        first = self.networks[0].stack.parameters[0][0]
        rules = tuple((len(o.networks), o.rule) for o in self.optimizers)
        return shape, rules, first.dtype, str(first.device)
