"""Whole updates of a group of members in C, over the rows of its cohort; None where torch has to run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import POINTER, cast
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agilerl.engine.parts import WHOLE, PartKind
from agilerl.engine.protocol import UpdateResult
from agilerl.engine.recipes import PolicyGradientRecipe, Recipe, TDRecipe
from agilerl.engine.rows.cohort import Cohort, PartLayout
from agilerl.engine.rows.kernels import NATIVE, TORCH, Kernels
from agilerl.errors import RunError
from agilerl.native.library import (
    ACTIVATIONS,
    MAX_DEPTH,
    Call,
    Library,
    Member,
    PolicyGradient,
    Rows,
    TemporalDifference,
    library,
    pointer,
)

ADAM = {"Adam": 0, "AdamW": 1}  # kind of rule -> whether the decay of weights is decoupled from the gradient


@dataclass(slots=True)
class Bound:
    """A call that is filled for each batch, and what it points to.

    Attributes:
        outputs: of each network. kept: tensors that the call points to.
    """

    call: Any
    outputs: tuple[int, ...]
    kept: dict[str, Any]


class NativeUpdates:
    """Runs recipes for one `RowsEngine`; what they need of its rows is looked up once.

    Args:
        cohorts: the rows. count: members. dtypes: those for which C runs; others are left to torch.
    """

    def __init__(self, cohorts: Sequence[Cohort], count: int, dtypes: Sequence[torch.dtype]) -> None:
        self.cohorts, self.count, self.dtypes = cohorts, count, dtypes
        self.library: Library | None = library()
        self._calls: dict[tuple[Recipe, int, int], Bound | None] = {}

    def run(self, recipe: TDRecipe, batch: Any, hp: Any, live: Sequence[bool] | None) -> UpdateResult | None:
        """Run U updates on a batch [U, N, B, ...]; results [U, N, ...], or None where torch has to run them."""
        obs = batch.obs
        if self.library is None or not isinstance(obs, Tensor) or obs.dim() != 4 or obs.dtype not in self.dtypes:
            return None
        if batch.noise or batch.discount is None or not _is_plain(batch):
            return None
        bound = self._bound(recipe, *obs.shape[2:])
        if bound is None or not _has_choices(
            batch.action.unsqueeze(-1), bound.outputs, batch.next_mask, batch.obs_mask
        ):
            return None
        updates = len(obs)
        given = {name: vars(batch)[name] for name in ("obs", "next_obs", "reward", "discount", "weight", "action")}
        results = {"loss": obs.new_zeros(updates, self.count), "error": obs.new_zeros(obs.shape[:3])}
        optional = {
            "live": None if live is None else torch.tensor(live, dtype=torch.uint8),
            "next_mask": None if batch.next_mask is None else batch.next_mask.to(torch.uint8),
            "obs_mask": None if batch.obs_mask is None else batch.obs_mask.to(torch.uint8),
            "conservative": None if recipe.conservative is None else hp[recipe.conservative].double(),
        }
        bound.call.updates = updates
        self._run(bound, hp["lr"], {**given, **results, **optional, "tau": hp[recipe.tau].double()})
        return UpdateResult(results["loss"], priorities=results["error"].abs_())

    def run_epoch(self, recipe: PolicyGradientRecipe, rollout: Any, plan: Any, hp: Any) -> list[UpdateResult] | None:
        """Run the minibatches of one epoch of a rollout; results [N] of each, or None where torch has to run them.

        Args:
            rollout: `engine.rollouts.Rollout`. plan: `engine.rollouts.EpochPlan`.
        """
        obs, numbers, kind = rollout.obs, rollout.numbers, recipe.distribution
        if self.library is None or not isinstance(obs, Tensor) or obs.dim() != 3 or obs.dtype not in self.dtypes:
            return None
        minibatches, _, batch = plan.rows.shape
        bound = self._bound(recipe, batch, obs.shape[2]) if batch and numbers.dtype == obs.dtype else None
        action = rollout.action.reshape(*obs.shape[:2], kind.columns)
        sizes = () if kind.kind == "normal" else kind.sizes
        if bound is None or bound.outputs != (kind.raw_size, 1) or not _has_choices(action, sizes, rollout.legal):
            return None
        call = bound.call
        call.updates, call.samples = minibatches, obs.shape[1]
        names = ("loss", "policy_loss", "divergence")
        results = {name: obs.new_zeros(minibatches, self.count) for name in names}
        shares = {
            "clip": "clip_coef",
            "entropy_share": "ent_coef",
            "value_share": "vf_coef",
            "max_norm": "max_grad_norm",
        }
        tensors = {name: hp[of].double() for name, of in shares.items()}
        tensors |= {"choice": action} if sizes else {"action": kind.in_policy_units(action.to(obs.dtype))}
        tensors |= {"obs": obs, "numbers": numbers, "weight": torch.from_numpy(plan.weight).to(obs.dtype)}
        tensors |= {"sample": torch.from_numpy(plan.rows), "live": torch.from_numpy(plan.live).view(torch.uint8)}
        legal = None if rollout.legal is None else rollout.legal.to(torch.uint8)
        self._run(bound, hp["lr"], {**tensors, **results, "legal": legal})
        each = zip(*results.values(), strict=True)
        return [UpdateResult(loss, policy_loss, kl=divergence) for loss, policy_loss, divergence in each]

    def _run(self, bound: Bound, rates: Tensor, tensors: Mapping[str, Tensor | None]) -> None:
        """Point the call to these tensors, and run it."""
        assert self.library is not None
        call, contiguous = bound.call, {k: None if x is None else x.contiguous() for k, x in tensors.items()}
        steps_of = rates.double().contiguous()
        call.rows.lr = pointer(steps_of)
        for name, tensor in contiguous.items():
            setattr(call, name, None if tensor is None else pointer(tensor))
        self.library.run(call, self.cohorts[0].dtype == torch.float64)

    def _bound(self, recipe: Recipe, batch: int, inputs: int) -> Bound | None:
        """Return the call for batches of this size; None where C has no kernel for these networks."""
        key = recipe, batch, inputs
        if key not in self._calls:
            if isinstance(recipe, TDRecipe):
                self._calls[key] = self._bind_td(recipe, batch, inputs)
            else:
                self._calls[key] = self._bind_policy(recipe, batch, inputs)
        return self._calls[key]

    def _bind_td(self, recipe: TDRecipe, batch: int, inputs: int) -> Bound | None:
        rows, layouts = self._rows(recipe.optimizer), self._layouts((recipe.network,), inputs)
        if rows is None or layouts is None or not layouts[0].has_target:
            return None
        call = TemporalDifference(rows=rows, batch=batch, inputs=inputs, is_double=recipe.is_double)
        return self._filled(call, {"member": layouts[0]})

    def _bind_policy(self, recipe: PolicyGradientRecipe, batch: int, inputs: int) -> Bound | None:
        rows, layouts = self._rows(recipe.optimizer), self._layouts((recipe.policy, recipe.critic), inputs)
        if rows is None or layouts is None:
            return None
        kind = recipe.distribution
        call = PolicyGradient(
            rows=rows, batch=batch, inputs=inputs, components=kind.columns, clips_value=recipe.clips_value
        )
        bound = self._filled(call, dict(zip(("policy", "critic"), layouts, strict=True)))
        if kind.kind == "normal":
            least = kind.least if isinstance(kind.least, tuple) else (kind.least,) * kind.columns
            bound.kept["least"] = torch.tensor(least, dtype=torch.float64)
            call.least = pointer(bound.kept["least"])
        else:
            bound.kept["sizes"] = torch.tensor(kind.sizes)
            call.sizes = pointer(bound.kept["sizes"])
        return bound

    def _rows(self, optimizer: str) -> Rows | None:
        """Describe the rows and their optimiser; None where C has no kernel for it."""
        (cohort, *others) = self.cohorts
        optimizers = cohort.members[0].optimizers
        if others or len(optimizers) != 1 or optimizers[0].rule.kind not in ADAM or cohort.device.type != "cpu":
            return None
        rule = optimizers[0].rule
        options = dict(rule.options)
        return Rows(
            begin=0, end=self.count, members=self.count, stride=cohort.value.stride(0),
            beta1=options["betas"][0], beta2=options["betas"][1], eps=options["eps"], decay=options["weight_decay"],
            decouples_decay=ADAM[rule.kind], steps=pointer(cohort.step[optimizer]),
            **{name: pointer(vars(cohort)[name]) for name in ("value", "target", "first", "second")},
        )  # fmt: skip

    def _layouts(self, networks: tuple[str, ...], inputs: int) -> list[PartLayout] | None:
        """Return where these networks lie; None where C has no kernel for one of them, or if there are others."""
        cohort = self.cohorts[0]
        parts = {part.name: part.part for part in cohort.members[0].parts}
        if sorted(parts) != sorted((name, WHOLE) for name in networks):
            return None
        layouts = [cohort.layout(part.name) for part in cohort.members[0].parts]
        layouts.sort(key=lambda layout: networks.index(layout.name.network))
        for layout in layouts:
            layers = layout.layers
            is_known = all((layer.activation or "Identity") in ACTIVATIONS and not layer.noisy for layer in layers)
            is_dense = parts[layout.name].kind is PartKind.DENSE and layers[0].in_features == inputs
            if not (is_known and is_dense) or len(layers) > MAX_DEPTH:
                return None
        return layouts

    def _filled(self, call: Call, networks: Mapping[str, PartLayout]) -> Bound:
        """Complete a call by the members' networks and room for intermediate results."""
        assert self.library is not None
        cohort = self.cohorts[0]
        kept: dict[str, Any] = {}
        for name, layout in networks.items():
            kept[name] = (Member * self.count)(*(_member(cohort, layout, row) for row in range(self.count)))
            setattr(call, name, cast(kept[name], POINTER(Member)))
        kept["room"] = torch.empty(self.library.room(call), dtype=cohort.dtype)
        call.rows.room = pointer(kept["room"])
        return Bound(call, tuple(layout.layers[-1].out_features for layout in networks.values()), kept)


