"""Decomposition of networks into dense stacks, so that a population of them can run as stacked rows.

In a recurrent network the input products of a whole sequence are one product; those of the hidden state are computed
step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from agilerl.modules.base import EvolvableModule, is_untouched
from agilerl.modules.layers import DenseLayer, DenseStack
from agilerl.modules.lstm import EvolvableLSTM, HiddenState, gru_gates, lstm_gates, unroll

Run = Callable[[Tensor], Tensor]
OUTPUT = "output"  # part after the recurrent layers: the encoder's output layer, and the head
FEATURES = "features"  # only the encoder's output layer, in a network with several heads


def dense_stacks(network: EvolvableModule, parts: Mapping[str, Any]) -> dict[str, DenseStack] | None:
    """Return the dense stack of each part of `network`, by name, in order; a part is a module or already a stack.

    None if the parts contain more than dense layers, the network has hooks, or the parts together do not contain its
    parameters exactly once, of one dtype and on one device.
    """
    if not is_untouched(network):
        return None
    stacks: dict[str, DenseStack] = {}
    for name, part in parts.items():
        stack = part if part is None or isinstance(part, DenseStack) else part.dense_stack()
        if stack is None:
            return None
        stacks[name] = stack
    parameters = [p for stack in stacks.values() for layer in stack.parameters for p in layer]
    ids = {id(p) for p in parameters}
    if len(ids) != len(parameters) or ids != {id(p) for p in network.parameters()}:
        return None
    return stacks if len({(p.dtype, p.device, p.requires_grad) for p in parameters}) == 1 else None


def overrides(network: EvolvableModule, base: type, *names: str) -> bool:
    """Whether the network's class overrides one of the methods that `base` runs over rows."""
    return any(getattr(type(network), name) is not getattr(base, name) for name in names)


def joined(stacks: Mapping[str, DenseStack] | None) -> DenseStack | None:
    """Concatenate consecutive stacks to one; None for None."""
    if stacks is None:
        return None
    layers = tuple(layer for stack in stacks.values() for layer in stack.layers)
    parameters = tuple(p for stack in stacks.values() for p in stack.parameters)
    return DenseStack(layers, parameters, tuple(pair for stack in stacks.values() for pair in stack.buffers))


def recurrent_parts(network: Any, *heads: str) -> dict[str, DenseStack] | None:
    """Return the stacks of a recurrent network: `ih_k` and `hh_k` of each layer, then everything after them.

    The widths of the cells are in the stacks' ends, so that only members of equal hidden width share rows.

    heads: names of the heads of a network with several; they and the features below them are then separate parts."""
    encoder = network.encoder
    if overrides(encoder, EvolvableLSTM, "run", "embed") or not is_untouched(network):
        return None
    model, size = encoder.model, encoder.hidden_state_size
    parts: dict[str, Any] = {}
    for k in range(encoder.num_layers):
        layer = model.get_submodule(f"lstm_{k}")
        rows, columns = layer.weight_ih.shape
        parts[f"ih_{k}"] = _single(DenseLayer(columns, rows), layer.weight_ih, layer.bias_ih)
        parts[f"hh_{k}"] = _single(DenseLayer(size, rows), layer.weight_hh, layer.bias_hh, is_cell=True)
    output = model.get_submodule("linear_output")
    below = _single(DenseLayer(size, encoder.num_outputs, encoder.output_activation), output.weight, output.bias)
    if heads:
        parts |= {FEATURES: below, **{name: network.get_submodule(name) for name in heads}}
    else:
        head = network.head_net.dense_stack()
        parts[OUTPUT] = head and joined({"encoder": below, "head": head})
    return dense_stacks(network, parts)


def _single(layer: DenseLayer, weight: Any, bias: Any, is_cell: bool = False) -> DenseStack:
    return DenseStack((layer,), ((weight, bias),), is_cell=is_cell)


def module_parts(network: Any) -> dict[str, Run]:
    """Return functions that run each part with the network's own modules."""
    encoder = network.encoder
    parts: dict[str, Run] = {OUTPUT: lambda x: network.head_net(encoder.finish(x)), FEATURES: encoder.finish}
    for k in range(encoder.num_layers):
        layer = encoder.model.get_submodule(f"lstm_{k}")
        parts[f"ih_{k}"] = lambda x, cell=layer: torch.nn.functional.linear(x, cell.weight_ih, cell.bias_ih)  # type: ignore[misc]
        parts[f"hh_{k}"] = lambda x, cell=layer: torch.nn.functional.linear(x, cell.weight_hh, cell.bias_hh)  # type: ignore[misc]
    first = parts["ih_0"]
    return {**parts, "ih_0": lambda x: first(encoder.embed(x))}


def run_recurrent(
    encoder: EvolvableLSTM, parts: Mapping[str, Run], x: Tensor, hidden: Mapping[str, Tensor]
) -> tuple[Tensor, HiddenState]:
    """Return outputs [..., S·L, out] of S sequences of L steps, and hidden states after them, shaped like `hidden`.

    Args:
        parts: functions of the parts.
        x: [..., S·L, I], sequence by sequence.
        hidden: "<name>_h" (and "<name>_c" for an LSTM) -> [..., layers, S, H] before the first steps.
    """
    is_lstm = encoder.cell == "LSTM"
    state: dict[str, list[Tensor]] = {key: [] for key in encoder.hidden_state_architecture}
    for k in range(encoder.num_layers):
        of_hidden = parts[f"hh_{k}"]

        def advance(gates: Tensor, h: Tensor, c: Any, of_hidden: Run = of_hidden) -> tuple[Tensor, Any]:
            return lstm_gates(gates + of_hidden(h), c) if is_lstm else (gru_gates(gates, of_hidden(h), h), None)

        start = [hidden[key].select(-3, k) for key in state]
        sequences = start[0].shape[-2]
        products = parts[f"ih_{k}"](x)
        length = products.shape[-2] // sequences
        steps = products.view(*products.shape[:-2], sequences, length, -1).unbind(-2)
        outputs, *cells = unroll(steps, advance, *start)
        for states, after in zip(state.values(), (outputs[-1], *cells), strict=False):
            states.append(after)
        x = outputs[0] if length == 1 else torch.stack(outputs, -2).flatten(-3, -2)
    return parts[OUTPUT](x), {key: torch.stack(states, -3) for key, states in state.items()}
