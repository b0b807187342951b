"""Runs an algorithm's update over the rows of a cohort: one pass trains every member."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agilerl.storage.cohort import Cohort
from agilerl.storage.kernels import LayerViews, Saved, mlp_backward, mlp_forward
from agilerl.storage.optim import RULES, clip_rows


class StackedNetwork:
    """One network of every member: called with [N, B, in], returns [N, B, out], differentiable."""

    def __init__(self, layers: list[LayerViews], grads: list[LayerViews]) -> None:
        self.layers = layers
        self.grads = grads
        # Joins the graph, so that autograd calls our backward although no parameter is an autograd leaf.
        self._anchor = torch.zeros((), dtype=layers[0].weight.dtype, device=layers[0].weight.device, requires_grad=True)

    def __call__(self, x: Tensor) -> Tensor:
        output: Tensor = _DenseFunction.apply(self._anchor, x, self)  # type: ignore[no-untyped-call]
        return output


class _DenseFunction(torch.autograd.Function):
    """Joins the closed-form kernels to autograd. Parameter gradients go straight into the gradient rows."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor, network: StackedNetwork) -> Tensor:
        output, saved = mlp_forward(network.layers, x, save=True)
        ctx.network, ctx.saved_layers = network, saved
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor | None, None]:
        network: StackedNetwork = ctx.network
        saved: list[Saved] = ctx.saved_layers
        (grad,) = grads
        return None, mlp_backward(network.layers, network.grads, saved, grad, ctx.needs_input_grad[1]), None


@dataclass(slots=True)
class RowsPass:
    """A forward pass whose gradient is still to come.

    Attributes:
        value: [N, B, out], a constant to autograd.
        network: the network that ran; saved: what its backward needs.
    """

    value: Tensor
    network: StackedNetwork
    saved: list[Saved]


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
        grads = {name: cohort.layers(name, cohort.grad) for name in names}
        self._value = {name: cohort.layers(name, cohort.value) for name in names}
        self._target = {name: cohort.layers(name, cohort.target) for name in names if cohort.has_target(name)}
        self._networks = {name: StackedNetwork(self._value[name], grads[name]) for name in names}
        self._columns = {o.name: cohort.columns(o.name) for o in cohort.members[0].optimizers}
        self._rules = {o.name: o.rule for o in cohort.members[0].optimizers}

    def set_hyperparameters(self, values: dict[str, list[float]]) -> None:
        """`values`: name -> one number per member."""
        dtype, device = self.cohort.dtype, self.cohort.device
        self.hp = {name: torch.tensor(v, dtype=dtype, device=device).unsqueeze(1) for name, v in values.items()}

    def network(self, name: str) -> Callable[[Tensor], Tensor]:
        """The evaluation network, differentiable."""
        return self._networks[name]

    def frozen(self, name: str) -> Callable[[Tensor], Tensor]:
        """The evaluation network as a constant."""
        return lambda x: mlp_forward(self._value[name], x, save=False)[0]

    def target(self, name: str) -> Callable[[Tensor], Tensor]:
        """The target network of `name`, as a constant."""
        return lambda x: mlp_forward(self._target[name], x, save=False)[0]

    def forward(self, name: str, x: Tensor) -> RowsPass:
        """One pass through the evaluation network for a loss that knows its own gradient; see `descend`."""
        network = self._networks[name]
        value, saved = mlp_forward(network.layers, x, save=True)
        return RowsPass(value, network, saved)

    def descend(self, optimizer: str, ran: RowsPass, grad: Tensor, max_norm: Tensor | None = None) -> None:
        """One optimiser step of every member, given the gradient [N, B, out] at the outputs of one pass."""
        self.cohort.grad.zero_()
        mlp_backward(ran.network.layers, ran.network.grads, ran.saved, grad, input_grad=False)
        self._move(optimizer, max_norm)

    def minimise(self, optimizer: str, loss: Tensor, max_norm: Tensor | None = None) -> None:
        """One optimiser step of every member on its own entry of `loss` [N]."""
        self.cohort.grad.zero_()
        loss.sum().backward()  # type: ignore[no-untyped-call]
        self._move(optimizer, max_norm)

    def _move(self, optimizer: str, max_norm: Tensor | None) -> None:
        columns, rule = self._columns[optimizer], self._rules[optimizer]
        with torch.no_grad():
            if max_norm is not None:
                clip_rows(columns.grad, max_norm)
            RULES[rule.kind].step(columns, self.hp[self._learning_rates[optimizer]], rule)

    def track(self, name: str, tau: Tensor) -> None:
        """Move the target network: θ⁻ ← τ·θ + (1 − τ)·θ⁻ (Lillicrap et al. 2016, arXiv:1509.02971, algorithm 1)."""
        span = self.cohort.span(name)
        with torch.no_grad():
            self.cohort.target[:, span].lerp_(self.cohort.value[:, span], tau)
