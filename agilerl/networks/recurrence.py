"""A network with a recurrent encoder from its dense parts, so that a population of them runs as rows.

The products of all inputs of a sequence are one product; those of the hidden state are one for each step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from agilerl.modules.base import is_untouched
from agilerl.modules.cells import gru_gates, lstm_gates
from agilerl.modules.lstm import EvolvableLSTM, HiddenState
from agilerl.modules.spec import DenseLayer, DenseStack
from agilerl.networks.parts import dense_stacks, joined

Run = Callable[[Tensor], Tensor]
OUTPUT = "output"  # the part after the recurrent layers: the encoder's own output layer, and the head
FEATURES = "features"  # the encoder's own output layer alone, in a network with several heads


class _Fixed:
    """A stack as `dense_stacks` asks for it."""

    def __init__(self, stack: DenseStack | None) -> None:
        self._stack = stack

    def dense_stack(self) -> DenseStack | None:
        return self._stack


def recurrent_parts(network: Any, *heads: str) -> dict[str, DenseStack] | None:
    """The stacks of a recurrent network: `ih_k` and `hh_k` of each layer, then everything after them.

    The widths of the cells are in the stacks' ends, so that only members of equal hidden width share rows.

    Args:
        heads: names of the heads of a network with several: they and the features below them are parts then.
    """
    encoder = network.encoder
    if type(encoder).run is not EvolvableLSTM.run or not is_untouched(network):
        return None
    model, size = encoder.model, encoder.hidden_state_size
    found: dict[str, Any] = {}
    for k in range(encoder.num_layers):
        layer = model.get_submodule(f"lstm_{k}")
        rows, columns = layer.weight_ih.shape
        found[f"ih_{k}"] = _single(DenseLayer(columns, rows), layer.weight_ih, layer.bias_ih)
        found[f"hh_{k}"] = _single(DenseLayer(size, rows), layer.weight_hh, layer.bias_hh)
    output = model.get_submodule("linear_output")
    first = _single(DenseLayer(size, encoder.num_outputs, encoder.output_activation), output.weight, output.bias)
    if heads:
        found |= {FEATURES: first, **{name: network.get_submodule(name) for name in heads}}
    else:
        head = network.head_net.dense_stack()
        found[OUTPUT] = _Fixed(None if head is None else joined({"first": first.dense_stack(), "head": head}))
    return dense_stacks(network, found)


def _single(layer: DenseLayer, weight: Any, bias: Any) -> Any:
    return _Fixed(DenseStack((layer,), ((weight, bias),)))


def module_parts(network: Any) -> dict[str, Run]:
    """What runs each part with the network's own modules."""
    encoder = network.encoder
    found: dict[str, Run] = {OUTPUT: lambda x: network.head_net(encoder.finish(x)), FEATURES: encoder.finish}
    for k in range(encoder.num_layers):
        layer = encoder.model.get_submodule(f"lstm_{k}")
        found[f"ih_{k}"] = lambda x, own=layer: torch.nn.functional.linear(x, own.weight_ih, own.bias_ih)  # type: ignore[misc]
        found[f"hh_{k}"] = lambda x, own=layer: torch.nn.functional.linear(x, own.weight_hh, own.bias_hh)  # type: ignore[misc]
    return found


def run_recurrent(
    encoder: EvolvableLSTM, parts: Mapping[str, Run], x: Tensor, hidden: Mapping[str, Tensor]
) -> tuple[Tensor, HiddenState]:
    """Outputs of S sequences of L steps, and the hidden states after their last steps.

    Args:
        parts: what runs each part.
        x: [..., S·L, I], sequence by sequence.
        hidden: "<name>_h" (and "<name>_c" of an LSTM) -> [..., layers, S, H] before the first steps.

    Returns:
        ([..., S·L, out], hidden states in the shapes of `hidden`).
    """
    h = list(hidden[f"{encoder.name}_h"].unbind(-3))
    is_lstm = encoder.cell == "LSTM"
    c = list(hidden[f"{encoder.name}_c"].unbind(-3)) if is_lstm else []
    sequences = h[0].shape[-2]
    length = x.shape[-2] // sequences
    for k in range(encoder.num_layers):
        of_hidden, outputs = parts[f"hh_{k}"], []
        products = parts[f"ih_{k}"](x)
        for gates in products.view(*products.shape[:-2], sequences, length, -1).unbind(-2):
            if is_lstm:
                h[k], c[k] = lstm_gates(gates + of_hidden(h[k]), c[k])
            else:
                h[k] = gru_gates(gates, of_hidden(h[k]), h[k])
            outputs.append(h[k])
        x = outputs[0] if length == 1 else torch.stack(outputs, -2).flatten(-3, -2)
    state = {f"{encoder.name}_h": torch.stack(h, -3)}
    if is_lstm:
        state[f"{encoder.name}_c"] = torch.stack(c, -3)
    return parts[OUTPUT](x), state
