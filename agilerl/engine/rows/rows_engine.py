"""Runs an algorithm's update over the rows of a cohort: one pass trains every member."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from agilerl.engine.rows.clusters import Cluster, clusters_of
from agilerl.engine.rows.cohort import Cohort, MemberBinding
from agilerl.engine.rows.kernels import mlp_backward, mlp_forward
from agilerl.engine.rows.optim import Columns, OptimizerRule, clip_rows, step_live
from agilerl.engine.rows.units import WHOLE, DenseFunction, Network, RowsPass, Unit, column_name, dense_parts

__all__ = ["RowsEngine", "column_name", "dense_parts"]


class RowsEngine:
    """An `UpdateEngine` over rows: networks, targets, optimisers and hyperparameters of several members.

    Networks that are alike in every member, each with an optimiser of its own of the same kind (twin critics), are rows
    of one cohort: `networks`, `targets` and `minimise` run all of them in one pass.

    Attributes:
        cohorts: the rows; K·N of them where K networks share a cohort, network by network.
        hp: name -> [N, 1] tensor, refreshed by `set_hyperparameters`.
    """

    def __init__(
        self, members: Sequence[MemberBinding], learning_rates: dict[str, str], networks: Mapping[str, Any]
    ) -> None:
        """Adopt the members.

        Args:
            members: of equal signature.
            learning_rates: optimiser name -> name of the hyperparameter that is its learning rate.
            networks: evaluation networks of one member, which says how parts combine.
        """
        self.count = len(members)
        self.hp: Mapping[str, Tensor] = {}
        self._learning_rates = learning_rates
        self.cohorts: list[Cohort] = []
        self._units: dict[tuple[str, ...], Unit] = {}
        self._steps: dict[tuple[str, ...], tuple[Columns, OptimizerRule, list[Unit]]] = {}
        for cluster in clusters_of(members):
            cohort = Cohort(cluster.bindings)
            self.cohorts.append(cohort)
            self._bind(cohort, cluster, networks)
        self._live: tuple[bool, ...] | None = None
        self._noise_positions: dict[str, Tensor] = {}
        self._pending: dict[tuple[tuple[str, ...], str], list[tuple[Tensor, Tensor]]] = {}
        self._written: set[tuple[str, str]] = (
            set()
        )  # (network, part) whose gradient holds something since the last step
        first = self.cohorts[0]
        self.dtype, self.device = first.dtype, first.device
        # Joins the graph, so that autograd calls our backward although no parameter is an autograd leaf.
        self._anchor = torch.zeros((), dtype=self.dtype, device=self.device, requires_grad=True)

    def _bind(self, cohort: Cohort, cluster: Cluster, networks: Mapping[str, Any]) -> None:
        lead = cohort.members[0].optimizers[0].name
        count, rungs = self.count, range(len(cluster.optimizers))
        for k in (*rungs, None):
            rows = slice(0, count * len(rungs)) if k is None else slice(k * count, (k + 1) * count)
            chosen = tuple(cluster.networks[i] for i in (rungs if k is None else (k,)))
            units = []
            for position, first in enumerate(cluster.networks[0]):
                names = tuple(own[position] for own in chosen)
                columns = {part: column_name(first, part) for part in dense_parts(networks[first]) or ()}
                if names not in self._units:
                    self._units[names] = Unit(cohort, rows, names, columns, networks[names[0]])
                units.append(self._units[names])
            optimizers = tuple(cluster.optimizers[i] for i in (rungs if k is None else (k,)))
            if optimizers not in self._steps:
                binding = next(o for o in cohort.members[rows.start].optimizers if o.name == lead)
                self._steps[optimizers] = (cohort.columns(lead, rows), binding.rule, units)

    def set_hyperparameters(self, values: dict[str, list[float]]) -> None:
        """`values`: name -> one number per member."""
        self.hp = {
            name: torch.tensor(v, dtype=self.dtype, device=self.device).unsqueeze(1) for name, v in values.items()
        }

    @contextmanager
    def only(self, live: Sequence[bool] | None) -> Iterator[None]:
        """Inside, optimisers, targets and noise move for the members that are `live` [N] alone; None: for all."""
        self._live = None if live is None else tuple(live)
        try:
            yield
        finally:
            self._live = None

    def network(self, name: str) -> Network:
        """The evaluation network, differentiable in its parameters and inputs."""
        unit = self._units[(name,)]
        return self._reading(unit, self._differentiable(unit, True))

    def through(self, name: str) -> Network:
        """The evaluation network with its parameters as constants: differentiable in its inputs alone."""
        unit = self._units[(name,)]
        return self._reading(unit, self._differentiable(unit, False))

    def _reading(self, unit: Unit, run: Network, target: bool = False) -> Network:
        """`run` as a function of observations, where the unit reads features of another network.

        With `target` those of that network's target, where it has one.
        """
        if unit.reads is None:
            return run
        name, depth = unit.reads
        lender = self._units[(name,)]
        layers = (lender.target if target and lender.target else lender.value)[WHOLE][:depth]
        return lambda obs, *rest: run(mlp_forward(layers, obs, save=False)[0], *rest)

    def _differentiable(self, unit: Unit, parameters: bool) -> Network:
        def of_part(part: str) -> Network:
            def run(x: Tensor) -> Tensor:
                output: Tensor = DenseFunction.apply(  # type: ignore[no-untyped-call]
                    self._anchor, x, self, unit, part, parameters
                )
                return output

            return run

        return unit.program(of_part)

    def frozen(self, name: str, noisy: bool = True) -> Network:
        """The evaluation network as a constant; without the noise of noisy layers if not `noisy`."""
        unit = self._units[(name,)]
        return self._reading(
            unit, unit.program(lambda part: lambda x: mlp_forward(unit.value[part], x, False, noisy)[0])
        )

    def target(self, name: str) -> Network:
        """The target network of `name`, as a constant."""
        unit = self._units[(name,)]
        return self._reading(unit, self._target(unit), target=True)

    def _target(self, unit: Unit) -> Network:
        return unit.program(lambda part: lambda x: mlp_forward(unit.target[part], x, save=False)[0])

    def frozen_and_target(self, name: str) -> Callable[..., tuple[Tensor, Tensor]]:
        """Both, as one pass of twice as many members where their rows lie together."""
        unit = self._units[(name,)]
        if not unit.both or unit.reads is not None:
            value, target = self.frozen(name), self.target(name)
            return lambda *inputs: (value(*inputs), target(*inputs))
        program = unit.program(lambda part: lambda x: mlp_forward(unit.both[part], x, save=False)[0])
        count = self.count

        def run(*inputs: Tensor) -> tuple[Tensor, Tensor]:
            output = program(*(torch.cat((x, x)) for x in inputs))
            return output[:count], output[count:]

        return run

    def networks(self, names: tuple[str, ...]) -> Network:
        """Several evaluation networks of the same inputs, differentiable: [K, N, B, out], in one pass if alike."""
        return self._ensemble(names, self.network, lambda unit: self._differentiable(unit, True))

    def targets(self, names: tuple[str, ...]) -> Network:
        """Their target networks, as constants: [K, N, B, out]."""
        return self._ensemble(names, self.target, self._target, target=True)

    def _ensemble(
        self,
        names: tuple[str, ...],
        single: Callable[[str], Network],
        joint: Callable[[Unit], Network],
        target: bool = False,
    ) -> Network:
        unit = self._units.get(names)
        if unit is None:
            each = [single(name) for name in names]
            return lambda *inputs: torch.stack([run(*inputs) for run in each])
        program = joint(unit)

        def run(*inputs: Tensor) -> Tensor:
            output = program(*(torch.cat([x] * len(names)) for x in inputs))
            return output.view(len(names), self.count, *output.shape[1:])

        return self._reading(unit, run, target)

    def forward(self, name: str, x: Tensor) -> tuple[Tensor, RowsPass]:
        """Outputs [N, B, out] of the evaluation network for a loss that knows its own gradient; see `descend`."""
        return self._units[(name,)].run(WHOLE, x)

    def backward(self, ran: RowsPass, grad: Tensor, *, parameters: bool = True, inputs: bool = False) -> Tensor | None:
        """Add the gradients of a pass's parameters, given [N, B, out] at its outputs; that of its input if wanted."""
        unit, part = ran.unit, ran.part
        if parameters and unit.is_stepped(part):
            layer, keep = unit.value[part][0], ran.saved[0]
            self._pending.setdefault((unit.names, part), []).append((keep.inputs, grad.mT))
            return torch.bmm(layer.weight.mT, grad.mT).mT if inputs else None
        blocks, of_input = mlp_backward(unit.value[part], ran.saved, grad, parameters=parameters, inputs=inputs)
        if not parameters:
            return of_input
        into, keys = unit.grad[part], {(name, part) for name in unit.names}
        if keys & self._written:
            self._clear(unit, part)
            into.add_(torch.cat(blocks, 1))
        else:
            torch.cat(blocks, 1, out=into)
        self._written |= keys
        return of_input

    @torch.no_grad()
    def _finish(self) -> None:
        """Parameter gradients of the parts that ran many times in one pass: one product over all of their steps."""
        for (names, part), steps in self._pending.items():
            unit = self._units[names]
            inputs, grads = (torch.cat(x, 2) for x in zip(*steps, strict=True))
            torch.cat((torch.bmm(grads, inputs.mT).flatten(1), grads.sum(2)), 1, out=unit.grad[part])
            self._written |= {(name, part) for name in names}
        self._pending.clear()

    def _clear(self, unit: Unit, part: str) -> None:
        """Zero the gradients of those networks of a unit that nothing has reached since the last step."""
        for k, name in enumerate(unit.names):
            if (name, part) not in self._written:
                unit.grad[part][k * self.count : (k + 1) * self.count].zero_()

    def descend(self, optimizer: str, ran: RowsPass, grad: Tensor, max_norm: Tensor | None = None) -> None:
        """One optimiser step of every member, given the gradient [N, B, out] at the outputs of one pass."""
        self._written.clear()
        self.backward(ran, grad)
        self._move((optimizer,), max_norm)

    def descend_all(
        self,
        optimizer: str,
        outputs: Sequence[Tensor],
        grads: Sequence[Tensor],
        max_norm: Tensor | None = None,
        live: Sequence[bool] | None = None,
    ) -> None:
        """One optimiser step of the members that are live, given the gradients at outputs of `network`s."""
        self._written.clear()
        torch.autograd.backward(list(outputs), list(grads))
        self._finish()
        self._move((optimizer,), max_norm, live)

    def minimise(self, optimizer: str | tuple[str, ...], loss: Tensor, max_norm: Tensor | None = None) -> None:
        """One optimiser step of every member on its own entry of `loss` [N]; of several optimisers on [K, N]."""
        self._written.clear()
        loss.sum().backward()  # type: ignore[no-untyped-call]
        self._finish()
        names = (optimizer,) if isinstance(optimizer, str) else optimizer
        for step in (names,) if names in self._steps else tuple((name,) for name in names):
            self._move(step, max_norm)

    def _move(self, optimizers: tuple[str, ...], max_norm: Tensor | None, live: Sequence[bool] | None = None) -> None:
        columns, rule, units = self._steps[optimizers]
        for unit in units:
            for part in unit.columns:
                self._clear(unit, part)
        times = len(optimizers)
        rates = [self.hp[self._learning_rates[name]] for name in optimizers]
        with torch.no_grad():
            if max_norm is not None:
                limit = max_norm if max_norm.dim() == 0 or times == 1 else max_norm.repeat(times, 1)
                for unit in units:  # each network by itself
                    clip_rows(unit.all_grad, limit)
            if live is None and self._live is not None:
                live = self._live * times
            step_live(columns, rates[0] if times == 1 else torch.cat(rates), rule, live)

    def track(self, name: str | tuple[str, ...], tau: Tensor) -> None:
        """Move target networks: θ⁻ ← τ·θ + (1 − τ)·θ⁻ (Lillicrap et al. 2016, arXiv:1509.02971, algorithm 1)."""
        names = (name,) if isinstance(name, str) else name
        if self._live is not None:
            tau = tau * self._column(self._live)  # a share of 0 leaves a target as it is, to the bit
        with torch.no_grad():
            for chosen in (names,) if names in self._units else tuple((one,) for one in names):
                share = tau if len(chosen) == 1 else tau.repeat(len(chosen), 1)
                for target, value in self._units[chosen].pairs:
                    target.lerp_(value, share)

    def set_noise(self, name: str, values: Tensor, target_values: Tensor | None = None) -> None:
        """The noise of noisy layers: [N, S] for the evaluation network and for its target, S of the widest member.

        A member with fewer numbers than the widest has them first.
        """
        unit = self._units[(name,)]
        if name not in self._noise_positions:
            self._noise_positions[name] = unit.cohort.noise_positions(tuple(unit.columns.values()))[unit.rows]
        positions, below = self._noise_positions[name], len(unit.cohort.members)
        self._set_noise(unit.cohort.noise[unit.rows], positions, values)
        if target_values is not None:
            at = slice(below + unit.rows.start, below + unit.rows.stop)
            self._set_noise(unit.cohort.noise[at], positions, target_values)

    def _set_noise(self, rows: Tensor, positions: Tensor, values: Tensor) -> None:
        if self._live is not None:
            values = torch.where(self._column(self._live) > 0, values, rows.gather(1, positions))
        rows.scatter_(1, positions, values)

    def _column(self, live: Sequence[bool]) -> Tensor:
        """[N, 1]: 1 for members that are live."""
        return torch.tensor(live, dtype=self.dtype, device=self.device).unsqueeze(1)

    def steps_taken(self) -> dict[str, float]:
        """Steps of each optimiser of the first member."""
        return {names[0]: float(step[0].step[0]) for names, step in self._steps.items() if len(names) == 1}

    def write_steps(self) -> None:
        """Write the step counts into the torch optimisers' states."""
        for cohort in self.cohorts:
            cohort.write_steps()

    def release(self) -> None:
        """Give every member tensors of its own again."""
        for cohort in self.cohorts:
            cohort.release()
