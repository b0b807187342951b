"""Flat optimiser rules against torch.optim, in float64, with a learning rate and a step count per member."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from agilerl.engine.rows.kernels import RULES, Columns, clip_rows, rule_of

CASES = [
    ("Adam", {}),
    ("Adam", {"betas": (0.8, 0.99), "eps": 1e-5, "weight_decay": 0.1}),
    ("AdamW", {"weight_decay": 0.05}),
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "weight_decay": 0.01}),
    ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("RMSprop", {}),
    ("RMSprop", {"momentum": 0.5, "alpha": 0.9, "weight_decay": 0.01}),
]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_rows_move_as_torch_optimisers_do(name: str, options: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(3, 17, dtype=torch.float64, generator=generator)
    rates = [1e-3, 3e-2, 0.2]
    rows = [torch.nn.Parameter(v.clone()) for v in value]
    own = [getattr(torch.optim, name)([p], lr=lr, **options) for p, lr in zip(rows, rates, strict=True)]
    rule = rule_of(own[0])
    assert rule is not None
    columns = Columns(*(torch.zeros_like(value) for _ in range(4)), step=torch.zeros(3, 1, dtype=torch.float64))
    columns.value.copy_(value)
    lr = torch.tensor(rates, dtype=torch.float64).unsqueeze(1)
    for _ in range(120):
        grad = torch.randn(3, 17, dtype=torch.float64, generator=generator)
        columns.grad.copy_(grad)
        RULES[name].step(columns, lr, rule)
        for parameter, optimizer, g in zip(rows, own, grad, strict=True):
            parameter.grad = g.clone()
            optimizer.step()
    torch.testing.assert_close(columns.value, torch.stack([p.detach() for p in rows]), rtol=1e-12, atol=1e-12)
    assert columns.step.flatten().tolist() == [120, 120, 120]


@pytest.mark.parametrize(
    ("name", "options"),
    [("Adam", {"amsgrad": True}), ("SGD", {"momentum": 0.9, "dampening": 0.1}), ("RMSprop", {"centered": True})],
)
def test_what_a_flat_rule_does_not_do_is_not_offered(name: str, options: dict[str, Any]) -> None:
    optimizer = getattr(torch.optim, name)([torch.nn.Parameter(torch.zeros(2))], lr=0.1, **options)
    assert rule_of(optimizer) is None


def test_rows_are_clipped_each_to_its_own_norm() -> None:
    grad = torch.tensor([[3.0, 4.0], [0.3, 0.4]], dtype=torch.float64)
    clip_rows(grad, torch.tensor([[1.0], [1.0]], dtype=torch.float64))
    torch.testing.assert_close(grad[0], torch.tensor([0.6, 0.8], dtype=torch.float64), rtol=1e-6, atol=0)
    assert grad[1].tolist() == [0.3, 0.4]
