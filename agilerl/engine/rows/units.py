"""Networks over rows: what runs their parts, one pass through a part, and autograd's way into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agilerl.engine.parts import WHOLE, Network, Part, PartKind, PartName
from agilerl.engine.rows.cohort import Cohort, Rows
from agilerl.engine.rows.kernels import Kernels, LayerViews, Saved


class Unit:
    """Networks that run in one pass: one network of every member, or K alike ones, as K·N rows of one cohort.

    Args:
        cohort, rows: where they are. names: the networks, [K]. holder: the network by whose name the cohort knows them.
        parts: of one of them. network: one of them, which says how parts combine. count: members.

    Attributes:
        reads: as of `PartBinding`; its program takes features in place of observations.
        value, target, both: the layers by part, as views of the rows; `target` is empty where nothing shadows them, and
            `both` where values and targets do not lie together.
        grad: the gradients' columns by part. all_grad: those of all parts, which lie side by side.
        pairs: (targets, values) of what a soft update moves.
        keys: by part, one key for each of the networks: what `Gradients` notes as written.
    """

    def __init__(
        self,
        cohort: Cohort,
        rows: slice,
        names: tuple[str, ...],
        holder: str,
        parts: dict[str, Part],
        network: Any,
        count: int,
    ) -> None:
        self.cohort, self.rows, self.names, self.network, self.count = cohort, rows, names, network, count
        self.columns = {part: PartName(holder, part) for part in parts}
        self.cells = {part for part, own in parts.items() if own.kind is PartKind.CELL}
        self.is_noisy = any(own.kind is PartKind.NOISY for own in parts.values())
        held = next(p for p in cohort.members[rows.start].parts if p.name.network == holder)
        self.reads = held.reads
        shadowed = {part: name for part, name in self.columns.items() if cohort.has_target(name)}
        self.value = {part: cohort.layers(name, rows) for part, name in self.columns.items()}
        self.target = {part: cohort.layers(name, rows, Rows.TARGET) for part, name in shadowed.items()}
        whole = cohort.value_and_target is not None and rows == slice(0, len(cohort.members))
        self.both = {part: cohort.layers(name, rows, Rows.BOTH) for part, name in shadowed.items()} if whole else {}
        spans = {part: cohort.span(name) for part, name in self.columns.items()}
        start, end = min(s.start for s in spans.values()), max(s.stop for s in spans.values())
        self.all_grad = cohort.grad[rows, start:end]
        self.grad = {part: cohort.grad[rows, span] for part, span in spans.items()}
        self.pairs = [(cohort.target[rows, spans[part]], cohort.value[rows, spans[part]]) for part in shadowed]
        self.keys = {part: {PartName(name, part) for name in names} for part in parts}

    def program(self, run: Callable[[str], Network]) -> Network:
        """The network as a function of its inputs, given what runs one part."""
        if tuple(self.columns) == (WHOLE,):
            return run(WHOLE)
        functions = {part: run(part) for part in self.columns}
        if self.reads is not None:
            functions["encoder"] = _as_it_is
        combine = self.network.combine
        return lambda *inputs: combine(functions, *inputs)

    def constant(self, layers: dict[str, list[LayerViews]], kernels: Kernels, noisy: bool = True) -> Network:
        """The program over `layers` (`value`, `target` or `both`), without gradients."""
        forward = kernels.forward
        return self.program(lambda part: lambda x: forward(layers[part], x, False, noisy)[0])


def _as_it_is(features: Tensor) -> Tensor:
    return features


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


class Gradients:
    """Where the gradients of passes go: into the gradient rows, and which of those hold something.

    Attributes:
        written: the parts whose gradient holds something since the last optimiser step.
    """

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self.written: set[PartName] = set()
        self._pending: dict[tuple[tuple[str, ...], str], tuple[Unit, list[tuple[Tensor, Tensor]]]] = {}

    def backward(self, ran: RowsPass, grad: Tensor, parameters: bool = True, inputs: bool = False) -> Tensor | None:
        """Add the gradients of a pass's parameters, given [N, B, out] at its outputs; that of its input if wanted."""
        unit, part = ran.unit, ran.part
        if parameters and part in unit.cells:  # runs many times in one pass: see `finish`
            layer, keep = unit.value[part][0], ran.saved[0]
            self._pending.setdefault((unit.names, part), (unit, []))[1].append((keep.inputs, grad.mT))
            return torch.bmm(layer.weight.mT, grad.mT).mT if inputs else None
        blocks, of_input = self.kernels.backward(unit.value[part], ran.saved, grad, parameters, inputs)
        if not parameters:
            return of_input
        into, keys = unit.grad[part], unit.keys[part]
        if self.written.isdisjoint(keys):
            torch.cat(blocks, 1, out=into)
        else:
            self.clear(unit, part)
            into.add_(torch.cat(blocks, 1))
        self.written |= keys
        return of_input

    @torch.no_grad()
    def finish(self) -> None:
        """Parameter gradients of the cells that ran many times in one pass: one product over all of their steps."""
        for (_, part), (unit, steps) in self._pending.items():
            inputs, grads = (torch.cat(x, 2) for x in zip(*steps, strict=True))
            torch.cat((torch.bmm(grads, inputs.mT).flatten(1), grads.sum(2)), 1, out=unit.grad[part])
            self.written |= unit.keys[part]
        self._pending.clear()

    def begin(self) -> None:
        """A new optimiser step: nothing is written yet."""
        self.written.clear()
        if self._pending:  # of a pass that an error ended
            self._pending.clear()

    def clear(self, unit: Unit, part: str) -> None:
        """Zero the gradients of those networks of a unit that nothing has reached since the last step."""
        for k, name in enumerate(unit.names):
            if (name, part) not in self.written:
                unit.grad[part][k * unit.count : (k + 1) * unit.count].zero_()


class DenseFunction(torch.autograd.Function):
    """Joins the closed-form kernels to autograd. Parameter gradients go straight into the gradient rows."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor, gradients: Gradients, unit: Unit, part: str, own: bool) -> Tensor:
        output, saved = gradients.kernels.forward(unit.value[part], x, True, True)
        ctx.ran, ctx.gradients, ctx.parameters = RowsPass(unit, part, saved), gradients, own
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor | None, None, None, None, None]:
        of_input = ctx.gradients.backward(ctx.ran, grads[0], ctx.parameters, ctx.needs_input_grad[1])
        return None, of_input, None, None, None, None


def differentiable(unit: Unit, anchor: Tensor, gradients: Gradients, parameters: bool) -> Network:
    """The program of a unit through autograd; its parameters are constants without `parameters`.

    Args:
        anchor: joins the graph, so that autograd calls our backward although no parameter is an autograd leaf.
    """
    apply = DenseFunction.apply
    return unit.program(
        lambda part: lambda x: apply(anchor, x, gradients, unit, part, parameters)  # type: ignore[no-untyped-call]
    )
