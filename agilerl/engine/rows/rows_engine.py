"""Engine that runs an algorithm's update over the rows of cohorts: one pass trains every member.

Networks over rows are units; `DenseFunction` connects a pass through one of their parts to autograd.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.core.backward import with_precomputed_gradient
from agilerl.engine.parts import WHOLE, Cluster, MemberBinding, Part, PartKind, PartName, clusters_of, parts_of
from agilerl.engine.protocol import Network, TransitionBatch, UpdateResult
from agilerl.engine.recipes import OffPolicyRecipe, PolicyGradientRecipe
from agilerl.engine.rows.cohort import Cohort, Rows
from agilerl.engine.rows.kernels import TORCH, Columns, Kernels, LayerViews, OptimizerRule, Saved, clip_rows
from agilerl.engine.rows.native import NativeUpdates
from agilerl.engine.rows.native_forward import native_forward
from agilerl.errors import AlgorithmError, unknown_choice
from agilerl.modules.multi_input import EvolvableMultiInput
from agilerl.networks.base import EvolvableNetwork
from agilerl.ranks import ONE, Ranks


class Unit:
    """Networks that run in one pass: one network of every member, or K similar ones, as K·N rows of one cohort.

    Args:
        cohort, rows: location. names: the networks, [K]. holder: name of these networks in the cohort.
        parts: of one of them. network: one of them, which combines the parts. count: number of members.

    Attributes:
        encoder_source: see `PartBinding`; the program then takes features instead of observations.
        value, target, both: layers by part, as views of the rows; `target` is empty without target networks, and `both`
            is empty if values and targets are not contiguous.
        grad: gradient columns by part. all_grad: those of all parts, which are contiguous.
        pairs: (targets, values) of a soft update.
        keys: by part, one key per network, recorded as written by `Gradients`.
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
        self.cells = {part for part, spec in parts.items() if spec.kind is PartKind.CELL}
        self.is_noisy = any(spec.kind is PartKind.NOISY for spec in parts.values())
        bound_part = next(p for p in cohort.members[rows.start].parts if p.name.network == holder)
        self.encoder_source = bound_part.encoder_source
        shadowed = {part: name for part, name in self.columns.items() if cohort.layout(name).has_target}
        self.value = {part: cohort.layers(name, rows) for part, name in self.columns.items()}
        self.target = {part: cohort.layers(name, rows, Rows.TARGET) for part, name in shadowed.items()}
        whole = cohort.value_and_target is not None and rows == slice(0, len(cohort.members))
        self.both = {part: cohort.layers(name, rows, Rows.BOTH) for part, name in shadowed.items()} if whole else {}
        spans = {part: cohort.layout(name).span for part, name in self.columns.items()}
        start, end = min(s.start for s in spans.values()), max(s.stop for s in spans.values())
        self.all_grad = cohort.grad[rows, start:end]
        self.grad = {part: cohort.grad[rows, span] for part, span in spans.items()}
        self.pairs = [(cohort.target[rows, spans[part]], cohort.value[rows, spans[part]]) for part in shadowed]
        self.keys = {part: {PartName(name, part) for name in names} for part in parts}

    def program(self, run: Callable[[str], Network]) -> Network:
        """Return the network as a function of its inputs; `run` gives the function of one part."""
        if tuple(self.columns) == (WHOLE,):
            return run(WHOLE)
        functions = {part: run(part) for part in self.columns}
        if self.encoder_source is not None:
            functions["encoder"] = lambda features: features
        encoder = encoder_of(self.network, functions)
        if encoder is not None:
            functions["encoder"] = encoder
        return partial(self.network.combine, functions)

    def constant(self, layers: dict[str, list[LayerViews]], kernels: Kernels, noisy: bool = True) -> Network:
        """Return the program over `layers` (`value`, `target` or `both`), without gradients."""
        forward = kernels.forward
        return self.program(lambda part: lambda x, beside=None: forward(layers[part], x, False, noisy, beside)[0])


