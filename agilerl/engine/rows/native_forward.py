"""Outputs of dense networks of several members in C, over the rows of their cohort, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import POINTER, cast
from typing import Any

from torch import Tensor

from agilerl.engine.parts import WHOLE, MemberBinding, Part, PartBinding, PartName, parts_of
from agilerl.engine.rows.cohort import Cohort, PartLayout
from agilerl.engine.rows.native import has_kernel, member_of
from agilerl.native.library import Forward, Library, Member, Rows, library, pointer
from agilerl.native.threads import Kernel
from agilerl.networks.base import EvolvableNetwork


class NativeForward:
    """A dense network of N members as a function, without gradients: inputs [N, R, I] -> outputs [N, R, O].

    Every row is computed by itself, in the real widths of its member: the bits of its outputs depend neither on R nor
    on the other members. Batched products of torch round differently for another R or N.

    Args:
        rows: of the members in the cohort.
    """

    def __init__(self, kernels: Library, cohort: Cohort, layout: PartLayout, rows: range) -> None:
        self._cohort, self._count = cohort, len(rows)
        self._inputs, self._outputs = layout.layers[0].in_features, layout.layers[-1].out_features
        self._members = (Member * len(rows))(*(member_of(cohort, [layout], row) for row in rows))
        value = cohort.value[rows.start :]
        call = Forward(
            rows=Rows(begin=0, end=len(rows), members=len(rows), stride=value.stride(0), value=pointer(value)),
            member=cast(self._members, POINTER(Member)),
        )
        self._kernel = Kernel(kernels, call, cohort.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """Return outputs [N, R, O] of inputs x [N, R, I].

        Raises:
            ValueError: inputs of another shape or dtype.
        """
        dtype = self._cohort.dtype
        if x.dim() != 3 or (x.shape[0], x.shape[2], x.dtype) != (self._count, self._inputs, dtype):
            wanted = f"[{self._count}, R, {self._inputs}] {dtype}"
            raise ValueError(f"a network over rows got inputs {list(x.shape)} {x.dtype}; expected {wanted}.")
        inputs, outputs = x.contiguous(), x.new_empty(self._count, x.shape[1], self._outputs)
        call = self._kernel.call
        call.batch, call.obs, call.outputs = x.shape[1], inputs.data_ptr(), outputs.data_ptr()
        self._kernel.run()
        return outputs


def native_forward(cohort: Cohort, layout: PartLayout, part: Part, rows: range) -> NativeForward | None:
    """Return a part of the members at `rows` of a cohort as a function in C; None where C has no kernel for it."""
    kernels = library()
    if kernels is None or cohort.device.type != "cpu" or not has_kernel(part, layout):
        return None
    return NativeForward(kernels, cohort, layout, rows)


def forward_copies(networks: Sequence[EvolvableNetwork]) -> list[tuple[EvolvableNetwork, int, NativeForward]] | None:
    """Return copies of networks as functions in C; None where C has no kernel for one of them.

    Returns:
        for networks that can share rows: one that prepares the observations, their number N, and the function.
    """
    name, groups = PartName("policy", WHOLE), dict[Any, list[tuple[EvolvableNetwork, MemberBinding]]]()
    for network in networks:
        parts = parts_of(network.clone()) or {}
        if tuple(parts) != (WHOLE,):
            return None
        binding = MemberBinding((PartBinding(name, parts[WHOLE]),), ())
        groups.setdefault((network.reading(), binding.signature()), []).append((network, binding))
    found = []
    for alike in groups.values():
        cohort = Cohort([binding for _, binding in alike])
        run = native_forward(cohort, cohort.layout(name), alike[0][1].parts[0].part, range(len(alike)))
        if run is None:
            return None
        found.append((alike[0][0], len(alike), run))
    return found
