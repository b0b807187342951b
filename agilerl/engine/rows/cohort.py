"""Cohort: parameters, targets, gradients and moments of several members as rows of flat arrays.

Between adoption (the constructor) and `release`, a member's `nn.Parameter` objects and the state tensors of its torch
optimiser are views of its row; afterwards every tensor owns its storage again.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import torch
from torch import Tensor, nn

from agilerl.core.transfer import step_tensor
from agilerl.engine.parts import MemberBinding, OptimizerBinding, PartName
from agilerl.engine.rows.kernels import RULES, Columns, LayerViews, NoiseViews
from agilerl.modules.activations import ACTIVATIONS
from agilerl.modules.layers import DenseLayer


class Rows(Enum):
    """Rows that a view refers to."""

    VALUE = "value"
    TARGET = "target"
    BOTH = "value and target"


@dataclass(frozen=True)
class _Slot:
    """Location of one parameter: columns [start, start + numel) of a row, with its padded shape."""

    start: int
    shape: tuple[int, ...]

    def of(self, rows: Tensor) -> Tensor:
        return rows[:, self.start : self.start + torch.Size(self.shape).numel()].view(rows.shape[0], *self.shape)


@dataclass
class PartLayout:
    """Location of one part."""

    name: PartName
    has_target: bool
    layers: list[DenseLayer] = field(default_factory=list)  # padded widths
    slots: list[list[_Slot]] = field(default_factory=list)
    noise: list[list[_Slot]] = field(default_factory=list)  # per layer, in `Cohort.noise`; empty where not noisy
    widths: list[Tensor] = field(default_factory=list)  # per layer [N] real output widths
    start: int = 0
    end: int = 0

    @property
    def span(self) -> slice:
        """Its columns."""
        return slice(self.start, self.end)


class Cohort:
    """Rows of N members that share one signature.

    Attributes:
        value, target, grad, first, second: [N, D]; columns of `target` are valid only for networks with a target.
        value_and_target: [2N, D] with the halves `value` and `target`, so that both run in one pass of 2N members; None
            for a cohort of one.
        noise: [2N, M + 1] noise of the noisy layers: evaluation networks, then targets.
        step: optimiser name -> [N, 1] float64 steps taken.
    """

    def __init__(self, members: Sequence[MemberBinding]) -> None:
        """Copy the members' values into rows and bind their tensors to them.

        Raises:
            ValueError: the members' signatures differ.
        """
        if len({m.signature() for m in members}) != 1:
            raise ValueError("members of one cohort need equal signatures (depth, activations, optimisers, dtype)")
        self.members = list(members)
        like = members[0].parts[0].part.stack.parameters[0][0]
        self.dtype, self.device = like.dtype, like.device
        self._layouts, width, noise = self._lay_out()
        rows = torch.zeros(2 * len(members), width, dtype=self.dtype, device=self.device)
        # Views of a single agent persist between updates: saving its network must not save the target's storage too.
        self.value_and_target = rows if len(members) > 1 else None
        self.value, self.target = rows.chunk(2) if len(members) > 1 else (part.clone() for part in rows.chunk(2))
        self.grad, self.first, self.second = self.value.new_zeros(3, len(members), width).unbind()
        # One spare column: `noise_positions` points to it for numbers that a narrower member does not have.
        self.noise = self.value.new_zeros(2 * len(members), noise + 1)
        self.step = {
            o.name: torch.zeros(len(members), 1, dtype=torch.float64, device=self.device) for o in members[0].optimizers
        }
        for row in range(len(members)):
            self._adopt(row)

    def _lay_out(self) -> tuple[list[PartLayout], int, int]:
        column = noise = 0
        layouts = []
        for position, binding in enumerate(self.members[0].parts):
            stacks = [m.parts[position].part.stack for m in self.members]
            layout = PartLayout(binding.name, binding.target is not None, start=column)
            for i, lead_layer in enumerate(binding.part.stack.layers):
                wide = max(s.layers[i].in_features for s in stacks)
                high = max(s.layers[i].out_features for s in stacks)
                layer = replace(lead_layer, in_features=wide, out_features=high)
                layout.layers.append(layer)
                shapes: list[tuple[int, ...]] = [(layer.out_features, layer.in_features), (layer.out_features,)]
                if layer.window is not None:  # of the same size in every member, see `MemberBinding.shape`
                    shapes = [tuple(parameter.shape) for parameter in binding.part.stack.parameters[i]]
                shapes += [(layer.out_features,)] * (2 if layer.layer_norm else 0)
                shapes += [(layer.out_features, layer.in_features), (layer.out_features,)] if layer.noisy else []
                slots = []
                for shape in shapes:
                    slots.append(_Slot(column, shape))
                    column += torch.Size(shape).numel()
                layout.slots.append(slots)
                sizes = (layer.in_features, layer.out_features) if layer.noisy else ()
                layout.noise.append([_Slot(noise + sum(sizes[:k]), (size,)) for k, size in enumerate(sizes)])
                noise += sum(sizes)
                layout.widths.append(torch.tensor([s.layers[i].out_features for s in stacks]))
            layout.end = column
            layouts.append(layout)
        return layouts, column, noise

    def _pairs(self, row: int, rows: Tensor, target: bool = False) -> list[tuple[nn.Parameter, Tensor]]:
        """Return (live parameter, its strided view of `rows`) for every parameter of one member."""
        pairs = []
        for layout, binding in zip(self._layouts, self.members[row].parts, strict=True):
            part = binding.target if target else binding.part
            if part is None:
                continue
            for slots, parameters in zip(layout.slots, part.stack.parameters, strict=True):
                for slot, parameter in zip(slots, parameters, strict=True):
                    view = slot.of(rows)[row]
                    pairs.append((parameter, view[tuple(slice(0, n) for n in parameter.shape)]))
        return pairs

    def _noise_pairs(self, row: int) -> list[tuple[Tensor, Tensor]]:
        """Return (live buffer, its view of `noise`) for every noisy layer of one member."""
        pairs = []
        for layout, binding in zip(self._layouts, self.members[row].parts, strict=True):
            for at, part in ((row, binding.part), (len(self.members) + row, binding.target)):
                for slots, buffers in zip(layout.noise, () if part is None else part.stack.buffers, strict=False):
                    for slot, buffer in zip(slots, buffers, strict=True):
                        pairs.append((buffer, slot.of(self.noise)[at][: len(buffer)]))
        return pairs

    def noise_positions(self, parts: Sequence[PartName]) -> Tensor:
        """Return [N, S]: the columns of `noise` for each member's noise numbers, part by part, layer by layer, inputs
        before outputs; members with fewer than S numbers are padded with the spare column."""
        positions = []
        for member in self.members:
            stacks = {p.name: p.part.stack for p in member.parts}
            layouts = [self.layout(name) for name in parts]
            slots = [
                torch.arange(slot.start, slot.start + len(buffer))
                for layout in layouts
                for pair, buffers in zip(layout.noise, stacks[layout.name].buffers, strict=True)
                for slot, buffer in zip(pair, buffers, strict=True)
            ]
            positions.append(torch.cat(slots) if slots else torch.zeros(0, dtype=torch.long))
        size = max(len(row) for row in positions)
        spare = self.noise.shape[1] - 1
        padded = [nn.functional.pad(row, (0, size - len(row)), value=spare) for row in positions]
        return torch.stack(padded).to(self.device)

    def _adopt(self, row: int) -> None:
        with torch.no_grad():
            for target, rows in ((False, self.value), (True, self.target)):
                for parameter, view in self._pairs(row, rows, target):
                    view.copy_(parameter)
                    parameter.data = view
            for buffer, view in self._noise_pairs(row):
                view.copy_(buffer)
                buffer.data = view
        moments = list(zip(self._pairs(row, self.first), self._pairs(row, self.second), strict=True))
        owner = self._optimizer_of_parameter(row)
        for (parameter, first), (_, second) in moments if owner else ():  # else it only acts
            binding = owner[parameter]
            state = binding.optimizer.state[parameter]
            for name, view in zip(RULES[binding.rule.kind].moments, (first, second), strict=True):
                if name is None:
                    continue
                if state.get(name) is not None:
                    view.copy_(state[name])
                state[name] = view
            if "step" in state:
                self.step[binding.name][row] = float(state["step"])
            else:
                state["step"] = step_tensor(0.0, parameter, binding.optimizer.param_groups[0])

    def _optimizer_of_parameter(self, row: int) -> dict[nn.Parameter, OptimizerBinding]:
        member = self.members[row]
        stacks = {p.name: p.part.stack for p in member.parts}
        return {
            parameter: binding
            for binding in member.optimizers
            for name in binding.parts
            for parameters in stacks[name].parameters
            for parameter in parameters
        }

    def write_steps(self) -> None:
        """Write the step counts into the torch optimisers' states (each parameter's own tensor)."""
        taken = {name: step.flatten().tolist() for name, step in self.step.items()}
        for row in range(len(self.members)):
            for parameter, binding in self._optimizer_of_parameter(row).items():
                optimizer, count = binding.optimizer, taken[binding.name][row]
                optimizer.state[parameter]["step"] = step_tensor(count, parameter, optimizer.param_groups[0])

    def release(self) -> None:
        """Give every member separate tensors again: parameters, targets, moments and step counts."""
        for row in range(len(self.members)):
            for target, rows in ((False, self.value), (True, self.target)):
                for parameter, view in self._pairs(row, rows, target):
                    parameter.data = view.clone(memory_format=torch.contiguous_format)
            for buffer, view in self._noise_pairs(row):
                buffer.data = view.clone()
            owner = self._optimizer_of_parameter(row)
            for position, rows in enumerate((self.first, self.second)):
                for parameter, view in self._pairs(row, rows):
                    binding = owner[parameter]
                    name = RULES[binding.rule.kind].moments[position]
                    if name is not None:
                        binding.optimizer.state[parameter][name] = view.clone(memory_format=torch.contiguous_format)
        self.write_steps()

    def layout(self, name: PartName) -> PartLayout:
        """Return the location of a part."""
        return next(layout for layout in self._layouts if layout.name == name)

    def layers(self, name: PartName, members: slice, which: Rows = Rows.VALUE) -> list[LayerViews]:
        """Return a part's layers as views of the rows of some members; `Rows.BOTH` uses all members."""
        layout = self.layout(name)
        count = len(self.members)
        if which is Rows.BOTH:
            assert self.value_and_target is not None
            rows, noise = self.value_and_target, self.noise
        else:
            rows = (self.target if which is Rows.TARGET else self.value)[members]
            noise = (self.noise[count:] if which is Rows.TARGET else self.noise[:count])[members]
        return [
            _layer_views(
                layer,
                [slot.of(rows) for slot in slots],
                [slot.of(noise) for slot in pair],
                widths.repeat(2) if which is Rows.BOTH else widths[members],
                self.dtype,
            )
            for layer, slots, pair, widths in zip(layout.layers, layout.slots, layout.noise, layout.widths, strict=True)
        ]

    def columns(self, optimizer: str, members: slice) -> Columns:
        """Return the columns of one optimiser in the rows of some members, as views.

        Raises:
            ValueError: the columns of its networks are not contiguous.
        """
        binding = next(o for o in self.members[0].optimizers if o.name == optimizer)
        spans = sorted((self.layout(name).span for name in binding.parts), key=lambda span: span.start)
        if any(left.stop != right.start for left, right in itertools.pairwise(spans)):
            raise ValueError(f"the networks of {optimizer!r} do not lie side by side in the rows")
        span = slice(spans[0].start, spans[-1].stop)
        value, grad, first, second = (x[members, span] for x in (self.value, self.grad, self.first, self.second))
        return Columns(value, grad, first, second, self.step[optimizer][members])


def _layer_views(
    layer: DenseLayer, views: list[Tensor], noise: list[Tensor], widths: Tensor, dtype: torch.dtype
) -> LayerViews:
    weight, bias, *rest = views
    padded = bool((widths != layer.out_features).any())  # widths lie on the CPU
    real = (torch.arange(layer.out_features) < widths[:, None]).to(weight.device, dtype)
    widths = widths.to(weight.device, dtype)
    norm = [v.unsqueeze(2) for v in rest[:2]] if layer.layer_norm else [None, None]
    return LayerViews(
        weight.flatten(2),
        bias.unsqueeze(2),
        norm[0],
        norm[1],
        ACTIVATIONS[layer.activation] if layer.activation else None,
        real.unsqueeze(2) if padded else None,
        (real / widths[:, None]).unsqueeze(1) if layer.layer_norm else None,
        NoiseViews(rest[-2], rest[-1].unsqueeze(2), noise[0].unsqueeze(1), noise[1].unsqueeze(2)) if noise else None,
        layer.window,
    )