def _is_plain(batch: Any) -> bool:
    """Whether every field has the shape [U, N, B], observations alike, and actions are whole numbers."""
    shape = batch.obs.shape[:3]
    fields = (batch.action, batch.reward, batch.discount, batch.weight)
    is_alike = batch.next_obs.shape == batch.obs.shape and batch.next_obs.dtype == batch.obs.dtype
    is_alike = is_alike and all(field.dtype == batch.obs.dtype for field in fields[1:])
    return is_alike and batch.action.dtype == torch.int64 and all(field.shape == shape for field in fields)


def _has_choices(action: Tensor, sizes: Sequence[int], *masks: Tensor | None) -> bool:
    """Whether actions [..., C] and masks [..., W] are those of `sizes`: C would reach beyond its memory otherwise."""
    if not sizes:  # not discrete
        return masks == (None,)
    if action.dtype != torch.int64 or action.shape[-1] != len(sizes):
        return False
    low, high = torch.aminmax(action.reshape(-1, len(sizes)), dim=0)
    shape = (*action.shape[:-1], sum(sizes))
    has_width = all(legal is None or legal.shape == shape for legal in masks)
    return has_width and int(low.min()) >= 0 and all(n < size for n, size in zip(high.tolist(), sizes, strict=True))


def available_kernels() -> Kernels:
    """Return the kernels in C if they were built for this machine, else those of torch alone."""
    return TORCH if library() is None else NATIVE


