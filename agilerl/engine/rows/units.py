"""Networks over rows: their dense parts, one pass through a part, and autograd's way into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agilerl.engine.rows.cohort import Cohort, Rows
from agilerl.engine.rows.kernels import Saved, mlp_forward
from agilerl.modules.spec import DenseStack

Network = Callable[..., Tensor]
WHOLE = ""  # the part of a network that is one stack
STEPPED = "hh_"  # how the names of recurrences begin: see `networks.recurrence`


def dense_parts(network: Any) -> dict[str, DenseStack] | None:
    """The dense stacks of which a network consists, by name; None where it is anything else.

    A network that is one stack (`dense_stack()`) has one part. Any other offers `dense_parts()` and
    `combine(parts, *inputs)`: its output from the functions of its parts, the same whatever runs them.
    """
    if callable(getattr(network, "dense_parts", None)):
        parts: dict[str, DenseStack] | None = network.dense_parts()
        return parts
    stack = network.dense_stack()
    return None if stack is None else {WHOLE: stack}


def column_name(network: str, part: str) -> str:
    """Name of a part's columns."""
    return f"{network}/{part}" if part else network


@dataclass(slots=True)
class RowsPass:
    """A forward pass whose gradient is still to come.

    Its outputs are not in it: autograd's node of a pass would hold the outputs, which hold the node, and such a circle
    with all that it saved stays in memory until Python's collector comes round.

    Attributes:
        unit, part: what ran.
        saved: what its backward needs.
    """

    unit: Unit
    part: str
    saved: list[Saved]


class DenseFunction(torch.autograd.Function):
    """Joins the closed-form kernels to autograd. Parameter gradients go straight into the gradient rows."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor, engine: Any, unit: Unit, part: str, own: bool) -> Tensor:
        output, ctx.ran = unit.run(part, x)
        ctx.engine, ctx.parameters = engine, own
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor | None, None, None, None, None]:
        of_input = ctx.engine.backward(ctx.ran, grads[0], parameters=ctx.parameters, inputs=ctx.needs_input_grad[1])
        return None, of_input, None, None, None, None


class Unit:
    """Networks that run in one pass: one network of every member, or K alike ones, as K·N rows of one cohort.

    Args:
        cohort, rows: where they are. names: the networks, [K]. columns: the name of each part's columns, by part.
        network: one of them, which says how parts combine.

    Attributes:
        reads: as of `NetworkBinding`; its program takes features in place of observations.
    """

    def __init__(self, cohort: Cohort, rows: slice, names: tuple[str, ...], columns: dict[str, str], network: Any):
        self.cohort, self.rows, self.names, self.columns, self.network = cohort, rows, names, columns, network
        held = next(n for n in cohort.members[rows.start].networks if n.name in columns.values())
        self.reads = held.reads
        self.value = {part: cohort.layers(name, rows) for part, name in columns.items()}
        shadowed = {part: name for part, name in columns.items() if cohort.has_target(name)}
        self.target = {part: cohort.layers(name, rows, Rows.TARGET) for part, name in shadowed.items()}
        whole = cohort.value_and_target is not None and rows == slice(0, len(cohort.members))
        self.both = {part: cohort.layers(name, rows, Rows.BOTH) for part, name in shadowed.items()} if whole else {}
        spans = {part: cohort.span(name) for part, name in columns.items()}
        start, end = min(s.start for s in spans.values()), max(s.stop for s in spans.values())
        self.all_grad = cohort.grad[rows, start:end]  # the parts of one network lie side by side
        self.grad = {part: cohort.grad[rows, span] for part, span in spans.items()}
        self.pairs = [(cohort.target[rows, spans[part]], cohort.value[rows, spans[part]]) for part in shadowed]

    def is_stepped(self, part: str) -> bool:
        """Whether a part is the recurrence of a cell, one plain layer that runs once for every step of a sequence."""
        return part.startswith(STEPPED)

    def run(self, part: str, x: Tensor) -> tuple[Tensor, RowsPass]:
        """Outputs [N, B, out], constants to autograd ([K·N, B, out] of an ensemble), and their pass."""
        value, saved = mlp_forward(self.value[part], x, save=True)
        return value, RowsPass(self, part, saved)

    def program(self, run: Callable[[str], Network]) -> Network:
        """The network as a function of its inputs, given what runs one part."""
        if tuple(self.columns) == (WHOLE,):
            return run(WHOLE)
        functions = {part: run(part) for part in self.columns}
        if self.reads is not None:
            functions["encoder"] = _as_it_is
        combine = self.network.combine
        return lambda *inputs: combine(functions, *inputs)


def _as_it_is(features: Tensor) -> Tensor:
    return features
