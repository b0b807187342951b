"""Runs an algorithm's update over the rows of a cohort: one pass trains every member."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agilerl.storage.cohort import Cohort
from agilerl.storage.kernels import Saved, mlp_backward, mlp_forward
from agilerl.storage.optim import RULES, clip_rows


@dataclass(slots=True)
class RowsPass:
    """A forward pass whose gradient is still to come.

    Attributes:
        value: [N, B, out], a constant to autograd.
        network: name of the network that ran.
        saved: what its backward needs.
    """

    value: Tensor
    network: str
    saved: list[Saved]


class _DenseFunction(torch.autograd.Function):
    """Joins the closed-form kernels to autograd. Parameter gradients go straight into the gradient rows."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor, engine: RowsEngine, network: str) -> Tensor:
        ctx.engine, ctx.ran = engine, engine.forward(network, x)
        output: Tensor = ctx.ran.value
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor | None, None, None]:
        return None, ctx.engine.backward(ctx.ran, grads[0], inputs=ctx.needs_input_grad[1]), None, None


class RowsEngine:
    """An `UpdateEngine` over a cohort: networks, targets, optimisers and hyperparameters of all its members.

    Attributes:
        hp: name -> [N, 1] tensor, refreshed by `set_hyperparameters`.
    """

    def __init__(self, cohort: Cohort, learning_rates: dict[str, str]) -> None:
        """`learning_rates`: optimiser name -> name of the hyperparameter that is its learning rate."""
        self.cohort = cohort
        self.hp: Mapping[str, Tensor] = {}
        self._learning_rates = learning_rates
        names = [n.name for n in cohort.members[0].networks]
        self._value = {name: cohort.layers(name, cohort.value) for name in names}
        self._target = {name: cohort.layers(name, cohort.target) for name in names if cohort.has_target(name)}
        self._grad = {name: cohort.grad[:, cohort.span(name)] for name in names}
        self._written: set[str] = set()  # networks whose gradient columns hold something since the last step
        self._networks_of = {o.name: o.networks for o in cohort.members[0].optimizers}
        self._columns = {o.name: cohort.columns(o.name) for o in cohort.members[0].optimizers}
        self._rules = {o.name: o.rule for o in cohort.members[0].optimizers}
        # Joins the graph, so that autograd calls our backward although no parameter is an autograd leaf.
        self._anchor = torch.zeros((), dtype=cohort.dtype, device=cohort.device, requires_grad=True)

    def set_hyperparameters(self, values: dict[str, list[float]]) -> None:
        """`values`: name -> one number per member."""
        dtype, device = self.cohort.dtype, self.cohort.device
        self.hp = {name: torch.tensor(v, dtype=dtype, device=device).unsqueeze(1) for name, v in values.items()}

    def network(self, name: str) -> Callable[[Tensor], Tensor]:
        """The evaluation network, differentiable."""

        def run(x: Tensor) -> Tensor:
            output: Tensor = _DenseFunction.apply(self._anchor, x, self, name)  # type: ignore[no-untyped-call]
            return output

        return run

    def frozen(self, name: str) -> Callable[[Tensor], Tensor]:
        """The evaluation network as a constant."""
        return lambda x: mlp_forward(self._value[name], x, save=False)[0]

    def target(self, name: str) -> Callable[[Tensor], Tensor]:
        """The target network of `name`, as a constant."""
        return lambda x: mlp_forward(self._target[name], x, save=False)[0]

    def forward(self, name: str, x: Tensor) -> RowsPass:
        """One pass through the evaluation network for a loss that knows its own gradient; see `descend`."""
        value, saved = mlp_forward(self._value[name], x, save=True)
        return RowsPass(value, name, saved)

    def backward(self, ran: RowsPass, grad: Tensor, *, inputs: bool = False) -> Tensor | None:
        """Add the gradients of a pass's parameters, given [N, B, out] at its outputs; that of its input if wanted."""
        parts, of_input = mlp_backward(self._value[ran.network], ran.saved, grad, inputs=inputs)
        into = self._grad[ran.network]
        if ran.network in self._written:
            into.add_(torch.cat(parts, 1))
        else:
            torch.cat(parts, 1, out=into)
            self._written.add(ran.network)
        return of_input

    def descend(self, optimizer: str, ran: RowsPass, grad: Tensor, max_norm: Tensor | None = None) -> None:
        """One optimiser step of every member, given the gradient [N, B, out] at the outputs of one pass."""
        self._written.clear()
        self.backward(ran, grad)
        self._move(optimizer, max_norm)

    def minimise(self, optimizer: str, loss: Tensor, max_norm: Tensor | None = None) -> None:
        """One optimiser step of every member on its own entry of `loss` [N]."""
        self._written.clear()
        loss.sum().backward()  # type: ignore[no-untyped-call]
        self._move(optimizer, max_norm)

    def _move(self, optimizer: str, max_norm: Tensor | None) -> None:
        columns, rule = self._columns[optimizer], self._rules[optimizer]
        for name in self._networks_of[optimizer]:
            if name not in self._written:  # the loss did not reach it
                self._grad[name].zero_()
        with torch.no_grad():
            if max_norm is not None:
                clip_rows(columns.grad, max_norm)
            RULES[rule.kind].step(columns, self.hp[self._learning_rates[optimizer]], rule)

    def track(self, name: str, tau: Tensor) -> None:
        """Move the target network: θ⁻ ← τ·θ + (1 − τ)·θ⁻ (Lillicrap et al. 2016, arXiv:1509.02971, algorithm 1)."""
        span = self.cohort.span(name)
        with torch.no_grad():
            self.cohort.target[:, span].lerp_(self.cohort.value[:, span], tau)