def encoder_of(network: Any, functions: Mapping[str, Network]) -> Network | None:
    """Return `features_by` of an encoder of concatenated vectors as one function of inputs [..., I].

    It runs in every pass of a team critic, so widths and names of the parts are looked up once, here. None for other
    encoders, and for nested parts.
    """
    encoder = network.encoder if isinstance(network, EvolvableNetwork) else None
    stacks = encoder.dense_parts() if isinstance(encoder, EvolvableMultiInput) else None
    if stacks is None or not stacks.keys() <= functions.keys() or any("." in name for name in stacks):
        return None
    *names, last = stacks
    ends = np.cumsum([stacks[name].layers[0].in_features for name in names]).tolist()
    pieces = [(functions[name], slice(start, end)) for name, start, end in zip(names, [0, *ends], ends, strict=False)]
    output = functions[last]
    return lambda x: output(torch.cat([run(x[..., columns]) for run, columns in pieces], -1))


@dataclass(slots=True)
class RowsPass:
    """A forward pass before its backward pass.

    It does not hold the outputs: autograd's node would hold the outputs, which hold the node, and such a cycle with all
    saved tensors stays in memory until Python's garbage collection.

    Attributes:
        unit, part: the part that ran.
        saved: tensors for the backward pass.
    """

    unit: Unit
    part: str
    saved: list[Saved]


class Gradients:
    """Accumulates the gradients of passes in the gradient rows, and tracks which rows are in use.

    Attributes:
        written: parts with a gradient since the last optimiser step.
    """

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self.written: set[PartName] = set()
        self._pending: dict[tuple[tuple[str, ...], str], tuple[Unit, list[tuple[Tensor, Tensor]]]] = {}

    def backward(self, ran: RowsPass, grad: Tensor, parameters: bool = True, inputs: bool = False) -> Any:
        """Add a pass's parameter gradients, given `grad` [N, B, out] at its outputs; return its input's on request."""
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

    def add(self, unit: Unit, part: str, grad: Tensor) -> None:
        """Add a gradient [N, D] with respect to the columns of a part."""
        keys = unit.keys[part]
        if self.written.isdisjoint(keys):
            unit.grad[part].copy_(grad)
        else:
            self.clear(unit, part)
            unit.grad[part].add_(grad)
        self.written |= keys

    @torch.no_grad()
    def finish(self) -> None:
        """Compute parameter gradients of cells that ran many times in one pass, in one product over all steps."""
        for (_, part), (unit, steps) in self._pending.items():
            inputs, grads = (torch.cat(x, 2) for x in zip(*steps, strict=True))
            torch.cat((torch.bmm(grads, inputs.mT).flatten(1), grads.sum(2)), 1, out=unit.grad[part])
            self.written |= unit.keys[part]
        self._pending.clear()

    def begin(self) -> None:
        """Start an optimiser step: no gradient is written yet."""
        self.written.clear()
        if self._pending:  # left by a pass that raised an error
            self._pending.clear()

    def clear(self, unit: Unit, part: str) -> None:
        """Zero the gradients of a unit's networks without a gradient since the last step."""
        for k, name in enumerate(unit.names):
            if (name, part) not in self.written:
                unit.grad[part][k * unit.count : (k + 1) * unit.count].zero_()


class DenseFunction(torch.autograd.Function):
    """Connects the closed-form kernels to autograd. Parameter gradients are written directly to the gradient rows."""

    @staticmethod
    def forward(
        ctx: Any, gradients: Gradients, unit: Unit, part: str, own: bool, anchor: Tensor, x: Tensor, *beside: Tensor
    ) -> Tensor:
        output, saved = gradients.kernels.forward(unit.value[part], x, True, True, *beside)
        ctx.ran, ctx.gradients, ctx.parameters = RowsPass(unit, part, saved), gradients, own
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        of_inputs = ctx.gradients.backward(ctx.ran, grads[0], ctx.parameters, any(ctx.needs_input_grad[5:]))
        return None, None, None, None, None, *(of_inputs if isinstance(of_inputs, tuple) else (of_inputs, None))


