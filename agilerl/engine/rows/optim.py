"""Optimiser steps over flat rows: one call moves every parameter of every member.

Each rule repeats the arithmetic of its `torch.optim` namesake, with learning rate and step count per member, so that
a row and a plain torch optimiser agree to rounding (`tests/differential/test_flat_optimisers.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class OptimizerRule:
    """How one optimiser moves its columns.

    Attributes:
        kind: key of `RULES`.
        options: hashable (name, value) pairs of the options that the rule reads.
    """

    kind: str
    options: tuple[tuple[str, Any], ...]


Batch = tuple[float, tuple[tuple[Tensor, ...], ...]]


@dataclass(slots=True)
class Columns:
    """The rows' columns that belong to one optimiser; every tensor is a view.

    Attributes:
        value, grad: [N, C] parameters and gradients.
        first, second: [N, C] first and second moments (momentum buffer and square average for SGD and RMSprop).
        step: [N, 1] float64, optimiser steps taken by each member.
        rows: per member its [C] row of each of the first four and its [1] step count.
        batches: (the rates they are for, (rate, the rows of its members) per learning rate); see `_adam_cpu`.
    """

    value: Tensor
    grad: Tensor
    first: Tensor
    second: Tensor
    step: Tensor
    rows: list[tuple[Tensor, ...]] = field(init=False)
    batches: tuple[Tensor, list[Batch]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        each = (self.value, self.grad, self.first, self.second, self.step)
        self.rows = list(zip(*(x.unbind() for x in each), strict=True))


def step_live(columns: Columns, lr: Tensor, rule: OptimizerRule, live: Sequence[bool] | None = None) -> None:
    """One step of the rule for the members that are `live` [N] (all of them for None); the others do not move at all.

    A gradient of zero would not do: momentum goes on moving the parameters.
    """
    if live is None or all(live):
        RULES[rule.kind].step(columns, lr, rule)
        return
    if not any(live):
        return
    if columns.value.device.type == "cpu" and RULES[rule.kind].step is adam:
        rows = [row for row, goes in enumerate(live) if goes]
        columns.step[rows] += 1
        _adam_cpu(columns, lr, rule, live)
        return
    rest = [row for row, goes in enumerate(live) if not goes]
    moved = (columns.value, columns.first, columns.second, columns.step)
    before = [x[rest] for x in moved]  # an index makes copies
    RULES[rule.kind].step(columns, lr, rule)
    for x, kept in zip(moved, before, strict=True):
        x[rest] = kept


def adam(columns: Columns, lr: Tensor, rule: OptimizerRule) -> None:
    """Adam (Kingma and Ba 2015, arXiv:1412.6980, algorithm 1); `lr` [N, 1]. AdamW (arXiv:1711.05101) decays first."""
    columns.step.add_(1)
    if columns.value.device.type == "cpu":
        _adam_cpu(columns, lr, rule)
        return
    options = dict(rule.options)
    (beta1, beta2), decay, eps = options["betas"], options["weight_decay"], options["eps"]
    grad = columns.grad
    if decay:
        if rule.kind == "AdamW":
            columns.value.mul_(1 - lr * decay)
        else:
            grad = grad.add(columns.value, alpha=decay)
    columns.first.lerp_(grad, 1 - beta1)
    columns.second.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    step_size = (lr / (1 - beta1**columns.step)).to(lr.dtype)
    root = (1 - beta2**columns.step).rsqrt_().to(lr.dtype)
    denominator = columns.second.sqrt().mul_(root).add_(eps)
    columns.value.sub_((columns.first * step_size).div_(denominator))


def _adam_cpu(columns: Columns, lr: Tensor, rule: OptimizerRule, live: Sequence[bool] | None = None) -> None:
    """The same with torch's own kernel, one call for all members of one learning rate: a third of the time.

    Who has which rate is kept until another tensor of rates comes: their numbers are not looked at again.
    """
    fused, options = torch._fused_adamw_ if rule.kind == "AdamW" else torch._fused_adam_, dict(rule.options)
    if live is not None:
        batches = _by_rate(columns, lr, live)
    elif columns.batches is None or columns.batches[0] is not lr:
        batches = _by_rate(columns, lr, [True] * len(columns.rows))
        columns.batches = lr, batches
    else:
        batches = columns.batches[1]
    (beta1, beta2), decay, eps = options["betas"], options["weight_decay"], options["eps"]
    for rate, (value, grad, first, second, step) in batches:
        numbers = {"lr": rate, "beta1": beta1, "beta2": beta2, "weight_decay": decay, "eps": eps}
        fused(value, grad, first, second, [], step, **numbers, amsgrad=False, maximize=False)


def _by_rate(columns: Columns, lr: Tensor, live: Sequence[bool]) -> list[Batch]:
    """(learning rate, rows of the live members that have it: their values, gradients, moments, step counts)."""
    found: dict[float, list[tuple[Tensor, ...]]] = {}
    for row, rate, goes in zip(columns.rows, lr.flatten().tolist(), live, strict=True):
        if goes:
            found.setdefault(rate, []).append(row)
    return [(rate, tuple(zip(*rows, strict=True))) for rate, rows in found.items()]


def sgd(columns: Columns, lr: Tensor, rule: OptimizerRule) -> None:
    """Gradient descent with momentum as in `torch.optim.SGD` (dampening 0): buf = mu·buf + g; p -= lr·buf."""
    options = dict(rule.options)
    momentum, decay = options["momentum"], options["weight_decay"]
    grad = columns.grad.add(columns.value, alpha=decay) if decay else columns.grad
    columns.step.add_(1)
    if momentum:
        columns.first.mul_(momentum).add_(grad)
        grad = grad.add(columns.first, alpha=momentum) if options["nesterov"] else columns.first
    columns.value.sub_(grad * lr)


def rmsprop(columns: Columns, lr: Tensor, rule: OptimizerRule) -> None:
    """RMSprop (Hinton 2012, lecture 6e) as in `torch.optim.RMSprop` without centring; momentum is allowed."""
    options = dict(rule.options)
    alpha, eps, momentum, decay = (options[name] for name in ("alpha", "eps", "momentum", "weight_decay"))
    grad = columns.grad.add(columns.value, alpha=decay) if decay else columns.grad
    columns.step.add_(1)
    columns.second.mul_(alpha).addcmul_(grad, grad, value=1 - alpha)
    moved = grad / columns.second.sqrt().add_(eps)
    if momentum:
        moved = columns.first.mul_(momentum).add_(moved)
    columns.value.sub_(moved * lr)


@dataclass(frozen=True)
class _Kind:
    step: Callable[[Columns, Tensor, OptimizerRule], None]
    options: tuple[str, ...]
    moments: tuple[str | None, str | None]  # names of (first, second) in the torch optimiser's state
    refused: Mapping[str, Any]  # option values that the flat rule has no arithmetic for


RULES: dict[str, _Kind] = {
    "Adam": _Kind(
        adam, ("betas", "eps", "weight_decay"), ("exp_avg", "exp_avg_sq"), {"amsgrad": True, "maximize": True}
    ),
    "AdamW": _Kind(
        adam, ("betas", "eps", "weight_decay"), ("exp_avg", "exp_avg_sq"), {"amsgrad": True, "maximize": True}
    ),
    "SGD": _Kind(sgd, ("momentum", "weight_decay", "nesterov"), ("momentum_buffer", None), {"maximize": True}),
    "RMSprop": _Kind(
        rmsprop,
        ("alpha", "eps", "weight_decay", "momentum"),
        ("momentum_buffer", "square_avg"),
        {"centered": True, "maximize": True},
    ),
}


def rule_of(optimizer: torch.optim.Optimizer) -> OptimizerRule | None:
    """The flat rule that does what `optimizer` does, or None: then the optimiser itself must run."""
    cls = type(optimizer)
    kind = RULES.get(cls.__name__)
    if kind is None or cls is not getattr(torch.optim, cls.__name__):
        return None
    group = optimizer.param_groups[0]
    if any(group.get(name) == value for name, value in kind.refused.items()) or group.get("dampening"):
        return None
    options = tuple((name, group[name]) for name in kind.options)
    same = all(tuple((name, g[name]) for name in kind.options) == options for g in optimizer.param_groups)
    return OptimizerRule(cls.__name__, options) if same else None


def clip_rows(grad: Tensor, max_norm: Tensor) -> None:
    """Scale each member's gradient row [N, C] in place so that its 2-norm is at most `max_norm` [N, 1].

    Pascanu et al. 2013, arXiv:1211.5063, algorithm 1, with the 1e-6 of `torch.nn.utils.clip_grad_norm_`.
    """
    norm = torch.linalg.vector_norm(grad, dim=1, keepdim=True)
    grad.mul_((max_norm / (norm + 1e-6)).clamp_(max=1))


def track_rows(pairs: Sequence[tuple[Tensor, Tensor]], share: Tensor) -> None:
    """θ⁻ ← τ·θ + (1 − τ)·θ⁻ in place (Lillicrap et al. 2016, arXiv:1509.02971, algorithm 1).

    Args:
        pairs: (targets, values), views [N, C] of rows. share: τ, [N, 1] or a scalar.
    """
    for target, value in pairs:
        target.lerp_(value, share)