def kernels_named(name: str) -> Kernels:
    """Return the kernels that a run recorded as `name`.

    Raises:
        RunError: kernels in C that were not built here, or of another version.
    """
    if name == TORCH.name:
        return TORCH
    if library() is None:
        raise RunError(
            f"the run was made with kernels in C ({name!r}), and this installation has none for this machine. fix: "
            "allow_other_kernels=True, whose last bits differ, or a C compiler at installation and no AGILERL_NATIVE=0."
        )
    if name != NATIVE.name:
        raise RunError(
            f"the run was made with the kernels {name!r}; this version of agilerl has {NATIVE.name!r}, whose last bits "
            "may differ. fix: allow_other_kernels=True, or the version that made it."
        )
    return NATIVE


def _member(cohort: Cohort, layout: PartLayout, row: int) -> Member:
    """Describe the network of one member: real widths, and where its parameters lie."""
    member = Member(depth=len(layout.layers))
    stack = next(part.part.stack for part in cohort.members[row].parts if part.name == layout.name)
    for number, (layer, slots) in enumerate(zip(stack.layers, layout.slots, strict=True)):
        weight, bias, *norm = slots
        place = member.layers[number]
        place.inputs, place.outputs = layer.in_features, layer.out_features
        place.activation, place.norm = ACTIVATIONS.index(layer.activation or "Identity"), int(layer.layer_norm)
        place.weight, place.weight_row, place.bias = weight.start, weight.shape[1], bias.start
        if norm:
            place.gain, place.shift = norm[0].start, norm[1].start
    return member