class DistanceFunction(torch.autograd.Function):
    """Σ (θ − θ⁻)² [N] of a unit's rows, whose gradient 2(θ − θ⁻) is written directly to the gradient rows.

    Columns beyond a narrower member's are zero in both rows, so that they add nothing.
    """

    @staticmethod
    def forward(ctx: Any, gradients: Gradients, unit: Unit, anchor: Tensor) -> Tensor:
        ctx.gradients, ctx.unit = gradients, unit
        ctx.apart = [value - target for target, value in unit.pairs]
        return torch.stack([apart.square().sum(1) for apart in ctx.apart]).sum(0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None]:
        for part, apart in zip(ctx.unit.target, ctx.apart, strict=True):
            ctx.gradients.add(ctx.unit, part, 2 * grads[0].unsqueeze(1) * apart)
        return None, None, None


def differentiable(unit: Unit, anchor: Tensor, gradients: Gradients, parameters: bool) -> Network:
    """Return the program of a unit with autograd; its parameters are constants without `parameters`.

    Args:
        anchor: part of the graph, so that autograd calls our backward although no parameter is an autograd leaf.
            Without `parameters` only inputs are part of it: outputs of constant inputs are constants without backward.
    """
    apply, anchor = DenseFunction.apply, anchor if parameters else anchor.detach()
    return unit.program(lambda part: partial(apply, gradients, unit, part, parameters, anchor))


@dataclass(frozen=True, slots=True)
class _Step:
    """Columns, rule and units of one step of K similar optimisers."""

    columns: Columns
    rule: OptimizerRule
    units: list[Unit]


class Programs(dict[Any, Any]):
    """Functions by the names of their networks; AlgorithmError for an unknown one."""

    def __missing__(self, key: Any) -> Any:
        names = {name if isinstance(name, str) else name[0] for name in self}
        raise AlgorithmError(unknown_choice("network", key if isinstance(key, str) else key[0], names))


