"""Whole updates of a group of members in C, over the rows of its cohort; None where torch has to run them."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import POINTER, cast
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.engine.parts import WHOLE, PartKind
from agilerl.engine.protocol import UpdateResult
from agilerl.engine.recipes import TDRecipe
from agilerl.engine.rows.cohort import Cohort, PartLayout
from agilerl.engine.rows.kernels import NATIVE, TORCH, Kernels
from agilerl.errors import RunError
from agilerl.native.library import ACTIVATIONS, MAX_DEPTH, Library, Member, TemporalDifference, library, pointer

ADAM = {"Adam": 0, "AdamW": 1}  # kind of rule -> whether the decay of weights is decoupled from the gradient


@dataclass(slots=True)
class TDCall:
    """A temporal-difference call that is filled for each batch, and what it points to."""

    call: TemporalDifference
    members: Any
    steps: Tensor
    room: Tensor
    actions: int

    def holds(self, batch: Any) -> bool:
        """Whether actions and masks are those of the network: C would read and write beyond its memory otherwise."""
        mask, low, high = batch.next_mask, *torch.aminmax(batch.action)
        has_width = mask is None or mask.shape == (*batch.action.shape, self.actions)
        return has_width and int(low) >= 0 and int(high) < self.actions


class NativeUpdates:
    """Runs recipes for one `RowsEngine`; what they need of its rows is looked up once.

    Args:
        cohorts: the rows. count: members. dtypes: those for which C runs; others are left to torch.
    """

    def __init__(self, cohorts: Sequence[Cohort], count: int, dtypes: Sequence[torch.dtype]) -> None:
        self.cohorts, self.count, self.dtypes = cohorts, count, dtypes
        self.library: Library | None = library()
        self._calls: dict[tuple[TDRecipe, int], TDCall | None] = {}

    def run(self, recipe: TDRecipe, batch: Any, hp: Any, live: Sequence[bool] | None) -> UpdateResult | None:
        """Run U updates on a batch [U, N, B, ...]; results [U, N, ...], or None where torch has to run them."""
        obs = batch.obs
        if self.library is None or not isinstance(obs, Tensor) or obs.dim() != 4 or obs.dtype not in self.dtypes:
            return None
        if batch.noise or batch.discount is None or not _is_plain(batch):
            return None
        key = recipe, obs.shape[2]
        if key not in self._calls:
            self._calls[key] = self._bind(recipe, obs.shape[2], obs.shape[3])
        bound = self._calls[key]
        if bound is None or not bound.holds(batch):
            return None
        return self._run(bound, batch, hp[recipe.lr], hp[recipe.tau], live)

    def _bind(self, recipe: TDRecipe, batch: int, inputs: int) -> TDCall | None:
        """Look up what a recipe needs of the rows; None where C has no kernel for these networks or this optimiser."""
        (cohort, *others) = self.cohorts
        lead = cohort.members[0]
        if others or len(lead.parts) != 1 or lead.parts[0].name != (recipe.network, WHOLE) or len(lead.optimizers) != 1:
            return None
        binding, rule = lead.parts[0], lead.optimizers[0].rule
        layout = cohort.layout(binding.name)
        layers = layout.layers
        is_known = all((layer.activation or "Identity") in ACTIVATIONS and not layer.noisy for layer in layers)
        if binding.part.kind is not PartKind.DENSE or not layout.has_target or len(layers) > MAX_DEPTH or not is_known:
            return None
        if rule.kind not in ADAM or cohort.device.type != "cpu" or layers[0].in_features != inputs:
            return None
        members = (Member * self.count)(*(_member(cohort, layout, row) for row in range(self.count)))
        options, steps = dict(rule.options), cohort.step[recipe.optimizer]
        call = TemporalDifference(
            begin=0, end=self.count, members=self.count, batch=batch, inputs=inputs, stride=cohort.value.stride(0),
            is_double=recipe.is_double, member=cast(members, POINTER(Member)),
            beta1=options["betas"][0], beta2=options["betas"][1], eps=options["eps"], decay=options["weight_decay"],
            decouples_decay=ADAM[rule.kind], steps=pointer(steps),
            **{name: pointer(vars(cohort)[name]) for name in ("value", "target", "first", "second")},
        )  # fmt: skip
        assert self.library is not None
        room = torch.empty(self.library.room(call), dtype=cohort.dtype)
        call.room = pointer(room)
        return TDCall(call, members, steps, room, layers[-1].out_features)

    def _run(self, bound: TDCall, batch: Any, lr: Tensor, tau: Tensor, live: Sequence[bool] | None) -> UpdateResult:
        assert self.library is not None
        call, updates = bound.call, len(batch.obs)
        tensors = {name: vars(batch)[name].contiguous() for name in ("obs", "next_obs", "reward", "discount")}
        tensors |= {"weight": batch.weight.contiguous(), "action": batch.action.contiguous()}
        tensors |= {"lr": lr.double().contiguous(), "tau": tau.double().contiguous()}
        tensors |= {"loss": torch.zeros(updates, self.count, dtype=batch.obs.dtype)}
        tensors |= {"error": torch.zeros_like(batch.reward, memory_format=torch.contiguous_format)}
        mask = None if batch.next_mask is None else batch.next_mask.to(torch.uint8).contiguous()
        moving = None if live is None else np.array(live, np.uint8)
        call.updates = updates
        for name, tensor in tensors.items():
            setattr(call, name, pointer(tensor))
        call.next_mask = None if mask is None else pointer(mask)
        call.live = None if moving is None else moving.ctypes.data
        self.library.temporal_difference(call, batch.obs.dtype == torch.float64)
        return UpdateResult(tensors["loss"], priorities=tensors["error"].abs_())


def _is_plain(batch: Any) -> bool:
    """Whether every field has the shape [U, N, B], observations alike, and actions are whole numbers."""
    shape = batch.obs.shape[:3]
    fields = (batch.action, batch.reward, batch.discount, batch.weight)
    is_alike = batch.next_obs.shape == batch.obs.shape and batch.next_obs.dtype == batch.obs.dtype
    return is_alike and batch.action.dtype == torch.int64 and all(field.shape == shape for field in fields)


def available_kernels() -> Kernels:
    """Return the kernels in C if they were built for this machine, else those of torch alone."""
    return TORCH if library() is None else NATIVE


def kernels_named(name: str) -> Kernels:
    """Return the kernels that a run recorded as `name`.

    Raises:
        RunError: kernels in C, which were not built here.
    """
    if name == TORCH.name:
        return TORCH
    if library() is None:
        raise RunError(
            f"the run was made with kernels in C ({name!r}), and this installation has none for this machine. fix: "
            "allow_other_kernels=True, whose last bits differ, or a C compiler at installation and no AGILERL_NATIVE=0."
        )
    return NATIVE


def _member(cohort: Cohort, layout: PartLayout, row: int) -> Member:
    """Describe the network of one member: real widths, and where its parameters lie."""
    member = Member(depth=len(layout.layers))
    stack = cohort.members[row].parts[0].part.stack
    for number, (layer, slots) in enumerate(zip(stack.layers, layout.slots, strict=True)):
        weight, bias, *norm = slots
        place = member.layers[number]
        place.inputs, place.outputs = layer.in_features, layer.out_features
        place.activation, place.norm = ACTIVATIONS.index(layer.activation or "Identity"), int(layer.layer_norm)
        place.weight, place.weight_row, place.bias = weight.start, weight.shape[1], bias.start
        if norm:
            place.gain, place.shift = norm[0].start, norm[1].start
    return member
