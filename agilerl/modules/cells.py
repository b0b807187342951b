"""Recurrent cells as functions of tensors, for one member or for a stack of members."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from agilerl.modules.layers import dense


class CellWeights(NamedTuple):
    """Weights of one recurrent layer, laid out as in `torch.nn.LSTM` and `torch.nn.GRU`.

    Attributes:
        input: [G·H, I] or [N, G·H, I]; hidden: [G·H, H] or [N, G·H, H]. G = 4 gates for an LSTM, 3 for a GRU.
        input_bias, hidden_bias: [G·H] or [N, G·H].
    """

    input: Tensor
    hidden: Tensor
    input_bias: Tensor
    hidden_bias: Tensor


def lstm_cell(x: Tensor, h: Tensor, c: Tensor, weights: CellWeights) -> tuple[Tensor, Tensor]:
    """One step of an LSTM (Hochreiter & Schmidhuber 1997; forget gate: Gers et al. 2000).

    i, f, g, o = W x + b + U h + d, in this order;  c' = σ(f)·c + σ(i)·tanh(g);  h' = σ(o)·tanh(c').

    Args:
        x: [B, I] or [N, B, I]; h, c: [B, H] or [N, B, H].

    Returns:
        (h', c'), shaped as h.
    """
    gates = dense(x, weights.input, weights.input_bias) + dense(h, weights.hidden, weights.hidden_bias)
    return lstm_gates(gates, c)


def lstm_gates(gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """(h', c') of an LSTM from the sum of both products, gates [..., 4H] in the order i, f, g, o, and c [..., H]."""
    result: tuple[Tensor, Tensor] = _LSTMGates.apply(gates, c)  # type: ignore[no-untyped-call]
    return result


class _LSTMGates(torch.autograd.Function):
    """The elementwise part of an LSTM step, with its derivative in closed form: a third of autograd's calls."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        opened = torch.sigmoid(gates)
        i, f, _, o = opened.chunk(4, dim=-1)
        g = torch.tanh(gates.chunk(4, dim=-1)[2])
        new_c = torch.addcmul(f * c, i, g)
        squashed = torch.tanh(new_c)
        ctx.save_for_backward(opened, g, c, squashed)
        return o * squashed, new_c

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        of_h, of_c = grads
        opened, g, c, squashed = ctx.saved_tensors
        i, f, _, o = opened.chunk(4, dim=-1)
        of_c = torch.addcmul(of_c, of_h * o, 1 - squashed * squashed)
        into = torch.cat((of_c * g, of_c * c, of_c * i, of_h * squashed), -1)
        slope = opened - opened * opened
        slope.chunk(4, dim=-1)[2].copy_(1 - g * g)
        return into.mul_(slope), of_c * f


def gru_cell(x: Tensor, h: Tensor, weights: CellWeights) -> Tensor:
    """One step of a GRU (Cho et al. 2014, arXiv:1406.1078, with the reset gate after the product, as in cuDNN).

    r = σ(W_r x + b_r + U_r h + d_r);  z likewise;  n = tanh(W_n x + b_n + r·(U_n h + d_n));  h' = (1 − z)·n + z·h.

    Args:
        x: [B, I] or [N, B, I]; h: [B, H] or [N, B, H].

    Returns:
        h', shaped as h.
    """
    of_input = dense(x, weights.input, weights.input_bias)
    return gru_gates(of_input, dense(h, weights.hidden, weights.hidden_bias), h)


def gru_gates(of_input: Tensor, of_hidden: Tensor, h: Tensor) -> Tensor:
    """h' [..., H] of a GRU from both products [..., 3H], in the order r, z, n, and h."""
    r_x, z_x, n_x = of_input.chunk(3, dim=-1)
    r_h, z_h, n_h = of_hidden.chunk(3, dim=-1)
    z = torch.sigmoid(z_x + z_h)
    return (1 - z) * torch.tanh(n_x + torch.sigmoid(r_x + r_h) * n_h) + z * h


def unroll(
    steps: Iterable[Tensor], advance: Callable[[Tensor, Tensor, Any], tuple[Tensor, Any]], h: Tensor, c: Any = None
) -> tuple[list[Tensor], Any]:
    """(h after every step, c after the last one) of one layer.

    Args:
        steps: what `advance` takes of each step.
        advance: (step, h, c) -> (h', c'); c is None in a GRU.
    """
    found = []
    for step in steps:
        h, c = advance(step, h, c)
        found.append(h)
    return found, c


class Recurrence(nn.Module):
    """One recurrent layer, an LSTM (4 gates) or a GRU (3)."""

    def __init__(self, inputs: int, hidden: int, gates: int) -> None:
        super().__init__()
        self.weight_ih = nn.Parameter(torch.empty(gates * hidden, inputs))
        self.weight_hh = nn.Parameter(torch.empty(gates * hidden, hidden))
        self.bias_ih = nn.Parameter(torch.empty(gates * hidden))
        self.bias_hh = nn.Parameter(torch.empty(gates * hidden))

    def forward(self, x: Tensor, h: Tensor, c: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """One step, of an LSTM where there is a cell state c."""
        weights = CellWeights(self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        return lstm_cell(x, h, c, weights) if c is not None else (gru_cell(x, h, weights), None)
