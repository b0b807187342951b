"""Runs an algorithm's update over the rows of a cohort: one pass trains every member."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agilerl.modules.spec import DenseStack
from agilerl.storage.cohort import Cohort
from agilerl.storage.kernels import Saved, mlp_backward, mlp_forward
from agilerl.storage.optim import RULES, clip_rows

Network = Callable[..., Tensor]
WHOLE = ""  # the part of a network that is one stack


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

    Attributes:
        value: [N, B, out], a constant to autograd.
        network: name of the part that ran (of the network, where that is one stack).
        saved: what its backward needs.
    """

    value: Tensor
    network: str
    saved: list[Saved]


class _DenseFunction(torch.autograd.Function):
    """Joins the closed-form kernels to autograd. Parameter gradients go straight into the gradient rows."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, x: Tensor, engine: RowsEngine, part: str, parameters: bool) -> Tensor:
        ctx.engine, ctx.ran, ctx.parameters = engine, engine.forward(part, x), parameters
        output: Tensor = ctx.ran.value
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor | None, None, None, None]:
        of_input = ctx.engine.backward(ctx.ran, grads[0], parameters=ctx.parameters, inputs=ctx.needs_input_grad[1])
        return None, of_input, None, None, None


class RowsEngine:
    """An `UpdateEngine` over a cohort: networks, targets, optimisers and hyperparameters of all its members.

    Attributes:
        hp: name -> [N, 1] tensor, refreshed by `set_hyperparameters`.
    """

    def __init__(self, cohort: Cohort, learning_rates: dict[str, str], networks: Mapping[str, Any]) -> None:
        """Bind the engine to a cohort.

        Args:
            cohort: of the members.
            learning_rates: optimiser name -> name of the hyperparameter that is its learning rate.
            networks: evaluation networks of one member, which says how parts combine.
        """
        self.cohort = cohort
        self.hp: Mapping[str, Tensor] = {}
        self._learning_rates = learning_rates
        self._networks = dict(networks)
        self._parts = {name: tuple(dense_parts(network) or ()) for name, network in networks.items()}
        names = [n.name for n in cohort.members[0].networks]
        self._value = {name: cohort.layers(name, cohort.value) for name in names}
        shadowed = [name for name in names if cohort.has_target(name)]
        self._target = {name: cohort.layers(name, cohort.target) for name in shadowed}
        both = cohort.value_and_target
        self._both = {} if both is None else {name: cohort.layers(name, both) for name in shadowed}
        self._spans = {name: (cohort.target[:, s], cohort.value[:, s]) for name in names for s in (cohort.span(name),)}
        self._grad = {name: cohort.grad[:, cohort.span(name)] for name in names}
        self._noise_positions: dict[str, Tensor] = {}
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

    def _program(self, name: str, run: Callable[[str], Network]) -> Network:
        """A network as a function of its inputs, given what runs one part."""
        parts = self._parts[name]
        if parts == (WHOLE,):
            return run(name)
        functions = {part: run(column_name(name, part)) for part in parts}
        combine = self._networks[name].combine
        return lambda *inputs: combine(functions, *inputs)

    def network(self, name: str) -> Network:
        """The evaluation network, differentiable in its parameters and inputs."""
        return self._program(name, lambda part: self._differentiable(part, True))

    def through(self, name: str) -> Network:
        """The evaluation network with its parameters as constants: differentiable in its inputs alone."""
        return self._program(name, lambda part: self._differentiable(part, False))

    def _differentiable(self, part: str, parameters: bool) -> Network:
        def run(x: Tensor) -> Tensor:
            output: Tensor = _DenseFunction.apply(self._anchor, x, self, part, parameters)  # type: ignore[no-untyped-call]
            return output

        return run

    def frozen(self, name: str, noisy: bool = True) -> Network:
        """The evaluation network as a constant; without the noise of noisy layers if not `noisy`."""
        return self._program(name, lambda part: lambda x: mlp_forward(self._value[part], x, False, noisy)[0])

    def target(self, name: str) -> Network:
        """The target network of `name`, as a constant."""
        return self._program(name, lambda part: lambda x: mlp_forward(self._target[part], x, save=False)[0])

    def frozen_and_target(self, name: str) -> Callable[..., tuple[Tensor, Tensor]]:
        """Both, as one pass of twice as many members where their rows lie together."""
        if not self._both:
            value, target = self.frozen(name), self.target(name)
            return lambda *inputs: (value(*inputs), target(*inputs))
        program = self._program(name, lambda part: lambda x: mlp_forward(self._both[part], x, save=False)[0])
        count = len(self.cohort.members)

        def run(*inputs: Tensor) -> tuple[Tensor, Tensor]:
            output = program(*(torch.cat((x, x)) for x in inputs))
            return output[:count], output[count:]

        return run

    def forward(self, name: str, x: Tensor) -> RowsPass:
        """One pass through the evaluation network for a loss that knows its own gradient; see `descend`."""
        value, saved = mlp_forward(self._value[name], x, save=True)
        return RowsPass(value, name, saved)

    def backward(self, ran: RowsPass, grad: Tensor, *, parameters: bool = True, inputs: bool = False) -> Tensor | None:
        """Add the gradients of a pass's parameters, given [N, B, out] at its outputs; that of its input if wanted."""
        layers = self._value[ran.network]
        parts, of_input = mlp_backward(layers, ran.saved, grad, parameters=parameters, inputs=inputs)
        if not parameters:
            return of_input
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
        with torch.no_grad():
            for part in self._parts[name]:
                target, value = self._spans[column_name(name, part)]
                target.lerp_(value, tau)

    def set_noise(self, name: str, values: Tensor, target_values: Tensor | None = None) -> None:
        """The noise of noisy layers: [N, S] for the evaluation network and for its target, S of the widest member.

        A member with fewer numbers than the widest has them first.
        """
        if name not in self._noise_positions:
            parts = [column_name(name, part) for part in self._parts[name]]
            self._noise_positions[name] = self.cohort.noise_positions(parts)
        positions, count = self._noise_positions[name], len(self.cohort.members)
        self.cohort.noise[:count].scatter_(1, positions, values)
        if target_values is not None:
            self.cohort.noise[count:].scatter_(1, positions, target_values)