class RowsEngine:
    """`UpdateEngine` over rows: networks, targets, optimisers and hyperparameters of several members.

    Similar networks of every member with separate optimisers of the same kind (twin critics) are rows of one cohort:
    `networks`, `targets` and `minimise` run all of them in one pass. Functions of the networks are created once, in the
    constructor.

    Attributes:
        cohorts: the rows; K·N rows if K networks share a cohort, network by network.
        hp: name -> [N, 1] tensor, refreshed by `set_hyperparameters`.
        kernels: run and update the rows.
    """

    def __init__(
        self,
        members: Sequence[MemberBinding],
        learning_rates: dict[str, str],
        networks: Mapping[str, Any],
        kernels: Kernels = TORCH,
        ranks: Ranks = ONE,
    ) -> None:
        """Adopt the members.

        Args:
            members: of equal signature.
            learning_rates: optimiser name -> name of the hyperparameter that is its learning rate.
            networks: evaluation networks of one member, which combine the parts.
            ranks: processes over which gradients are averaged.
        """
        self.count, self.kernels, self.ranks = len(members), kernels, ranks
        self.hp: Mapping[str, Tensor] = {}
        self._learning_rates = learning_rates
        self._rates: dict[tuple[str, ...], Tensor] = {}
        self.cohorts: list[Cohort] = []
        self._units: dict[tuple[str, ...], Unit] = {}
        self._steps: dict[tuple[str, ...], _Step] = {}
        self._networks, self._clusters = networks, clusters_of(members)
        for cluster in self._clusters:
            cohort = Cohort(cluster.bindings)
            self.cohorts.append(cohort)
            self._bind(cohort, cluster)
        self._live: tuple[bool, ...] | None = None
        self._noise_positions: dict[str, Tensor] = {}
        self._gradients = Gradients(kernels)
        self._native: NativeUpdates | None = None
        first = self.cohorts[0]
        self.dtype, self.device = first.dtype, first.device
        self._anchor = torch.zeros((), dtype=self.dtype, device=self.device, requires_grad=True)
        self._network: dict[str | tuple[str, ...], Network] = Programs()
        self._target: dict[str | tuple[str, ...], Network] = Programs()
        self._through: dict[str, Network] = Programs()
        self._through_each: dict[tuple[str, ...], Callable[[Sequence[tuple[Any, ...]]], Tensor]] = {}
        self._frozen: dict[tuple[str, bool], Network] = Programs()
        self._both: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {}
        for unit in self._units.values():
            self._make_programs(unit)

    def _bind(self, cohort: Cohort, cluster: Cluster) -> None:
        lead = cohort.members[0].optimizers[0].name
        members, positions = range(len(cluster.optimizers)), range(len(cluster.networks[0]))
        for chosen in (*((k,) for k in members), tuple(members)):  # separately, and all in one pass
            units = [self._unit(cohort, cluster, position, chosen) for position in positions]
            optimizers = tuple(cluster.optimizers[k] for k in chosen)
            if optimizers not in self._steps:
                rows = units[0].rows
                binding = next(o for o in cohort.members[rows.start].optimizers if o.name == lead)
                self._steps[optimizers] = _Step(cohort.columns(lead, rows), binding.rule, units)

    def _unit(self, cohort: Cohort, cluster: Cluster, position: int, chosen: Sequence[int]) -> Unit:
        """Return the networks at `position` of the consecutive optimisers `chosen` of the cluster as one unit."""
        names = tuple(cluster.networks[k][position] for k in chosen)
        if names not in self._units:
            holder, rows = cluster.networks[0][position], slice(chosen[0] * self.count, (chosen[-1] + 1) * self.count)
            parts, network = parts_of(self._networks[holder]) or {}, self._networks[names[0]]
            self._units[names] = Unit(cohort, rows, names, holder, parts, network, self.count)
        return self._units[names]

    def _unit_of(self, names: tuple[str, ...]) -> Unit | None:
        """Return similar, consecutive networks as one unit; None if they are not."""
        for cohort, cluster in zip(self.cohorts, self._clusters, strict=True):
            for position in range(len(cluster.networks[0])):
                alike = tuple(networks[position] for networks in cluster.networks)
                start = alike.index(names[0]) if names[0] in alike else 0
                if alike[start : start + len(names)] == names:
                    return self._unit(cohort, cluster, position, range(start, start + len(names)))
        return None

    def set_hyperparameters(self, values: dict[str, list[float]]) -> None:
        """Set hyperparameters; `values`: name -> one number per member."""
        self.hp = {
            name: torch.tensor(v, dtype=self.dtype, device=self.device).unsqueeze(1) for name, v in values.items()
        }
        self._rates.clear()

    @contextmanager
    def only(self, live: Sequence[bool]) -> Iterator[None]:
        """Restrict updates of parameters, targets and noise to the members that are `live` [N] inside the block."""
        self._live = tuple(live)
        try:
            yield
        finally:
            self._live = None

    # --- networks as functions --------------------------------------------------------------------------------------

    def _make_programs(self, unit: Unit) -> None:
        """Create all functions of a unit. They refer to units and gradients, not to the engine, to avoid cycles."""
        kernels, name = self.kernels, unit.names[0]
        key = name if len(unit.names) == 1 else unit.names
        self._network[key] = self._reading(unit, differentiable(unit, self._anchor, self._gradients, True))
        if unit.target:
            self._target[key] = self._reading(unit, unit.constant(unit.target, kernels), target=True)
        if len(unit.names) > 1:
            return
        self._through[name] = self._reading(unit, differentiable(unit, self._anchor, self._gradients, False))
        self._frozen[name, True] = self._reading(unit, unit.constant(unit.value, kernels))
        quiet = self._reading(unit, unit.constant(unit.value, kernels, noisy=False)) if unit.is_noisy else None
        self._frozen[name, False] = quiet or self._frozen[name, True]
        if unit.target:
            self._both[name] = self._value_and_target(unit)

    def _reading(self, unit: Unit, run: Network, target: bool = False) -> Network:
        """Wrap `run` for the unit's inputs: observations are encoded if the unit reads another network's features, and
        repeated K times for K networks.

        `target` uses the features of that network's target, if it has one.
        """
        times, count = len(unit.names), self.count
        features: Network | None = None
        if unit.encoder_source is not None:
            encoder_source, depth = self._units[(unit.encoder_source[0],)], unit.encoder_source[1]
            parts = encoder_source.target if target and encoder_source.target else encoder_source.value
            last = next(reversed(parts))  # the encoder has only its first layers
            features = encoder_source.constant({**parts, last: parts[last][:depth]}, self.kernels)
        if times == 1:
            return run if features is None else lambda obs, *rest: run(features(obs), *rest)

        def repeated(obs: Tensor, *rest: Tensor) -> Tensor:
            obs = obs if features is None else features(obs)
            output = run(*[torch.cat([x] * times) for x in (obs, *rest)])
            return output.view(times, count, *output.shape[1:])

        return repeated

    def _value_and_target(self, unit: Unit) -> Callable[..., tuple[Tensor, Tensor]]:
        if not unit.both or unit.encoder_source is not None:
            value, target = self._frozen[unit.names[0], True], self._target[unit.names[0]]
            return lambda *inputs: (value(*inputs), target(*inputs))
        program, count = unit.constant(unit.both, self.kernels), self.count

        def run(*inputs: Tensor) -> tuple[Tensor, Tensor]:
            output = program(*[torch.cat((x, x)) for x in inputs])
            return output[:count], output[count:]

        return run

    def network(self, name: str) -> Network:
        return self._network[name]

    def through(self, name: str) -> Network:
        return self._through[name]

    def through_each(self, names: tuple[str, ...]) -> Callable[[Sequence[tuple[Any, ...]]], Tensor]:
        run = self._through_each.get(names)
        if run is None:
            run = self._through_each[names] = self._make_through_each(names)
        return run

    def _make_through_each(self, names: tuple[str, ...]) -> Callable[[Sequence[tuple[Any, ...]]], Tensor]:
        unit, count = self._unit_of(names), self.count
        if unit is None or unit.encoder_source is not None:
            paths = [self._through[name] for name in names]
            return lambda inputs: torch.stack([run(*args) for run, args in zip(paths, inputs, strict=True)])
        run = differentiable(unit, self._anchor, self._gradients, False)

        def run_each(inputs: Sequence[tuple[Any, ...]]) -> Tensor:
            output = run(*(torch.cat(same) for same in zip(*inputs, strict=True)))
            return output.view(len(names), count, *output.shape[1:])

        return run_each

    def frozen(self, name: str, noisy: bool = True) -> Network:
        """Like the protocol; without the noise of noisy layers if not `noisy`."""
        return self._frozen[name, noisy]

    def by_row(self, name: str) -> Network | None:
        """Like `frozen`, in C: the bits of a row's outputs depend neither on the other rows nor on the other members.

        None where torch has to run the network.
        """
        unit = self._units[(name,)]
        if self.dtype not in self.kernels.whole or tuple(unit.columns) != (WHOLE,) or unit.encoder_source is not None:
            return None
        layout, rows = unit.cohort.layout(unit.columns[WHOLE]), range(unit.rows.start, unit.rows.stop)
        held = next(part for part in unit.cohort.members[rows.start].parts if part.name == layout.name)
        return native_forward(unit.cohort, layout, held.part, rows)

    def target(self, name: str) -> Network:
        return self._target[name]

    def frozen_and_target(self, name: str) -> Callable[..., tuple[Tensor, Tensor]]:
        return self._both[name]

    def networks(self, names: tuple[str, ...]) -> Network:
        return self._network.get(names) or _each(self._network, names)

    def targets(self, names: tuple[str, ...]) -> Network:
        return self._target.get(names) or _each(self._target, names)

    # --- updates ------------------------------------------------------------------------------------------------------

    def whole(
        self, recipe: OffPolicyRecipe, batch: TransitionBatch, live: Sequence[bool] | None
    ) -> list[UpdateResult] | None:
        """Run the updates of a recipe in C on a batch [U, N, B, ...]; results [N, ...] of each.

        `live` [N] as in `only`. None if torch has to run them.
        """
        native = self._in_c()
        return None if native is None else native.run(recipe, batch, self.hp, live)

    def whole_epoch(self, recipe: PolicyGradientRecipe, rollout: object, plan: object) -> list[UpdateResult] | None:
        """Run the minibatches of one epoch in C; results [N] of each. None if torch has to run them.

        Args:
            rollout: `engine.rollouts.Rollout`. plan: `engine.rollouts.EpochPlan`.
        """
        native = self._in_c()
        return None if native is None else native.run_epoch(recipe, rollout, plan, self.hp)

    def places(self) -> dict[str, tuple[Cohort, int]]:
        """Return where each network lies: its cohort, and the row of its first member there."""
        singles = ((names, unit) for names, unit in self._units.items() if len(names) == 1)
        return {names[0]: (unit.cohort, unit.rows.start) for names, unit in singles}

    def _in_c(self) -> NativeUpdates | None:
        if not self.kernels.whole or self.ranks.size > 1:
            return None
        if self._native is None:
            self._native = NativeUpdates(self.cohorts, self.count, self.kernels.whole, self.places())
        return self._native

    def forward(self, name: str, x: Tensor) -> tuple[Tensor, RowsPass | Tensor]:
        unit = self._units[(name,)]
        if WHOLE not in unit.value:  # several parts, combined by autograd
            joined = self._network[name](x)
            return joined.detach(), joined
        output, saved = self.kernels.forward(unit.value[WHOLE], x, True, True)
        return output, RowsPass(unit, WHOLE, saved)

    def descend(self, optimizer: str, ran: RowsPass | Tensor, grad: Tensor, max_norm: Tensor | None = None) -> None:
        if isinstance(ran, Tensor):
            return self.descend_all(optimizer, [ran], [grad], max_norm)
        self._gradients.written.clear()
        self._gradients.backward(ran, grad)
        self._move((optimizer,), max_norm)

    def descend_all(
        self,
        optimizer: str,
        outputs: Sequence[Tensor],
        grads: Sequence[Tensor],
        max_norm: Tensor | None = None,
        live: Sequence[bool] | None = None,
    ) -> None:
        self._gradients.begin()
        with_precomputed_gradient(outputs, grads).backward()  # type: ignore[no-untyped-call]
        self._gradients.finish()
        self._move((optimizer,), max_norm, live)

    def minimise(self, optimizer: str | tuple[str, ...], loss: Tensor, max_norm: Tensor | None = None) -> None:
        self._gradients.begin()
        loss.sum().backward()  # type: ignore[no-untyped-call]
        self._gradients.finish()
        names = (optimizer,) if isinstance(optimizer, str) else optimizer
        for step in (names,) if names in self._steps else tuple((name,) for name in names):
            self._move(step, max_norm)

    def _move(self, optimizers: tuple[str, ...], max_norm: Tensor | None, live: Sequence[bool] | None = None) -> None:
        step, times = self._steps[optimizers], len(optimizers)
        for unit in step.units:
            for part, keys in unit.keys.items():
                if not keys <= self._gradients.written:
                    self._gradients.clear(unit, part)
        rate = self._rates.get(optimizers)
        if rate is None:
            rates = [self.hp[self._learning_rates[name]] for name in optimizers]
            rate = self._rates[optimizers] = rates[0] if times == 1 else torch.cat(rates)
        with torch.no_grad():
            if live is None and self._live is not None:
                live = self._live * times
            if self.ranks.size > 1:
                live = self._average([unit.all_grad for unit in step.units], live)
            if max_norm is not None:
                limit = max_norm if max_norm.dim() == 0 or times == 1 else max_norm.repeat(times, 1)
                for unit in step.units:  # each network by itself
                    clip_rows(unit.all_grad, limit)
            self.kernels.step(step.columns, rate, step.rule, live)

    def _average(self, grads: list[Tensor], live: Sequence[bool] | None) -> Sequence[bool] | None:
        """Average gradient rows over all ranks; return the members that are live on any rank. One collective."""
        rows = len(grads[0])
        flags = torch.tensor([True] * rows if live is None else live, dtype=self.dtype, device=self.device)
        self.ranks.mean_([*grads, flags])
        agreed = (flags > 0).tolist()
        return None if all(agreed) else agreed

    def distance(self, name: str) -> Tensor:
        apply: Any = DistanceFunction.apply
        distance: Tensor = apply(self._gradients, self._units[(name,)], self._anchor)
        return distance

    def track(self, name: str | tuple[str, ...], tau: Tensor) -> None:
        """Soft-update targets: θ⁻ ← τ·θ + (1 − τ)·θ⁻ (Lillicrap et al. 2016, arXiv:1509.02971, algorithm 1)."""
        names = (name,) if isinstance(name, str) else name
        if self._live is not None:
            tau = tau * self._column(self._live)  # τ = 0 leaves a target bit-identical
        with torch.no_grad():
            for chosen in (names,) if names in self._units else tuple((one,) for one in names):
                self.kernels.track(
                    self._units[chosen].pairs, tau if len(chosen) == 1 else torch.cat([tau] * len(chosen))
                )

    def set_noise(self, name: str, values: Tensor, target_values: Tensor | None = None) -> None:
        """Set the noise of noisy layers: [N, S] for the evaluation network and its target, S of the widest member.

        Members with fewer numbers use the first ones.
        """
        unit = self._units[(name,)]
        positions = self._noise_positions.get(name)
        if positions is None:
            all_positions = unit.cohort.noise_positions(tuple(unit.columns.values()))
            positions = self._noise_positions[name] = all_positions[unit.rows]
        below = len(unit.cohort.members)
        self._set_noise(unit.cohort.noise[unit.rows], positions, values)
        if target_values is not None:
            at = slice(below + unit.rows.start, below + unit.rows.stop)
            self._set_noise(unit.cohort.noise[at], positions, target_values)

    def _set_noise(self, rows: Tensor, positions: Tensor, values: Tensor) -> None:
        if self._live is not None:
            values = torch.where(self._column(self._live) > 0, values, rows.gather(1, positions))
        rows.scatter_(1, positions, values)

    def _column(self, live: Sequence[bool]) -> Tensor:
        """Return [N, 1]: 1 for members that are live, else 0."""
        return torch.tensor(live, dtype=self.dtype, device=self.device).unsqueeze(1)

    # --- tensors of the members ---------------------------------------------------------------------------------------

    def is_finite(self) -> np.ndarray:
        """Return [N] bool: members whose weights are finite, without targets (they follow, and affect the loss).

        Checks sums instead of entries: any NaN or infinity makes the sum of its row non-finite.
        """
        finite = np.ones(self.count, dtype=bool)
        for cohort in self.cohorts:
            if not math.isfinite(cohort.value.sum()):  # a single check in the common case
                finite &= cohort.value.sum(1).isfinite().view(-1, self.count).all(0).cpu().numpy()
        return finite

    def steps_taken(self) -> dict[str, float]:
        """Return the steps of each optimiser of the first member."""
        return {names[0]: float(step.columns.step[0]) for names, step in self._steps.items() if len(names) == 1}

    def write_steps(self) -> None:
        """Write the step counts into the torch optimisers' states."""
        for cohort in self.cohorts:
            cohort.write_steps()

    def release(self) -> None:
        """Give every member separate tensors again."""
        for cohort in self.cohorts:
            cohort.release()


def _each(programs: Mapping[str | tuple[str, ...], Network], names: tuple[str, ...]) -> Network:
    """Return dissimilar networks, run sequentially and stacked."""
    parts = [programs[name] for name in names]
    return lambda *inputs: torch.stack([run(*inputs) for run in parts])
